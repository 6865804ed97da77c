"""Streams by Spark: micro-batches of a bounded size, restarts, what retention took, another log under a query."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.http_server import HttpServer
from tests.support.pipeline_server import Served
from tests.support.server_process import until
from tests.support.wait import PATIENCE
from yirangmq.clock import SteadyClock
from yirangmq.core.topics import NewRecord, Retention, TrimResult
from yirangmq.pipeline.source.checkpoints import NAME, owner_of
from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.http_client import HttpBroker
from yirangmq.pipeline.source.options import Options
from yirangmq.pipeline.source.topics import TopicStream
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.memory import MemoryStore
from yirangmq.topics.ports import TopicSettings

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def follow(spark: SparkSession, **options: str) -> DataFrame:
    return spark.readStream.format("yirangmq").options(**{"startingOffsets": "earliest", **options}).load()


class Seen:
    """The rows of each micro-batch, by ``foreachBatch``."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}

    def __call__(self, found: DataFrame, batch: int) -> None:
        rows = found.select("global_seq", "value").collect()
        self.batches[batch] = [bytes(value) for _, value in sorted(map(tuple, rows))]

    @property
    def values(self) -> list[bytes]:
        return [value for batch in sorted(self.batches) for value in self.batches[batch]]


def run(found: DataFrame, seen: Callable[[DataFrame, int], None], checkpoint: Path) -> StreamingQuery:
    """Everything there is, then it ends."""
    query = found.writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(PATIENCE)
    return started


def test_checkpoint_resumes_a_stream_that_was_read_in_bounded_batches(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    begin = json.dumps({"global_seq": served.last() + 1})  # behind what other tests left in the log
    served.append("s.a", *range(250))
    seen = Seen()
    terms = {"subscribe": "s.a", "maxOffsetsPerTrigger": "100", "startingOffsets": begin}
    found = follow(spark, path=served.data, **terms)
    query = run(found, seen, tmp_path / "c")
    assert seen.values == [b"%d" % n for n in range(250)]
    assert all(len(batch) <= 100 for batch in seen.batches.values())
    last = query.lastProgress
    assert last is not None
    offset = json.loads(last["sources"][0]["endOffset"])
    assert offset["global_seq"] == served.last()
    assert json.loads(last["sources"][0]["latestOffset"])["global_seq"] == served.last()

    served.append("s.a", *range(250, 260))
    served.append("s.other", "x")
    more = Seen()
    run(follow(spark, broker=served.url, **terms), more, tmp_path / "c")
    assert more.values == [b"%d" % n for n in range(250, 260)]


def test_cursor_follows_a_live_query_that_gets_each_new_record(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    served.append("s.live", "before")
    seen = Seen()
    found = follow(spark, broker=served.url, subscribe="s.live", startingOffsets="latest", groupId="s-live")
    begun = served.last()
    query = found.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start()
    try:
        until(lambda: query.lastProgress is not None or query.status["isTriggerActive"])
        until(lambda: served.ask("GET", "/v1/cursors")["cursors"] != [], PATIENCE)
        for number in range(3):
            served.append("s.live", number)
            until(lambda number=number: len(seen.values) == number + 1, PATIENCE)
        until(lambda: served.ask("GET", "/v1/cursors/s-live")["sequence"] > begun, PATIENCE)
    finally:
        query.stop()
    assert seen.values == [b"0", b"1", b"2"]
    served.ask("DELETE", "/v1/cursors/s-live")


def test_retention_keeps_the_records_of_a_batch_until_it_is_committed_and_not_longer(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The log is to keep nothing, and is trimmed while each batch is at work: what holds it is the query alone."""
    with SegmentLog(tmp_path / "topics", LogSettings(segment_bytes=4096, durability="os", ahead=False)) as log:
        for _ in range(20):
            log.append([NewRecord("s.held", b"%0200d" % n) for n in range(10)])
    settings = TopicSettings(retention=Retention(size=0))
    server = HttpServer(MemoryStore(), SteadyClock(), folder=tmp_path, settings=settings).start()
    firsts: list[int] = []
    seen = Seen()

    def trimmed() -> int:
        """The first record that is left."""
        found: Queue[TrimResult | None] = Queue()
        assert server.topics is not None
        maintenance = server.topics.ensure_open().maintenance
        server.do(lambda: maintenance.retain(lambda done, error: found.put(done)))
        done = found.get(timeout=PATIENCE)
        assert done is not None
        return done.first

    def work(found: DataFrame, batch: int) -> None:
        firsts.append(trimmed())
        seen(found, batch)

    try:
        terms = {"subscribe": "s.held", "groupId": "s-held", "maxOffsetsPerTrigger": "100"}
        run(follow(spark, broker=server.url, **terms), work, tmp_path / "c")
        assert len(seen.values) == 200
        before, after = firsts
        assert before == 1
        assert 80 < after <= 101  # whole segments go, and the second batch is still at work
        with closing(HttpBroker(server.url, None, PATIENCE)) as broker:
            broker.document("DELETE", "/v1/cursors/s-held")
        assert trimmed() > 180  # nobody holds it any more; the last segment always stays
    finally:
        server.stop()


def test_checkpoint_in_use_by_another_process_is_refused_at_the_start_until_that_ends(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    """Of another process: Spark itself sees to those of one session."""
    served.append("s.two", 1)
    checkpoint = tmp_path / "c"
    checkpoint.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (checkpoint / NAME).write_text(json.dumps(owner_of(other.pid)))
        sink = follow(spark, path=served.data, subscribe="s.two").select("value").writeStream.format("yirangmq")
        query = sink.options(broker=served.url, topic="s.out", checkpointLocation=str(checkpoint))
        with pytest.raises(PySparkException, match=rf"in use by another query, in process {other.pid}"):
            query.trigger(availableNow=True).start().awaitTermination(PATIENCE)
        assert other.stdin is not None
        other.stdin.close()
    assert served.values("s.out") == []
    assert query.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    assert served.values("s.out") == [b"1"]


# -- the reader itself, on a log the test holds -----------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    with SegmentLog(tmp_path / "topics", LogSettings(segment_bytes=8192, durability="os", ahead=False)) as made:
        for begin in range(0, 300, 10):
            made.append([NewRecord("t", b"%0200d" % n) for n in range(begin, begin + 10)])
        yield made


def stream(folder: Path, **options: str) -> TopicStream:
    return TopicStream(Options({"path": str(folder), "subscribe": "t", "startingoffsets": "earliest", **options}, "s"))


def rows(reader: TopicStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        number
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for number in batch.column("global_seq").to_pylist()
    ]


def steps(reader: TopicStream, start: dict[str, Any]) -> list[list[int]]:
    """Micro-batches until there is nothing more."""
    found = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        found.append(rows(reader, start, end))
        start = end
    return found


def test_spark_stream_batch_is_bounded_by_rows_and_by_bytes(log: SegmentLog, tmp_path: Path) -> None:
    by_rows = stream(tmp_path, maxoffsetspertrigger="70")
    assert [len(batch) for batch in steps(by_rows, by_rows.initialOffset())] == [70, 70, 70, 70, 20]
    by_bytes = stream(tmp_path, maxbytespertrigger="20000")
    batches = steps(by_bytes, by_bytes.initialOffset())
    assert list(chain.from_iterable(batches)) == list(range(1, 301))
    assert all(len(batch) <= 130 for batch in batches)
    assert len(batches) > 2


def test_spark_stream_batch_is_bounded_without_options_too(log: SegmentLog, tmp_path: Path) -> None:
    reader = stream(tmp_path)
    assert reader.getDefaultReadLimit().max_rows == 100_000  # type: ignore[attr-defined]


def test_spark_stream_replayed_batch_has_the_same_rows_even_the_first(log: SegmentLog, tmp_path: Path) -> None:
    """Spark asks anew where the very first batch began; "latest" is somewhere else by then."""
    reader = stream(tmp_path, startingoffsets="latest")
    start = reader.initialOffset()
    log.append([NewRecord("t", b"x")] * 5)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = rows(reader, start, end)
    log.append([NewRecord("t", b"x")] * 5)
    again = stream(tmp_path, startingoffsets="latest")
    assert rows(again, again.initialOffset(), end) == first == list(range(301, 306))


def test_spark_stream_waits_for_the_minimum_of_rows_up_to_the_maximum_delay(log: SegmentLog, tmp_path: Path) -> None:
    reader = stream(tmp_path, minoffsetspertrigger="400", maxtriggerdelay="1h")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    reader = stream(tmp_path, minoffsetspertrigger="400", maxtriggerdelay="0ms")
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["global_seq"] == 300


def test_available_now_ends_at_the_last_record_of_its_start(log: SegmentLog, tmp_path: Path) -> None:
    reader = stream(tmp_path, maxoffsetspertrigger="200")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    log.append([NewRecord("t", b"x")] * 50)
    assert reader.latestOffset()["global_seq"] == 300  # as Spark before 4.2 asks
    assert list(chain.from_iterable(steps(reader, start))) == list(range(1, 301))


def test_retention_that_passes_a_slow_query_is_an_error_with_both_sequences_or_skipped_with_a_warning(
    log: SegmentLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = stream(tmp_path, maxoffsetspertrigger="50")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    planned = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = log.trim(200).first
    lost = rf"{first - 51} records were removed: the next one is 51, the log begins at {first}"
    with pytest.raises(SourceError, match=lost):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(SourceError, match=lost):
        reader.partitions(start, planned)
    lenient = stream(tmp_path, failondataloss="false")
    assert list(chain.from_iterable(steps(lenient, start))) == list(range(first, 301))
    assert f"the log begins at {first}; continuing without them" in capsys.readouterr().err


def test_epoch_of_another_log_in_its_place_is_an_error_or_a_restart_from_its_beginning(
    log: SegmentLog, tmp_path: Path
) -> None:
    reader = stream(tmp_path)
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    log.close()
    shutil.rmtree(tmp_path / "topics")
    with SegmentLog(tmp_path / "topics") as fresh:
        fresh.append([NewRecord("t", b"x")] * 7)
        with pytest.raises(SourceError, match="the log is a new one"):
            stream(tmp_path).latestOffset(start, reader.getDefaultReadLimit())
        assert steps(stream(tmp_path, failondataloss="false"), start) == [list(range(1, 8))]


def test_spark_stream_of_a_queue_is_refused() -> None:
    with pytest.raises(SourceError, match="a stream follows topics"):
        TopicStream(Options({"source": "queue", "queue": "q", "broker": "h:1"}, "s"))


def test_spark_stream_waits_at_an_empty_topic_and_ends_with_a_reason_when_its_log_disappears(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What deleting a topic would be: topics have no end of their own, the log they lie in may."""
    folder, seen = tmp_path / "data", Seen()
    folder.mkdir()
    log = SegmentLog(folder / "topics", LogSettings(durability="os", ahead=False))
    log.append([NewRecord("other", b"x")])
    found = follow(spark, path=str(folder), subscribe="t").writeStream.foreachBatch(seen)
    query = found.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        until(lambda: query.lastProgress is not None, PATIENCE)
        assert seen.values == []
        log.append([NewRecord("t", b"1")])
        until(lambda: seen.values == [b"1"], PATIENCE)
        log.close()
        (folder / "topics").rename(folder / "elsewhere")
        until(lambda: not query.isActive, PATIENCE)
        assert "no log of topics" in str(query.exception())
    finally:
        query.stop()
        log.close()
