"""State of the dispatch strategies between transactions: members of the queues, strict order, memories.

Members: the consumers of a queue with a strategy that assigns by consumer id. A store note keeps them across restarts.
The note is written when membership changes, not each time that a consumer is seen; after a failed commit it is written
again.

Strict order: a single message of a queue is in flight at a time. The next follows when it is acked or dead; a message
that waits for its retry holds the others back. Messages that were leased before are searched in the store once, then
tracked by their changes; a policy change repeats the search.

Committing thread only."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from yirangmq.core import dispatch as rules
from yirangmq.core import validation
from yirangmq.core.dispatch import GroupMembership, Memory, may_lease_next
from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope, Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import UNFINISHED, State
from yirangmq.format.json_codec import dumps, loads

# -- members of a queue ------------------------------------------------------------------------------------------------

FOLDER = "dispatch/"
"""Key prefix of the notes with the members, one note per queue."""


class MembershipCache:
    """Members of the queues, cached from the store notes. Committing thread only."""

    def __init__(self) -> None:
        self._known: dict[str, GroupMembership] = {}
        self._noted: dict[str, tuple[dict[str, int], list[str]]] = {}

    def of(self, transaction: Transaction, queue: str, now: int) -> GroupMembership:
        if queue not in self._known:
            found = self._known[queue] = _read(transaction.note(FOLDER + queue), now)
            self._noted[queue] = dict(found.registered), sorted(found.absent)
        return self._known[queue]

    def forget(self, queue: str) -> None:
        """Remove a deleted queue from the cache."""
        self._known.pop(queue, None)
        self._noted.pop(queue, None)

    def invalidate(self) -> None:
        """Invalidate the record of written notes after a failed commit, so that each note is written again."""
        self._noted.clear()

    def update(
        self,
        transaction: Transaction,
        queue: str,
        waiting: Mapping[str, bool],
        now: int,
        grace_ms: int,
        *,
        keeps_all: bool,
    ) -> GroupMembership:
        """Update the members from the consumers that wait now, and remove those away for longer than ``grace_ms``."""
        with_waiting = rules.with_waiting(self.of(transaction, queue, now), waiting, now, keeps_all=keeps_all)
        return self._keep(transaction, queue, rules.without_expired(with_waiting, now, grace_ms), keeps_all)

    def with_lease_request(
        self, transaction: Transaction, queue: str, consumer_id: str, now: int, *, keeps_all: bool
    ) -> GroupMembership:
        return self._keep(
            transaction, queue, rules.with_lease_request(self.of(transaction, queue, now), consumer_id, now), keeps_all
        )

    def register(self, transaction: Transaction, queue: str, consumer_id: str, now: int) -> bool:
        """Register a member. Return False if it was registered already."""
        return self._change(transaction, queue, now, lambda before: rules.registered(before, consumer_id, now))

    def deregister(self, transaction: Transaction, queue: str, consumer_id: str, now: int) -> bool:
        """Remove a registered member. Return False if it was not registered."""
        return self._change(transaction, queue, now, lambda before: rules.deregistered(before, consumer_id))

    def _change(
        self, transaction: Transaction, queue: str, now: int, turn: Callable[[GroupMembership], GroupMembership]
    ) -> bool:
        before = self.of(transaction, queue, now)
        after = self._keep(transaction, queue, turn(before), True)
        return after.registered != before.registered

    def _keep(self, transaction: Transaction, queue: str, after: GroupMembership, is_lasting: bool) -> GroupMembership:
        """Cache the members, and write the note if membership changed. A new time last seen alone is not written."""
        self._known[queue] = after
        passing = sorted({*after.waiting, *after.absent}) if is_lasting else []
        noted = dict(after.registered), passing
        if noted != self._noted.get(queue):
            text = dumps({"registered": noted[0], "seen": noted[1]}).decode() if any(noted) else None
            transaction.set_note(FOLDER + queue, text)
            self._noted[queue] = noted
        return after


def _read(text: str | None, now: int) -> GroupMembership:
    """Parse the note of a queue's members. A note that cannot be parsed (edited by hand) means no members."""
    try:
        given = loads(text.encode()) if text else {}
        registered = {
            validation.check_consumer(name): int(at) for name, at in dict(given.get("registered", {})).items()
        }
        absent = {validation.check_consumer(name): now for name in list(given.get("seen", []))}
    except (BadInput, ValueError, TypeError, AttributeError):
        return GroupMembership()
    return GroupMembership(registered, {}, absent)


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


# -- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class DispatchState:
    """State of the dispatch strategies of all queues of a store."""

    membership: MembershipCache = field(default_factory=MembershipCache)
    strict: StrictOrder = field(default_factory=StrictOrder)
    memories: dict[str, Memory] = field(default_factory=dict)
    """Memory of the strategy, by queue."""
    adopted: set[str] = field(default_factory=set)
    """Queues whose messages that were in flight before this process started are counted."""
    watched: set[str] = field(default_factory=set)
    """Queues with a strategy that must be informed when a consumer leaves."""
    to_serve_again: set[str] = field(default_factory=set)
    """Queues with more messages to assign immediately. The caller of ``serve`` removes them."""
    wake_at: dict[str, int] = field(default_factory=dict)
    """End of the next grace time of a member, by queue. The caller of ``serve`` removes the entries."""
    searched: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """Latest search for copies addressed to former members of a broadcast: when, and the members at that time."""
