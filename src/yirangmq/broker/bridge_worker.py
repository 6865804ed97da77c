"""Bridge worker (topic records to a queue), its definition and cursor notes, and messages stored as dead.

The worker publishes the next records of its topics to its queue and moves its cursor in the same commit. After a crash
the store has both or neither, so each record is in the queue exactly once.

A record that the queue can never accept becomes a dead letter of it. If the queue or the store accepts nothing now, the
worker retries every ``RETRY_SECONDS`` and the records wait in the log. After a quota error it halves its batch first. A
retired position or a new epoch of the log stops the bridge until it is resumed from a new position.

The log is read on a background thread; everything else runs on the event loop's thread. The meaning of the notes is in
``core.bridges``. ``broker.sink_batches`` also uses ``store_dead_letters``, which stores new messages directly as dead
letters."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from yirangmq.broker.dead_letter_sources import check_publish
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.selection import swap
from yirangmq.core import transitions
from yirangmq.core.bridges import (
    CURSOR_PREFIX,
    DEFINITION_PREFIX,
    Bridge,
    BridgeCursor,
    BridgeState,
    as_document,
    from_document,
)
from yirangmq.core.errors import QueueError, QuotaExceeded, Retired, StoreDamaged, Unavailable, WrongEpoch, WrongState
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Change, Clock, Transaction
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Record, Start
from yirangmq.format.json_codec import dumps, loads
from yirangmq.format.topic_record import envelope_of

Value = TypeVar("Value")


# -- notes: definitions and cursors ------------------------------------------------------------------------------------


def bridges(transaction: Transaction) -> list[tuple[Bridge, BridgeCursor]]:
    """Return all bridges with their cursors, in the order of their names."""
    found = []
    for key, text in transaction.notes(DEFINITION_PREFIX).items():
        bridge = _read(key, text, from_document)
        found.append((bridge, read_cursor(transaction, bridge.name)))
    return found


def bridge(transaction: Transaction, name: str) -> Bridge | None:
    text = transaction.note(DEFINITION_PREFIX + name)
    return None if text is None else _read(DEFINITION_PREFIX + name, text, from_document)


def read_cursor(transaction: Transaction, name: str) -> BridgeCursor:
    key = CURSOR_PREFIX + name
    text = transaction.note(key)
    if text is None:
        raise StoreDamaged(f"the note {key} is missing")
    return _read(key, text, lambda given: BridgeCursor(**given))


def define(transaction: Transaction, bridge: Bridge) -> None:
    transaction.set_note(DEFINITION_PREFIX + bridge.name, dumps(as_document(bridge)).decode())


def write_cursor(transaction: Transaction, name: str, cursor: BridgeCursor) -> None:
    transaction.set_note(CURSOR_PREFIX + name, dumps(cursor._asdict()).decode())


def remove(transaction: Transaction, name: str) -> None:
    transaction.set_note(DEFINITION_PREFIX + name, None)
    transaction.set_note(CURSOR_PREFIX + name, None)


def _read(key: str, text: str, make: Callable[[dict[str, Any]], Value]) -> Value:
    try:
        return make(loads(text.encode()))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamaged(f"the note {key} cannot be read: {error}") from None


# -- messages stored as dead letters -----------------------------------------------------------------------------------


def store_dead_letters(
    operations: QueueOperations, transaction: Transaction, queue: str, found: Sequence[tuple[Envelope, str]], now: int
) -> None:
    """Store new messages directly as dead letters, each with its reason. Duplicates are skipped."""
    check_publish(transaction, [queue], operations.defaults.max_queues)
    policy = transaction.policy(queue)
    stored = transaction.add([envelope for envelope, _ in found], now, now)
    changes = []
    for receipt, (envelope, why) in zip(stored, found, strict=True):
        if not receipt.duplicate:
            before = transitions.fresh(envelope, receipt.seq, now)
            outcome = transitions.refuse(before, policy, now, why)
            changes.append(Change(before, outcome.message, outcome.failure))
    swap(transaction, changes, now, operations.touched)
    operations.event_buffer.refused(changes, now)


# -- worker ------------------------------------------------------------------------------------------------------------

MAX_RECORDS = 500
"""Upper bound of records per commit of a bridge."""
MAX_BYTES = 1 << 20
"""Upper bound of payload bytes per commit; a single larger record is allowed. It bounds the time that other users of
the loop wait."""
PAUSE_MS = 5
"""Pause between two commits of a bridge, in ms: records that arrive one by one share a commit, and publishers get the
loop in between."""
RETRY_SECONDS = 0.25
"""Delay before the next attempt after a refusal, in seconds."""
CURSOR_INTERVAL_MS = 1_000
"""Interval at which a bridge that only skips records writes its cursor, in ms."""
Done = Callable[[Any, QueueError | None], None]
RunInThread = Callable[[Callable[[], Any], Done], None]
Following = tuple[list[Record], int]


class BridgeTopicLog(Protocol):
    """Port to the topic log. Both methods return a function that reads the log, to be run on a background thread."""

    @property
    def last(self) -> int | None: ...

    def position_reader(self, start: Start, at: int, now: int) -> Callable[[], BridgeCursor]: ...

    def record_reader(
        self, cursor: BridgeCursor, filter: Filter, most: int, most_bytes: int
    ) -> Callable[[], Following]: ...


class BridgeContext(NamedTuple):
    """Dependencies shared by all bridges of a server.

    ``full`` returns the reason why nothing may be stored now, or None."""

    committer: GroupCommitter
    topic_log: BridgeTopicLog
    run_in_thread: RunInThread
    clock: Clock
    full: Callable[[], QueueError | None]


class BridgeWorker:
    """Worker of one bridge: reads records, publishes them, and moves the cursor. Event loop thread only.

    At most one step (read, then commit) is in flight."""

    def __init__(self, bridge: Bridge, cursor: BridgeCursor, context: BridgeContext) -> None:
        self.bridge = bridge
        self.cursor = cursor
        """The cursor on disk."""
        self.seen = cursor.sequence
        """All matching records up to this sequence are in the queue. The cursor on disk may be behind it."""
        self.state = BridgeState.PAUSED if bridge.is_paused else BridgeState.RUNNING
        self.reason = ""
        self.delivered = 0
        """Messages stored since the server started."""
        self.refused = 0
        """Messages of these that became dead letters."""
        self.filter = bridge.filter
        self._context = context
        self._most = MAX_RECORDS
        self._is_busy = False
        self.is_over = False
        """True after ``stop``: no further step is started."""
        self._is_noting = False
        self._is_pausing = False
        self._pause_until = 0
        self._noted_at = 0

    @property
    def lag(self) -> int:
        """Records between the position reached and the end of the log, matching or not."""
        return max(0, (self._context.topic_log.last or 0) - self.seen)

    def stop(self) -> None:
        self.is_over = True

    @property
    def is_idle(self) -> bool:
        return not self._is_busy

    def wake(self) -> None:
        """Start a step if the log has new records, but not before the pause after the last commit has passed."""
        if (self._context.topic_log.last or 0) <= self.seen or self._is_pausing:
            return
        remaining_ms = self._pause_until - self._context.clock.now_ms()
        if 0 < remaining_ms <= PAUSE_MS:  # a longer pause means that the clock was set back: do not wait
            self._is_pausing = True
            self._context.committer.later(remaining_ms / 1000, self._on_pause_end)
        else:
            self.check()

    def _on_pause_end(self) -> None:
        self._is_pausing = False
        if (self._context.topic_log.last or 0) > self.seen:
            self.check()

    def check(self) -> None:
        """Start a step, unless one is in flight or the bridge is stopped or paused.

        Unlike ``wake`` it reads the log even without new records, and so detects a retired position or a new epoch."""
        if self._is_busy or self.is_over or self.state in (BridgeState.PAUSED, BridgeState.STOPPED):
            return
        self._is_busy = True
        try:
            problem = self._context.full()
            if problem is not None:
                raise problem
            at = self.cursor._replace(sequence=self.seen)
            work = self._context.topic_log.record_reader(at, self.filter, self._most, MAX_BYTES)
        except QueueError as error:
            self._fail(error)
            return
        self._context.run_in_thread(work, self._read)

    def _read(self, found: Following | None, error: QueueError | None) -> None:
        if found is None:
            self._fail(error or Unavailable("the log returned no records"))
            return
        records, seen = found
        now = self._context.clock.now_ms()
        if not records and now - self._noted_at < CURSOR_INTERVAL_MS:
            self._advance(seen)
            return
        queue, epoch, groups = self.bridge.queue, self.cursor.epoch, self.bridge.groups
        self._submit([envelope_of(record, queue, epoch, now, groups=groups) for record in records], seen, now)

    def _note(self) -> None:
        """Write the cursor past records that were skipped, so that retention can remove them."""
        self._is_noting = False
        if not self._is_busy and not self.is_over and self.seen > self.cursor.sequence:
            self._is_busy = True
            self._submit([], self.seen, self._context.clock.now_ms())

    def _submit(self, envelopes: list[Envelope], seen: int, now: int) -> None:
        self._noted_at = now
        cursor = BridgeCursor(self.cursor.epoch, seen, now)
        self._context.committer.submit(
            partial(self._store, envelopes=envelopes, before=self.cursor, cursor=cursor),
            partial(self._stored, cursor, len(envelopes)),
        )

    def _store(
        self, transaction: Transaction, envelopes: list[Envelope], before: BridgeCursor, cursor: BridgeCursor
    ) -> int:
        """Store a batch and the cursor in one transaction; return how many messages became dead letters.

        Everything is checked before the first write. ``WrongState`` if the stored bridge or cursor was changed
        meanwhile."""
        if bridge(transaction, self.bridge.name) != self.bridge:
            raise WrongState("it was changed in the meantime")
        if read_cursor(transaction, self.bridge.name) != before:
            raise WrongState("it was moved meanwhile")
        most = transaction.policy(self.bridge.queue).max_body
        operations = self._context.committer.operations
        unfit = [(one, _too_large(one, most)) for one in envelopes if len(one.payload) > most]
        small = [one for one in envelopes if len(one.payload) <= most]
        complaints = operations.admission.complaints(transaction, self.bridge.queue, small)
        unfit += [(one, complaint) for one, complaint in zip(small, complaints, strict=True) if complaint]
        fitting = [one for one, complaint in zip(small, complaints, strict=True) if not complaint]
        if fitting:
            operations.publish(transaction, self.bridge.queue, fitting)
        if unfit:
            store_dead_letters(operations, transaction, self.bridge.queue, unfit, self._context.clock.now_ms())
        write_cursor(transaction, self.bridge.name, cursor)
        return len(unfit)

    def _stored(self, cursor: BridgeCursor, count: int, refused: int | None, error: QueueError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self.cursor = cursor
        self.delivered += count
        self.refused += refused or 0
        self._most = min(self._most * 2, MAX_RECORDS)
        self._pause_until = self._context.clock.now_ms() + PAUSE_MS
        self._advance(cursor.sequence)

    def _advance(self, seen: int) -> None:
        self.seen = seen
        self._is_busy = False
        if self.state is BridgeState.WAITING:
            self.state, self.reason = BridgeState.RUNNING, ""
        if (self._context.topic_log.last or 0) > seen:
            self.wake()
        elif seen > self.cursor.sequence and not self._is_noting:
            self._plan_note()

    def _plan_note(self) -> None:
        self._is_noting = True
        self._context.committer.later(CURSOR_INTERVAL_MS / 1000, self._note)

    def _fail(self, error: QueueError) -> None:
        """Handle an error by its kind.

        Reload after a concurrent change, stop if the position is gone, halve the batch after a quota error, and retry
        after ``RETRY_SECONDS`` otherwise."""
        self._is_busy = False
        if self.is_over:
            return
        if isinstance(error, WrongState):
            self._reload()
            return
        if isinstance(error, Retired | WrongEpoch):
            self.state, self.reason = BridgeState.STOPPED, str(error)
            return
        if isinstance(error, QuotaExceeded) and self._most > 1:
            self._most = max(1, self._most // 2)
            self.wake()
            return
        self.state, self.reason = BridgeState.WAITING, str(error)
        self._context.committer.later(RETRY_SECONDS, self.check)

    def _reload(self) -> None:
        """Reload the notes after another process changed this bridge.

        Continue from the stored cursor if the definition is the same. If it differs, a new worker replaces this one."""
        try:
            bridge, cursor = self._context.committer.read(partial(_noted, name=self.bridge.name))
        except QueueError as error:
            self.state, self.reason = BridgeState.WAITING, str(error)
            self._context.committer.later(RETRY_SECONDS, self.check)
            return
        if bridge == self.bridge:
            self.cursor, self.seen = cursor, cursor.sequence
            self.check()


def _noted(transaction: Transaction, name: str) -> tuple[Bridge | None, BridgeCursor]:
    return bridge(transaction, name), read_cursor(transaction, name)


def _too_large(envelope: Envelope, most: int) -> str:
    return f"{len(envelope.payload)} bytes, queue {envelope.queue!r} takes {most}"
