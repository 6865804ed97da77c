"""Workload of the power-cut run on a store, snapshots of a store, and the ledger of confirmed calls.

``record_workload`` runs every verb on three queues through two handles of one store, and reopens it in between. The
same seed gives the same calls. The journal records each call; the recorder below the store adds its I/O.

``Snapshot`` is the content of a store as one comparable value. ``ConfirmedMessages`` keeps ids and payloads as the
calls confirmed them, independently of the store under test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from yirangmq.broker.changes import apply_changes, no_events
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.queues import Queues
from yirangmq.core import transitions
from yirangmq.core.message import Counts, Envelope, Message, MessageFailure
from yirangmq.core.ports import Change, Store, Transaction
from yirangmq.core.states import UNFINISHED, State
from yirangmq.crashtest.backends import Backend, OpenStore
from yirangmq.crashtest.disk_model import CallReturned, CallStarted, IoJournal
from yirangmq.format.delivery import MessageDelivery
from yirangmq.format.envelope import NewMessage

# -- snapshots ---------------------------------------------------------------------------------------------------------

PAGE = 500
LIVE_STATES = UNFINISHED | {State.DRAFT, State.DEAD, State.PARKED}
"""States in which a message must not be lost."""

Key = tuple[str, str]
"""Queue and id."""


class SnapshotEntry(NamedTuple):
    """A stored message: its state, its envelope and its latest failure."""

    message: Message
    envelope: Envelope | None
    failure: MessageFailure | None

    @property
    def state(self) -> State:
        return self.message.state


class Snapshot(NamedTuple):
    entries: dict[Key, SnapshotEntry]
    counts: dict[str, Counts]
    policies: dict[str, str | None]
    twice: tuple[Key, ...] = ()
    """Messages found in more than one state."""

    def live_keys(self) -> set[Key]:
        return {key for key, entry in self.entries.items() if entry.state in LIVE_STATES}


TOTALS = ("published", "acked", "failed", "dropped", "redriven")

EMPTY_SNAPSHOT = Snapshot({}, {}, {})


def take_snapshot(store: Store) -> Snapshot:
    with store.transaction(write=False) as transaction:
        entries: dict[Key, SnapshotEntry] = {}
        twice: list[Key] = []
        queues = transaction.queues()
        for queue in queues:
            for entry in _entries(transaction, queue):
                key = (queue, entry.message.id)
                if key in entries:
                    twice.append(key)
                entries[key] = entry
        counts = {queue: transaction.counts(queue) for queue in queues}
        policies = {queue: transaction.policy_text(queue) for queue in queues}
        return Snapshot(entries, counts, policies, tuple(twice))


def _entries(transaction: Transaction, queue: str) -> Iterator[SnapshotEntry]:
    for state in State:
        cursor = ""
        while True:
            page = transaction.scan(queue, state, PAGE, cursor)
            sent, failures = transaction.envelopes(page.messages), transaction.failures(page.messages)
            yield from (SnapshotEntry(*parts) for parts in zip(page.messages, sent, failures, strict=True))
            cursor = page.cursor
            if not cursor:
                break


def recount(snapshot: Snapshot, queue: str) -> dict[str, int]:
    """Count the messages of a queue by state, and the bytes of its unfinished messages.

    Done messages without content are not counted."""
    found = dict.fromkeys([*(state.value for state in State if state is not State.DROPPED), "bytes"], 0)
    for (owner, _), entry in snapshot.entries.items():
        if owner == queue and entry.state in UNFINISHED:
            found["bytes"] += entry.message.size
        if (
            owner == queue
            and entry.state is not State.DROPPED
            and (entry.state is not State.DONE or entry.message.body)
        ):
            found[entry.state.value] += 1
    return found


def wrong_counts(snapshot: Snapshot) -> list[str]:
    wrong = []
    for queue, counts in snapshot.counts.items():
        for state, found in recount(snapshot, queue).items():
            kept = getattr(counts, state)
            if kept != found:
                wrong.append(f"queue {queue} says {kept} {state}, there are {found}")
    return wrong


def wrong_totals(found: Snapshot, before: Snapshot, after: Snapshot) -> list[str]:
    """Return the totals that do not match the messages found.

    A total must be the one before the interrupted call plus one per message of that call that changed. If half of the
    call is on disk and the messages do not determine the total (a message failed twice in the call, or was removed),
    it must be between those before and after the call."""
    wrong = []
    for queue, counts in found.counts.items():
        old = before.counts.get(queue, Counts())
        new = after.counts.get(queue, old)  # a queue is deleted atomically
        entries, had, would_have = (
            {key: entry for key, entry in one.entries.items() if key[0] == queue} for one in (found, before, after)
        )
        steps = [_steps(had.get(key), entry) for key, entry in entries.items() if entry != had.get(key)]
        is_plain = had.keys() <= would_have.keys()
        for total in TOTALS:
            kept, least, most = getattr(counts, total), getattr(old, total), getattr(new, total)
            counted = least + sum(step[total] for step in steps)
            if entries == had:
                is_right = kept == least
            elif entries == would_have:
                is_right = kept == most
            else:
                is_right = kept == counted or ((total == "failed" or not is_plain) and least <= kept <= most)
            if not is_right:
                said = f"{least} before the call, {most} after it, {counted} by its messages"
                wrong.append(f"queue {queue} says {kept} {total}: {said}")
    return wrong


def _steps(old: SnapshotEntry | None, new: SnapshotEntry) -> dict[str, int]:
    """Return the additions to the totals when a call changes a message from ``old`` to ``new``."""
    was = old.state if old is not None else None
    is_failed = new.failure is not None and (old is None or new.failure != old.failure)
    return {
        "published": (was in (None, State.DRAFT) and new.state not in (State.DRAFT, State.DROPPED)) + 0,
        "acked": (new.state is State.DONE and was is not State.DONE) + 0,
        "failed": is_failed + 0,
        "dropped": (new.state is State.DROPPED and was is not State.DROPPED) + 0,
        "redriven": (new.state is State.READY and was in (State.DEAD, State.PARKED)) + 0,
    }


# -- confirmed calls ---------------------------------------------------------------------------------------------------


class ConfirmedMessages:
    """Confirmed messages that must still exist, and finished ones that must not be delivered again."""

    def __init__(self) -> None:
        self.unfinished: dict[Key, bytes] = {}
        self.finished: set[Key] = set()

    def published(self, key: Key, payload: bytes) -> None:
        self.unfinished[key] = payload
        self.finished.discard(key)

    def done(self, key: Key) -> None:
        self.unfinished.pop(key, None)
        self.finished.add(key)

    def forget_queue(self, queue: str) -> None:
        self.unfinished = {key: payload for key, payload in self.unfinished.items() if key[0] != queue}
        self.finished = {key for key in self.finished if key[0] != queue}

    def complaints(self, snapshot: Snapshot) -> list[str]:
        """Compare a store without any power cut with its confirmations. Return the differences."""
        found = [f"{queue}/{id} is in two states" for queue, id in snapshot.twice]
        for key, payload in self.unfinished.items():
            entry = snapshot.entries.get(key)
            if entry is None or entry.state not in LIVE_STATES:
                found.append(f"{'/'.join(key)} was confirmed and is {entry.state if entry else 'gone'}")
            elif entry.envelope is None or entry.envelope.payload != payload:
                found.append(f"{'/'.join(key)} has not the content that was sent")
        for key in self.finished:
            entry = snapshot.entries.get(key)
            if entry is not None and entry.state not in (State.DONE, State.DROPPED):
                found.append(f"{'/'.join(key)} was finished and is {entry.state}")
        return found


# -- the workload ------------------------------------------------------------------------------------------------------

START_MS = 1_768_296_060_000
"""2026-01-13T09:21:00Z: an arbitrary but fixed instant."""
QUEUES = ("orders", "mail", "scratch")
MAIL_POLICY = {"retry": {"limit": 1}, "archive": {"enabled": False}, "tombstoneSec": 60, "requeue": "front"}
"""Few attempts, so that messages become dead; no archive, so that contents are removed."""
CONSUMERS = ("torturer", "other")
"""Names of the consumers. Some messages have one of them as target."""
GROUPS = ("ann", "bob")
HANDLES = 2
MAX_LEASE_SECONDS = 40
DRAFT_MS = 300_000
"""Maximum age of a draft in ms; longer than most workloads run in store time."""
FIRST_CALLS = ("publish many", "publish to groups", "publish", "lease", "ack")
"""First calls of each workload, so that the later ones have messages to work on."""


class WorkloadCall(NamedTuple):
    """A call of the workload: its name, its time, and the content after it (``Snapshot`` or ``LogSnapshot``)."""

    text: str
    now_ms: int
    after: Any


class RecordedWorkload(NamedTuple):
    journal: IoJournal
    calls: list[WorkloadCall]
    complaints: list[str]
    """Problems found without any power cut. If there are some, the run cuts nothing."""


class FixedClock:
    """``core.ports.Clock`` that moves only when ``now`` is set."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now

    def ahead_ms(self) -> int:
        return 0


class NumberedIds:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._given = 0

    def new(self, count: int) -> list[str]:
        self._given += count
        return [f"{self._prefix}-{number}" for number in range(self._given - count + 1, self._given + 1)]

    def fraction(self) -> float:
        return 0.5


def record_workload(
    backend: Backend, top: Path, seed: int, steps: int, stepped: Callable[[int], None] = lambda step: None
) -> RecordedWorkload:
    """Run the workload in ``top``, an empty folder, and record its I/O. ``stepped`` is called before each step."""
    journal = IoJournal(top)
    with backend.recorded(top, journal) as open_store:
        workload = _StoreWorkload(open_store, journal, Random(f"workload {seed}"))
        try:
            workload.run(steps, stepped)
        finally:
            workload.close()
    return RecordedWorkload(journal, workload.calls, workload.complaints)


class _StoreWorkload:
    def __init__(self, open_store: OpenStore, journal: IoJournal, rng: Random) -> None:
        self._open_store = open_store
        self._journal = journal
        self._rng = rng
        self._clock = FixedClock()
        self._ids = NumberedIds("m")
        self._context = TransactionContext(self._clock, self._ids)
        self._stores: list[Store] = []
        self._queues: list[Queues] = []
        self._deliveries: list[MessageDelivery] = []
        self._confirmed = ConfirmedMessages()
        self.calls: list[WorkloadCall] = []
        self.complaints: list[str] = []

    def run(self, steps: int, stepped: Callable[[int], None]) -> None:
        self._call("open", self._open)
        self._call("set a policy", lambda: self._any_handle().set_policy("mail", MAIL_POLICY))
        operations: dict[str, tuple[int, Callable[[], object]]] = {
            "publish": (5, self._publish),
            "publish many": (4, self._publish_many),
            "publish with a key": (1, self._publish_keyed),
            "publish to groups": (3, self._publish_grouped),
            "lease": (5, self._lease),
            "ack": (4, self._ack),
            "nack": (3, self._nack),
            "extend": (1, self._extend),
            "drop": (1, self._drop),
            "redrive": (2, self._redrive),
            "draft": (1, self._draft),
            "set": (2, self._set),
            "sweep": (2, self._sweep),
            "set a policy": (1, self._set_policy),
            "delete a queue": (1, lambda: self._delete("scratch")),
            "open again": (1, self._open),
        }
        drawn_verbs = self._rng.choices(list(operations), [weight for weight, _ in operations.values()], k=steps)
        for step, drawn in enumerate([*FIRST_CALLS, *drawn_verbs][:steps]):
            stepped(step)
            self._clock.now += self._rng.choice((0, 1, 300, 300, 2_000, 2_000, 2_000, 35_000))
            text = "lease" if drawn in ("ack", "nack", "extend") and not self._deliveries else drawn
            self._call(text, operations[text][1])
            if self.complaints:
                return

    def _call(self, text: str, work: Callable[[], object]) -> None:
        number = len(self.calls)
        self._journal.add(CallStarted(number))
        work()
        self._journal.add(CallReturned(number))
        after = take_snapshot(self._rng.choice(self._stores)) if self._stores else EMPTY_SNAPSHOT
        self.calls.append(WorkloadCall(text, self._clock.now, after))
        self.complaints = [f"after call {number} ({text}): {what}" for what in self._confirmed.complaints(after)]

    def close(self) -> None:
        with ExitStack() as stack:
            for queues in self._queues:
                stack.callback(queues.close)
        self._queues, self._stores = [], []

    def _open(self) -> None:
        self.close()
        for _ in range(HANDLES):
            store = self._open_store()
            self._stores.append(store)
            self._queues.append(Queues(store, self._clock, self._ids, CONSUMERS[0]))

    def _any_handle(self) -> Queues:
        return self._rng.choice(self._queues)

    # -- verbs ----------------------------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        size = self._rng.choice((1, 40, 300, 2_000, 2_000, 20_000))
        return self._rng.randbytes(size)

    def _publish(self) -> None:
        queue, payload = self._rng.choice(QUEUES), self._payload()
        delay, priority = self._rng.choice((0, 0, 0, 5)), self._rng.choice((None, None, 0, 3))
        target = self._rng.choice((None, None, *CONSUMERS))
        message = NewMessage(payload=payload, delay=delay, priority=priority, target=target)
        self._confirmed.published((queue, self._any_handle().publish(queue, message).id), payload)

    def _publish_many(self) -> None:
        queue = self._rng.choice(QUEUES)
        payloads = [b'{"text":"%s"}' % self._payload().hex().encode() for _ in range(self._rng.choice((2, 4, 9)))]
        for receipt, payload in zip(self._any_handle().publish_text(queue, payloads), payloads, strict=True):
            self._confirmed.published((queue, receipt.id), payload)

    def _publish_keyed(self) -> None:
        queue, key, payload = self._rng.choice(QUEUES), self._rng.choice("abc"), self._payload()
        receipt = self._any_handle().publish(queue, NewMessage(payload=payload, deduplication_key=key))
        if not receipt.duplicate:
            self._confirmed.published((queue, receipt.id), payload)

    def _publish_grouped(self) -> None:
        queue = self._rng.choice(QUEUES)
        payloads = [self._payload() for _ in range(self._rng.choice((1, 2, 5)))]
        messages = [
            NewMessage(payload=payload, group=self._rng.choice(GROUPS), delay=self._rng.choice((0, 0, 5)))
            for payload in payloads
        ]
        for receipt, payload in zip(self._any_handle().publish_many(queue, messages), payloads, strict=True):
            self._confirmed.published((queue, receipt.id), payload)

    def _lease(self) -> None:
        span = self._rng.choice((None, 5, MAX_LEASE_SECONDS))
        busy = sorted({queue for queue, _ in self._confirmed.unfinished}) or QUEUES
        queue, limit, consumer_name = self._rng.choice(busy), self._rng.randint(1, 5), self._rng.choice(CONSUMERS)
        self._deliveries += self._any_handle().lease(queue, limit, lease_seconds=span, consumer=consumer_name)

    def _take_deliveries(self) -> list[MessageDelivery]:
        self._rng.shuffle(self._deliveries)
        count = self._rng.randint(1, 4)
        taken, self._deliveries = self._deliveries[:count], self._deliveries[count:]
        return taken

    def _ack(self) -> None:
        taken = self._take_deliveries()
        errors = self._any_handle().ack_many([delivery.lease_id for delivery in taken])
        for delivery, error in zip(taken, errors, strict=True):
            if error is None:
                self._confirmed.done((delivery.queue, delivery.id))

    def _nack(self) -> None:
        taken, delay = self._take_deliveries(), self._rng.choice((None, None, 0))
        reason = self._rng.choice(("HANDLER_ERROR", "HANDLER_ERROR", "REJECTED"))
        self._any_handle().nack_many([delivery.lease_id for delivery in taken], reason, "it did not work", delay=delay)

    def _extend(self) -> None:
        self._any_handle().extend_many([delivery.lease_id for delivery in self._deliveries], MAX_LEASE_SECONDS)

    def _drop(self) -> None:
        unfinished = sorted(self._confirmed.unfinished)
        if unfinished:
            queue, id = self._rng.choice(unfinished)
            if self._any_handle().drop(queue, [id]) == [None]:
                self._confirmed.done((queue, id))

    def _redrive(self) -> None:
        with self._rng.choice(self._stores).transaction() as transaction:
            for queue in QUEUES:
                dead = transaction.scan(queue, State.DEAD, 10).messages
                place = transaction.places(len(dead))
                now = self._clock.now
                again = [transitions.redrive(message, now, place + offset) for offset, message in enumerate(dead)]
                changes = [Change(*pair) for pair in zip(dead, again, strict=True)]
                apply_changes(self._context, transaction, changes, now, no_events)

    def _draft(self) -> None:
        """Create a draft: a message without content."""
        queue, now, [id] = self._rng.choice(QUEUES), self._clock.now, self._ids.new(1)
        begun = Envelope(queue, id, 3, now, now, 0, None, "", b"", is_json=False)
        with self._rng.choice(self._stores).transaction() as transaction:
            transaction.add([begun], now, now, now + DRAFT_MS)

    def _set(self) -> None:
        """Set the content of a draft, or replace that of a ready message."""
        payload = self._payload()
        with self._rng.choice(self._stores).transaction() as transaction:
            found = [
                message
                for state in (State.DRAFT, State.READY)
                for queue in QUEUES
                for message in transaction.scan(queue, state, 5).messages
            ]
            if not found:
                return
            message = found[0] if found[0].state is State.DRAFT else self._rng.choice(found)
            [old] = transaction.envelopes([message])
            if old is None:
                raise ValueError(f"message {message.id} has no content")
            new = old._replace(payload=payload, is_json=False)
            transaction.rewrite([message], [new])
            if message.state is State.DRAFT:
                filled, policy = message._replace(size=new.size), transaction.policy(message.queue)
                ready = transitions.set_content(filled, policy, self._clock.now, transaction.places(1))
                transaction.swap([Change(filled, ready)])
        self._confirmed.published((message.queue, message.id), payload)

    def _sweep(self) -> None:
        self._clock.now += self._rng.choice((0, 0, 61_000))
        self._any_handle().sweep()

    def _set_policy(self) -> None:
        self._any_handle().set_policy("orders", {"retry": {"limit": self._rng.randint(1, 5)}})

    def _delete(self, queue: str) -> None:
        self._any_handle().delete_queue(queue)
        self._deliveries = [delivery for delivery in self._deliveries if delivery.queue != queue]
        self._confirmed.forget_queue(queue)
