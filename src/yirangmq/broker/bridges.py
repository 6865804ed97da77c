"""Bridges of a server: created, paused, resumed and removed durably, each with a worker while it runs.

A bridge is a store note (``broker.bridge_worker``); callbacks run after the commit. A change fails if the stored bridge
is not the expected version. Bridges from the settings are created or updated at start; an update keeps the cursor and
the paused state.

A running or waiting bridge protects the topic log from retention from its cursor on. A paused or stopped bridge does so
for a limited time, like a durable subscriber that is offline. Event loop thread only."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from yirangmq.broker import bridge_worker
from yirangmq.broker.bridge_worker import BridgeContext, BridgeWorker, Done
from yirangmq.core.bridges import Bridge, BridgeCursor, BridgeState, NewBridge
from yirangmq.core.errors import NotFound, QueueError, WrongState
from yirangmq.core.ports import Transaction
from yirangmq.core.topics import Start


class Bridges:
    """Registry of the bridges of a store and their workers.

    ``start`` and ``stop`` may be called repeatedly, as a node becomes active and standby."""

    def __init__(self, context: BridgeContext) -> None:
        self._context = context
        self._workers: dict[str, BridgeWorker] = {}

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self, wanted: Sequence[NewBridge], on_error: Callable[[str, QueueError], None]) -> None:
        """Start the bridges of the store, and create or update those of the settings.

        ``on_error(name, error)`` is called for each bridge of the settings that cannot be stored."""
        for bridge, cursor in self._context.committer.read(bridge_worker.bridges):
            known = self._workers.get(bridge.name)
            if known is None or known.is_over:
                self._take(bridge, cursor)
        for new in wanted:
            self._adopt(new, on_error)

    def load(self) -> None:
        """Load the bridges of the store, stopped. Until ``start`` they only hold back the log's retention."""
        for bridge, cursor in self._context.committer.read(bridge_worker.bridges):
            self._workers[bridge.name] = BridgeWorker(bridge, cursor, self._context)
        self.stop()

    def _adopt(self, new: NewBridge, on_error: Callable[[str, QueueError], None]) -> None:
        """Create a bridge of the settings, or update its definition. Its cursor and paused state do not change."""
        name = new.bridge.name
        known = self._workers.get(name)

        def done(value: Any, error: QueueError | None) -> None:
            if error is not None:
                on_error(name, error)

        if known is None:
            self.add(new, done)
            return
        bridge = new.bridge._replace(is_paused=known.bridge.is_paused, changed_at=known.bridge.changed_at)
        if bridge != known.bridge:
            self._change(known, bridge, None, done)

    def stop(self) -> None:
        """Stop all workers: none starts another step. A step in flight finishes first (``is_idle``)."""
        for worker in self._workers.values():
            worker.stop()

    @property
    def is_idle(self) -> bool:
        return all(worker.is_idle for worker in self._workers.values())

    def wake(self) -> None:
        """Wake the workers after records were published."""
        for worker in self._workers.values():
            worker.wake()

    def _take(self, bridge: Bridge, cursor: BridgeCursor) -> BridgeWorker:
        known = self._workers.get(bridge.name)
        made = self._workers[bridge.name] = BridgeWorker(bridge, cursor, self._context)
        if known is not None:
            known.stop()
            made.delivered, made.refused = known.delivered, known.refused
        made.check()
        return made

    # -- operator commands ------------------------------------------------------------------------------------------

    def add(self, new: NewBridge, done: Done) -> None:
        """Create a bridge. ``done(row, None)`` is called when it is on disk and runs.

        If the same bridge exists, ``done`` is called immediately; ``WrongState`` if a different one has this name."""
        name, now = new.bridge.name, self._context.clock.wall_ms()
        known = self._workers.get(name)
        if known is not None:
            if not known.bridge.is_same(new.bridge):
                raise WrongState(f"there is another bridge {name!r}; remove it first", field="name")
            done(self.row(known), None)
            return

        def begun(cursor: BridgeCursor | None, error: QueueError | None) -> None:
            if cursor is None:
                done(None, error)
            else:
                work = partial(_made, bridge=new.bridge._replace(changed_at=now), cursor=cursor)
                self._context.committer.submit(work, partial(self._changed, done))

        self._context.run_in_thread(self._context.topic_log.position_reader(new.start, new.at, now), begun)

    def pause(self, name: str, done: Done) -> None:
        worker = self._find(name)
        bridge = worker.bridge._replace(is_paused=True, changed_at=self._context.clock.wall_ms())
        self._change(worker, bridge, None, done)

    def resume(self, name: str, start: Start | None, at: int, done: Done) -> None:
        """Resume from the cursor, or from ``start``. A move of the cursor skips records, or delivers records again."""
        worker, now = self._find(name), self._context.clock.wall_ms()
        bridge = worker.bridge._replace(is_paused=False, changed_at=now)
        if start is None:
            self._change(worker, bridge, None, done)
            return

        def begun(cursor: BridgeCursor | None, error: QueueError | None) -> None:
            if cursor is None:
                done(None, error)
            else:
                self._change(worker, bridge, cursor, done)

        self._context.run_in_thread(self._context.topic_log.position_reader(start, at, now), begun)

    def remove(self, name: str, done: Done) -> None:
        """Remove a bridge. The messages that it delivered stay in the queue."""
        self._find(name)

        def removed(row: Any, error: QueueError | None) -> None:
            if error is None:
                self._workers.pop(name).stop()
            done(row, error)

        row = self.row(self._find(name))
        self._context.committer.submit(partial(_removed, name=name, row=row), removed)

    def _change(self, worker: BridgeWorker, bridge: Bridge, cursor: BridgeCursor | None, done: Done) -> None:
        work = partial(_changed, before=worker.bridge, bridge=bridge, cursor=cursor)
        self._context.committer.submit(work, partial(self._changed, done))

    def _changed(self, done: Done, value: tuple[Bridge, BridgeCursor] | None, error: QueueError | None) -> None:
        if value is None:
            done(None, error)
        else:
            done(self.row(self._take(*value)), None)

    def _find(self, name: str) -> BridgeWorker:
        worker = self._workers.get(name)
        if worker is None:
            raise NotFound(f"there is no bridge {name!r}", field="name")
        return worker

    # -- status -----------------------------------------------------------------------------------------------------

    def all(self) -> list[BridgeWorker]:
        return [self._workers[name] for name in sorted(self._workers)]

    def one(self, name: str) -> dict[str, Any]:
        return self.row(self._find(name))

    def rows(self) -> list[dict[str, Any]]:
        return [self.row(worker) for worker in self.all()]

    def row(self, worker: BridgeWorker) -> dict[str, Any]:
        bridge = worker.bridge
        return {
            "name": bridge.name,
            "queue": bridge.queue,
            "topics": list(bridge.topics),
            "groups": bridge.groups,
            "state": str(worker.state),
            "reason": worker.reason,
            "epoch": worker.cursor.epoch,
            "sequence": worker.seen,
            "lag": worker.lag,
            "delivered": worker.delivered,
            "refused": worker.refused,
        }

    def fed_by(self, topic: str) -> frozenset[str]:
        """Return the queues that receive this topic's records."""
        return frozenset(one.bridge.queue for one in self._workers.values() if one.filter.wants(topic))

    def floor(self, epoch: str, oldest_ms: int) -> int | None:
        """Return the first sequence of ``epoch`` that a bridge still needs, or None.

        A paused or stopped bridge counts only if it was changed at or after ``oldest_ms``, like a durable subscriber
        that is offline."""
        needed = [
            one.cursor.sequence + 1
            for one in self._workers.values()
            if one.cursor.epoch == epoch and (one.state in AT_WORK or one.bridge.changed_at >= oldest_ms)
        ]
        return min(needed, default=None)

    def positions(self, epoch: str) -> dict[str, int]:
        """Return the position of each bridge of the store whose cursor is of this epoch; "": of any epoch."""
        found = self._context.committer.read(bridge_worker.bridges)
        return {f"bridge {bridge.name}": cursor.sequence for bridge, cursor in found if epoch in ("", cursor.epoch)}


AT_WORK = (BridgeState.RUNNING, BridgeState.WAITING)


def _made(transaction: Transaction, bridge: Bridge, cursor: BridgeCursor) -> tuple[Bridge, BridgeCursor]:
    if bridge_worker.bridge(transaction, bridge.name) is not None:
        raise WrongState(f"there is a bridge {bridge.name!r} already", field="name")
    transaction.policy(bridge.queue)  # raise now if the policy cannot be parsed
    bridge_worker.define(transaction, bridge)
    bridge_worker.write_cursor(transaction, bridge.name, cursor)
    return bridge, cursor


def _changed(
    transaction: Transaction, before: Bridge, bridge: Bridge, cursor: BridgeCursor | None
) -> tuple[Bridge, BridgeCursor]:
    if bridge_worker.bridge(transaction, bridge.name) != before:
        raise NotFound(f"the bridge {bridge.name!r} was changed in the meantime; read it again", field="name")
    bridge_worker.define(transaction, bridge)
    if cursor is not None:
        bridge_worker.write_cursor(transaction, bridge.name, cursor)
    return bridge, bridge_worker.read_cursor(transaction, bridge.name)


def _removed(transaction: Transaction, name: str, row: dict[str, Any]) -> dict[str, Any]:
    bridge_worker.remove(transaction, name)
    return row
