"""The publisher of a server: built from its settings, and heard in its log.

Knows: the log, the cursors, the settings. Does not know: doors."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from yirangmq.config.config import Config
from yirangmq.core.topics import ClientState, Cursors, Log, PublisherState, Retention
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.fsio.errors import translated
from yirangmq.observe.logs import log, values
from yirangmq.topics.ports import Loop, Pace, Settings
from yirangmq.topics.publisher import Opening, Publisher

if TYPE_CHECKING:
    from yirangmq.topics.live import Subscriber

SECOND_NS = 1_000_000_000


def publisher_of(config: Config) -> Publisher | None:
    """To be called on the loop's thread. Nothing is opened yet."""
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
            log.warning("the log of the topics", extra=values(note=note))
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
        log.error("publisher", extra=values(before=str(before), state=str(after), why=why))
    else:
        log.debug("publisher", extra=values(before=str(before), state=str(after)))


def _subscriber_moved(subscriber: "Subscriber", before: ClientState, after: ClientState) -> None:
    about = {"number": subscriber.number, "name": subscriber.name, "peer": subscriber.line.peer}
    log.debug("subscriber", extra=values(before=str(before), state=str(after), sequence=subscriber.cursor, **about))


def _subscriber_is_late(subscriber: "Subscriber", lag: int) -> None:
    about = {"number": subscriber.number, "name": subscriber.name, "peer": subscriber.line.peer}
    log.warning("a subscriber is late", extra=values(lag=lag, **about))
