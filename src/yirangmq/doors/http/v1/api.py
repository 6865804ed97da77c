"""The API put together: every endpoint there is, and the parts of it that live as long as the server."""

from yirangmq.doors.house import House
from yirangmq.doors.http.together import Together
from yirangmq.doors.http.v1 import (
    alerts,
    bridges,
    dispatching,
    letters,
    messages,
    openapi,
    pair,
    processors,
    publishing,
    queues,
    records,
    settling,
    site,
    topics,
)
from yirangmq.doors.http.v1.batches import BatchRoutes
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint, Guard, let_all
from yirangmq.doors.http.v1.events import Events
from yirangmq.doors.http.v1.leasing import Leasing
from yirangmq.doors.http.v1.log import LogRoutes
from yirangmq.doors.http.v1.pipelines import PipelineRoutes
from yirangmq.doors.http.v1.table import Table
from yirangmq.doors.http.v1.topic_events import TopicEvents
from yirangmq.observe.events import Feed

PREFIX = "/v1/"
MAX_BODY = 16 * 1024 * 1024
"""Bytes of a request that brings messages."""


class Api:
    """``find`` is what a router asks for every path that begins with ``PREFIX``. ``feed``: the server's, if it has one
    that hears what happens; ``together``: the door's, where other APIs use it too."""

    def __init__(
        self,
        house: House,
        feed: Feed | None = None,
        *,
        max_body: int = MAX_BODY,
        guard: Guard = let_all,
        together: Together | None = None,
    ) -> None:
        together = together or Together(house.desk)
        self._version = house.welcome.server.rpartition(" ")[2]
        self._leasing = Leasing(together)
        self._events = Events(feed or house.feed or _own_feed(house), f"{house.clock.now_ms():x}")
        self._topic_events = TopicEvents()
        self._log = LogRoutes()
        self.table = Table(house, (), guard, together)
        self.find = self.table.find
        for endpoint in (
            *publishing.Publishing(house.desk.verbs, together).endpoints(max_body),
            *self._leasing.endpoints,
            settling.Acking(house.desk.verbs, together).endpoint,
            *settling.ENDPOINTS,
            *messages.ENDPOINTS,
            *records.RECORD_ENDPOINTS,
            *letters.DEAD_LETTER_ENDPOINTS,
            *queues.ENDPOINTS,
            *dispatching.DISPATCH_ENDPOINTS,
            *processors.endpoints(max_body),
            *site.ENDPOINTS,
            *alerts.ALERT_ENDPOINTS,
            *pair.PAIR_ENDPOINTS,
            *topics.endpoints(max_body),
            *bridges.BRIDGE_ENDPOINTS,
            *self._topic_events.endpoints,
            *self._log.endpoints,
            *BatchRoutes(None if house.batches is None else house.batches()).endpoints(max_body),
            *PipelineRoutes().endpoints,
            *self._events.endpoints,
            Endpoint("GET", "/v1/openapi.json", "This document", self._describe, "server", "greet", {"type": "object"}),
        ):
            self.table.add(endpoint)

    @property
    def waiting(self) -> int:
        """Leases that wait for a message."""
        return self._leasing.waiting

    @property
    def following(self) -> int:
        """Readers of events."""
        return self._events.following + self._topic_events.following

    def stop(self) -> None:
        """The server is going: who waits is told that there is nothing."""
        self._leasing.stop()
        self._events.stop()
        self._topic_events.stop()
        self._log.stop()

    def move(self) -> None:
        """The work is another node's now: who waits for it here is told that there is nothing."""
        self._leasing.stop()
        self._topic_events.stop()

    def _describe(self, ask: Ask) -> None:
        ask.reply(self.document())

    def document(self) -> dict[str, object]:
        return openapi.document(self.table.endpoints, self._version)


def _own_feed(house: House) -> Feed:
    feed = Feed(house.clock)
    house.desk.verbs.happened.listen(feed.hear)
    return feed
