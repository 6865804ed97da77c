"""Threads do not grow with the clients; their number, and the buffers, can be changed while the feed goes on."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.loops import LOOPS, run_loop
from tests.support.topic_pipes import MakePublisherHarness, PublisherHarness, small
from tests.support.topic_server import Follower, dial, live
from tests.support.wait import soon
from yirangmq.admin.topics import MAX_WORKERS, MIN_BUFFER
from yirangmq.config.config import Config
from yirangmq.core.topics import Start, SubscriberState
from yirangmq.server.topics import settings_of
from yirangmq.topics.ports import TopicSettings
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


def started(stage: PublisherHarness) -> list[int]:
    return [worker.started for worker in stage.publisher.ensure_open().lifecycle.workers]


def recovery_threads() -> int:
    return sum(thread.name.startswith("recovery-") for thread in threading.enumerate())


def test_catchup_worker_count_and_buffer_limit_come_from_the_settings() -> None:
    assert settings_of(Config(data="d")).workers == TopicSettings().workers == 2
    assert settings_of(Config(data="d", recovery_workers=3)).workers == 3
    assert settings_of(Config(data="d", client_memory_bytes=99_000_000)).max_buffer_bytes == 99_000_000


def test_catchup_workers_added_by_tuning_share_the_subscribers_that_follow(make_stage: MakePublisherHarness) -> None:
    stage = make_stage(small(workers=1))
    stage.fill(5)
    first = stage.client()
    first.follow()
    stage.publisher.tune(small(workers=3))
    others = [stage.client() for _ in range(5)]
    for client in others:
        client.follow()
    assert sorted(started(stage)) == [2, 2, 2]
    for number in range(3):
        stage.work(number)
    stage.turning.run_once()
    assert all(client.subscriber.state is SubscriberState.ONLINE for client in (first, *others))


def test_catchup_worker_of_a_subscriber_that_still_reads_is_not_stopped_by_tuning(
    make_stage: MakePublisherHarness,
) -> None:
    """The worker is chosen when the subscriber lags, and begins when what is on its way is read."""
    stage = make_stage(small(workers=2))
    stage.fill(5)
    first, lagging = stage.client(), stage.client(capacity=200)
    first.follow()
    lagging.follow(start=Start.NEW)
    stage.fill(100)
    assert lagging.subscriber.state is SubscriberState.RECOVERY_NEEDED
    old = [*stage.publisher.ensure_open().lifecycle.workers]
    stage.publisher.tune(small(workers=1))
    for _ in range(300):
        lagging.read(1000)
        stage.turning.run_once()
        for worker in old:
            if not worker.is_over:
                worker.run_once(0)
    assert stage.trace[-1] == (lagging.subscriber.number, "online")
    assert lagging.sequences == list(range(6, 106))
    assert [worker.is_over for worker in old] == [False, True]


@pytest.mark.parametrize("kind", LOOPS)
def test_catchup_threads_stay_within_the_tuned_number_and_all_subscribers_catch_up(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, AsyncExitStack() as stack:
            await server.fill(500)
            before = recovery_threads()
            clients = [await stack.enter_async_context(dial(server)) for _ in range(20)]
            await asyncio.gather(*(client.follow() for client in clients))
            assert recovery_threads() - before <= 2
            for workers, others in ((4, 20), (1, 20)):
                assert (await _tune(clients[0], recovery_workers=workers))["recovery_workers"] == workers
                more = [await stack.enter_async_context(dial(server)) for _ in range(others)]
                await asyncio.gather(*(client.follow() for client in more))
                clients += more
            for client in clients:
                await client.until(lambda client=client: len(client.records) == 500)  # type: ignore[misc]
                assert client.sequences == list(range(1, 501))
            await soon(lambda: recovery_threads() - before == 1)  # the others went when they had nothing left to do
            assert len(server.topics.ensure_open().lifecycle.workers) == 1

    run_loop(main(), LOOPS[kind])


def test_backpressure_after_tuning_the_buffer_smaller_moves_a_slow_subscriber_to_catchup(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as asking, dial(server, receive=4096) as slow:
            await slow.follow(start="new")
            found = await _tune(asking, buffer_bytes=MIN_BUFFER, lag_limit=7)
            assert found == {"recovery_workers": 2, "buffer_bytes": MIN_BUFFER, "lag_limit": 7}
            await server.fill(2000, size=1000)
            await slow.until(lambda: len(slow.records) == 2000)
            assert slow.sequences == list(range(1, 2001))
            assert "recovery_needed" in {state for _, state in server.trace}

    run_loop(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recovery_workers", 0),
        ("recovery_workers", MAX_WORKERS + 1),
        ("buffer_bytes", MIN_BUFFER - 1),
        ("buffer_bytes", TopicSettings().max_buffer_bytes + 1),
        ("lag_limit", -1),
        ("workers", 3),
    ],
)
def test_topic_tune_with_an_invalid_value_is_refused_and_changes_nothing(tmp_path: Path, name: str, value: int) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as asking:
            said = await asking.ask(FrameKind.CALL, messages.Call("topic_tune", {name: value}))
            assert said.kind is FrameKind.ERROR
            assert said.value.field == name
            assert server.topics.settings == TopicSettings()

    run_loop(main())


async def _tune(asking: Follower, **values: int) -> dict[str, int]:
    said = await asking.ask(FrameKind.CALL, messages.Call("topic_tune", values))
    assert said.kind is FrameKind.RESULT, said
    found: dict[str, int] = said.value.value
    return found
