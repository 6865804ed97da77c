"""Frames where they lie in the receive buffer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.wire.frames import HEAD, MAX_IDLE_BUFFER, MIN_READ_BYTES, Frame, FrameReader, ReceiveBuffer, encode

FRAMES = st.lists(
    st.tuples(st.integers(1, 19), st.integers(0, 2**32 - 1), st.binary(max_size=40) | st.binary(max_size=3000)),
    max_size=12,
)


def taken(intake: ReceiveBuffer, data: bytes) -> list[Frame]:
    """As a socket would write it: as much as there is room for, again and again."""
    frames = []
    while data:
        free_space = intake.free_space()
        assert len(free_space) > 0
        size = min(len(free_space), len(data))
        free_space[:size] = data[:size]
        data = data[size:]
        frames += [Frame(kind, request, bytes(body)) for kind, request, body in intake.filled(size)]
    return frames


@given(FRAMES, st.lists(st.integers(1, 2000), max_size=30))
def test_receive_buffer_yields_the_frames_of_the_frame_reader_for_any_split(
    frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(encode(*frame) for frame in frames)
    intake, reader, found = ReceiveBuffer(1 << 20), FrameReader(), []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        got = taken(intake, piece)
        assert got == list(reader.feed(piece))
        found += got
    assert found == [Frame(*frame) for frame in frames]


def test_receive_buffer_yields_large_frames_whole_and_releases_their_memory() -> None:
    intake = ReceiveBuffer(64 * MIN_READ_BYTES)
    for size in (
        0,
        3,
        MIN_READ_BYTES - 1,
        2 * MIN_READ_BYTES,
        2 * MIN_READ_BYTES - HEAD.size,
        1,
        7 * MIN_READ_BYTES + 5,
        10,
        MIN_READ_BYTES,
        MIN_READ_BYTES,
        MIN_READ_BYTES,
        0,
    ):
        body = bytes([size % 251]) * size
        assert taken(intake, encode(3, 9, body)) == [Frame(3, 9, body)]
    for _ in range(20):
        taken(intake, encode(3, 9, b"x" * 100_000))
    assert len(intake.free_space()) <= MAX_IDLE_BUFFER


def test_receive_buffer_always_has_room_for_a_piece_while_a_frame_is_incomplete() -> None:
    intake = ReceiveBuffer(64 * MIN_READ_BYTES)
    data = b"".join(encode(3, n, b"x" * 99_999) for n in range(40))
    found = 0
    for at in range(0, len(data), 70_001):
        assert len(intake.free_space()) >= 70_001
        found += len(taken(intake, data[at : at + 70_001]))
    assert found == 40


def test_receive_buffer_refuses_a_frame_too_large_or_invalid_by_its_head() -> None:
    intake = ReceiveBuffer(1000)
    with pytest.raises(TooLarge):
        taken(intake, HEAD.pack(1001, 1, 3, 0, 1))
    with pytest.raises(BadInput):
        taken(ReceiveBuffer(1000), b"GET / HTTP/1.1\r\n\r\n")
