"""What a server says of its topics: events, health, metrics; and pieces of the log that end where frames end."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.loops import run_loop
from tests.support.segment_log import sent
from tests.support.topic_server import Live, dial, live
from tests.support.wait import soon
from yirangmq.clock import SystemClock
from yirangmq.core.events import TopicStateChanged
from yirangmq.core.topics import NewRecord
from yirangmq.observe.events import describe
from yirangmq.observe.metrics import Histogram, Metrics
from yirangmq.observe.prometheus import METRICS, page
from yirangmq.stores.log import reader
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.topics.ports import TopicSettings
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.records import RecordReader


def told_by(server: Live) -> dict[str, float]:
    """The page that Prometheus reads, line by line."""
    lines = page(Metrics(SystemClock()), [], server.about.samples()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_topic_events_report_every_state_change_of_publisher_and_subscriber(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server:
            await server.fill(10)
            async with dial(server) as follower:
                await follower.follow(name="ledger")
                await follower.until(lambda: len(follower.records) == 10)
                await soon(lambda: server.states()[-1] == "online")
            await soon(lambda: server.states()[-1] == "offline")
            told = [(one.who, one.before, one.after) for one in server.told if isinstance(one, TopicStateChanged)]
            assert told == [
                ("publisher", "", "starting"),
                ("publisher", "starting", "listening"),
                ("publisher", "listening", "online"),
                ("ledger", "connected", "online"),
                ("ledger", "online", "recovering"),
                ("ledger", "recovering", "catching_up"),
                ("ledger", "catching_up", "online"),
                ("ledger", "online", "offline"),
            ]
            words = describe(server.told[0], 0)
            assert {name: words[name] for name in ("event", "who", "before", "after")} == {
                "event": "moved", "who": "publisher", "before": "", "after": "starting",
            }  # fmt: skip

    run_loop(main())


def test_health_lag_is_degraded_for_a_subscriber_too_far_behind(tmp_path: Path) -> None:
    async def main() -> None:
        settings = TopicSettings(buffer_bytes=100_000, lag_limit=100)
        late: list[tuple[str, int]] = []
        async with live(tmp_path, settings) as server, dial(server, receive=4096) as follower:
            server.topics.lag_listeners.append(lambda one, lag: late.append((one.name, lag)))
            await follower.follow(name="ledger", start="new")
            assert server.about.reasons() == []
            await server.fill(6000, 1000)  # more than its socket holds
            await soon(lambda: server.about.reasons() != [])
            [reason] = server.about.reasons()
            assert (reason.level, reason.code) == ("degraded", "lag")
            assert "ledger" in reason.text
            [(name, lag)] = late
            assert (name, lag > 100) == ("ledger", True)
            told = told_by(server)
            assert told["yirangmq_subscriber_late"] == 1
            assert told['yirangmq_subscriber_lag{subscriber="ledger"}'] > 100
            await follower.until(lambda: len(follower.records) == 6000)
            assert told_by(server)['yirangmq_subscriber_lag{subscriber="ledger"}'] == 6000, "it has confirmed none"
            await follower.ask(FrameKind.CONFIRM, messages.Confirm(6000))
            await soon(lambda: server.about.reasons() == [])
            assert told_by(server)['yirangmq_subscriber_lag{subscriber="ledger"}'] == 0

    run_loop(main())


def test_metrics_of_topics_are_those_of_the_table_and_absent_while_unused(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as server, dial(server) as follower:
            assert server.about.samples() == {}, "nothing is told of what is not used"
            await follower.follow(start="new")
            await server.fill(10)
            assert set(server.about.samples()) == {
                name for name in METRICS if "_topic_" in name or "_feed_" in name or "_subscriber" in name
            }
            told = told_by(server)
            assert [told[f'yirangmq_topic_last_sequence{{topic="{name}"}}'] for name in "abc"] == [4, 3, 3]
            assert told["yirangmq_feed_last_sequence"] == told["yirangmq_feed_published_total"] == 10
            assert told['yirangmq_subscribers{state="online"}'] == 1
            assert told['yirangmq_subscriber_lag{subscriber="1"}'] == 0
            assert told["yirangmq_feed_commit_seconds_count"] == told["yirangmq_feed_commits_total"] == 1

    run_loop(main())


def test_histogram_returns_the_bound_that_a_share_of_values_did_not_exceed() -> None:
    histogram = Histogram((1, 2, 5))
    assert histogram.quantile(0.5) is None
    for value in (1, 1, 1, 2, 2, 2, 2, 2, 2, 4):
        histogram.observe(value)
    assert [histogram.quantile(share) for share in (0.3, 0.5, 0.9, 0.99)] == [1, 2, 2, 5]
    histogram.observe(9)
    assert histogram.quantile(0.999) is None


# -- the log as a recovery reads it -----------------------------------------------------------------------------------


def test_segment_pieces_of_a_size_end_at_frame_boundaries(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log", LogSettings(1 << 20, "os", ahead=False)) as log:
        for number in range(600):
            log.append([NewRecord("a", b"%d" % number + b"x" * 2000)])
        reader = log.reader()
        pieces = list(reader.pieces(5, 590, size=200_000))
        assert len(pieces) > 4
        assert pieces[0].first == 5
        assert all(after.first == before.last + 1 for before, after in pairwise(pieces))
        assert max(piece.length for piece in pieces) < 200_000 + (1 << 17)
        assert [one.sequence for one in sent(reader.pieces(5, 590, size=200_000))] == list(range(5, 590))


def test_segment_reader_reports_progress_while_it_skips_records_that_do_not_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_SKIPPED_BYTES", 10_000)
    with SegmentLog(tmp_path / "log", LogSettings(1 << 20, "os", ahead=False)) as log:
        for number in range(100):
            log.append([NewRecord("wanted" if number in (50, 99) else "other", b"x" * 1000)])
        parts = list(log.reader().frames(1, None, lambda topic: topic == "wanted"))
        assert [one.records for one in parts if one.records] == [1, 1]
        assert len([one for one in parts if not one.records]) >= 6
        assert [one.last for one in parts] == sorted(one.last for one in parts)
        found = [one.sequence for part in parts for one in RecordReader().feed(part.data)]
        assert found == [51, 100]
