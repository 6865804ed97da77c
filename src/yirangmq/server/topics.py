"""Topics of a server: the publisher, the batches of pipelines, and the bridges, built from the settings.

- The publisher gets functions that open its log and its cursors; nothing is opened here. Its state changes are logged.
- Batches of pipelines (``broker.sink_batches``) are made on first use, or where an earlier server left some. A start
  finishes those that a crash interrupted; once an hour stages that were never committed are removed. Staged files are
  read in a background thread that yields the interpreter lock to the loop.
- Bridges feed topics into queues; records that a bridge still needs hold back the retention of the log. A standby loads
  bridges but does not run them. If ``events_topic`` is set, the events of queues are published to that topic.

Loop thread only."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.admin.bridges import BridgeCalls
from yirangmq.broker.bridge_worker import Means
from yirangmq.broker.bridges import Bridges
from yirangmq.broker.group_commit import Desk
from yirangmq.config.config import Config
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Clock, Ids, Transaction
from yirangmq.core.sink_batches import prefix_of
from yirangmq.core.topics import ClientState, Cursors, Log, PublisherState, Retention
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.fsio.background import Aside
from yirangmq.fsio.errors import translated
from yirangmq.observe.logs import log, values
from yirangmq.topics.adapters import FeedForBridges
from yirangmq.topics.ports import Loop, Pace, Settings
from yirangmq.topics.publisher import Opening, Publisher

if TYPE_CHECKING:
    from yirangmq.broker.sink_batches import Batches
    from yirangmq.topics.live import Subscriber


# -- publisher ---------------------------------------------------------------------------------------------------------

SECOND_NS = 1_000_000_000


def publisher_of(config: Config) -> Publisher | None:
    """Build the publisher, or return None if topics are off. Called on the loop's thread; opens nothing yet."""
    if not config.topics_folder:
        return None
    loop = asyncio.get_running_loop()
    stage = Loop(loop.call_soon, loop.call_later, loop.call_soon_threadsafe, time.monotonic, time.time_ns)
    made = Publisher(_opening(config), stage, settings_of(config))
    made.state_heard.append(_publisher_moved)
    made.moved_heard.append(_subscriber_moved)
    made.lag_heard.append(_subscriber_is_late)
    return made


def settings_of(config: Config) -> Settings:
    age = round(config.topic_retention_seconds * SECOND_NS) or None
    return Settings(
        buffer_bytes=config.topic_buffer_bytes,
        most_buffer_bytes=config.client_memory_bytes,
        workers=config.recovery_workers,
        masked=config.topic_masks,
        pace=Pace(stall_seconds=config.idle_seconds, beside_live=config.recovery_bytes_beside_live),
        retention=Retention(age, config.topic_retention_bytes or None),
        cursor_seconds=config.topic_cursor_seconds,
        lag_limit=config.topic_lag_limit,
        publisher_id=config.publisher_id,
        publisher_name=config.node_name,
    )


def _opening(config: Config) -> Opening:
    folder = Path(config.topics_folder).absolute()

    def open_log() -> Log:
        from yirangmq.stores.log.log import LogSettings, SegmentLog  # a server without topics does not load it

        with translated(folder):
            make_folder(folder.parent)
            opened = SegmentLog(folder, LogSettings(durability="os" if config.topic_durability == "os" else "full"))
        for note in opened.notes:
            log.warning("topic_log_repaired", extra=values(note=note))
        return opened

    def cursors() -> Cursors:
        from yirangmq.stores.cursors import open_cursors

        with translated(folder):
            return open_cursors(config.cursors_url)

    def is_there() -> bool:
        try:
            return folder.exists()
        except OSError:  # opening it again reports why; queues are served meanwhile
            return True

    return Opening(open_log, cursors, is_there)


def _publisher_moved(before: PublisherState | None, after: PublisherState, why: str) -> None:
    if after is PublisherState.ERROR:
        log.error("publisher_failed", extra=values(before=str(before), state=str(after), why=why))
    else:
        log.debug("publisher_state_changed", extra=values(before=str(before), state=str(after)))


def _subscriber_moved(subscriber: "Subscriber", before: ClientState, after: ClientState) -> None:
    about = {"number": subscriber.number, "name": subscriber.name, "peer": subscriber.line.peer}
    log.debug(
        "subscriber_state_changed",
        extra=values(before=str(before), state=str(after), sequence=subscriber.cursor, **about),
    )


def _subscriber_is_late(subscriber: "Subscriber", lag: int) -> None:
    about = {"number": subscriber.number, "name": subscriber.name, "peer": subscriber.line.peer}
    log.warning("subscriber_lag_exceeded", extra=values(lag=lag, **about))


# -- batches of pipelines ----------------------------------------------------------------------------------------------

SWEEP_SECONDS = 3600.0


class Batching:
    """Pipeline batches of a server. Created on the loop's thread; runs from ``start`` to ``stop``.

    ``rest`` pauses it while another node is active; ``start`` resumes it."""

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
        """Return the batches. They are created on first use, or if an earlier server left some."""
        if self._made is None:
            from yirangmq.broker.sink_batches import Batches
            from yirangmq.stores.staging import StageFiles
            from yirangmq.topics.adapters import FeedForBatches

            self._made = Batches(self._desk, StageFiles(self._folder), self._aside.run, *self._parts)
            if self._topics is not None:
                self._made.topics = FeedForBatches(self._topics)
        return self._made

    def _has_any(self) -> bool:
        return self._made is not None or self._folder.exists() or self._desk.read(_has_entries)

    def start(self) -> None:
        """Finish the batches that a crash interrupted, then sweep periodically."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._has_any():
                self.batches().finish_pending()
        except QueueError as error:
            log.error("batch_ledger_read_failed", extra=values(error=str(error)))
        self._sweep()

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        try:
            if self._has_any():
                self.batches().sweep(_swept)
        except QueueError as error:
            _swept(None, error)

    def rest(self) -> None:
        """Stop sweeping until the next ``start``."""
        if self._timer is not None:
            self._timer.cancel()

    def stop(self) -> None:
        """Returns when the work under way is done."""
        self.rest()
        self._aside.stop()


def _has_entries(transaction: Transaction) -> bool:
    """Return True if the ledger of batches has entries.

    They are not read here: the module that reads them is loaded only if there are entries."""
    return bool(transaction.notes(prefix_of()))


def _swept(count: Any, error: QueueError | None) -> None:
    if error is not None:
        log.warning("batch_sweep_failed", extra=values(error=str(error)))
    elif count:
        log.info("uncommitted_batches_removed", extra=values(batches=count))


# -- bridges, and the topic of events ----------------------------------------------------------------------------------

MILLISECOND_NS = 1_000_000


class Bridging:
    """Bridges of a server. Created on the loop's thread; they run from ``start`` to ``stop``.

    After ``drain`` they are idle until the next ``start``. ``topics`` is None if the server has none."""

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
                from yirangmq.admin.bridges import EventTopic  # loaded only if it is configured

                told = EventTopic(config.events_topic, topics, clock, bridges.fed_by)
                desk.verbs.happened.listen(told.hear)
        self.calls = BridgeCalls(self._bridges, config.topic_lag_limit)

    def start(self) -> None:
        if self._bridges is None:
            return
        try:
            self._bridges.start(self._config.bridges, _not_made)
        except QueueError as error:
            log.error("bridges_read_failed", extra=values(error=str(error)))

    def load(self) -> None:
        """Load the bridges without running them, for a standby."""
        if self._bridges is None:
            return
        try:
            self._bridges.load()
        except QueueError as error:
            log.error("bridges_read_failed", extra=values(error=str(error)))

    @property
    def is_idle(self) -> bool:
        return self._bridges is None or self._bridges.is_idle

    def drain(self) -> None:
        """Start no further work; work in progress is finished."""
        if self._bridges is not None:
            self._bridges.stop()

    def stop(self) -> None:
        """Returns when the work under way is done."""
        self.drain()
        self._aside.stop()


def _not_made(name: str, error: QueueError) -> None:
    log.error("bridge_creation_failed", extra=values(bridge=name, error=str(error)))
