"""Batches of pipelines in a server: built, finished after a crash, and swept.

Knows: where stages lie, the thread they are read in. Does not know: what is in them, who brings them."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.broker import sink_batches
from yirangmq.broker.group_commit import Desk
from yirangmq.config.config import Config
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Clock, Ids
from yirangmq.fsio.background import Aside
from yirangmq.observe.logs import log, values
from yirangmq.topics.publisher import Publisher

if TYPE_CHECKING:
    from yirangmq.broker.sink_batches import Batches

SWEEP_SECONDS = 3600.0


class Batching:
    """To be made on the loop's thread; from ``start`` to ``stop``, and between them ``rest`` and ``start`` again where
    duty comes and goes."""

    def __init__(self, config: Config, desk: Desk, clock: Clock, ids: Ids, topics: Publisher | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._aside = Aside(self._loop.call_soon_threadsafe, gives_way=True)
        self._timer: asyncio.TimerHandle | None = None
        self._folder = Path(config.data).absolute() / "stages"
        self._desk = desk
        self._parts = (clock, ids)
        self._topics = topics
        self._made: Batches | None = None

    def batches(self) -> "Batches":
        """Made when somebody brings one, or an earlier server has left something of one."""
        if self._made is None:
            from yirangmq.broker.sink_batches import Batches
            from yirangmq.stores.staging import StageFiles
            from yirangmq.topics.adapters import FeedForBatches

            self._made = Batches(self._desk, StageFiles(self._folder), self._aside.run, *self._parts)
            if self._topics is not None:
                self._made.topics = FeedForBatches(self._topics)
        return self._made

    def _has_any(self) -> bool:
        return self._made is not None or self._folder.exists() or bool(self._desk.read(sink_batches.entries))

    def start(self) -> None:
        """First what a server that died left half-way."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._has_any():
                self.batches().finish_pending()
        except QueueError as error:
            log.error("the ledger of batches cannot be read", extra=values(error=str(error)))
        self._sweep()

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        try:
            if self._has_any():
                self.batches().sweep(_swept)
        except QueueError as error:
            _swept(None, error)

    def rest(self) -> None:
        """Nothing is swept until the next ``start``."""
        if self._timer is not None:
            self._timer.cancel()

    def stop(self) -> None:
        """Returns when the work under way is done."""
        self.rest()
        self._aside.stop()


def _swept(count: Any, error: QueueError | None) -> None:
    if error is not None:
        log.warning("stages of batches could not be swept", extra=values(error=str(error)))
    elif count:
        log.info("stages that nobody committed are gone", extra=values(batches=count))
