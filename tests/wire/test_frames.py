"""Bytes in any split, frames out; what is not a frame is refused by its head."""

import random
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frame_examples import EXAMPLES
from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.wire.frames import HEAD, VERSION, Frame, FrameReader, encode

STREAM = b"".join(example.bytes() for example in EXAMPLES)
FRAMES = [*FrameReader().feed(STREAM)]


def fed(reader: FrameReader, *pieces: bytes) -> list[Frame]:
    return [frame for piece in pieces for frame in reader.feed(piece)]


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_frame_stream_may_be_split_at_any_point(at: int) -> None:
    reader = FrameReader()
    assert fed(reader, STREAM[:at], STREAM[at:]) == FRAMES
    assert reader.held == 0


def test_frame_stream_may_come_byte_by_byte() -> None:
    assert fed(FrameReader(), *(STREAM[at : at + 1] for at in range(len(STREAM)))) == FRAMES


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_frame_stream_may_be_split_in_any_way(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[begin:end] for begin, end in pairwise(edges)]
    assert fed(FrameReader(), *pieces) == FRAMES


@pytest.mark.parametrize("at", range(0, len(STREAM), 7))
def test_frame_reader_stopped_early_continues_later(at: int) -> None:
    reader = FrameReader()
    found: list[Frame] = []
    for piece in (STREAM[:at], STREAM[at:]):
        frames = reader.feed(piece)
        found += islice(frames, 2)
        frames.close()
    while more := [*islice(reader.feed(b""), 3)]:
        found += more
    assert found == FRAMES


LARGE_STREAM = encode(3, 7, bytes(range(256)) * 1200) + encode(4, 8, b"x" * 70_000) + STREAM


def put(reader: FrameReader, data: bytes, most: int) -> list[Frame]:
    """As a connection does it: into the room where there is one."""
    found: list[Frame] = []
    while data:
        free_space = reader.free_space()
        count = min(most, len(data), most if free_space is None else len(free_space))
        if free_space is None:
            found += reader.feed(memoryview(data[:count]))
        else:
            free_space[:count] = data[:count]
            found += reader.filled(count)
        data = data[count:]
    return found


@pytest.mark.parametrize("most", [1000, 4096, 65_536, 100_000, 262_144, 1_000_000])
def test_frame_reader_receives_the_rest_of_a_large_frame_into_its_buffer(most: int) -> None:
    reader = FrameReader()
    assert put(reader, LARGE_STREAM, most) == [*FrameReader().feed(LARGE_STREAM)]
    assert reader.held == 0


@pytest.mark.parametrize("most", [1000, 100_000])
@pytest.mark.parametrize("again", [1, 50_000, 250_000, 400_000])
def test_frame_begun_in_the_buffer_can_be_completed_by_feeding_bytes(most: int, again: int) -> None:
    reader = FrameReader()
    found = put(reader, LARGE_STREAM[:200_000], most)
    assert reader.free_space() is not None
    rest = LARGE_STREAM[200_000:]
    found += fed(reader, *(rest[at : at + again] for at in range(0, len(rest), again)))
    assert found == [*FrameReader().feed(LARGE_STREAM)]
    assert reader.held == 0


def test_frame_announced_as_large_reserves_no_memory_before_its_bytes_arrive() -> None:
    reader = FrameReader()
    assert fed(reader, encode(3, 7, bytes(16_000_000))[:1000]) == []
    assert reader.free_space() is None
    assert reader.held == 1000


def test_frame_in_many_small_pieces_is_not_copied_at_each_piece() -> None:
    """Fifty thousand pieces of a frame of four megabytes: copied at each of them that would be a hundred gigabytes."""
    body = random.Random(1).randbytes(4 * 1024 * 1024)
    data = encode(3, 7, body)
    reader = FrameReader()
    assert fed(reader, *(data[at : at + 80] for at in range(0, len(data), 80))) == [Frame(3, 7, body)]
    assert reader.held == 0


@pytest.mark.parametrize(
    ("head", "field"),
    [
        (HEAD.pack(1, VERSION + 1, 16, 0, 1), "version"),
        (HEAD.pack(1, 0, 16, 0, 1), "version"),
        (HEAD.pack(1, VERSION, 16, 1, 1), "flags"),
        (HEAD.pack(1001, VERSION, 16, 0, 1), "length"),
    ],
)
def test_frame_head_that_is_invalid_is_refused_before_its_body_arrives(head: bytes, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        fed(FrameReader(max_frame=1000), head)
    assert caught.value.field == field


def test_frame_too_large_holds_no_memory() -> None:
    reader = FrameReader(max_frame=1000)
    with pytest.raises(TooLarge):
        fed(reader, HEAD.pack(2**32 - 1, VERSION, 3, 0, 1) + b"x" * 100)
    assert reader.held <= HEAD.size + 100
