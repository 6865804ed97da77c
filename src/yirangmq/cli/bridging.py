"""Bridges between topics and queues in a server, and the topic of its queues' events: built from its settings.

Knows: the parts they need. Does not know: doors, how a bridge works."""

import asyncio
from collections.abc import Callable

from yirangmq.admin.bridges import BridgeCalls
from yirangmq.broker.bridge_worker import Means
from yirangmq.broker.bridges import Bridges
from yirangmq.broker.group_commit import Desk
from yirangmq.config.config import Config
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Clock
from yirangmq.fsio.background import Aside
from yirangmq.observe.logs import log, values
from yirangmq.topics.adapters import FeedForBridges
from yirangmq.topics.publisher import Publisher

MILLISECOND_NS = 1_000_000


class Bridging:
    """To be made on the loop's thread; from ``start`` to ``stop``; between ``drain`` and another
    ``start`` they rest. ``topics`` is None where the server has none."""

    def __init__(
        self,
        config: Config,
        desk: Desk,
        clock: Clock,
        topics: Publisher | None,
        full: Callable[[], QueueError | None],
    ) -> None:
        self._config = config
        self._desk = desk
        self._aside = Aside(asyncio.get_running_loop().call_soon_threadsafe)
        self._bridges: Bridges | None = None
        if topics is not None:
            means = Means(desk, FeedForBridges(topics), self._aside.run, clock, full)
            self._bridges = bridges = Bridges(means)
            topics.hearers.append(lambda live: bridges.kick())
            topics.holds.append(lambda epoch, oldest_ns: bridges.floor(epoch, oldest_ns // MILLISECOND_NS))
            if config.events_topic:
                from yirangmq.admin.bridges import EventTopic  # loaded where it is wanted

                told = EventTopic(config.events_topic, topics, clock, bridges.fed_by)
                desk.verbs.happened.listen(told.hear)
        self.calls = BridgeCalls(self._bridges, config.topic_lag_limit)

    def start(self) -> None:
        if self._bridges is None:
            return
        try:
            self._bridges.start(self._config.bridges, _not_made)
        except QueueError as error:
            log.error("the bridges cannot be read", extra=values(error=str(error)))

    def load(self) -> None:
        """A standby has them at rest."""
        if self._bridges is None:
            return
        try:
            self._bridges.load()
        except QueueError as error:
            log.error("the bridges cannot be read", extra=values(error=str(error)))

    @property
    def is_idle(self) -> bool:
        return self._bridges is None or self._bridges.is_idle

    def drain(self) -> None:
        """Nothing more is begun; what is under way is finished."""
        if self._bridges is not None:
            self._bridges.stop()

    def stop(self) -> None:
        """Returns when the work under way is done."""
        self.drain()
        self._aside.stop()


def _not_made(name: str, error: QueueError) -> None:
    log.error("a bridge of the settings cannot be made", extra=values(bridge=name, error=str(error)))
