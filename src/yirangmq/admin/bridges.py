"""Bridge methods, bridges in status, health and metrics; and queue events published to a topic.

The event topic receives the events of the queues as records. They are published after the commit, like the events of
any listener: a server killed between the two loses them. Events of queues that a bridge feeds from this same topic are
skipped. They would become messages of those queues, and the events of these messages further records, in an endless
loop. Beyond ``MAX_PENDING_EVENTS`` unpublished events, new events are dropped and counted; the next record has their
number. Loop thread only."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.admin.registry import Done, Given, MethodArguments, MethodRegistry, read_arguments
from yirangmq.broker.bridges import Bridges
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core.bridges import BridgeState, check_bridge, read_new, read_start
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.events import Event
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.ports import Clock
from yirangmq.core.topics import NewRecord, Start
from yirangmq.format.json_codec import dumps
from yirangmq.observe.events import UNPUBLISHED_EVENTS, describe
from yirangmq.topics.ports import MAX_PER_PUBLISH
from yirangmq.topics.publisher import Publisher

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue


# -- bridge methods ----------------------------------------------------------------------------------------------------


class BridgeMethods:
    """Named methods of bridges, and bridges in status, health and metrics.

    ``bridges`` is None if the server has no topics. ``lag_limit`` is the setting ``topic_lag_limit``, in records; 0
    disables the check. Loop thread only."""

    def __init__(self, bridges: Bridges | None, lag_limit: int = 0) -> None:
        self._bridges = bridges
        self._lag_limit = lag_limit

    def register(self, methods: MethodRegistry) -> None:
        """Add the methods to the call table."""
        for name, entry in {
            "bridges": self._list,
            "bridge_show": self._show,
            "bridge_add": self._add,
            "bridge_remove": self._remove,
            "bridge_pause": self._pause,
            "bridge_resume": self._resume,
        }.items():
            methods.add_entry(name, entry)

    def _require_bridges(self) -> Bridges:
        if self._bridges is None:
            raise BadInput("this server has no topics", field="method")
        return self._bridges

    def _list(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        read_arguments(given, lambda values: None)
        done(self._require_bridges().rows(), None)

    def _show(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        done(self._require_bridges().one(read_arguments(given, _name)), None)

    def _add(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Add a bridge from ``name``, ``queue``, ``topics``, ``groups``, ``start`` and ``at``.

        ``start`` and ``at`` mean the same as in a subscription."""
        self._require_bridges().add(read_new(given), done)

    def _remove(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        self._require_bridges().remove(read_arguments(given, _name), done)

    def _pause(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        self._require_bridges().pause(read_arguments(given, _name), done)

    def _resume(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        name, start, at = read_arguments(given, _read_resume)
        self._require_bridges().resume(name, start, at, done)

    # -- for status, health and metrics ---------------------------------------------------------------------------

    def facts(self) -> list[dict[str, Any]] | None:
        if self._bridges is None:
            return None
        return [{name: row[name] for name in ("name", "queue", "state", "lag")} for row in self._bridges.rows()]

    def reasons(self) -> list[HealthReason]:
        """Return the health reasons of bridges: stopped, waiting, or lagging by more than the limit."""
        found = []
        for one in self._bridges.all() if self._bridges is not None else ():
            name = one.bridge.name
            if one.state in (BridgeState.STOPPED, BridgeState.WAITING):
                found.append(health_reason("bridge", f"bridge {name} is {one.state}: {one.reason}"))
            elif self._lag_limit and one.state is BridgeState.RUNNING and one.lag > self._lag_limit:
                found.append(health_reason("lag", f"bridge {name} is {one.lag} records behind"))
        return found

    def samples(self) -> "dict[str, MetricValue]":
        if self._bridges is None:
            return {}
        found = [({"bridge": one.bridge.name}, one) for one in self._bridges.all()]
        return {
            "yirangmq_bridge_lag": [(labels, one.lag) for labels, one in found],
            "yirangmq_bridge_records_total": [(labels, one.delivered) for labels, one in found],
            "yirangmq_bridge_running": [(labels, float(one.state is BridgeState.RUNNING)) for labels, one in found],
        }


def _name(values: MethodArguments) -> str:
    return check_bridge(values.take("name", None))


def _read_resume(values: MethodArguments) -> tuple[str, Start | None, int]:
    name = _name(values)
    if values.is_null("start"):
        values.take("at", 0)
        return name, None, 0
    return name, *read_start(values)


# -- queue events as records of a topic --------------------------------------------------------------------------------

MAX_PENDING_EVENTS = 10_000
"""Upper bound of events that wait for the topic log; past this, new events are dropped and counted, and the next record
has their number (``missed``)."""
NAME = "event"


class EventTopicPublisher:
    """Publisher of queue events to a topic. ``fed_queues`` returns the queues that a bridge feeds from a topic.

    Loop thread only."""

    def __init__(
        self, topic: str, topics: Publisher, clock: Clock, fed_queues: Callable[[str], frozenset[str]]
    ) -> None:
        self._topic = topic
        self._topics = topics
        self._clock = clock
        self._fed_queues = fed_queues
        self._pending = 0
        self.missed = 0
        """Events dropped since the start: too many were unpublished, or the publication failed."""
        self._unreported = 0

    def on_events(self, events: Sequence[Event]) -> None:
        fed_queues = self._fed_queues(self._topic)
        now = self._clock.wall_ms()
        documents = [
            describe(event, now)
            for event in events
            if not isinstance(event, UNPUBLISHED_EVENTS) and event.queue and event.queue not in fed_queues
        ]
        for offset in range(0, len(documents), MAX_PER_PUBLISH):
            self._publish(documents[offset : offset + MAX_PER_PUBLISH])

    def _publish(self, documents: list[dict[str, Any]]) -> None:
        if self._pending + len(documents) > MAX_PENDING_EVENTS:
            self._count_missed(len(documents))
            return
        if self._unreported:
            documents[0]["missed"], self._unreported = self._unreported, 0
        records = [NewRecord(self._topic, dumps(one), one["queue"], {NAME: one["event"]}) for one in documents]
        self._pending += len(records)
        try:
            self._topics.publish(records, partial(self._done, len(records)))
        except QueueError:
            self._pending -= len(records)
            self._count_missed(len(records))

    def _done(self, count: int, stored: Any, error: QueueError | None) -> None:
        self._pending -= count
        if error is not None:
            self._count_missed(count)

    def _count_missed(self, count: int) -> None:
        self.missed += count
        self._unreported += count
