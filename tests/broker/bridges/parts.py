"""A server's queues, topics and bridges without a network: its loop turns when the test says so, and it can be killed
between any two steps. The store, the log and the bridges are real."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.loops import InlineExecutor
from tests.support.stores import Place
from tests.support.topic_pipes import PublisherHarness, small
from yirangmq.admin.bridges import EventTopicPublisher
from yirangmq.broker import operations, settle
from yirangmq.broker.bridge_worker import PAUSE_MS, BridgeContext
from yirangmq.broker.bridges import Bridges
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.settle import Leases
from yirangmq.clock import TimeOrderedIds
from yirangmq.core.bridges import NewBridge, read_new
from yirangmq.core.errors import QueueError
from yirangmq.core.topics import NewRecord, Start
from yirangmq.format.delivery import MessageDelivery
from yirangmq.fsio.background import LoopExecutor
from yirangmq.topics.adapters import TopicLogForBridges
from yirangmq.topics.ports import TopicSettings


class BridgeServer:
    """``kill``: nothing that was under way is finished; then the same folder with a new server in it."""

    def __init__(self, folder: Path, place: Place, settings: TopicSettings | None = None, events: str = "") -> None:
        self._folder = folder
        self._place = place
        self._settings = settings or small()
        self._events = events
        self.full: QueueError | None = None
        self._open()

    def _open(self) -> None:
        self.stage = PublisherHarness(self._folder / "topics", self._settings)
        turning = self.stage.turning
        loop = turning.loop()
        context = TransactionContext(self, TimeOrderedIds())
        self.store = self._place.open()
        self.desk = GroupCommitter(self.store, context, self, loop.soon, loop.later)
        aside = LoopExecutor(loop.call, InlineExecutor)
        publisher = self.stage.publisher
        self.bridges = Bridges(
            BridgeContext(self.desk, TopicLogForBridges(publisher), aside.run, self, lambda: self.full)
        )
        publisher.listeners.append(lambda live: self.bridges.wake())
        publisher.holds.append(lambda epoch, oldest: self.bridges.floor(epoch, oldest // 1_000_000))
        if self._events:
            self.events = EventTopicPublisher(self._events, publisher, self, self.bridges.fed_by)
            context.event_buffer.add_listener(self.events.on_events)

    def now_ms(self) -> int:
        return self.stage.turning.now_ns() // 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms()

    def ahead_ms(self) -> int:
        return 0

    def start(self, *wanted: NewBridge) -> None:
        self.bridges.start(wanted, _never)

    def kill(self) -> None:
        """What is not on disk is gone; the process's files are closed for it, and nothing of the loop is done."""
        self.stage.publisher.close()
        self._place.close()
        self._open()
        self.start()

    def settle_published(self) -> None:
        """Until what was published is on disk, and no further."""
        while not self.stage.publisher.is_idle:
            assert self.stage.turning.step()

    def crash_in_next_commit(self) -> None:
        """Killed in the middle of the commit that brings records over."""
        jobs: list[Callable[..., Any]] = []
        self.desk.submit = lambda work, done: jobs.append(work)  # type: ignore[method-assign]
        self.settle()
        (work,) = jobs
        self.stage.publisher.close()
        self._place.crash(work)
        self._open()
        self.start()

    def lose_log(self) -> None:
        """Somebody removes the log while the server is down."""
        self.stage.publisher.close()
        self._place.close()
        shutil.rmtree(self._folder / "topics")
        self._open()
        self.start()

    def close(self) -> None:
        self.bridges.stop()
        self.stage.close()
        self._place.close()

    # -- what the test asks for

    def settle(self) -> None:
        """Everything that can be done now, with the short rests in between."""
        self.stage.turning.run_once()
        for _ in range(20):
            self.stage.turning.advance(PAUSE_MS / 1000)

    def later(self, seconds: float) -> None:
        self.stage.turning.advance(seconds)

    def publish(self, *records: NewRecord) -> None:
        self.stage.publish(*records)

    def told(self, ask: Callable[..., None], *given: Any) -> Any:
        """The answer; an error is raised."""
        answers: list[tuple[Any, QueueError | None]] = []
        ask(*given, lambda value, error: answers.append((value, error)))
        self.settle()
        (value, error), *_ = answers
        if error is not None:
            raise error
        return value

    def add(self, name: str, queue: str, *topics: str, **more: Any) -> dict[str, Any]:
        given = {"name": name, "queue": queue, "topics": list(topics), **more}
        row: dict[str, Any] = self.told(self.bridges.add, read_new(given))
        return row

    def resume(self, name: str, start: Start | None = None, at: int = 0) -> dict[str, Any]:
        row: dict[str, Any] = self.told(self.bridges.resume, name, start, at)
        return row

    def policy(self, queue: str, text: str) -> None:
        self.told(self.desk.submit, lambda transaction: transaction.set_policy(queue, text))

    def take(self, queue: str, limit: int = 1000) -> list[MessageDelivery]:
        """Leased and acked at once, again and again while groups move on."""
        taken: list[MessageDelivery] = []
        context = self.desk.context
        while True:
            got = self.told(self.desk.submit, lambda t: operations.lease(context, t, queue, limit, None, "c"))
            if not got:
                return taken
            leases = Leases([one.lease_id for one in got])
            self.told(self.desk.submit, lambda t, leases=leases: settle.ack(context, t, leases, None))
            taken += got

    def counts(self, queue: str) -> Any:
        return self.desk.read(lambda transaction: transaction.counts(queue))

    def row(self, name: str) -> dict[str, Any]:
        return self.bridges.one(name)

    def trim(self) -> int:
        """What the settings do not want kept, and nobody needs, is gone; the log begins there now."""
        parts = self.stage.publisher.ensure_open()
        parts.maintenance.retain(lambda trimmed, error: None)
        self.settle()
        return parts.feed.log.first


def _never(name: str, error: QueueError) -> None:
    raise AssertionError(f"{name}: {error}")


MakeHouse = Callable[..., BridgeServer]
