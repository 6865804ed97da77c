"""The six frames of the public layout: their bytes, their sizes, and what is made of records."""

import ctypes
import re
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.errors import Retired, StoreDamaged, TooLarge
from yirangmq.core.topics import NewRecord, Record
from yirangmq.protocols.feed import FeedDialect, encode_refusal, encode_refused_recovery
from yirangmq.topics.ports import EncodedRecords, Recovering, Subscribed
from yirangmq.wire import feed as layout
from yirangmq.wire import records

AT = 0x0102030405060708
GOLDEN: dict[layout.FeedMessage, str] = {
    layout.FeedTopicMessage(1, 7, 3, AT, b"hello"): (
        "49504f5401000000070000000300000008070605040302010500000068656c6c6f00000000"
    ),
    layout.FeedSubscribe(10011000, 7, 0, "demo_pub"): (
        "5342555378c198000700000000000000" + "64656d6f5f707562" + "00" * 56
    ),
    layout.FeedSubscribeOk(0, 7, 0): "4b4f5553000000000700000000000000",
    layout.FeedRecoveryRequest(10011000, 7, 42): "5243455278c19800070000002a000000",
    layout.FeedRecoveryResponse(0, 43, 50, 8): "53434552000000002b0000003200000008000000",
    layout.FeedRecoveryComplete(8, AT): "43434552080000000807060504030201",
}
STREAM = b"".join(bytes.fromhex(text) for text in GOLDEN.values())
TOPICS = ("TOPIC1", "TOPIC2", "MISC")
PAGE = (Path(__file__).parents[2] / "docs" / "feed.md").read_text()


@pytest.mark.parametrize("message", GOLDEN, ids=lambda message: type(message).__name__)
def test_feed_frame_encodes_to_and_decodes_from_the_documented_bytes(message: layout.FeedMessage) -> None:
    data = bytes.fromhex(GOLDEN[message])
    assert layout.encode(message) == data
    assert list(layout.FeedDecoder(1000).feed(data)) == [message]


def test_feed_docs_show_the_same_bytes() -> None:
    shown = re.sub(r"[`\s]", "", PAGE)
    for text in GOLDEN.values():
        assert text.rstrip("0") in shown


class CTopicMessage(ctypes.LittleEndianStructure):
    """As a C compiler lays it out: u64 on a multiple of eight, and the end as well."""

    _fields_ = (
        ("magic", ctypes.c_uint32), ("topic", ctypes.c_uint32), ("global_seq", ctypes.c_uint32),
        ("topic_seq", ctypes.c_uint32), ("timestamp", ctypes.c_uint64), ("data_size", ctypes.c_uint32),
        ("data", ctypes.c_char * 0),
    )  # fmt: skip


class CRecoveryComplete(ctypes.LittleEndianStructure):
    _fields_ = (("magic", ctypes.c_uint32), ("total_sent", ctypes.c_uint32), ("timestamp", ctypes.c_uint64))


def test_feed_layout_equals_that_of_a_c_struct() -> None:
    assert ctypes.sizeof(CTopicMessage) == 32
    assert CTopicMessage.data.offset == layout.PAYLOAD_OFFSET
    assert ctypes.sizeof(CRecoveryComplete) == 16
    assert CRecoveryComplete.timestamp.offset == 8
    for size in (0, 1, 4064, 4065, 1 << 20):
        frame = layout.encode(layout.FeedTopicMessage(1, 2, 3, 4, b"x" * size))
        assert len(frame) == ctypes.sizeof(CTopicMessage) + size
        assert CTopicMessage.from_buffer_copy(frame[:32]).data_size == size
        assert frame.endswith(bytes(4))
    sizes = {
        layout.FeedSubscribe: 80,
        layout.FeedSubscribeOk: 16,
        layout.FeedRecoveryRequest: 16,
        layout.FeedRecoveryResponse: 20,
    }
    for message, text in GOLDEN.items():
        assert len(text) // 2 == sizes.get(type(message), len(text) // 2)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_feed_scanner_finds_the_same_frames_for_any_split_of_the_stream(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    scanner = layout.FeedDecoder(1000)
    found = [one for begin, end in pairwise(edges) for one in scanner.feed(STREAM[begin:end])]
    assert found == list(GOLDEN)
    assert scanner.held == 0


def test_feed_scanner_skips_bytes_that_begin_no_frame() -> None:
    scanner = layout.FeedDecoder(1000)
    assert list(scanner.feed(b"nono" + STREAM[:37] + b"whatever" + STREAM[37:])) == list(GOLDEN)
    assert scanner.skipped == 12


def test_feed_subscription_name_ends_at_its_first_zero_byte() -> None:
    """The public subscriber sends whatever lay in its memory behind the name and in the last sequence."""
    data = struct.pack("<IIII64s", layout.SUBS, 1, 7, 0xDEADBEEF, b"demo\0garbage" + b"\xff" * 52)
    [found] = layout.FeedDecoder(0).feed(data)
    assert found == layout.FeedSubscribe(1, 7, 0xDEADBEEF, "demo")


def test_feed_scanner_rejects_a_payload_too_large() -> None:
    with pytest.raises(TooLarge):
        list(layout.FeedDecoder(10).feed(layout.encode(layout.FeedTopicMessage(1, 1, 1, 1, b"x" * 11))))


# -- records ----------------------------------------------------------------------------------------------------------


def stored(*new: NewRecord, sequence: int = 7) -> EncodedRecords:
    made = records.encode_batch(new, sequence, AT, {"TOPIC1": 2, "MISC": 9}, synced=True)
    return EncodedRecords(made.data, len(new))


def test_feed_records_become_topic_messages_with_the_bit_of_their_topic() -> None:
    batch = stored(NewRecord("TOPIC1", b"hello"), NewRecord("MISC", b"", "key", {"h": "v"}), NewRecord("TOPIC2", b"x"))
    found = list(layout.FeedDecoder(1000).feed(FeedDialect(TOPICS, 7).records(batch)))
    assert found == [
        layout.FeedTopicMessage(1, 7, 3, AT, b"hello"),
        layout.FeedTopicMessage(4, 8, 10, AT, b""),
        layout.FeedTopicMessage(2, 9, 1, AT, b"x"),
    ]


def test_feed_sequence_of_32_bits_is_sent_up_to_its_maximum_and_then_rejected() -> None:
    last = stored(NewRecord("TOPIC1", b"x"), sequence=2**32 - 1)
    [found] = layout.FeedDecoder(10).feed(FeedDialect(TOPICS, 7).records(last))
    assert isinstance(found, layout.FeedTopicMessage)
    assert found.global_seq == 2**32 - 1
    with pytest.raises(TooLarge):
        FeedDialect(TOPICS, 7).records(stored(NewRecord("TOPIC1", b"x"), sequence=2**32))


def test_feed_topic_sequence_beyond_32_bits_is_rejected() -> None:
    record = Record(5, 2**32, AT, "TOPIC1", None, {}, b"x")
    with pytest.raises(TooLarge):
        FeedDialect(TOPICS, 7).records(EncodedRecords(records.encode(record), 1))


def test_feed_damaged_record_is_not_sent() -> None:
    data = bytearray(stored(NewRecord("TOPIC1", b"hello")).data)
    data[-1] ^= 1
    with pytest.raises(StoreDamaged):
        FeedDialect(TOPICS, 7).records(EncodedRecords(bytes(data), 1))


def test_feed_dialect_encodes_subscription_recovery_and_error_frames() -> None:
    dialect = FeedDialect(TOPICS, 0xFF)
    assert dialect.approved == 7
    assert dialect == FeedDialect(TOPICS, 0xFF)
    assert dialect.subscribed(1, Subscribed("e", 1, 1, 0, [], False)).hex() == GOLDEN[layout.FeedSubscribeOk(0, 7, 0)]
    assert dialect.recovering(1, Recovering(43, 50, 8, [])).hex() == GOLDEN[layout.FeedRecoveryResponse(0, 43, 50, 8)]
    assert dialect.complete(1, 50, 8, AT).hex() == GOLDEN[layout.FeedRecoveryComplete(8, AT)]
    assert dialect.progress(1, 1, 1, 1) == b""
    assert list(layout.FeedDecoder(0).feed(encode_refusal(5) + encode_refused_recovery(3, 9))) == [
        layout.FeedSubscribeOk(1, 0, 5),
        layout.FeedRecoveryResponse(1, 3, 9, 0),
    ]
    assert dialect.refused(0, Retired("gone", asked=3, first=9)) == encode_refused_recovery(3, 9)
