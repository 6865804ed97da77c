"""Selection of messages to lease: ready, alive, valid, intact, affordable; FIFO groups; strict order.

Selection sweeps expired messages, moves those that do not fit their schema to the dead letters, and stops at a limit of
bytes. The count that fitted last time is the count loaded next time, so that large payloads are not read needlessly.

Messages for a single consumer are ordered behind all other ready messages, by consumer (``Transaction.scan``).

FIFO groups: of the messages with the same group id, the first is ready or in flight and the others are held. Changes of
messages pass ``swap``, so that a group moves on in the commit that ends its first message.

Integrity: where a queue keeps the SHA-256 of payloads, each payload is verified before it is leased. A damaged message
goes to the dead letters or is parked, and is counted and logged.

Strict order: a single message of a queue is in flight at a time. The next follows when it is acked or dead; a message
that waits for its retry holds the others back. Messages that were leased before are searched in the store once, then
tracked by their changes; a policy change repeats the search."""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from yirangmq.broker.admission.admission import AdmissionControl, Schemas
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.core import transitions
from yirangmq.core.dispatch import may_lease_next
from yirangmq.core.errors import PayloadDamaged, QueueError
from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageRun, group_of, sizes_of
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction, after_of
from yirangmq.core.states import UNFINISHED, State
from yirangmq.format.envelope import digest_problem

# -- messages for a single consumer ------------------------------------------------------------------------------------

BEHIND_ALL = f"{RANK_LAST}.{2**62}"
"""Cursor behind all ready messages of a line, in the form of ``Transaction.scan``."""


def targets(transaction: Transaction, queue: str) -> Iterator[int]:
    """Yield the consumer numbers that ready messages are addressed to, at one scan each."""
    cursor = BEHIND_ALL
    while found := transaction.scan(queue, State.READY, 1, cursor).messages:
        yield found[0].target
        cursor = f"{found[0].target}.{BEHIND_ALL}"


def addressed(transaction: Transaction, queue: str, target: int, limit: int) -> list[Message]:
    """Return the first ready messages addressed to one consumer."""
    found = transaction.scan(queue, State.READY, limit, f"{target - 1}.{BEHIND_ALL}").messages
    return [message for message in found if message.target == target]


def heads_of(
    transaction: Transaction, queue: str, target: int, limit: int, most_bytes: int, now: int
) -> list[tuple[Message, Envelope]]:
    """Return the first unexpired messages addressed to one consumer, with envelopes of at most ``most_bytes`` in all; a
    single larger message is still returned."""
    rows: list[Message] = []
    size = 0
    for row in addressed(transaction, queue, target, limit):
        size += row.size
        if rows and size > most_bytes:
            break
        if not 0 < row.expires_at <= now:
            rows.append(row)
    found = zip(rows, transaction.envelopes(rows), strict=True)
    return [(row, envelope) for row, envelope in found if envelope is not None]


# -- FIFO groups -------------------------------------------------------------------------------------------------------


def swap(transaction: Transaction, changes: Sequence[Change], now: int, touched: set[str]) -> None:
    """Apply changes by ``Transaction.swap``, then free the next message of each affected FIFO group."""
    transaction.swap(changes)
    if any(map(group_of, map(after_of, changes))):
        _advance_groups(transaction, changes, now, touched)


def hold_group_followers(transaction: Transaction, new: Sequence[Message]) -> None:
    """Hold newly added messages that are behind others of their group."""
    held = [message for message in new if message.group and message.state in (State.READY, State.DELAYED)]
    firsts = _firsts(transaction, held)
    transaction.swap([Change(m, transitions.hold(m)) for m in held if firsts[m.queue, m.group].seq != m.seq])


def _advance_groups(transaction: Transaction, changes: Sequence[Change], now: int, touched: set[str]) -> None:
    came = [after for before, after, _ in changes if after.group and _entered(before, after)]
    hold_group_followers(transaction, came)
    left = [after for before, after, _ in changes if after.group and _left(before, after)]
    next_ones = [message for message in _firsts(transaction, left).values() if message.state is State.HELD]
    turns = []
    for message, envelope in zip(next_ones, transaction.envelopes(next_ones), strict=True):
        if envelope is not None:  # else its content is lost, and the store has freed the next one
            turns.append(Change(message, transitions.free(message, envelope.available_at, now)))
            touched.add(message.queue)
    transaction.swap(turns)


def _entered(before: Message, after: Message) -> bool:
    return after.state in UNFINISHED and before.state not in UNFINISHED


def _left(before: Message, after: Message) -> bool:
    return before.state in UNFINISHED and after.state not in UNFINISHED


def _firsts(transaction: Transaction, messages: Sequence[Message]) -> dict[tuple[str, int], Message]:
    groups: dict[str, dict[int, None]] = {}
    for message in messages:
        groups.setdefault(message.queue, {})[message.group] = None
    found = {}
    for queue, numbers in groups.items():
        for group, first in zip(numbers, transaction.group_first(queue, list(numbers)), strict=True):
            if first is not None:
                found[queue, group] = first
    return found


# -- payload integrity -------------------------------------------------------------------------------------------------

log = logging.getLogger("yirangmq")


class IntegrityOperations(Protocol):
    """The part of ``broker.operations.QueueOperations`` that integrity checks use."""

    admission: AdmissionControl
    event_buffer: EventBuffer

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...


def damaged(envelopes: Iterable[Envelope]) -> bool:
    return any(map(digest_problem, envelopes))


class IntegrityCheck:
    """Integrity check of payloads before a lease; damaged messages are dead-lettered or parked."""

    def __init__(self, operations: IntegrityOperations) -> None:
        self._operations = operations

    def is_enabled(self, transaction: Transaction, queue: str) -> bool:
        chain = self._operations.admission.chain_of(transaction, queue)
        return chain is not None and chain.integrity

    def quarantine(
        self, transaction: Transaction, queue: str, found: Sequence[tuple[Message, Envelope]], now: int
    ) -> bool:
        """Move messages with a damaged payload to the dead letters, or park them. Return True if there was one."""
        if not self.is_enabled(transaction, queue):
            return False
        policy = transaction.policy(queue)
        changes = []
        for message, envelope in found:
            text = digest_problem(envelope)
            if text:
                outcome = transitions.quarantine(message, policy, now, text)
                changes.append(Change(message, outcome.message, outcome.failure))
                about = {"queue": queue, "messageId": message.id, "state": outcome.message.state, "error": text}
                log.error("payload_damaged", extra={"values": about})
        self._operations.swap(transaction, changes, now)
        self._operations.event_buffer.refused(changes, now)
        return bool(changes)

    def error_of(self, transaction: Transaction, message: Message, envelope: Envelope) -> QueueError | None:
        """Return the error of a damaged message that was requested by id; None if it is intact."""
        text = digest_problem(envelope) if self.is_enabled(transaction, message.queue) else ""
        return PayloadDamaged(f"message {message.id} is not handed out: {text}") if text else None


# -- strict order ------------------------------------------------------------------------------------------------------

PER_PAGE = 500
RETRY_STATES = (State.READY, State.DELAYED, State.HELD)


class StrictOrder:
    """Strict order: at most one message of a queue is in flight. Used on the committing thread only."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[QueuePolicy, set[int]]] = {}

    def allowance(self, transaction: Transaction, queue: str, policy: QueuePolicy, wanted: int) -> int:
        """Return how many messages may be leased now: at most 1."""
        counts = transaction.counts(queue)
        waiting = [row for row in self._cards(transaction, queue, policy) if row.state is State.DELAYED]
        return min(wanted, 1) if may_lease_next(counts.claimed + counts.leased, len(waiting)) else 0

    def next_retry(
        self, transaction: Transaction, queue: str, policy: QueuePolicy, target: int
    ) -> tuple[Message, Envelope] | None:
        """Return the message that is ready for its retry, if this consumer may lease it."""
        ready = [row for row in self._cards(transaction, queue, policy) if row.state is State.READY]
        for row in sorted(ready, key=lambda row: (row.rank, row.place)):
            [envelope] = transaction.envelopes([row])
            if envelope is not None and row.target in (0, target):
                return row, envelope
        return None

    def track(self, queue: str, policy: QueuePolicy, changes: Sequence[Change]) -> None:
        """Track messages that were leased and returned."""
        known = self._begun.get(queue)
        if known is not None and known[0] is policy:
            known[1].update(after.seq for _, after, _ in changes if after.leases and after.state in RETRY_STATES)

    def _cards(self, transaction: Transaction, queue: str, policy: QueuePolicy) -> list[Message]:
        known = self._begun.get(queue)
        if known is None or known[0] is not policy:
            known = self._begun[queue] = policy, {row.seq for row in _retried(transaction, queue)}
        if not known[1]:
            return []
        rows = [row for row in transaction.by_seq(list(known[1])) if row is not None and row.state in UNFINISHED]
        known[1].intersection_update(row.seq for row in rows)
        return rows


def _retried(transaction: Transaction, queue: str) -> Iterator[Message]:
    cursor, is_first = "", True
    while cursor or is_first:
        page = transaction.scan(queue, State.DELAYED, PER_PAGE, cursor)
        yield from (row for row in page.messages if row.attempt)
        cursor, is_first = page.cursor, False


# -- selection ---------------------------------------------------------------------------------------------------------

Head = tuple[Message, Envelope]
MAX_SWEEPS = 20
"""Upper bound of sweeps per lease. Beyond it the lease returns nothing; the rest is swept at the next call."""


class SelectionOperations(Protocol):
    """The part of ``broker.operations.QueueOperations`` that selection uses."""

    schemas: Schemas
    admission: AdmissionControl
    event_buffer: EventBuffer
    touched: set[str]
    strict: StrictOrder

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...

    def sweep_once(self, transaction: Transaction, now: int) -> int: ...


class MessageSelector:
    """Selects the messages of a lease. Used on the committing thread only."""

    def __init__(self, operations: SelectionOperations) -> None:
        self._operations = operations
        self._damage = IntegrityCheck(operations)
        self._fit: dict[str, int] = {}
        """Messages that fitted the byte limit at the latest lease, for queues with large messages."""

    def select(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int | None, now: int
    ) -> list[Head]:
        """Return as many messages as the byte limit allows. At most as many are loaded as fitted last time, so that
        large payloads are not read repeatedly. A queue that may have more is marked as touched."""
        asked = self._asked(queue, limit, most_bytes)
        heads = self.leasable(transaction, queue, asked, target, now)
        kept = self._kept(queue, limit, asked, [envelope.size for _, envelope in heads], most_bytes)
        return heads[:kept]

    def select_runs(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int | None
    ) -> list[tuple[MessageRun, list[Envelope]]] | None:
        """Like ``select``, but return whole runs. Return None if a message needs individual treatment: schema,
        strict order, damaged payload."""
        runs = transaction.run_operations()
        if runs is None:
            return None
        policy = transaction.policy(queue)
        if policy.schemas or policy.is_ordered:
            return None
        asked = self._asked(queue, limit, most_bytes)
        found = runs.head_runs(queue, asked, target)
        if not found:
            return found
        if self._damage.is_enabled(transaction, queue) and any(damaged(envelopes) for _, envelopes in found):
            return None
        sizes = [size for _, envelopes in found for size in sizes_of(envelopes)]
        left = self._kept(queue, limit, asked, sizes, most_bytes)
        kept = []
        for run, envelopes in found:
            if left > 0:
                kept.append((run._replace(length=min(run.length, left)), envelopes[:left]))
            left -= run.length
        return kept

    def _asked(self, queue: str, limit: int, most_bytes: int | None) -> int:
        return limit if most_bytes is None else min(limit, self._fit.get(queue, limit))

    def _kept(self, queue: str, limit: int, asked: int, sizes: Sequence[int], most_bytes: int | None) -> int:
        """Return how many messages of these sizes fit the byte limit."""
        count = len(sizes)
        if most_bytes is None:
            return count
        kept = count if sum(sizes) <= most_bytes else max(1, bisect_right(list(accumulate(sizes)), most_bytes))
        if kept < count:
            self._fit[queue] = kept
        elif asked < limit:
            self._fit[queue] = asked * 2
        else:
            return kept
        if kept < count or count == asked:
            self._operations.touched.add(queue)
        return kept

    def leasable(self, transaction: Transaction, queue: str, limit: int, target: int, now: int) -> list[Head]:
        """Return messages to lease. Expired ones are swept first, however many; invalid and damaged ones are moved."""
        for _ in range(MAX_SWEEPS):
            heads = self._heads(transaction, queue, limit, target)
            if any(0 < message.expires_at <= now for message, _ in heads):
                self._operations.sweep_once(transaction, now)
            elif not self._bury_unfit(transaction, queue, heads, now) and not self._damage.quarantine(
                transaction, queue, heads, now
            ):
                return heads
        return []

    def only_intact(self, transaction: Transaction, queue: str, heads: list[Head], now: int) -> list[Head]:
        """Return the messages if all are valid and intact. Else move the bad ones away and return none; the others
        follow in the next commit."""
        if self._bury_unfit(transaction, queue, heads, now) or self._damage.quarantine(transaction, queue, heads, now):
            self._operations.touched.add(queue)
            return []
        return heads

    def _heads(self, transaction: Transaction, queue: str, limit: int, target: int) -> list[Head]:
        """Return the first ready messages; in strict order the message to retry alone."""
        policy = transaction.policy(queue)
        next_retry = (
            self._operations.strict.next_retry(transaction, queue, policy, target) if policy.is_ordered else None
        )
        return transaction.heads(queue, limit, target) if next_retry is None else [next_retry]

    def _bury_unfit(self, transaction: Transaction, queue: str, heads: Sequence[Head], now: int) -> bool:
        """Dead-letter messages that do not fit their schema. Return True if there was one.

        Publishing has checked most messages. A file dropped into a folder, or a message older than the schema, is
        checked before its first lease."""
        policy = transaction.policy(queue)
        if not policy.schemas:
            return False
        changes = []
        for message, envelope in heads:
            complaint = "" if message.leases else self._operations.schemas.complaint(envelope, policy)
            if complaint:
                outcome = transitions.refuse(message, policy, now, complaint)
                changes.append(Change(message, outcome.message, outcome.failure))
        self._operations.swap(transaction, changes, now)
        self._operations.event_buffer.refused(changes, now)
        return bool(changes)
