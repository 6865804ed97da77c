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
from yirangmq.broker.bridge_worker import Crossing, Done, Means
from yirangmq.core.bridges import Bridge, BridgeState, NewBridge, Reached
from yirangmq.core.errors import NotFound, QueueError, WrongState
from yirangmq.core.ports import Transaction
from yirangmq.core.topics import Start


class Bridges:
    """Registry of the bridges of a store and their workers.

    ``start`` and ``stop`` may be called repeatedly, as a node becomes active and standby."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._crossings: dict[str, Crossing] = {}

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self, wanted: Sequence[NewBridge], told: Callable[[str, QueueError], None]) -> None:
        """Start the bridges of the store, and create or update those of the settings.

        ``told(name, error)`` is called for each bridge of the settings that cannot be stored."""
        for bridge, reached in self._means.desk.read(bridge_worker.bridges):
            known = self._crossings.get(bridge.name)
            if known is None or known.is_over:
                self._take(bridge, reached)
        for new in wanted:
            self._adopt(new, told)

    def load(self) -> None:
        """Load the bridges of the store, stopped. Until ``start`` they only hold back the log's retention."""
        for bridge, reached in self._means.desk.read(bridge_worker.bridges):
            self._crossings[bridge.name] = Crossing(bridge, reached, self._means)
        self.stop()

    def _adopt(self, new: NewBridge, told: Callable[[str, QueueError], None]) -> None:
        """Create a bridge of the settings, or update its definition. Its cursor and paused state do not change."""
        name = new.bridge.name
        known = self._crossings.get(name)

        def done(value: Any, error: QueueError | None) -> None:
            if error is not None:
                told(name, error)

        if known is None:
            self.add(new, done)
            return
        bridge = new.bridge._replace(is_paused=known.bridge.is_paused, changed_at=known.bridge.changed_at)
        if bridge != known.bridge:
            self._change(known, bridge, None, done)

    def stop(self) -> None:
        """Stop all workers: none starts another step. A step in flight finishes first (``is_idle``)."""
        for crossing in self._crossings.values():
            crossing.stop()

    @property
    def is_idle(self) -> bool:
        return all(crossing.is_idle for crossing in self._crossings.values())

    def kick(self) -> None:
        """Wake the workers after records were published."""
        for crossing in self._crossings.values():
            crossing.kick()

    def _take(self, bridge: Bridge, reached: Reached) -> Crossing:
        known = self._crossings.get(bridge.name)
        made = self._crossings[bridge.name] = Crossing(bridge, reached, self._means)
        if known is not None:
            known.stop()
            made.delivered, made.refused = known.delivered, known.refused
        made.check()
        return made

    # -- operator commands ------------------------------------------------------------------------------------------

    def add(self, new: NewBridge, done: Done) -> None:
        """Create a bridge. ``done(row, None)`` is called when it is on disk and runs.

        If the same bridge exists, ``done`` is called immediately; ``WrongState`` if a different one has this name."""
        name, now = new.bridge.name, self._means.clock.wall_ms()
        known = self._crossings.get(name)
        if known is not None:
            if not known.bridge.is_same(new.bridge):
                raise WrongState(f"there is another bridge {name!r}; remove it first", field="name")
            done(self.row(known), None)
            return

        def begun(reached: Reached | None, error: QueueError | None) -> None:
            if reached is None:
                done(None, error)
            else:
                work = partial(_made, bridge=new.bridge._replace(changed_at=now), reached=reached)
                self._means.desk.submit(work, partial(self._changed, done))

        self._means.aside(self._means.feed.beginning(new.start, new.at, now), begun)

    def pause(self, name: str, done: Done) -> None:
        crossing = self._find(name)
        bridge = crossing.bridge._replace(is_paused=True, changed_at=self._means.clock.wall_ms())
        self._change(crossing, bridge, None, done)

    def resume(self, name: str, start: Start | None, at: int, done: Done) -> None:
        """Resume from the cursor, or from ``start``. A move of the cursor skips records, or delivers records again."""
        crossing, now = self._find(name), self._means.clock.wall_ms()
        bridge = crossing.bridge._replace(is_paused=False, changed_at=now)
        if start is None:
            self._change(crossing, bridge, None, done)
            return

        def begun(reached: Reached | None, error: QueueError | None) -> None:
            if reached is None:
                done(None, error)
            else:
                self._change(crossing, bridge, reached, done)

        self._means.aside(self._means.feed.beginning(start, at, now), begun)

    def remove(self, name: str, done: Done) -> None:
        """Remove a bridge. The messages that it delivered stay in the queue."""
        self._find(name)

        def removed(row: Any, error: QueueError | None) -> None:
            if error is None:
                self._crossings.pop(name).stop()
            done(row, error)

        row = self.row(self._find(name))
        self._means.desk.submit(partial(_removed, name=name, row=row), removed)

    def _change(self, crossing: Crossing, bridge: Bridge, reached: Reached | None, done: Done) -> None:
        work = partial(_changed, before=crossing.bridge, bridge=bridge, reached=reached)
        self._means.desk.submit(work, partial(self._changed, done))

    def _changed(self, done: Done, value: tuple[Bridge, Reached] | None, error: QueueError | None) -> None:
        if value is None:
            done(None, error)
        else:
            done(self.row(self._take(*value)), None)

    def _find(self, name: str) -> Crossing:
        crossing = self._crossings.get(name)
        if crossing is None:
            raise NotFound(f"there is no bridge {name!r}", field="name")
        return crossing

    # -- status -----------------------------------------------------------------------------------------------------

    def all(self) -> list[Crossing]:
        return [self._crossings[name] for name in sorted(self._crossings)]

    def one(self, name: str) -> dict[str, Any]:
        return self.row(self._find(name))

    def rows(self) -> list[dict[str, Any]]:
        return [self.row(crossing) for crossing in self.all()]

    def row(self, crossing: Crossing) -> dict[str, Any]:
        bridge = crossing.bridge
        return {
            "name": bridge.name,
            "queue": bridge.queue,
            "topics": list(bridge.topics),
            "groups": bridge.groups,
            "state": str(crossing.state),
            "reason": crossing.reason,
            "epoch": crossing.reached.epoch,
            "sequence": crossing.seen,
            "lag": crossing.lag,
            "delivered": crossing.delivered,
            "refused": crossing.refused,
        }

    def fed_by(self, topic: str) -> frozenset[str]:
        """Return the queues that receive this topic's records."""
        return frozenset(one.bridge.queue for one in self._crossings.values() if one.filter.wants(topic))

    def floor(self, epoch: str, oldest_ms: int) -> int | None:
        """Return the first sequence of ``epoch`` that a bridge still needs, or None.

        A paused or stopped bridge counts only if it was changed at or after ``oldest_ms``, like a durable subscriber
        that is offline."""
        needed = [
            one.reached.sequence + 1
            for one in self._crossings.values()
            if one.reached.epoch == epoch and (one.state in AT_WORK or one.bridge.changed_at >= oldest_ms)
        ]
        return min(needed, default=None)


AT_WORK = (BridgeState.RUNNING, BridgeState.WAITING)


def _made(transaction: Transaction, bridge: Bridge, reached: Reached) -> tuple[Bridge, Reached]:
    if bridge_worker.bridge(transaction, bridge.name) is not None:
        raise WrongState(f"there is a bridge {bridge.name!r} already", field="name")
    transaction.policy(bridge.queue)  # raise now if the policy cannot be parsed
    bridge_worker.define(transaction, bridge)
    bridge_worker.reach(transaction, bridge.name, reached)
    return bridge, reached


def _changed(
    transaction: Transaction, before: Bridge, bridge: Bridge, reached: Reached | None
) -> tuple[Bridge, Reached]:
    if bridge_worker.bridge(transaction, bridge.name) != before:
        raise NotFound(f"the bridge {bridge.name!r} was changed meanwhile; look again", field="name")
    bridge_worker.define(transaction, bridge)
    if reached is not None:
        bridge_worker.reach(transaction, bridge.name, reached)
    return bridge, bridge_worker.read_reached(transaction, bridge.name)


def _removed(transaction: Transaction, name: str, row: dict[str, Any]) -> dict[str, Any]:
    bridge_worker.remove(transaction, name)
    return row
