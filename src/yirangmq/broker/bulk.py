"""Bulk operations on a queue, a page per commit: redrive or abandon failed messages, clear, apply a policy.

A page has ``PER_PAGE`` messages at most, so other requests wait for no more than that. The numbers of the messages are
listed first (8 bytes each); each page checks that they are still in the expected state.

A new policy builds or removes the index of unique payloads, and recomputes the due times of draft, claimed and leased
messages if its timeouts changed. ``adopt_defaults`` does the latter after a change of the server's default timeouts; it
must finish before the first sweep. Calls block until their pages are durable."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from yirangmq.broker import expiry_sweeper, policies
from yirangmq.broker.changes import apply_changes, apply_durations
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.quota import check_new_queues
from yirangmq.broker.two_step import HTTP_QUEUE_POLICY, ClaimOperations, note_of
from yirangmq.broker.unique_payloads import COMPARED
from yirangmq.core import transitions
from yirangmq.core.message import Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.format.json_codec import loads

Answer = TypeVar("Answer")
PER_PAGE = 500
"""Messages that one transaction of a bulk operation changes."""
FAILED = (State.DEAD, State.PARKED)
TAKEN_LAST = (State.CLAIMED, State.LEASED)
CLEARED = (*(state for state in State if state not in TAKEN_LAST), *TAKEN_LAST)
"""States in the order of clearing. Claimed and leased messages go last: while they exist, messages that are about to
be cleared are not leased in their place."""


class PageCommitter(Protocol):
    """Runs a page of work in a commit: ``broker.queues.Queues``."""

    def run(self, work: Callable[[Transaction], Answer]) -> Answer: ...

    def read(self, work: Callable[[Transaction], Answer]) -> Answer: ...


class PolicyChange(NamedTuple):
    """A policy before and after a change; ``before`` is None if it could not be read."""

    before: QueuePolicy | None
    after: QueuePolicy


class BulkOperations:
    """Bulk operations on queues, in pages of ``PER_PAGE`` messages, each in a commit. Calls block."""

    def __init__(self, committer: PageCommitter, context: TransactionContext) -> None:
        self._committer = committer
        self._context = context
        self._clock = context.clock
        self._orders = ClaimOperations(context)

    # -- failed messages ------------------------------------------------------------------------------------------

    def redrive_failed(self, queue: str) -> int:
        """Redrive all messages that are dead when the call starts, in order of first arrival; return their number.

        Parked messages are redriven by id only."""
        return self._each_failed(queue, self._renew)

    def drop_failed(self, queue: str) -> int:
        """Drop all messages that are dead when the call starts; return their number."""
        return self._each_failed(queue, self._abandon)

    def _each_failed(self, queue: str, move: Callable[[Transaction, Sequence[Message], int], None]) -> int:
        seqs = array("q", sorted(self._seqs(queue, State.DEAD)))
        total = 0
        for begin in range(0, len(seqs), PER_PAGE):
            page = seqs[begin : begin + PER_PAGE].tolist()
            total += self._committer.run(partial(self._move_dead, seqs=page, move=move))
        return total

    def _seqs(self, queue: str, state: State) -> Iterator[int]:
        """Yield the message numbers of a state: 8 bytes each, independent of the message size."""
        cursor, is_first = "", True
        while cursor or is_first:
            page = self._committer.read(lambda transaction, at=cursor: transaction.scan(queue, state, PER_PAGE, at))  # type: ignore[misc]
            yield from (message.seq for message in page.messages)
            cursor, is_first = page.cursor, False

    def _move_dead(
        self, transaction: Transaction, seqs: list[int], move: Callable[[Transaction, Sequence[Message], int], None]
    ) -> int:
        """Move the messages that are still dead; others may have changed them since they were listed."""
        found = [row for row in transaction.by_seq(seqs) if row is not None and row.state is State.DEAD]
        if found:
            move(transaction, found, self._clock.now_ms())
        return len(found)

    def _renew(self, transaction: Transaction, dead: Sequence[Message], now: int) -> None:
        place = transaction.places(len(dead))
        changes = [Change(row, transitions.redrive(row, now, place + n)) for n, row in enumerate(dead)]
        apply_changes(self._context, transaction, changes, now, partial(self._context.event_buffer.moved, State.READY))
        self._context.wake_queues.add(dead[0].queue)

    def _abandon(self, transaction: Transaction, dead: Sequence[Message], now: int) -> None:
        policy = transaction.policy(dead[0].queue)
        pairs = [(row, transitions.drop_by_id(row, policy, now)) for row in dead]
        changes = [Change(row, after) for row, after in pairs if after is not None]
        apply_changes(self._context, transaction, changes, now, partial(self._context.event_buffer.dropped, "asked"))

    # -- everything -----------------------------------------------------------------------------------------------

    def clear(self, queue: str) -> None:
        """Remove messages, counters and remembered ids; keep the policy."""
        for state in CLEARED:
            cursor, is_first = "", True
            while cursor or is_first:
                cursor, is_first = self._committer.run(partial(_forget, queue=queue, state=state, cursor=cursor)), False
        self._committer.run(lambda transaction: self._orders.clear(transaction, queue))

    # -- policies -------------------------------------------------------------------------------------------------

    def set_policy(self, queue: str, document: object) -> None:
        """Set a validated policy document; it also applies to the messages in the queue."""
        self._follow(queue, self._committer.run(lambda transaction: self._put(transaction, queue, document)))

    def configure(self, queue: str, namespace: str, member: str, value: object) -> None:
        """Set a member of the policy document; None removes it. A new queue first gets the policy document
        ``HTTP_QUEUE_POLICY`` of the HTTP queue. Raise ``BadPolicy`` if the value is invalid."""

        def edit(transaction: Transaction) -> PolicyChange:
            if value is not None:
                check_new_queues(transaction, [queue], self._context.defaults.max_queues)
            document = self._document(transaction, queue, namespace, value)
            if document.pop(member, None) is None and value is None:
                policy = transaction.policy(queue)
                return PolicyChange(policy, policy)
            if value is not None:
                document[member] = value
            policies.checked(document, queue, self._context.schemas, self._context.admission)
            return self._put(transaction, queue, document or None)

        self._follow(queue, self._committer.run(edit))

    def _document(self, transaction: Transaction, queue: str, namespace: str, value: object) -> dict[str, Any]:
        text = transaction.policy_text(queue)
        if text is None and value is not None and not any(transaction.counts(queue)):
            text = HTTP_QUEUE_POLICY
            if namespace:
                transaction.set_note(note_of(queue), namespace)
        document: dict[str, Any] = loads(text.encode()) if text else {}
        return document

    def _put(self, transaction: Transaction, queue: str, document: object) -> PolicyChange:
        before = policies.readable(transaction, queue)
        policies.put(transaction, self._context, queue, document)
        return PolicyChange(before, transaction.policy(queue))

    def _follow(self, queue: str, change: PolicyChange) -> None:
        defaults, (before, after) = self._context.defaults, change
        if before is None or defaults.unique_in(before) != defaults.unique_in(after):
            self._index(queue) if defaults.unique_in(after) else self._remove_index(queue)
        for state, span in self._spans(after).items():
            if before is None or self._spans(before)[state] != span:
                self._retime(queue, state, span)

    def _spans(self, policy: QueuePolicy) -> dict[State, int]:
        """Return the timeout of each state, in ms."""
        defaults = self._context.defaults
        return {
            State.DRAFT: defaults.draft_in(policy),
            State.CLAIMED: defaults.claim_in(policy),
            State.LEASED: defaults.active_in(policy),
        }

    def _index(self, queue: str) -> None:
        uniqueness = self._context.uniqueness
        uniqueness.start_index(queue)
        try:
            for state in COMPARED:
                self._walk(partial(uniqueness.index_page, queue=queue, state=state, now=self._clock.now_ms()))
            self._committer.run(lambda transaction: uniqueness.end_index(transaction, queue))
        finally:
            uniqueness.abort_index(queue)

    def _remove_index(self, queue: str) -> None:
        uniqueness = self._context.uniqueness
        self._committer.run(lambda transaction: uniqueness.invalidate(transaction, queue))
        for state in COMPARED:
            self._walk(partial(uniqueness.remove_page, queue=queue, state=state, now=self._clock.now_ms()))

    def _walk(self, page: Callable[..., str]) -> None:
        cursor = self._committer.run(lambda transaction: page(transaction, cursor=""))
        while cursor:
            cursor = self._committer.run(partial(page, cursor=cursor))

    # -- time -----------------------------------------------------------------------------------------------------

    def adopt_defaults(self) -> None:
        """Recompute the due times of messages if the server's default timeouts changed since the last start.

        No sweep may run before this has finished."""
        defaults = self._context.defaults
        if not self._committer.read(partial(expiry_sweeper.have_changed, defaults=defaults)):
            return
        for queue in self._committer.read(lambda transaction: transaction.queues()):
            for state in self._committer.read(partial(_timed, queue=queue)):
                policy = self._committer.read(partial(policies.readable, queue=queue))
                if policy is not None:
                    self._retime(queue, state, self._spans(policy)[state])
        self._committer.run(partial(expiry_sweeper.record_timeouts, defaults=defaults))

    def _retime(self, queue: str, state: State, span: int) -> None:
        self._walk(partial(_retime_page, queue=queue, state=state, span=span))


def _timed(transaction: Transaction, queue: str) -> list[State]:
    """Return the states with a timeout that contain messages."""
    counts = transaction.counts(queue)
    used = {State.DRAFT: counts.draft, State.CLAIMED: counts.claimed, State.LEASED: counts.leased}
    return [state for state, number in used.items() if number]


def _retime_page(transaction: Transaction, queue: str, state: State, span: int, cursor: str) -> str:
    page = transaction.scan(queue, state, PER_PAGE, cursor)
    pairs = [(row, transitions.with_duration(row, span)) for row in page.messages]
    apply_durations(transaction, [Change(row, after) for row, after in pairs if after is not None])
    return page.cursor


def _forget(transaction: Transaction, queue: str, state: State, cursor: str) -> str:
    page = transaction.scan(queue, state, PER_PAGE, cursor)
    transaction.forget(page.messages)
    return page.cursor


def failed_page(transaction: Transaction, queue: str, cursor: str, limit: int) -> tuple[list[str], str]:
    """Return ids of dead messages, oldest failure first, then of parked ones; and the next cursor, "" at the end."""
    which, _, at = cursor.partition(":")
    state = State(which) if which else FAILED[0]
    page = transaction.scan(queue, state, limit, at)
    ids = [message.id for message in page.messages]
    if page.cursor:
        return ids, f"{state}:{page.cursor}"
    return ids, f"{FAILED[1]}:" if state is FAILED[0] else ""
