"""What alerts go by, gathered from the parts of a server that know it."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from yirangmq.admin.health import FullStoreLatch, StoreDisk
from yirangmq.admin.registry import MethodRegistry
from yirangmq.broker import operations, policies, settle
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.settle import Leases
from yirangmq.clock import SteadyClock, TimeOrderedIds
from yirangmq.core import transitions
from yirangmq.core.alert_rules import faults
from yirangmq.core.alert_settings import read_settings
from yirangmq.core.errors import NotActive, StoreFull, StoreReadOnly
from yirangmq.core.events import GroupCommitted
from yirangmq.core.message import Reason
from yirangmq.format.envelope import NewMessage, build
from yirangmq.observe.metrics import Metrics
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.server.alerting import QUEUES_PER_EVALUATION, AlertFactsCollector
from yirangmq.server.server import SingleNode
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore, ManualClock


class Part:
    """A desk on a real store, and a clock that the test can set."""

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.wall = ManualClock()
        self.set = 0
        """By how much somebody has set the clock."""
        self.ids = TimeOrderedIds()
        self.context = TransactionContext(self.wall, self.ids)
        self.store = FailingStore(MemoryStore())
        self.desk = GroupCommitter(self.store, self.context, self.wall, loop.call_soon, loop.call_later)
        self.refused: dict[str, int] = {}
        self.metrics = Metrics(self.wall)
        self.disk = StoreDisk(folder, 0)
        clock = SteadyClock(lambda: self.wall.now_ms() + self.set, self.wall.now_ms)
        context = ServerContext(
            self.desk,
            self.wall,
            self.ids,
            MethodRegistry(self.context),
            ServerIdentity("test", "here", "none", 1 << 20),
            disk=self.disk,
            full_latch=FullStoreLatch(self.desk, self.wall),
        )
        self.gathering = AlertFactsCollector(
            context,
            read_settings({}),
            clock,
            lambda: self.refused,
            SingleNode().alert_facts,
            self.metrics.commit_totals,
        )
        self.context.event_buffer.add_listener(self.gathering.on_events)

    def facts(self) -> Any:
        return self.gathering.facts(self.wall.now_ms())

    async def do(self, work: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.desk.submit(work, lambda value, error: future.set_exception(error) if error else future.set_result(value))
        return await future

    async def publish(self, count: int) -> None:
        made = [build("mail", NewMessage(payload=1), id, self.wall.now_ms()) for id in self.ids.new(count)]
        await self.do(lambda transaction: operations.publish(self.context, transaction, "mail", made))

    async def bury(self) -> None:
        await self.do(lambda transaction: policies.put(transaction, self.context, "mail", {"retry": {"limit": 0}}))
        [taken] = await self.do(lambda transaction: operations.lease(self.context, transaction, "mail", 1, None, "ann"))
        leases, cause = Leases([taken.lease_id]), transitions.Cause(Reason.REJECTED, "no", None)
        await self.do(lambda transaction: settle.nack(self.context, transaction, leases, None, cause))


def test_alert_facts_contain_queue_age_and_recent_dead_letters(tmp_path: Path) -> None:
    async def main() -> None:
        part = Part(tmp_path)
        await part.publish(3)
        part.wall.advance(90_000)
        [row] = part.facts().queues
        assert (row.queue, row.waiting, row.age, row.died) == ("mail", 3, 90.0, 0)
        await part.bury()
        part.wall.advance(1000)
        assert part.facts().queues[0].died == 1
        part.wall.advance(400_000)
        assert part.facts().queues[0].died == 0

    asyncio.run(main())


def test_alert_facts_of_a_standby_contain_no_queues(tmp_path: Path) -> None:
    class Off:
        is_on = False
        accepts_new = False

        def refusal(self) -> NotActive:
            return NotActive("standby")

    async def main() -> None:
        part = Part(tmp_path)
        await part.publish(1)
        assert len(part.facts().queues) == 1
        part.desk.guard = Off()
        assert part.facts().queues == []

    asyncio.run(main())


def test_alert_facts_count_refused_clients_within_the_window(tmp_path: Path) -> None:
    async def main() -> None:
        part = Part(tmp_path)
        assert part.facts().refused == {}
        part.refused = {"http not_allowed": 2, "connections": 0}
        assert part.facts().refused == {"http not_allowed": 2}
        part.wall.advance(310_000)
        assert part.facts().refused == {}

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [3600, -5], ids=["forward", "back"])
def test_alert_for_a_clock_jump_opens_when_the_clock_is_set_and_not_as_time_passes(
    tmp_path: Path, seconds: int
) -> None:
    async def main() -> None:
        part = Part(tmp_path)
        part.wall.advance(86_400_000)
        assert part.facts().jump == 0
        part.set += seconds * 1000
        assert part.facts().jump == seconds
        part.wall.advance(5000)
        found = faults(part.facts(), {})
        assert [fault.rule for fault in found if fault.rule != "disk_low"] == ["clock_jump"]
        part.wall.advance(300_001)
        assert part.facts().jump == 0

    asyncio.run(main())


def test_alert_facts_contain_the_mean_commit_time_of_the_last_minute(tmp_path: Path) -> None:
    async def main() -> None:
        part = Part(tmp_path)
        assert part.facts().commit is None
        part.metrics.on_events(
            [GroupCommitted(1, 1, 0.25, 0.5), GroupCommitted(1, 1, 0.0, 0.25), GroupCommitted(1, 0, 9.0, 9.0)]
        )
        assert part.facts().commit == pytest.approx(0.5)
        part.wall.advance(120_000)
        assert part.facts().commit is None

    asyncio.run(main())


def test_alert_facts_report_a_store_that_refuses_commits_and_the_free_disk_space(tmp_path: Path) -> None:
    async def main() -> None:
        part = Part(tmp_path)
        assert part.facts().disk is None, "nobody has looked at it yet"
        part.disk.inspect()
        found = part.facts().disk
        assert found is not None
        assert 0 < found.free <= found.size
        part.store.fail_at(1, StoreReadOnly("no writing today"))
        with pytest.raises(StoreReadOnly):
            await part.publish(1)
        assert "no writing today" in part.facts().trouble
        await part.publish(1)
        assert part.facts().trouble == ""
        part.store.fail_at(1)
        with pytest.raises(StoreFull):
            await part.publish(1)
        await part.do(lambda transaction: transaction.places(1))
        assert "no space left" in part.facts().trouble, "there is room for a number, and none for a message"
        await part.publish(1)
        assert part.facts().trouble == ""

    asyncio.run(main())


def test_alerts_of_many_queues_are_found_in_turn_and_stay_open(tmp_path: Path) -> None:
    """More queues than one look reads, more faulty ones than are read again: each is found, and none flaps."""

    async def play() -> None:
        part = Part(tmp_path)
        names = [f"queue-{n:04}" for n in range(3 * QUEUES_PER_EVALUATION)]
        sent = [[build(name, NewMessage(payload=1), id, 0) for id in part.ids.new(1)] for name in names]

        def fill(transaction: Any) -> None:
            for [envelope] in sent:
                operations.publish(part.context, transaction, envelope.queue, [envelope])

        await part.do(fill)
        part.wall.advance(10 * 3_600_000)
        seen: list[set[str]] = []
        for _ in range(6):
            found = faults(part.facts(), read_settings({}).rules)
            seen.append({fault.subject for fault in found if fault.rule == "queue_age"})
        assert len(seen[0]) == QUEUES_PER_EVALUATION
        assert all(before <= after for before, after in pairwise(seen))
        assert seen[-1] == set(names)
        await part.do(lambda transaction: transaction.delete_queue(names[0]))
        for _ in range(4):
            part.facts()
        assert names[0] not in {fact.queue for fact in part.facts().queues}

    asyncio.run(play())
