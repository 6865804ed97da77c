"""Publish, follow, recover, fall behind: over real sockets, on both loops."""

import asyncio
from pathlib import Path

import pytest

from tests.support.loops import LOOPS, run_loop
from tests.support.topic_server import Follower, Live, dial, live
from tests.support.wait import soon
from yirangmq.core.topics import NewRecord
from yirangmq.topics.ports import TopicSettings
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

pytestmark = pytest.mark.parametrize("kind", LOOPS)


def is_whole(follower: Follower, first: int, last: int) -> bool:
    return follower.sequences == list(range(first, last + 1))


def test_topic_publish_is_confirmed_and_reaches_a_live_subscriber(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower, dial(server, tcp=True) as publisher:
            said = await follower.follow(start="new")
            assert said.kind is FrameKind.TOPIC_SUBSCRIBED
            assert (said.value.next, said.value.first, said.value.last) == (1, 1, 0)
            body = messages.TopicPublish(
                [messages.RecordBody("a", b"1"), messages.RecordBody("b", b"2", "k", {"h": "v"})]
            )
            stored = (await publisher.ask(FrameKind.TOPIC_PUBLISH, body)).value
            assert (stored.first, stored.last, stored.topics) == (1, 2, {"a": 1, "b": 1})
            assert stored.epoch == said.value.epoch
            await follower.until(lambda: len(follower.records) == 2)
            assert [(r.topic, r.payload, r.key, dict(r.headers)) for r in follower.records] == [
                ("a", b"1", None, {}),
                ("b", b"2", "k", {"h": "v"}),
            ]
            assert server.states() == ["online"]

    run_loop(main(), LOOPS[kind])


@pytest.mark.parametrize("tcp", [False, True])
def test_catchup_sends_history_then_records_published_meanwhile_then_live_records(
    kind: str, tmp_path: Path, tcp: bool
) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server, tcp=tcp) as follower:
            await server.fill(5000)
            feeding = asyncio.create_task(server.fill(5000))
            await follower.follow()
            await feeding
            await server.fill(10)
            await follower.until(lambda: len(follower.records) == 10_010)
            assert is_whole(follower, 1, 10_010)
            [response] = follower.told(FrameKind.RECOVERY_RESPONSE)
            [complete] = follower.told(FrameKind.RECOVERY_COMPLETE)
            assert response.start == 1
            assert response.end == response.count == complete.sequence == complete.sent
            place = next(one.after for one in follower.said if one.kind is FrameKind.RECOVERY_COMPLETE)
            assert place == complete.sent
            await soon(lambda: server.states()[-1] == "online")
            assert server.states() == ["online", "recovering", "catching_up", "online"]

    run_loop(main(), LOOPS[kind])


def test_filter_applies_live_and_during_catchup_and_only_matching_records_are_counted(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower:
            await server.fill(3000)
            feeding = asyncio.create_task(server.fill(3000))
            await follower.follow("b", "x*")
            await feeding
            await follower.until(lambda: len(follower.records) == 2000)
            assert follower.sequences == list(range(2, 6000, 3))
            assert [record.topic_sequence for record in follower.records] == list(range(1, 2001))
            [response] = follower.told(FrameKind.RECOVERY_RESPONSE)
            [complete] = follower.told(FrameKind.RECOVERY_COMPLETE)
            assert response.count == complete.sent == (response.end + 1) // 3

    run_loop(main(), LOOPS[kind])


def test_backpressure_moves_a_slow_subscriber_to_catchup_from_the_log_and_it_misses_nothing(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        settings = TopicSettings(buffer_bytes=100_000)
        async with live(tmp_path, settings) as server, dial(server, receive=4096) as follower:
            await follower.follow(start="new")
            for _ in range(20):
                await server.fill(100, 2000)
            await soon(lambda: "recovery_needed" in server.states())
            [connection] = server.door.connections
            assert connection.describe(0)["bytesHeld"] <= 100_000
            await follower.until(lambda: len(follower.records) == 2000)
            assert is_whole(follower, 1, 2000)
            await soon(lambda: server.states()[-1] == "online")
            assert server.states()[:5] == ["online", "recovery_needed", "recovering", "catching_up", "online"]
            assert {one.request for one in follower.said if one.kind is FrameKind.RECOVERY_RESPONSE} == {0}
            await server.fill(3)
            await follower.until(lambda: len(follower.records) == 2003)
            assert is_whole(follower, 1, 2003)

    run_loop(main(), LOOPS[kind])


def test_catchup_on_request_sends_the_records_after_a_given_sequence(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower:
            await server.fill(50)
            await follower.follow(start="sequence", at=41)
            await follower.until(lambda: len(follower.records) == 10)
            await soon(lambda: server.states()[-1] == "online")
            follower.records.clear()
            said = await follower.ask(FrameKind.RECOVERY_REQUEST, messages.TopicRecoveryRequest(20))
            assert said.kind is FrameKind.RECOVERY_RESPONSE
            assert (said.value.start, said.value.end, said.value.count) == (21, 50, 30)
            await follower.until(lambda: len(follower.records) == 30)
            assert is_whole(follower, 21, 50)

    run_loop(main(), LOOPS[kind])


@pytest.mark.parametrize("size", [0, 1, 4064, 4065, 1 << 20])
def test_topic_payload_of_any_size_arrives_live_and_during_catchup(kind: str, tmp_path: Path, size: int) -> None:
    async def main() -> None:
        payload = bytes(n % 251 for n in range(256)) * (size // 256 + 1)
        async with live(tmp_path) as server, dial(server) as early, dial(server) as late:
            await early.follow(start="new")
            for _ in range(3):
                await server.publish(NewRecord("a", payload[:size]))
            await late.follow()
            for follower in (early, late):
                await follower.until(lambda follower=follower: len(follower.records) == 3)  # type: ignore[misc]
                assert [record.payload for record in follower.records] == [payload[:size]] * 3

    run_loop(main(), LOOPS[kind])


def test_cursor_resumes_a_durable_subscriber_after_its_confirmed_sequence(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server:
            await server.fill(20)
            async with dial(server) as follower:
                await follower.follow(name="ledger")
                await follower.until(lambda: len(follower.records) == 20)
                said = await follower.ask(FrameKind.CONFIRM, messages.Confirm(15))
                assert (said.kind, said.value.sequence) == (FrameKind.CONFIRMED, 15)
                back = await follower.ask(FrameKind.CONFIRM, messages.Confirm(3))
                assert back.value.sequence == 15
            await server.fill(5)
            async with dial(server) as follower:
                said = await follower.follow(name="ledger", start="new")
                assert said.value.resumed
                assert said.value.next == 16
                await follower.until(lambda: len(follower.records) == 10)
                assert is_whole(follower, 16, 25)

    run_loop(main(), LOOPS[kind])


async def _no_sooner(server: Live, follower: Follower) -> None:
    await server.fill(1)
    await follower.until(lambda: bool(follower.records))


def test_unsubscribe_ends_the_subscription_and_another_may_follow(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower:
            await server.fill(2000)
            await follower.follow()
            said = await follower.ask(FrameKind.UNSUBSCRIBE, messages.Unsubscribe())
            assert said.value.value is True
            assert follower.sequences == list(range(1, len(follower.records) + 1))
            follower.records.clear()
            again = await follower.ask(FrameKind.UNSUBSCRIBE, messages.Unsubscribe())
            assert again.value.value is False
            await server.fill(5)
            await follower.follow(start="new")
            await _no_sooner(server, follower)
            assert follower.sequences == [2006]
            assert server.states()[-2:] == ["connected", "online"]

    run_loop(main(), LOOPS[kind])
