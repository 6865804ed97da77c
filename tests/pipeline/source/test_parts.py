"""The parts of the data source without Spark: what they know a second time is held against what we wrote first."""

import json
import random
import string
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import NewRecord, Record
from yirangmq.pipeline.source import sink
from yirangmq.pipeline.source.errors import RecordsRetired, SourceError
from yirangmq.pipeline.source.frames import MAX_FRAME_BYTES, FrameColumns, find_frames
from yirangmq.pipeline.source.local_log import LocalLog, SplitPoint
from yirangmq.pipeline.source.options import OPTIONS, SOURCES, Options
from yirangmq.pipeline.source.planning import matches, split
from yirangmq.pipeline.source.segment_file import INDEX_INTERVAL_BYTES, Scan, SegmentFileHead
from yirangmq.pipeline.source.sink import RowEncoder
from yirangmq.pipeline.source.source import READERS
from yirangmq.pipeline.source.topics import TopicReader
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.wire.records import RecordReader, encode_batch

NAMES = st.text(string.ascii_lowercase + string.digits + ".-", min_size=1, max_size=8).filter(lambda n: n[0] != ".")
TEXTS = st.text(max_size=12).filter(lambda text: text.encode("utf-8", "ignore").decode() == text)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        topic=NAMES,
        payload=st.binary(max_size=40),
        key=st.none() | TEXTS,
        headers=st.dictionaries(TEXTS, TEXTS, max_size=3),
    ),
    min_size=1,
    max_size=60,
)


# -- frames -----------------------------------------------------------------------------------------------------------


def rows_of(frames: FrameColumns) -> list[tuple[Any, ...]]:
    codes, names = frames.topics()
    topics = [names[code] for code in codes]
    maps = [dict(one) for one in frames.header_maps().to_pylist()]
    assert maps == frames.headers()
    numbers = zip(frames.sequence.tolist(), frames.topic_sequence.tolist(), frames.at_ns.tolist(), strict=True)
    parts = zip(topics, frames.keys().to_pylist(), maps, frames.payloads().to_pylist(), strict=True)
    return [(*number, *part) for number, part in zip(numbers, parts, strict=True)]


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(0, 5))
def test_frames_read_by_columns_equal_records_read_one_by_one(records: list[NewRecord], cut: int) -> None:
    data = encode_batch(records, 7, 99, {}, synced=True).data
    whole = find_frames(data)
    assert (whole.end, len(whole.starts)) == (len(data), len(records))
    found = FrameColumns(whole)
    found.verify()
    assert rows_of(found) == [tuple(record) for record in RecordReader().feed(data)]
    short = find_frames(data[: len(data) - 1 - cut])
    assert len(short.starts) == len(records) - 1


def test_frames_of_equal_size_in_bulk_and_frames_behind_them_are_all_found() -> None:
    records = [NewRecord("t", b"x" * 50, None, {"b": "q/1"})] * 500
    records += [NewRecord("t", b"y" * n, None, {"b": "q/2"}) for n in range(100)]
    records += [NewRecord("longer", b"z" * 50, "k", {"w": "v" * 700})] * 300
    data = encode_batch(records, 1, 1, {}, synced=False).data
    assert rows_of(FrameColumns(find_frames(data))) == [tuple(record) for record in RecordReader().feed(data)]


@pytest.mark.parametrize("at", [20, 50, 55, -1])
def test_frames_with_a_changed_byte_fail_the_checksum(at: int) -> None:
    data = bytearray(encode_batch([NewRecord("topic", b"payload")] * 3, 1, 1, {}, synced=False).data)
    data[at] ^= 1
    with pytest.raises(SourceError, match="checksum differs"):
        FrameColumns(find_frames(bytes(data))).verify()


def test_frames_that_are_no_record_are_refused() -> None:
    with pytest.raises(SourceError, match="an invalid record"):
        find_frames(b"\xff" * 100)
    data = bytearray(encode_batch([NewRecord("t", b"x")], 1, 1, {}, synced=False).data)
    data[5] = 99
    with pytest.raises(SourceError, match="an invalid record"):
        FrameColumns(find_frames(bytes(data)))


# -- the log's files --------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    """Five topics in segments of a few kilobytes; a millisecond passes between two calls."""
    clock = iter(range(10**18, 10**19, 10**6))
    settings = LogSettings(segment_bytes=8192, durability="os", ahead=False)
    with SegmentLog(tmp_path / "topics", settings, now_ns=lambda: next(clock)) as made:
        chance = random.Random(3)
        for _ in range(60):
            made.append(
                [NewRecord(f"t{chance.randrange(5)}", chance.randbytes(chance.randrange(400))) for _ in range(5)]
            )
        yield made


def numbers(files: LocalLog, after: int, last: int, hints: Any = ()) -> list[int]:
    found = [int(n) for run in files.runs(after, last, hints) for n in FrameColumns(run).sequence]
    return [number for number in found if after < number <= last]


def test_segment_files_return_any_range_and_records_appended_later(log: SegmentLog, tmp_path: Path) -> None:
    files = LocalLog(str(tmp_path))
    assert files.info() == (log.epoch, 1, 300)
    assert files.topics() == [f"t{n}" for n in range(5)]
    assert len(files.segments()) > 5
    for after, last in ((0, 300), (0, 1), (299, 300), (17, 18), (100, 250), (5, 5)):
        wanted = list(range(after + 1, last + 1))
        assert numbers(files, after, last) == wanted
        assert numbers(files, after, last, files.hints(after, last)) == wanted
    log.append([NewRecord("fresh", b"x")])
    assert files.info().last == 301
    assert "fresh" in files.topics()
    assert numbers(files, 290, 301) == list(range(291, 302))


TAILS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "nothing": lambda data, chance: b"",
    "zeros": lambda data, chance: bytes(3000),
    "noise": lambda data, chance: chance.randbytes(3000),
    "half a record": lambda data, chance: data[: chance.randrange(1, 60)],
    "records of before": lambda data, chance: data[:2000],
    "one with a wrong checksum": lambda data, chance: _next(data, lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
    "one whose parts do not fit": lambda data, chance: _next(data, lambda raw: raw[:42] + b"\xff\xff" + raw[44:]),
}
"""What may lie behind the records of a segment in use: room, a write that was cut off, what the file held before."""


def _next(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The record that would come next, and behind it a sound one; changed."""
    last = [*RecordReader().feed(data)][-1]
    one, two = (
        encode_batch([NewRecord("t", b"next")], last.sequence + n, last.at_ns, {}, synced=True).data for n in (1, 2)
    )
    return change(one) + two


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(TAILS)), st.randoms(use_true_random=False), st.booleans(), st.integers(1, 400))
def test_segment_in_use_is_followed_up_to_its_last_complete_record(
    tail: str, chance: random.Random, even: bool, count: int
) -> None:
    bodies = [b"x" * (900 if even else chance.randrange(1800)) for _ in range(count)]
    data = encode_batch([NewRecord(f"t{len(body) % 3}", body) for body in bodies], 8, 1, {}, synced=True).data
    records = [*RecordReader().feed(data)]
    with tempfile.TemporaryFile() as file:
        file.write(data + TAILS[tail](data, chance))
        file.flush()
        scan = Scan(SegmentFileHead("e", 8, 0, 0))
        assert scan.follow(file.fileno(), 1 << 62)
        assert (scan.last, scan.end, scan.last_ns) == (records[-1].sequence, len(data), records[-1].at_ns)
        assert scan.topics == {record.topic for record in records}
        assert not scan.follow(file.fileno(), 1 << 62), "nothing new"
    starts = {record.sequence: start for record, start in zip(records, find_frames(data).starts.tolist(), strict=True)}
    assert [mark.offset for mark in scan.marks] == [starts[mark.sequence] for mark in scan.marks]
    steps = [after.offset - before.offset for before, after in pairwise(scan.marks)]
    assert scan.marks[0].offset == 0
    assert all(INDEX_INTERVAL_BYTES <= step < INDEX_INTERVAL_BYTES + 2000 for step in steps)
    assert len(data) - scan.marks[-1].offset < INDEX_INTERVAL_BYTES + 2000


@pytest.mark.parametrize("length", [0, 3, 20, 35, MAX_FRAME_BYTES, (1 << 32) - 1])
def test_torn_tail_with_an_unwritten_record_length_ends_a_preallocated_segment(length: int) -> None:
    """The next record's head lay across two sectors, and only the second is on disk."""
    data = bytearray(encode_batch([NewRecord("t", b"x" * 100)] * 30, 1, 1, {}, synced=True).data)
    end = 20 * (len(data) // 30)
    data[end : end + 4] = length.to_bytes(4)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.truncate(len(data) + 3 * MAX_FRAME_BYTES)
        file.flush()
        scan = Scan(SegmentFileHead("e", 1, 0, 0))
        assert scan.follow(file.fileno(), 1 << 62)
        assert (scan.last, scan.end) == (20, end)


def test_segment_ends_where_the_next_segment_begins() -> None:
    """Behind its records may lie those of the next one, from before it was used again."""
    data = encode_batch([NewRecord("t", b"x")] * 30, 1, 1, {}, synced=True).data
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        scan = Scan(SegmentFileHead("e", 1, 0, 0))
        assert scan.follow(file.fileno(), 20)
        assert (scan.last, scan.end) == (20, len(data) // 30 * 20)


@pytest.mark.parametrize("size", [2000, None])
def test_spark_source_batches_stay_unchanged_while_later_batches_are_read(size: int | None, tmp_path: Path) -> None:
    """All of a file are read to the same place in memory, one after the other."""
    chance = random.Random(5)
    bodies = [chance.randbytes(size or chance.randrange(4000)) for _ in range(5000)]
    with SegmentLog(tmp_path / "topics", LogSettings(durability="os", ahead=False)) as log:
        for begin in range(0, len(bodies), 500):
            some = enumerate(bodies[begin : begin + 500], begin)
            log.append([NewRecord("t", body, f"k{number}", {"n": str(number)}) for number, body in some])
    made = TopicReader(Options({"path": str(tmp_path), "subscribe": "t"}, "r"))
    batches = [batch for part in made.partitions() for batch in made.read(part)]
    assert len(batches) > 4
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == bodies
    assert [(row["key"], row["headers"]) for row in rows] == [(f"k{n}", [("n", str(n))]) for n in range(5000)]
    assert [row["global_seq"] for row in rows] == [*range(1, 5001)]


def test_segment_files_find_the_sequence_of_a_time(log: SegmentLog, tmp_path: Path) -> None:
    files = LocalLog(str(tmp_path))
    records: dict[int, int] = {}
    for record in log.reader().records(1):
        records.setdefault(record.at_ns // 1_000_000, record.sequence)
    for at_ms in (*list(records)[::13], min(records) - 5):
        assert files.sequence_at(at_ms) == records.get(at_ms, 1)
    assert files.sequence_at(max(records) + 1) == 301


def test_segment_files_places_lie_within_the_range_in_order(log: SegmentLog, tmp_path: Path) -> None:
    split_points = LocalLog(str(tmp_path)).split_points(40, 260)
    assert [place.sequence for place in split_points] == sorted({place.sequence for place in split_points})
    assert [place.size for place in split_points] == sorted(place.size for place in split_points)
    assert all(40 < place.sequence <= 260 for place in split_points)


def test_retention_of_requested_records_raises_retired_with_both_sequences(log: SegmentLog, tmp_path: Path) -> None:
    files = LocalLog(str(tmp_path))
    old = files.hints(0, 300)
    first = log.trim(150).first
    assert 1 < first <= 150
    with pytest.raises(RecordsRetired) as told:
        list(files.runs(0, 300))
    assert (told.value.requested, told.value.first) == (1, first)
    with pytest.raises(RecordsRetired):
        list(files.runs(0, 300, old))
    assert numbers(files, first - 1, 300) == list(range(first, 301))


def reader(path: Path, **options: str) -> list[Any]:
    made = TopicReader(Options({"path": str(path), "subscribepattern": "*", **options}, "r"))
    return [number for part in made.partitions() for batch in made.read(part)
            for number in batch.column("global_seq").to_pylist()]  # fmt: skip


def test_gap_in_the_log_is_an_error_or_a_warning_by_the_fail_on_data_loss_option(
    log: SegmentLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segments = LocalLog(str(tmp_path)).segments()
    lost = segments[2]
    log.close()
    Path(lost.path).unlink()
    first, last = lost.head.first, lost.last
    with pytest.raises(SourceError, match=rf"{last - first + 1} records are missing, {first} to {last}"):
        reader(tmp_path)
    found = reader(tmp_path, failondataloss="false")
    assert found == [n for n in range(1, 301) if not first <= n <= last]
    assert f"{first} to {last}" in capsys.readouterr().err


@pytest.mark.parametrize("tasks", [1, 2, 7, 500])
def test_partitioning_into_any_number_of_tasks_reads_each_record_once(
    log: SegmentLog, tmp_path: Path, tasks: int
) -> None:
    found = reader(tmp_path, minpartitions=str(tasks), maxrecordsperpartition="90")
    assert found == list(range(1, 301))


def test_spark_source_refuses_a_folder_without_a_log_or_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no log of topics"):
        reader(tmp_path)
    with pytest.raises(SourceError, match="no folder"):
        reader(tmp_path / "nowhere")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 20), st.integers(1, 400), st.data())
def test_partitioning_of_a_range_covers_it_exactly_within_its_limits(
    after: int, size: int, tasks: int, most: int, data: st.DataObject
) -> None:
    last = after + size
    marks = sorted(data.draw(st.sets(st.integers(after + 1, last), max_size=30))) if size else []
    parts = split([SplitPoint(n, 100 * n) for n in marks], after, last, tasks, most)
    assert [n for begin, end in parts for n in range(begin + 1, end + 1)] == list(range(after + 1, last + 1))
    assert all(0 < end - begin <= most for begin, end in parts)
    assert len(parts) >= min(tasks, size)


def test_partitioning_makes_no_fewer_tasks_for_one_large_record() -> None:
    split_points = [SplitPoint(1, 0), SplitPoint(50, 100), SplitPoint(99, 10_000_000)]
    assert len(split(split_points, 0, 100, 2, 1000)) == 2
    assert len(split([*split_points, *(SplitPoint(n, 10_000_000 + n) for n in range(100, 120))], 0, 120, 7, 1000)) == 7


# -- choices ----------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.text("ab.*?+", min_size=1, max_size=6), st.text("ab.", min_size=1, max_size=6))
def test_filter_pattern_matches_as_it_does_for_other_subscribers(pattern: str, name: str) -> None:
    if not set(pattern) & set("*?+"):
        pattern += "*"
    assert matches(pattern, name) == make_filter([pattern]).wants(name)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "given_", "words"),
    [
        ("r", {"subscibe": "t"}, r"no option 'subscibe'; did you mean subscribe\?"),
        ("s", {"maxOffsetPerTrigger": "1"}, r"did you mean maxOffsetsPerTrigger\?"),
        ("w", {"subscribe": "t"}, "subscribe is for batch reads and streams, not for writes"),
        ("r", {"publishId": "t"}, "publishId is for writes, not for batch reads"),
        ("s", {"endingOffsets": "latest"}, "endingOffsets is for batch reads, not for streams"),
        ("r", {"zzz": "t"}, "there is no option 'zzz' "),
        ("s", {"maxOffsetsPerTrigger": "0"}, "must be a whole number from 1"),
        ("s", {"maxOffsetsPerTrigger": "5", "maxRecordsPerTrigger": "5"}, "given twice"),
        ("r", {"failOnDataLoss": "yes"}, "must be true or false"),
        ("r", {"source": "queues"}, r"did you mean queue\?"),
        ("r", {"state": "reddy"}, r"no state 'reddy'; did you mean ready\?"),
        ("r", {"subscribe": "a,b*"}, "is a pattern"),
        ("r", {"startingOffsets": "{oops"}, "startingOffsets must be earliest, latest"),
        ("r", {"startingOffsets": '{"t": -1}'}, "startingOffsets must be"),
        ("r", {"startingOffsets": '{"t": 1, "global_seq": 2}'}, "not both"),
        ("r", {"startingTimestamp": "yesterday"}, "milliseconds since 1970, or such as"),
        ("s", {"maxTriggerDelay": "soon"}, "must be milliseconds, or such as 15s"),
        ("w", {"onBadRow": "skip"}, "must be one of fail, dlq"),
        ("w", {"topic": ".t"}, "topic: '.t' is not allowed"),
        ("r", {"caFile": "/nowhere"}, "caFile: /nowhere cannot be read"),
    ],
)
def test_spark_option_that_is_wrong_is_refused_by_name(use: str, given_: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        Options(given_, use)


def test_spark_option_of_every_name_has_a_description_and_a_valid_default() -> None:
    for option in OPTIONS:
        assert option.about[0].islower() or option.about[0] in "`…"
        if option.default is not None:
            Options({option.name: option.default}, option.where)


def test_spark_source_of_every_kind_has_its_reader() -> None:
    assert set(READERS) == set(SOURCES)


def test_spark_option_offsets_may_be_given_by_partition() -> None:
    assert Options({"startingoffsets": '{"t": {"0": 7}}'}, "r").offsets("startingOffsets") == {"t": 7}


# -- rows to be written -----------------------------------------------------------------------------------------------


def encoded(columns: dict[str, list[Any]], kinds: dict[str, str], **options: str) -> list[Record]:
    import pyarrow as pa

    made = RowEncoder(Options(options, "w"), kinds)
    batch = pa.RecordBatch.from_pydict(columns)
    return list(RecordReader().feed(b"".join(part for block in made.blocks(batch) for part in block.parts)))


def test_spark_sink_rows_become_frames_that_the_broker_reads() -> None:
    found = encoded(
        {"value": ['{"a": 1}', "b"], "target": ["topic:t", "queue:q"], "key": ["k", None], "type": [None, "order"],
         "headers": [[("x", "1")], None], "priority": [None, 3]},
        {"value": "string", "target": "string", "key": "string", "type": "string", "headers": "map<string,string>",
         "priority": "int"},
    )  # fmt: skip
    assert [(one.topic, one.key, dict(one.headers), one.payload) for one in found] == [
        ("topic:t", "k", {"x": "1"}, b'{"a": 1}'),
        ("queue:q", None, {"type": "order", "priority": "3", "isJson": "maybe"}, b"b"),
    ]


def test_spark_sink_keeps_bytes_and_sends_a_row_without_a_target_where_the_option_says() -> None:
    [one] = encoded({"value": [b"\x00\xff"], "queue": [None]}, {"value": "binary", "queue": "string"}, topic="t")
    assert (one.topic, one.payload, dict(one.headers)) == ("topic:t", b"\x00\xff", {})


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.integers(0, 5), st.sampled_from([1, 500, 1 << 20])
)
def test_spark_sink_values_alone_become_the_same_frames_as_rows_one_by_one(
    values: list[bytes], cut: int, room: int
) -> None:
    """However many are looked at together, and wherever in a column they lie."""
    import pyarrow as pa

    made = RowEncoder(Options({"topic": "t"}, "w"), {"value": "binary"})
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}).slice(cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "BLOCK_BYTES", room)
        blocks = list(made.blocks(batch))
    kinds = {"value": "binary", "key": "string"}
    one_by_one = encoded({"value": values[cut:], "key": [None] * len(values[cut:])}, kinds, topic="t")
    data = b"".join(part for block in blocks for part in block.parts)
    assert list(RecordReader().feed(data)) == one_by_one
    assert (sum(block.rows for block in blocks), sum(block.size for block in blocks)) == (len(one_by_one), len(data))


def test_spark_sink_null_or_too_large_value_is_refused_or_dead_lettered_and_the_others_pass() -> None:
    huge = b"y" * MAX_FRAME_BYTES
    columns, kinds = {"value": [b"a", None, huge, b"b"]}, {"value": "binary"}
    with pytest.raises(SourceError, match="the value is null"):
        encoded(columns, kinds, topic="t")
    found = encoded(columns, kinds, topic="t", onbadrow="dlq")
    assert [(one.topic, one.payload[:1]) for one in found] == [
        ("topic:t", b"a"), ("dlq:t", b""), ("dlq:t", b"y"), ("topic:t", b"b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "kinds", "words"),
    [
        ({"value": [None]}, {"value": "string"}, "the value is null"),
        ({"value": ["x"], "target": ["mail"]}, {"value": "string", "target": "string"}, "is not queue:NAME"),
        ({"value": ["x"], "key": [b"\xff"]}, {"value": "string", "key": "binary"}, "the key is not text"),
        ({"value": ["x"], "key": ["k" * 70_000]}, {"value": "string", "key": "string"}, "the key of the row has 70000"),
    ],
)
def test_spark_sink_bad_row_is_refused_or_dead_lettered_with_its_reason(
    columns: dict[str, list[Any]], kinds: dict[str, str], words: str
) -> None:
    with pytest.raises(SourceError, match=words):
        encoded(columns, kinds, topic="t")
    [one] = encoded(columns, kinds, topic="t", onbadrow="dlq")
    assert one.topic in ("dlq:t", "dlq:bad-rows")
    assert words in one.headers["reason"]
    assert one.payload == (b"" if columns["value"] == [None] else b"x")


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"vale": "string"}, "a column value is needed .* rename 'vale'"),
        ({"value": "bigint"}, r"value must be string or binary, not bigint; try to_json"),
        ({"value": "string", "prority": "int"}, r"'prority'; did you mean priority\?"),
        ({"value": "string", "headers": "string"}, "headers must be map<string,string>"),
    ],
)
def test_spark_sink_wrong_columns_are_refused_before_any_data_moves(kinds: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        RowEncoder(Options({"topic": "t"}, "w"), kinds)


def test_spark_sink_without_a_target_or_with_two_is_refused() -> None:
    with pytest.raises(SourceError, match="set the target of rows"):
        RowEncoder(Options({}, "w"), {"value": "string"})
    with pytest.raises(SourceError, match="not both"):
        RowEncoder(Options({"topic": "t", "queue": "q"}, "w"), {"value": "string"})


def test_spark_sink_value_format_marks_the_payload_as_json_or_bytes() -> None:
    for kind, told in (("json", "yes"), ("bytes", None), ("auto", "maybe")):
        [one] = encoded({"value": ["{}"]}, {"value": "string"}, queue="q", valueformat=kind)
        assert one.headers.get("isJson") == told
    assert json.loads(one.payload) == {}
