"""What each verb does inside one transaction: load, decide by ``core.decide``, swap. Many at a time, never half-done.

A verb checks everything before it writes anything, so that one that raises one of our errors has changed nothing."""

from collections.abc import Callable, Sequence

from yirangmq.broker.groups import line_up, swap
from yirangmq.broker.happenings import Happenings
from yirangmq.broker.room import make_room
from yirangmq.broker.sweep import MOST_PER_SWEEP, sweep, tidy
from yirangmq.broker.validate import Schemas
from yirangmq.core import decide, names
from yirangmq.core.errors import BadInput, NotFound, QueueError, QuotaExceeded, TooLarge
from yirangmq.core.events import Refused
from yirangmq.core.message import Envelope, Message, split_lease_id
from yirangmq.core.policy import Chance, QueuePolicy
from yirangmq.core.ports import Change, Clock, Ids, Stored, Transaction, new_change
from yirangmq.core.states import State
from yirangmq.format.delivery import Delivery, new_delivery

TIDY_MS = 1_000
TIDY_AFTER = 500
"""Acknowledged messages after which history is pruned without waiting for the second to end; each pruning may take
twice as many as came in, so that what is kept stays within its bounds at any rate."""
MOST_SWEEPS = 20
"""Sweeps one lease may do before it takes what is left; the rest is due at the next call."""
MOST_PER_CALL = 10_000
"""Messages in one call; a larger batch gains nothing and holds the lane."""

Results = list[QueueError | None]
"""For each message None, or why not."""
Settle = Callable[[Message | None, int, str, Transaction, int], Change | None]


class Leases:
    """Lease ids of one call, read and checked: how many, each well formed, none twice. ``queue``: where all of them
    must be from, if the caller says so."""

    def __init__(self, leases: Sequence[str], queue: str | None = None) -> None:
        if len(leases) > MOST_PER_CALL:
            raise BadInput(f"{len(leases)} in one call, at most {MOST_PER_CALL}", field="leases")
        self.texts = leases
        self.queue = queue
        self.keys = [_checked_lease(lease) for lease in leases]
        if len(set(self.keys)) != len(self.keys):
            raise BadInput("the same lease twice in one call", field="leases")


class Verbs:
    """The verbs of one store's queues. Used from the lane, so by one thread at a time."""

    def __init__(self, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self._ids = ids
        self.schemas = Schemas()
        self.happened = Happenings()
        self._tidied_at = 0
        self._settled = 0
        self._fit: dict[str, int] = {}
        """How many messages of a queue were affordable when its messages are large."""
        self.touched: set[str] = set()
        """Queues that may have something to take since somebody last cleared this."""

    # -- producing ------------------------------------------------------------------------------------------------

    def publish(self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope]) -> list[Stored]:
        """New envelopes of one queue, already well formed."""
        now = self._clock.now_ms()
        policy = transaction.policy(queue)
        sizes = [len(envelope[8]) for envelope in envelopes]
        if max(sizes) > policy.max_body:
            raise TooLarge(f"{max(sizes)} bytes, this queue takes {policy.max_body}", field="payload")
        if policy.ttl_ms:
            envelopes = [
                e if e.expires_at else e._replace(expires_at=e.published_at + policy.ttl_ms) for e in envelopes
            ]
        complaints = [self.schemas.complaint(e, policy) for e in envelopes] if policy.schemas else []
        if policy.quota.is_set:
            self._make_room(transaction, policy, queue, envelopes, now)
        stored = transaction.add(envelopes, now, now + policy.dedup_ms)
        self.touched.add(queue)
        self.happened.published(queue, envelopes, sizes, stored, now)
        if any(complaints):
            stored = self._refuse_unfit(transaction, policy, envelopes, stored, complaints, now)
        if any(envelope[10] for envelope in envelopes):
            seqs = [one.seq for one, sent in zip(stored, envelopes, strict=True) if sent.group and not one.duplicate]
            line_up(transaction, [card for card in transaction.by_seq(seqs) if card is not None])
        return stored

    def _make_room(
        self, transaction: Transaction, policy: QueuePolicy, queue: str, envelopes: Sequence[Envelope], now: int
    ) -> None:
        try:
            going = make_room(transaction, policy, queue, envelopes, now)
        except QuotaExceeded as error:
            self.happened.add(Refused(queue, error.code, len(envelopes)))
            raise
        swap(transaction, going, now, self.touched)
        self.happened.dropped("quota", going)

    def _refuse_unfit(
        self,
        transaction: Transaction,
        policy: QueuePolicy,
        envelopes: Sequence[Envelope],
        stored: list[Stored],
        complaints: list[str],
        now: int,
    ) -> list[Stored]:
        receipts, changes = [], []
        for envelope, receipt, complaint in zip(envelopes, stored, complaints, strict=True):
            if receipt.duplicate or not complaint:
                receipts.append(receipt)
                continue
            receipts.append(receipt._replace(refused=complaint))
            before = decide.fresh(envelope, receipt.seq, now)
            outcome = decide.refuse(before, policy, now, complaint)
            changes.append(Change(before, outcome.message, outcome.failure))
        swap(transaction, changes, now, self.touched)
        self.happened.refused(changes, now)
        return receipts

    # -- consuming ------------------------------------------------------------------------------------------------

    def lease(
        self,
        transaction: Transaction,
        queue: str,
        limit: int,
        span: int | None,
        who: str,
        most_bytes: int | None = None,
    ) -> list[Delivery]:
        """Up to ``limit`` messages for ``span`` milliseconds (None: as the queue's policy says), and no more payload
        than ``most_bytes``, but for a single message that is larger. Nothing while the queue is paused."""
        now = self._clock.now_ms()
        self._pass_time(transaction, now)
        policy = transaction.policy(queue)
        if policy.paused:
            return []
        if most_bytes is None:
            heads = self._live_heads(transaction, queue, limit, names.line_of(who), now)
        else:
            heads = self._affordable_heads(transaction, queue, limit, names.line_of(who), most_bytes, now)
        if not heads:
            return []
        until = now + (policy.visibility_ms if span is None else span)
        changes, deliveries = [], []
        for before, envelope in heads:
            after = decide.lease(before, now, until, who)
            changes.append(new_change((before, after, None)))
            deliveries.append(new_delivery((after, envelope, policy)))
        transaction.swap(changes)
        self.happened.leased(queue, heads, now)
        return deliveries

    def _affordable_heads(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int, now: int
    ) -> list[tuple[Message, Envelope]]:
        """As many as the bytes allow. How many that were last time is how many are loaded, so that large payloads are
        not read again and again for nothing; a queue that may have more is marked as touched."""
        asked = min(limit, self._fit.get(queue, limit))
        heads = self._live_heads(transaction, queue, asked, target, now)
        kept = size = 0
        for _, envelope in heads:
            size += len(envelope[8])
            if size > most_bytes and kept:
                break
            kept += 1
        if kept < len(heads):
            self._fit[queue] = kept
        elif asked < limit:
            self._fit[queue] = asked * 2
        else:
            return heads
        if kept < len(heads) or len(heads) == asked:
            self.touched.add(queue)
        return heads[:kept]

    def _live_heads(
        self, transaction: Transaction, queue: str, limit: int, target: int, now: int
    ) -> list[tuple[Message, Envelope]]:
        """Whose time ran out is not handed out, however much is due at once; nor what does not fit its schema."""
        for _ in range(MOST_SWEEPS):
            heads = transaction.heads(queue, limit, target)
            if any(0 < message.expires_at <= now for message, _ in heads):
                sweep(transaction, now, self.touched, self.happened)
            elif not self._bury_unfit(transaction, queue, heads, now):
                return heads
        return []

    def _bury_unfit(
        self, transaction: Transaction, queue: str, heads: Sequence[tuple[Message, Envelope]], now: int
    ) -> bool:
        """Publishing has checked what came through it; a file dropped into a folder, or a message older than its
        schema, is checked before it is first handed out. True if there was one."""
        policy = transaction.policy(queue)
        if not policy.schemas:
            return False
        changes = []
        for message, envelope in heads:
            complaint = "" if message.leases else self.schemas.complaint(envelope, policy)
            if complaint:
                outcome = decide.refuse(message, policy, now, complaint)
                changes.append(Change(message, outcome.message, outcome.failure))
        swap(transaction, changes, now, self.touched)
        self.happened.refused(changes, now)
        return bool(changes)

    def ack(self, transaction: Transaction, leases: Leases, consumer: str | None) -> Results:
        def settle(
            message: Message | None, fence: int, lease: str, transaction: Transaction, now: int
        ) -> Change | None:
            if decide.acked_before(message, fence):
                return None
            before = decide.held(message, fence, consumer, now, lease)
            return new_change((before, decide.ack(before, transaction.policy(before.queue), now), None))

        return self._settle(transaction, leases, "ack", settle)

    def nack(self, transaction: Transaction, leases: Leases, consumer: str | None, cause: decide.Cause) -> Results:
        def settle(
            message: Message | None, fence: int, lease: str, transaction: Transaction, now: int
        ) -> Change | None:
            if decide.nacked_before(message, fence):
                return None
            before = decide.held(message, fence, consumer, now, lease)
            chance = Chance(self._ids.fraction())
            policy = transaction.policy(before.queue)
            outcome = decide.nack(before, policy, now, cause, transaction.places(1), chance)
            self.touched.add(before.queue)
            return Change(before, outcome.message, outcome.failure)

        return self._settle(transaction, leases, "nack", settle, cause.reason)

    def release(self, transaction: Transaction, leases: Leases, consumer: str | None) -> Results:
        """Give back what was never worked on: at once in line again, and the attempt does not count."""

        def settle(
            message: Message | None, fence: int, lease: str, transaction: Transaction, now: int
        ) -> Change | None:
            before = decide.held(message, fence, consumer, now, lease)
            self.touched.add(before.queue)
            return Change(before, decide.release(before, transaction.policy(before.queue), now, transaction.places(1)))

        return self._settle(transaction, leases, "release", settle)

    def extend(self, transaction: Transaction, leases: Leases, consumer: str | None, span: int | None) -> Results:
        def settle(
            message: Message | None, fence: int, lease: str, transaction: Transaction, now: int
        ) -> Change | None:
            before = decide.held(message, fence, consumer, now, lease)
            length = transaction.policy(before.queue).visibility_ms if span is None else span
            return Change(before, decide.extend(before, now, now + length))

        return self._settle(transaction, leases, "extend", settle)

    def _settle(self, transaction: Transaction, leases: Leases, verb: str, settle: Settle, reason: str = "") -> Results:
        """Look the leases up, decide each, swap all at once. A stale one is its own error and harms no other."""
        now = self._clock.now_ms()
        found = transaction.by_seq([seq for seq, _ in leases.keys])
        errors: Results = []
        changes: list[Change] = []
        for message, (_, fence), lease in zip(found, leases.keys, leases.texts, strict=True):
            try:
                if leases.queue is not None and message is not None and message.queue != leases.queue:
                    raise NotFound(f"lease {lease} is not one of queue {leases.queue!r}")
                change = settle(message, fence, lease, transaction, now)
            except QueueError as error:
                errors.append(error)
                continue
            errors.append(None)
            if change is not None:
                changes.append(change)
        swap(transaction, changes, now, self.touched)
        self.happened.settled(verb, changes, now, reason)
        self._settled += len(changes)
        self._tidy_in_passing(transaction, now)
        return errors

    def drop(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        """Give messages up, in any state."""
        now = self._clock.now_ms()
        policy = transaction.policy(queue)
        errors: Results = []
        changes: list[Change] = []
        for id, message in zip(ids, transaction.by_id(queue, ids), strict=True):
            try:
                if message is None:
                    raise NotFound(f"queue {queue!r} has no message {id!r}")
                if message.state is not State.DROPPED:
                    changes.append(Change(message, decide.drop(message, policy, now)))
                errors.append(None)
            except QueueError as error:
                errors.append(error)
        swap(transaction, changes, now, self.touched)
        self.happened.dropped("asked", changes)
        return errors

    # -- time -----------------------------------------------------------------------------------------------------

    def sweep(self, transaction: Transaction) -> int:
        """What time brings, as far as one commit goes; how many messages changed."""
        now = self._clock.now_ms()
        return sweep(transaction, now, self.touched, self.happened) + tidy(transaction, now)

    def _pass_time(self, transaction: Transaction, now: int) -> None:
        sweep(transaction, now, self.touched, self.happened)
        self._tidy_in_passing(transaction, now)

    def _tidy_in_passing(self, transaction: Transaction, now: int) -> None:
        if 0 <= now - self._tidied_at < TIDY_MS and self._settled < TIDY_AFTER:
            return
        most = MOST_PER_SWEEP + 2 * self._settled
        self._tidied_at, self._settled = now, 0
        sweep(transaction, now, self.touched, self.happened, most)
        tidy(transaction, now, most)


def _checked_lease(lease: object) -> tuple[int, int]:
    key = split_lease_id(lease) if isinstance(lease, str) else None
    if key is None:
        raise BadInput(f"{lease!r} is not a lease id", field="leaseId")
    return key
