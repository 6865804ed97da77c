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
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.admin.bridges import BridgeMethods
from yirangmq.admin.topics import TopicMethods
from yirangmq.broker.bridge_worker import BridgeContext
from yirangmq.broker.bridges import Bridges
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.config.config import Config
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Clock, Ids, Transaction
from yirangmq.core.sink_batches import prefix_of
from yirangmq.core.topics import Cursors, KnownPositions, Log, PublisherState, Retention, SubscriberState
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.fsio.background import LoopExecutor
from yirangmq.fsio.errors import os_errors_translated
from yirangmq.observe.logs import log, values
from yirangmq.server.components import Component
from yirangmq.topics.adapters import TopicLogForBridges
from yirangmq.topics.ports import CatchupPacing, Loop, TopicSettings
from yirangmq.topics.publisher import LogOpeners, Publisher

if TYPE_CHECKING:
    from yirangmq.broker.sink_batches import SinkBatches
    from yirangmq.topics.live import Subscriber


# -- publisher ---------------------------------------------------------------------------------------------------------

SECOND_NS = 1_000_000_000


def publisher_of(config: Config) -> Publisher | None:
    """Build the publisher, or return None if topics are off. Called on the loop's thread; opens nothing yet."""
    if not config.topics_folder:
        return None
    loop = asyncio.get_running_loop()
    stage = Loop(loop.call_soon, loop.call_later, loop.call_soon_threadsafe, time.monotonic, time.time_ns)
    publisher = Publisher(_openers(config), stage, settings_of(config))
    publisher.state_listeners.append(_log_publisher_state)
    publisher.move_listeners.append(_log_subscriber_state)
    publisher.lag_listeners.append(_log_subscriber_lag)
    publisher.loss_listeners.append(lambda why: log.error("topic_records_lost", extra=values(why=why)))
    return publisher


def topic_component(topics: Publisher | None, methods: TopicMethods) -> Component:
    """Return the component of the topics. Status shows it also if the server has no topics."""
    shown = Component("topics", status="topics", facts=methods.facts, samples=methods.samples, reasons=methods.reasons)
    if topics is None:
        return shown
    return replace(shown, open=topics.start, drain=topics.stop, busy=topics, close=topics.close)


def settings_of(config: Config) -> TopicSettings:
    age = round(config.topic_retention_seconds * SECOND_NS) or None
    return TopicSettings(
        buffer_bytes=config.topic_buffer_bytes,
        max_buffer_bytes=config.client_memory_bytes,
        workers=config.recovery_workers,
        masked=config.topic_masks,
        pacing=CatchupPacing(stall_seconds=config.idle_seconds, live_rate_limit=config.recovery_bytes_beside_live),
        retention=Retention(age, config.topic_retention_bytes or None),
        cursor_seconds=config.topic_cursor_seconds,
        lag_limit=config.topic_lag_limit,
        publisher_id=config.publisher_id,
        publisher_name=config.node_name,
    )


def _openers(config: Config) -> LogOpeners:
    folder = Path(config.topics_folder).absolute()

    def open_log(known: KnownPositions) -> Log:
        from yirangmq.stores.log.log import LogSettings, SegmentLog  # a server without topics does not load it

        with os_errors_translated(folder):
            make_folder(folder.parent)
            settings = LogSettings(durability="os" if config.topic_durability == "os" else "full")
            opened = SegmentLog(folder, settings, known=known)
        for note in opened.notes:
            log.warning("topic_log_repaired", extra=values(note=note))
        return opened

    def cursors() -> Cursors:
        from yirangmq.stores.cursors import open_cursors

        with os_errors_translated(folder):
            return open_cursors(config.cursors_url)

    def is_there() -> bool:
        try:
            return folder.exists()
        except OSError:  # opening it again reports why; queues are served meanwhile
            return True

    return LogOpeners(open_log, cursors, is_there)


def _log_publisher_state(before: PublisherState | None, after: PublisherState, why: str) -> None:
    if after is PublisherState.ERROR:
        log.error("publisher_failed", extra=values(before=str(before), state=str(after), why=why))
    else:
        log.debug("publisher_state_changed", extra=values(before=str(before), state=str(after)))


def _log_subscriber_state(subscriber: "Subscriber", before: SubscriberState, after: SubscriberState) -> None:
    about = {"number": subscriber.number, "name": subscriber.name, "peer": subscriber.connection.peer}
    log.debug(
        "subscriber_state_changed",
        extra=values(before=str(before), state=str(after), sequence=subscriber.cursor, **about),
    )


def _log_subscriber_lag(subscriber: "Subscriber", lag: int) -> None:
    about = {"number": subscriber.number, "name": subscriber.name, "peer": subscriber.connection.peer}
    log.warning("subscriber_lag_exceeded", extra=values(lag=lag, **about))


# -- batches of pipelines ----------------------------------------------------------------------------------------------

SWEEP_SECONDS = 3600.0
MILLISECOND_NS = 1_000_000


class ServerBatches:
    """Pipeline batches of a server. Created on the loop's thread; runs from ``start`` to ``stop``.

    ``rest`` pauses it while another node is active; ``start`` resumes it."""

    def __init__(
        self, config: Config, committer: GroupCommitter, clock: Clock, ids: Ids, topics: Publisher | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._background = LoopExecutor(self._loop.call_soon_threadsafe, shorten_switch=True)
        self._timer: asyncio.TimerHandle | None = None
        self._folder = Path(config.data).absolute() / "stages"
        self._committer = committer
        self._parts = (clock, ids)
        self._topics = topics
        self._batches: SinkBatches | None = None
        if topics is not None:
            topics.known_positions.append(self._positions)

    def _positions(self, epoch: str, since_ns: int) -> Mapping[str, int]:
        """Return the topic sequences of batches in the ledger. An entry names no epoch, but the time of its commit."""
        if not self._committer.read(_has_entries):
            return {}
        from yirangmq.broker.sink_batches import positions

        return self._committer.read(partial(positions, since_ms=since_ns // MILLISECOND_NS))

    def batches(self) -> "SinkBatches":
        """Return the batches. They are created on first use, or if an earlier server left some."""
        if self._batches is None:
            from yirangmq.broker.sink_batches import SinkBatches
            from yirangmq.stores.staging import StageFiles
            from yirangmq.topics.adapters import TopicLogForBatches

            self._batches = SinkBatches(self._committer, StageFiles(self._folder), self._background.run, *self._parts)
            if self._topics is not None:
                self._batches.topics = TopicLogForBatches(self._topics)
        return self._batches

    def _has_any(self) -> bool:
        return self._batches is not None or self._folder.exists() or self._committer.read(_has_entries)

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
                self.batches().sweep(_log_sweep)
        except QueueError as error:
            _log_sweep(None, error)

    def pause(self) -> None:
        """Stop sweeping until the next ``start``."""
        if self._timer is not None:
            self._timer.cancel()

    def stop(self) -> None:
        """Returns when the work under way is done."""
        self.pause()
        self._background.stop()


def _has_entries(transaction: Transaction) -> bool:
    """Return True if the ledger of batches has entries.

    They are not read here: the module that reads them is loaded only if there are entries."""
    return bool(transaction.notes(prefix_of()))


def _log_sweep(count: Any, error: QueueError | None) -> None:
    if error is not None:
        log.warning("batch_sweep_failed", extra=values(error=str(error)))
    elif count:
        log.info("uncommitted_batches_removed", extra=values(batches=count))


# -- bridges, and the topic of events ----------------------------------------------------------------------------------


class ServerBridges:
    """Bridges of a server. Created on the loop's thread; they run from ``start`` to ``stop``.

    After ``drain`` they are idle until the next ``start``. ``topics`` is None if the server has none."""

    def __init__(
        self,
        config: Config,
        committer: GroupCommitter,
        clock: Clock,
        topics: Publisher | None,
        publish_refusal: Callable[[], QueueError | None],
    ) -> None:
        self._config = config
        self._committer = committer
        self._background = LoopExecutor(asyncio.get_running_loop().call_soon_threadsafe)
        self._bridges: Bridges | None = None
        if topics is not None:
            means = BridgeContext(committer, TopicLogForBridges(topics), self._background.run, clock, publish_refusal)
            self._bridges = bridges = Bridges(means)
            topics.listeners.append(lambda live: bridges.wake())
            topics.holds.append(lambda epoch, oldest_ns: bridges.floor(epoch, oldest_ns // MILLISECOND_NS))
            topics.known_positions.append(lambda epoch, since_ns: bridges.positions(epoch))
            if config.events_topic:
                from yirangmq.admin.bridges import EventTopicPublisher  # loaded only if it is configured

                event_topic = EventTopicPublisher(config.events_topic, topics, clock, bridges.fed_by)
                committer.operations.event_buffer.add_listener(event_topic.on_events)
        self.calls = BridgeMethods(self._bridges, config.topic_lag_limit)

    def start(self) -> None:
        if self._bridges is None:
            return
        try:
            self._bridges.start(self._config.bridges, _log_bridge_error)
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
        self._background.stop()


def _log_bridge_error(name: str, error: QueueError) -> None:
    log.error("bridge_creation_failed", extra=values(bridge=name, error=str(error)))
