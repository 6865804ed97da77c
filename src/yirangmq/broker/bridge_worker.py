"""Bridge worker (topic records to a queue), its definition and cursor notes, and messages stored as dead.

The worker publishes the next records of its topics to its queue and moves its cursor in the same commit. After a crash
the store has both or neither, so each record is in the queue exactly once.

A record that the queue can never accept becomes a dead letter of it. If the queue or the store accepts nothing now, the
worker retries every ``AGAIN_SECONDS`` and the records wait in the log. After a quota error it halves its batch first. A
retired position or a new epoch of the log stops the bridge until it is resumed from a new position.

The log is read on a background thread; everything else runs on the event loop's thread. The meaning of the notes is in
``core.bridges``. ``broker.sink_batches`` also uses ``bury``, which stores new messages directly as dead letters."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.broker.quota import check_new_queues
from yirangmq.broker.selection import swap
from yirangmq.core import transitions
from yirangmq.core.bridges import DEFINED, REACHED, Bridge, BridgeState, Reached, as_document, of_document
from yirangmq.core.errors import QueueError, QuotaExceeded, Retired, StoreDamaged, Unavailable, WrongEpoch, WrongState
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Change, Clock, Transaction
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Record, Start
from yirangmq.format.json_codec import dumps, loads
from yirangmq.format.topic_record import envelope_of

Value = TypeVar("Value")


# -- notes: definitions and cursors ------------------------------------------------------------------------------------


def bridges(transaction: Transaction) -> list[tuple[Bridge, Reached]]:
    """Return all bridges with their cursors, in the order of their names."""
    found = []
    for key, text in transaction.notes(DEFINED).items():
        bridge = _read(key, text, of_document)
        found.append((bridge, read_reached(transaction, bridge.name)))
    return found


def bridge(transaction: Transaction, name: str) -> Bridge | None:
    text = transaction.note(DEFINED + name)
    return None if text is None else _read(DEFINED + name, text, of_document)


def read_reached(transaction: Transaction, name: str) -> Reached:
    key = REACHED + name
    text = transaction.note(key)
    if text is None:
        raise StoreDamaged(f"the note {key} is missing")
    return _read(key, text, lambda given: Reached(**given))


def define(transaction: Transaction, bridge: Bridge) -> None:
    transaction.set_note(DEFINED + bridge.name, dumps(as_document(bridge)).decode())


def reach(transaction: Transaction, name: str, reached: Reached) -> None:
    transaction.set_note(REACHED + name, dumps(reached._asdict()).decode())


def remove(transaction: Transaction, name: str) -> None:
    transaction.set_note(DEFINED + name, None)
    transaction.set_note(REACHED + name, None)


def _read(key: str, text: str, make: Callable[[dict[str, Any]], Value]) -> Value:
    try:
        return make(loads(text.encode()))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamaged(f"the note {key} cannot be read: {error}") from None


# -- messages stored as dead letters -----------------------------------------------------------------------------------


def bury(verbs: Verbs, transaction: Transaction, queue: str, found: Sequence[tuple[Envelope, str]], now: int) -> None:
    """Store new messages directly as dead letters, each with its reason. Duplicates are skipped."""
    check_new_queues(transaction, [queue], verbs.defaults.max_queues)
    policy = transaction.policy(queue)
    stored = transaction.add([envelope for envelope, _ in found], now, now)
    changes = []
    for receipt, (envelope, why) in zip(stored, found, strict=True):
        if not receipt.duplicate:
            before = transitions.fresh(envelope, receipt.seq, now)
            outcome = transitions.refuse(before, policy, now, why)
            changes.append(Change(before, outcome.message, outcome.failure))
    swap(transaction, changes, now, verbs.touched)
    verbs.happened.refused(changes, now)


# -- worker ------------------------------------------------------------------------------------------------------------

MOST_RECORDS = 500
"""Upper bound of records per commit of a bridge."""
MOST_BYTES = 1 << 20
"""Upper bound of payload bytes per commit; a single larger record is allowed. It bounds the time that other users of
the loop wait."""
REST_MS = 5
"""Pause between two commits of a bridge, in ms: records that arrive one by one share a commit, and publishers get the
loop in between."""
AGAIN_SECONDS = 0.25
"""Delay before the next attempt after a refusal, in seconds."""
NOTED_MS = 1_000
"""Interval at which a bridge that only skips records writes its cursor, in ms."""
Done = Callable[[Any, QueueError | None], None]
Aside = Callable[[Callable[[], Any], Done], None]
Following = tuple[list[Record], int]


class Feed(Protocol):
    """Port to the topic log. Both methods return a function that reads the log, to be run on a background thread."""

    @property
    def last(self) -> int | None: ...

    def beginning(self, start: Start, at: int, now: int) -> Callable[[], Reached]: ...

    def following(self, reached: Reached, filter: Filter, most: int, most_bytes: int) -> Callable[[], Following]: ...


class Means(NamedTuple):
    """Dependencies shared by all bridges of a server.

    ``full`` returns the reason why nothing may be stored now, or None."""

    desk: Desk
    feed: Feed
    aside: Aside
    clock: Clock
    full: Callable[[], QueueError | None]


class Crossing:
    """Worker of one bridge: reads records, publishes them, and moves the cursor. Event loop thread only.

    At most one step (read, then commit) is in flight."""

    def __init__(self, bridge: Bridge, reached: Reached, means: Means) -> None:
        self.bridge = bridge
        self.reached = reached
        """The cursor on disk."""
        self.seen = reached.sequence
        """All matching records up to this sequence are in the queue. The cursor on disk may be behind it."""
        self.state = BridgeState.PAUSED if bridge.is_paused else BridgeState.RUNNING
        self.reason = ""
        self.delivered = 0
        """Messages stored since the server started."""
        self.refused = 0
        """Messages of these that became dead letters."""
        self.filter = bridge.filter
        self._means = means
        self._most = MOST_RECORDS
        self._is_busy = False
        self.is_over = False
        """True after ``stop``: no further step is started."""
        self._is_noting = False
        self._is_resting = False
        self._rests_until = 0
        self._noted_at = 0

    @property
    def lag(self) -> int:
        """Records between the position reached and the end of the log, matching or not."""
        return max(0, (self._means.feed.last or 0) - self.seen)

    def stop(self) -> None:
        self.is_over = True

    @property
    def is_idle(self) -> bool:
        return not self._is_busy

    def kick(self) -> None:
        """Start a step if the log has new records, but not before the pause after the last commit has passed."""
        if (self._means.feed.last or 0) <= self.seen or self._is_resting:
            return
        rest = self._rests_until - self._means.clock.now_ms()
        if 0 < rest <= REST_MS:  # a longer pause means that the clock was set back: do not wait
            self._is_resting = True
            self._means.desk.later(rest / 1000, self._rested)
        else:
            self.check()

    def _rested(self) -> None:
        self._is_resting = False
        if (self._means.feed.last or 0) > self.seen:
            self.check()

    def check(self) -> None:
        """Start a step, unless one is in flight or the bridge is stopped or paused.

        Unlike ``kick`` it reads the log even without new records, and so detects a retired position or a new epoch."""
        if self._is_busy or self.is_over or self.state in (BridgeState.PAUSED, BridgeState.STOPPED):
            return
        self._is_busy = True
        try:
            problem = self._means.full()
            if problem is not None:
                raise problem
            at = self.reached._replace(sequence=self.seen)
            work = self._means.feed.following(at, self.filter, self._most, MOST_BYTES)
        except QueueError as error:
            self._fail(error)
            return
        self._means.aside(work, self._read)

    def _read(self, found: Following | None, error: QueueError | None) -> None:
        if found is None:
            self._fail(error or Unavailable("the log gave nothing"))
            return
        records, seen = found
        now = self._means.clock.now_ms()
        if not records and now - self._noted_at < NOTED_MS:
            self._went_on(seen)
            return
        queue, epoch, groups = self.bridge.queue, self.reached.epoch, self.bridge.groups
        self._submit([envelope_of(record, queue, epoch, now, groups=groups) for record in records], seen, now)

    def _note(self) -> None:
        """Write the cursor past records that were skipped, so that retention can remove them."""
        self._is_noting = False
        if not self._is_busy and not self.is_over and self.seen > self.reached.sequence:
            self._is_busy = True
            self._submit([], self.seen, self._means.clock.now_ms())

    def _submit(self, envelopes: list[Envelope], seen: int, now: int) -> None:
        self._noted_at = now
        reached = Reached(self.reached.epoch, seen, now)
        self._means.desk.submit(
            partial(self._store, envelopes=envelopes, before=self.reached, reached=reached),
            partial(self._stored, reached, len(envelopes)),
        )

    def _store(self, transaction: Transaction, envelopes: list[Envelope], before: Reached, reached: Reached) -> int:
        """Store a batch and the cursor in one transaction; return how many messages became dead letters.

        Everything is checked before the first write. ``WrongState`` if the stored bridge or cursor was changed
        meanwhile."""
        if bridge(transaction, self.bridge.name) != self.bridge:
            raise WrongState("it was changed meanwhile")
        if read_reached(transaction, self.bridge.name) != before:
            raise WrongState("it was moved meanwhile")
        most = transaction.policy(self.bridge.queue).max_body
        verbs = self._means.desk.verbs
        unfit = [(one, _too_large(one, most)) for one in envelopes if len(one.payload) > most]
        small = [one for one in envelopes if len(one.payload) <= most]
        complaints = verbs.gate.complaints(transaction, self.bridge.queue, small)
        unfit += [(one, complaint) for one, complaint in zip(small, complaints, strict=True) if complaint]
        fitting = [one for one, complaint in zip(small, complaints, strict=True) if not complaint]
        if fitting:
            verbs.publish(transaction, self.bridge.queue, fitting)
        if unfit:
            bury(verbs, transaction, self.bridge.queue, unfit, self._means.clock.now_ms())
        reach(transaction, self.bridge.name, reached)
        return len(unfit)

    def _stored(self, reached: Reached, count: int, refused: int | None, error: QueueError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self.reached = reached
        self.delivered += count
        self.refused += refused or 0
        self._most = min(self._most * 2, MOST_RECORDS)
        self._rests_until = self._means.clock.now_ms() + REST_MS
        self._went_on(reached.sequence)

    def _went_on(self, seen: int) -> None:
        self.seen = seen
        self._is_busy = False
        if self.state is BridgeState.WAITING:
            self.state, self.reason = BridgeState.RUNNING, ""
        if (self._means.feed.last or 0) > seen:
            self.kick()
        elif seen > self.reached.sequence and not self._is_noting:
            self._plan_note()

    def _plan_note(self) -> None:
        self._is_noting = True
        self._means.desk.later(NOTED_MS / 1000, self._note)

    def _fail(self, error: QueueError) -> None:
        """Handle an error by its kind.

        Reload after a concurrent change, stop if the position is gone, halve the batch after a quota error, and retry
        after ``AGAIN_SECONDS`` otherwise."""
        self._is_busy = False
        if self.is_over:
            return
        if isinstance(error, WrongState):
            self._look_again()
            return
        if isinstance(error, Retired | WrongEpoch):
            self.state, self.reason = BridgeState.STOPPED, str(error)
            return
        if isinstance(error, QuotaExceeded) and self._most > 1:
            self._most = max(1, self._most // 2)
            self.kick()
            return
        self.state, self.reason = BridgeState.WAITING, str(error)
        self._means.desk.later(AGAIN_SECONDS, self.check)

    def _look_again(self) -> None:
        """Reload the notes after another process changed this bridge.

        Continue from the stored cursor if the definition is the same. If it differs, a new worker replaces this one."""
        try:
            bridge, reached = self._means.desk.read(partial(_noted, name=self.bridge.name))
        except QueueError as error:
            self.state, self.reason = BridgeState.WAITING, str(error)
            self._means.desk.later(AGAIN_SECONDS, self.check)
            return
        if bridge == self.bridge:
            self.reached, self.seen = reached, reached.sequence
            self.check()


def _noted(transaction: Transaction, name: str) -> tuple[Bridge | None, Reached]:
    return bridge(transaction, name), read_reached(transaction, name)


def _too_large(envelope: Envelope, most: int) -> str:
    return f"{len(envelope.payload)} bytes, queue {envelope.queue!r} takes {most}"
