"""What happens in the queues, as records of a topic. They are told after the commit, as every listener is: a server
that is killed right then tells them to nobody.

Queues that a bridge feeds from this very topic are passed over: their events would become their messages, and those
events, for ever. Knows: events, the publisher. Does not know: bridges, metrics. Used from the loop's thread."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from yirangmq.core.errors import QueueError
from yirangmq.core.events import Event
from yirangmq.core.ports import Clock
from yirangmq.core.topics import NewRecord
from yirangmq.format.json_codec import dumps
from yirangmq.observe.events import UNTOLD, describe
from yirangmq.topics.ports import MOST_PER_PUBLISH
from yirangmq.topics.publisher import Publisher

MOST_WAITING = 10_000
"""Events that may wait for the log; past this they are counted, and that is told."""
NAME = "event"


class EventTopic:
    """``fed``: the queues that get their messages from a topic."""

    def __init__(self, topic: str, topics: Publisher, clock: Clock, fed: Callable[[str], frozenset[str]]) -> None:
        self._topic = topic
        self._topics = topics
        self._clock = clock
        self._fed = fed
        self._waiting = 0
        self.missed = 0
        """Events that could not be told."""
        self._untold = 0

    def hear(self, events: Sequence[Event]) -> None:
        fed = self._fed(self._topic)
        now = self._clock.wall_ms()
        told = [
            describe(event, now)
            for event in events
            if not isinstance(event, UNTOLD) and event.queue and event.queue not in fed
        ]
        for begin in range(0, len(told), MOST_PER_PUBLISH):
            self._publish(told[begin : begin + MOST_PER_PUBLISH])

    def _publish(self, told: list[dict[str, Any]]) -> None:
        if self._waiting + len(told) > MOST_WAITING:
            self._miss(len(told))
            return
        if self._untold:
            told[0]["missed"], self._untold = self._untold, 0
        records = [NewRecord(self._topic, dumps(one), one["queue"], {NAME: one["event"]}) for one in told]
        self._waiting += len(records)
        try:
            self._topics.publish(records, partial(self._done, len(records)))
        except QueueError:
            self._waiting -= len(records)
            self._miss(len(records))

    def _done(self, count: int, stored: Any, error: QueueError | None) -> None:
        self._waiting -= count
        if error is not None:
            self._miss(count)

    def _miss(self, count: int) -> None:
        self.missed += count
        self._untold += count
