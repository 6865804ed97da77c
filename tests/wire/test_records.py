"""A record's frame: the bytes it always had, in any split, refused when it is not what was written."""

import re
import struct
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden_files import golden
from tests.support.record_examples import EXAMPLES, frame_of, spelled
from yirangmq.core.errors import BadInput, StoreDamaged, TooLarge
from yirangmq.core.topics import MAX_SEQUENCE, NO_HEADERS, NewRecord, Record
from yirangmq.wire import records
from yirangmq.wire.frames import MAX_FRAME, FrameReader
from yirangmq.wire.records import (
    FrameSummary,
    RecordReader,
    check_record,
    encode,
    encode_batch,
    read_bare,
    read_body,
    read_head,
    read_many,
    summarize,
)

WRITTEN = dict(re.split(r" {2,}", line, maxsplit=1) for line in golden("wire/records.txt").decode().splitlines())
STREAM = b"".join(frame_of(name) for name in EXAMPLES)
RECORDS = [record for record, _ in EXAMPLES.values()]
SIZES = (0, 1, 4064, 4065, 1 << 20)
"""Of payloads; the middle ones are where another implementation overran its buffer."""


def fed(*pieces: bytes) -> list[Record]:
    reader = RecordReader()
    found = [record for piece in pieces for record in reader.feed(piece)]
    assert reader.held == 0
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_record_bytes_equal_the_golden_bytes(name: str) -> None:
    assert spelled(frame_of(name)) == WRITTEN[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_record_golden_bytes_are_read_back(name: str) -> None:
    data = bytes.fromhex(WRITTEN[name].replace("|", ""))
    assert fed(data) == [EXAMPLES[name][0]]


def test_record_golden_examples_are_complete() -> None:
    assert WRITTEN.keys() == EXAMPLES.keys()


def test_record_frames_are_read_by_the_frame_reader_of_the_socket_too() -> None:
    frames = list(FrameReader().feed(STREAM))
    assert {frame.kind for frame in frames} == {records.KIND}
    assert [read_body(frame.body) for frame in frames] == RECORDS


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_record_stream_may_be_split_at_any_point(at: int) -> None:
    assert fed(STREAM[:at], STREAM[at:]) == RECORDS


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_record_stream_may_be_split_in_any_way(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert fed(*(STREAM[begin:end] for begin, end in pairwise(edges))) == RECORDS


texts = st.text(st.characters(codec="utf-8"), max_size=30)
news = st.builds(
    NewRecord,
    st.sampled_from(["a", "b.c", "trades"]),
    st.binary(max_size=80),
    st.none() | texts,
    st.dictionaries(texts, texts, max_size=4),
)


@given(st.lists(news, max_size=12), st.integers(1, 2**63), st.integers(0, 2**63), st.booleans())
def test_record_batch_is_read_back_with_its_sequences(
    batch: list[NewRecord], sequence: int, at_ns: int, synced: bool
) -> None:
    known = {"a": 5, "trades": 2**32 - 1}
    data, offsets, topics = encode_batch(batch, sequence, at_ns, known, synced=synced)
    found = fed(data)
    assert [NewRecord(r.topic, r.payload, r.key, r.headers) for r in found] == batch
    assert [r.sequence for r in found] == list(range(sequence, sequence + len(batch)))
    assert {r.at_ns for r in found} <= {at_ns}
    for topic in ("a", "b.c", "trades"):
        numbers = [r.topic_sequence for r in found if r.topic == topic]
        begin = known.get(topic, 0)
        assert numbers == list(range(begin + 1, begin + 1 + len(numbers)))
        assert topics.get(topic, begin) == begin + len(numbers)
    heads = [read_head(data, offset) for offset in offsets]
    assert [head.sequence for head in heads if head] == [r.sequence for r in found]
    assert [bool(head.marks & records.SYNCED) for head in heads if head] == [
        synced and n == 0 for n in range(len(batch))
    ]


@pytest.mark.parametrize("size", SIZES)
def test_record_payload_of_every_size_is_read_back(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    [record] = fed(encode(Record(1, 1, 1, "t", None, NO_HEADERS, payload)))
    assert record.payload == payload


@given(st.data())
def test_record_with_a_changed_bit_is_refused_or_incomplete(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(EXAMPLES)))
    frame = bytearray(frame_of(name))
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    reader = RecordReader()
    try:
        found = list(reader.feed(bytes(frame)))
    except (BadInput, StoreDamaged):
        return
    assert found == []  # its length was changed, and it waits for more
    assert reader.held == len(frame)


@pytest.mark.parametrize(
    ("at", "value", "field"),
    [(4, b"\x02", "kind"), (5, b"\x03", "kind"), (0, b"\x7f\xff\xff\xff", "length"), (42, b"\xff\xff", "length")],
)
def test_record_head_that_is_invalid_is_refused_with_its_field(at: int, value: bytes, field: str) -> None:
    frame = bytearray(frame_of("plain"))
    frame[at : at + len(value)] = value
    with pytest.raises(BadInput) as caught:
        list(RecordReader().feed(bytes(frame)))
    assert caught.value.field == field


def test_record_too_large_is_refused_by_its_head_alone() -> None:
    with pytest.raises(TooLarge):
        list(RecordReader(max_frame=20).feed(frame_of("plain")[: records.HEAD]))


@pytest.mark.parametrize("size", [0, 35])
def test_record_body_too_short_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match="at least 36"):
        read_body(bytes(size))


def test_record_body_with_parts_longer_than_the_frame_is_refused() -> None:
    body = bytearray(frame_of("smallest")[records.LENGTH_FROM :])
    struct.pack_into(">H", body, 30, 9)
    with pytest.raises(BadInput, match="longer than its frame"):
        read_body(bytes(body))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (NewRecord("", b""), "topic"),
        (NewRecord("a/b", b""), "topic"),
        (NewRecord("t", "text"), "payload"),  # type: ignore[arg-type]
        (NewRecord("t", bytes(MAX_FRAME)), "payload"),
        (NewRecord("t", b"", 5), "key"),  # type: ignore[arg-type]
        (NewRecord("t", b"", "\ud800"), "key"),
        (NewRecord("t", b"", "k" * 65536), "key"),
        (NewRecord("t", b"", None, {"a": 1}), "headers"),  # type: ignore[dict-item]
        (NewRecord("t", b"", None, [("a", "b")]), "headers"),  # type: ignore[arg-type]
        (NewRecord("t", b"", None, {"a": "\ud800"}), "headers"),
        (NewRecord("t", b"", None, {"a": "x" * 65536}), "headers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_record_that_is_invalid_is_refused_with_its_field(record: NewRecord, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_record(record)
    assert caught.value.field == field


def test_record_sequence_beyond_64_bits_is_refused() -> None:
    known: dict[str, int] = {}
    assert len(encode_batch([NewRecord("t", b"")], MAX_SEQUENCE, 1, known, synced=False).offsets) == 1
    with pytest.raises(TooLarge):
        encode_batch([NewRecord("t", b"")] * 2, MAX_SEQUENCE, 1, known, synced=False)


def test_record_reading_of_many_at_once_equals_reading_one_by_one() -> None:
    assert read_many(STREAM) == RECORDS == fed(STREAM)
    assert read_many(b"") == []
    for cut in (1, len(STREAM) // 2, len(STREAM) - 1):
        with pytest.raises(BadInput, match="no whole record begins at byte"):
            read_many(STREAM[:cut])


def test_record_headers_shared_by_records_are_written_like_separate_ones() -> None:
    shared = {"a": "1"}
    some = [NewRecord("t", b"x", None, shared), NewRecord("t", b"y", "k", shared), NewRecord("t", b"z")]
    apart = [NewRecord("t", one.payload, one.key, dict(one.headers)) for one in some]
    records.check_batch(some, {"t"})
    assert encode_batch(some, 1, 1, {}, synced=True) == encode_batch(apart, 1, 1, {}, synced=True)
    with pytest.raises(BadInput, match="headers"):
        records.check_batch([NewRecord("t", b"x", None, {"a": 1})] * 2, {"t"})  # type: ignore[dict-item]


def test_record_summary_counts_records_topics_and_bytes_and_bare_records_are_read_unchanged() -> None:
    records = [NewRecord("topic:a", b"1"), NewRecord("topic:a", b"", "k"), NewRecord("topic:bé", b"x" * 3000, "")]
    data = encode_batch(records, 1, 1, {}, synced=False).data
    assert summarize(data) == FrameSummary(3, frozenset((b"topic:a", "topic:bé".encode())), True, 48 + 9 + 3000)
    told = {"from": "here"}
    assert read_bare(memoryview(data), len("topic:"), told) == [
        (topic.removeprefix("topic:"), payload, key, told) for topic, payload, key, _ in records
    ]
    assert summarize(b"") == FrameSummary(0, frozenset(), True, 12)
    assert not summarize(encode_batch([NewRecord("t", b"", None, told)], 1, 1, {}, synced=False).data).is_bare


def test_record_summary_refuses_incomplete_or_damaged_bytes() -> None:
    data = encode_batch([NewRecord("t", b"payload")] * 2, 1, 1, {}, synced=False).data
    for cut in (1, 30, 60, len(data) - 1):
        with pytest.raises(BadInput, match="no whole record"):
            summarize(data[:cut])
    for at in (0, 4, 12, 20, 44, 49, -1):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(BadInput, match="no whole record"):
            summarize(bytes(broken))


def test_record_summary_does_not_count_a_key_that_is_not_utf_8_as_bare() -> None:
    data = bytearray(encode_batch([NewRecord("t", b"", "k")], 1, 1, {}, synced=False).data)
    data[49] = 0xFF
    data[12:16] = crc32(bytes(data[16:])).to_bytes(4)
    assert not summarize(bytes(data)).is_bare
