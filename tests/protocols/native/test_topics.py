"""Topics at the socket door: TLS, sockets that come and go, refusals, methods; on both loops."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.credentials import client_context, server_context
from tests.support.loops import LOOPS, run_loop
from tests.support.topic_server import SMALL, Follower, Live, dial, live
from tests.support.wait import soon
from yirangmq.admin.topics import MAX_SCANNED_RECORDS
from yirangmq.core.topics import NewRecord
from yirangmq.protocols.stream_server import StreamLimits
from yirangmq.topics.ports import CatchupPacing, TopicSettings
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

pytestmark = pytest.mark.parametrize("kind", LOOPS)


def test_catchup_and_live_records_arrive_over_tls(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        tls = server_context(tmp_path)
        async with live(tmp_path, tls=tls) as server, dial(server, tls=client_context(tmp_path)) as follower:
            await server.fill(3000, 1000)
            feeding = asyncio.create_task(server.fill(1000, 1000))
            await follower.follow()
            follower.send(FrameKind.PING, messages.Empty())
            await feeding
            await follower.until(lambda: len(follower.records) == 4000)
            assert follower.sequences == list(range(1, 4001))
            assert len(follower.told(FrameKind.PONG)) == 1
            await soon(lambda: server.states()[-1] == "online")

    run_loop(main(), LOOPS[kind])


def test_backpressure_of_a_slow_reader_over_tls_loses_no_record(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        settings = TopicSettings(buffer_bytes=200_000)
        tls, trust = server_context(tmp_path), client_context(tmp_path)
        async with live(tmp_path, settings, tls=tls) as server, dial(server, tls=trust, receive=4096) as follower:
            await follower.follow("a", start="new")
            for _ in range(40):
                await server.fill(100, 3000)
            await soon(lambda: "recovery_needed" in server.states())
            await follower.until(lambda: len(follower.records) == 1334)
            assert follower.sequences == list(range(1, 4001, 3))

    run_loop(main(), LOOPS[kind])


def test_catchup_lets_responses_pass_between_its_records(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower:
            await server.fill(5000, 1000)
            await follower.follow(name="n")
            pings = [follower.send(FrameKind.PING, messages.Empty()) for _ in range(20)]
            confirms = [follower.send(FrameKind.CONFIRM, messages.Confirm(number)) for number in range(1, 21)]
            await follower.until(
                lambda: len(follower.records) == 5000 and len(follower.told(FrameKind.CONFIRMED)) == 20
            )
            assert follower.sequences == list(range(1, 5001))
            answered = [one.request for one in follower.said if one.kind in (FrameKind.PONG, FrameKind.CONFIRMED)]
            assert sorted(answered) == pings + confirms

    run_loop(main(), LOOPS[kind])


def test_catchup_with_reused_file_descriptors_mixes_up_no_clients(kind: str, tmp_path: Path) -> None:
    """Clients that go in the middle of their recovery leave their numbers to others; each gets its own records."""

    async def main() -> None:
        async with live(tmp_path) as server:
            await server.fill(3000, 1000)
            for round in range(6):
                async with AsyncExitStack() as stack:
                    stalled = [await stack.enter_async_context(dial(server, receive=4096)) for _ in range(5)]
                    for follower in stalled:
                        await follower.follow("a")
                    for follower in stalled:
                        follower.writer.transport.abort()
                    reader = await stack.enter_async_context(dial(server))
                    topic = "abc"[round % 3]
                    await reader.follow(topic)
                    await reader.until(lambda reader=reader: len(reader.records) == 1000)  # type: ignore[misc]
                    assert {record.topic for record in reader.records} == {topic}
            await soon(lambda: not server.door.connections)
            await soon(lambda: server.topics.ensure_open().lifecycle.is_idle)

    run_loop(main(), LOOPS[kind])


def open_file_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_catchup_leaves_no_file_open_after_disconnects(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path, log=SMALL._replace(ahead=False)) as server:
            await server.fill(500, 1000)
            async with dial(server) as follower:
                await follower.follow()
                await follower.until(lambda: len(follower.records) == 500)
            await soon(lambda: not server.door.connections)
            before = open_file_count()
            for _ in range(5):
                async with dial(server, receive=4096) as follower:
                    await follower.follow()
                await soon(lambda: not server.door.connections)
            await soon(lambda: open_file_count() <= before)

    run_loop(main(), LOOPS[kind])


def test_catchup_of_a_stalled_client_is_closed_while_one_worker_serves_the_others(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        settings = TopicSettings(workers=1, pacing=CatchupPacing(stall_seconds=2))
        async with live(tmp_path, settings) as server, dial(server, receive=4096) as stalled, dial(server) as other:
            await server.fill(3000, 1000)
            await stalled.follow()
            await other.follow()
            await other.until(lambda: len(other.records) == 3000)
            assert other.sequences == list(range(1, 3001))
            await soon(lambda: server.door.closed_for == {"stalled": 1})
            await stalled.until(lambda: stalled.is_over)
            assert stalled.sequences == list(range(1, len(stalled.records) + 1))

    run_loop(main(), LOOPS[kind])


async def refused(follower: Follower, kind: FrameKind, body: Any) -> tuple[str, str | None]:
    said = await follower.ask(kind, body)
    assert said.kind is FrameKind.ERROR
    return said.value.code, said.value.field


def test_topic_request_that_is_invalid_is_rejected_by_field_and_the_connection_continues(
    kind: str, tmp_path: Path
) -> None:
    subscribe, cannot = FrameKind.TOPIC_SUBSCRIBE, messages.TopicSubscribe
    wrong: list[tuple[FrameKind, Any, tuple[str, str | None]]] = [
        (subscribe, cannot(["no/slash"]), ("bad_input", "topics")),
        (subscribe, cannot([], mask=2**32), ("bad_input", "mask")),
        (subscribe, cannot(name="no/slash"), ("bad_input", "name")),
        (subscribe, cannot(start="yesterday"), ("bad_input", "start")),
        (subscribe, cannot(start="sequence", at=0), ("bad_input", "at")),
        (subscribe, cannot(start="sequence", at=12), ("bad_input", "at")),
        (subscribe, cannot(start="time", at=-1), ("bad_input", "at")),
        (subscribe, cannot(progress_ms=-1), ("bad_input", "progress_ms")),
        (subscribe, cannot(epoch="f" * 32), ("wrong_epoch", "epoch")),
        (FrameKind.RECOVERY_REQUEST, messages.TopicRecoveryRequest(1), ("wrong_state", None)),
        (FrameKind.CONFIRM, messages.Confirm(1), ("wrong_state", None)),
        (FrameKind.TOPIC_PUBLISH, messages.TopicPublish([]), ("bad_input", "records")),
        (
            FrameKind.TOPIC_PUBLISH,
            messages.TopicPublish([messages.RecordBody("no/slash", b"")]),
            ("bad_input", "topic"),
        ),
    ]

    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower:
            await server.fill(10)
            for kind, body, expected in wrong:
                assert await refused(follower, kind, body) == expected, body
            await follower.follow(start="sequence", at=11)
            assert await refused(follower, subscribe, cannot()) == ("wrong_state", None)
            assert await refused(follower, FrameKind.RECOVERY_REQUEST, messages.TopicRecoveryRequest(11)) == (
                "bad_input",
                "after",
            )
            assert await refused(follower, FrameKind.RECOVERY_REQUEST, messages.TopicRecoveryRequest(1, "e")) == (
                "wrong_epoch",
                "epoch",
            )
            assert await refused(follower, FrameKind.CONFIRM, messages.Confirm(1)) == ("wrong_state", None)
            await server.fill(1)
            await follower.until(lambda: follower.sequences == [11])

    run_loop(main(), LOOPS[kind])


def test_retention_error_of_a_subscribe_names_the_requested_and_the_first_kept_sequence(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower:
            await server.fill(2000, 200)
            server.topics.ensure_open().feed.log.trim(1500)
            first = server.topics.ensure_open().feed.log.first
            said = await follower.follow(start="sequence", at=3)
            error = messages.error_of(said.value.code, said.value.text, said.value.field)
            assert (error.code, error.asked, error.first) == ("retired", 3, first)  # type: ignore[attr-defined]
            await follower.follow(start="beginning")
            await follower.until(lambda: len(follower.records) == 2001 - first)

    run_loop(main(), LOOPS[kind])


def test_topic_subscription_starts_at_a_time(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower, dial(server) as late:
            await server.fill(500)
            stored = await server.publish(NewRecord("a", b"then"))
            await server.fill(5)
            said = await follower.follow(start="time", at=stored.at_ns)
            assert said.value.next == 501
            await follower.until(lambda: len(follower.records) == 6)
            assert follower.records[0].payload == b"then"
            future = await late.follow(start="time", at=2**63)
            assert future.value.next == 507

    run_loop(main(), LOOPS[kind])


async def _call(follower: Follower, method: str, **values: Any) -> Any:
    said = await follower.ask(FrameKind.CALL, messages.Call(method, values))
    assert said.kind is FrameKind.RESULT, said
    return said.value.value


async def _look(server: Live, follower: Follower) -> None:
    found = await _call(follower, "topics")
    assert (found["state"], found["last"], found["subscribers"]) == ("online", 10, 1)
    rows = {row["topic"]: row for row in found["topics"]}
    assert [rows[name]["topicSequence"] for name in "abc"] == [4, 3, 3]
    assert rows["a"]["records"] == 4
    assert rows["a"]["bytes"] > 0
    assert rows["a"]["publishedPerSec"] > 0
    page = await _call(follower, "topic_read", start=2, topics=["b*"], limit=2)
    assert [record[0] for record in page["records"]] == [2, 5]
    assert (page["next"], page["last"]) == (6, 10)
    rest = await _call(follower, "topic_read", start=6, topics=["b*"])
    assert [record[0] for record in rest["records"]] == [8]
    assert rest["next"] == 11


def test_topic_read_of_a_rare_topic_ends_after_a_bounded_scan_with_the_next_position(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as asking:
            await server.fill(MAX_SCANNED_RECORDS + 10, size=10, topics=("a",))
            await server.fill(1, topics=("rare",))
            page = await _call(asking, "topic_read", topics=["rare"])
            assert (page["records"], page["next"], page["last"]) == (
                [],
                MAX_SCANNED_RECORDS + 1,
                MAX_SCANNED_RECORDS + 11,
            )
            page = await _call(asking, "topic_read", topics=["rare"], start=page["next"])
            assert ([one[0] for one in page["records"]], page["next"]) == (
                [MAX_SCANNED_RECORDS + 11],
                MAX_SCANNED_RECORDS + 12,
            )
            page = await _call(asking, "topic_read", topics=["rare"], start=page["next"])
            assert (page["records"], page["next"]) == ([], MAX_SCANNED_RECORDS + 12)

    run_loop(main(), LOOPS[kind])


def test_topic_methods_list_topics_subscribers_and_cursors_drop_a_cursor_and_trim_the_log(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as asking:
            assert (await _call(asking, "topics"))["topics"] == []
            assert await _call(asking, "topic_subscribers") == await _call(asking, "topic_cursors") == []
            assert not (tmp_path / "topics").exists(), "looking makes nothing"
            async with dial(server) as follower:
                await follower.follow("a", name="ledger", start="new")
                await server.fill(10)
                await follower.until(lambda: len(follower.records) == 4)
                await follower.ask(FrameKind.CONFIRM, messages.Confirm(7))
                await _look(server, asking)
                [row] = await _call(asking, "topic_subscribers")
                assert {name: row[name] for name in ("subscriber", "state", "filter", "sequence", "lag", "sent")} == {
                    "subscriber": "ledger", "state": "online", "filter": "a", "sequence": 10, "lag": 1, "sent": 4,
                }  # fmt: skip
                assert row["confirmed"] == 7
                refusal = await asking.ask(FrameKind.CALL, messages.Call("topic_cursor_drop", {"name": "ledger"}))
                assert refusal.value.field == "name"
            await soon(lambda: len(server.door.connections) == 1)
            [row] = await _call(asking, "topic_subscribers")
            assert (row["state"], row["lag"]) == ("offline", 1)
            [cursor] = await _call(asking, "topic_cursors")
            assert (cursor["name"], cursor["confirmed"]) == ("ledger", 7)
            assert await _call(asking, "topic_cursor_drop", name="ledger") is True
            assert await _call(asking, "topic_subscribers") == []
            await server.fill(3000)
            trimmed = await _call(asking, "topic_trim", before=2000)
            assert 1 < trimmed["first"] <= 2000
            assert (await _call(asking, "topics"))["first"] == trimmed["first"]

    run_loop(main(), LOOPS[kind])


def test_backpressure_of_a_topic_subscriber_that_does_not_read_leaves_its_confirmations_to_be_read(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        settings, limits = TopicSettings(buffer_bytes=10_000_000), StreamLimits(write_buffer=50_000)
        async with live(tmp_path, settings, limits=limits) as server, dial(server, receive=4096) as follower:
            await follower.follow(name="ledger", start="new")
            await server.fill(5000, 1000)  # more than its socket holds
            [connection] = server.door.connections
            await soon(lambda: connection._session.is_write_paused)
            committer = server.topics.ensure_open().cursor_committer
            for sequence in (5, 6):
                follower.send(FrameKind.CONFIRM, messages.Confirm(sequence))
                await soon(lambda wanted=sequence: [one.sequence for one in committer.all()] == [wanted])  # type: ignore[misc]
            assert connection._session.is_write_paused
            await follower.until(lambda: len(follower.records) == 5000 and len(follower.told(FrameKind.CONFIRMED)) == 2)

    run_loop(main(), LOOPS[kind])
