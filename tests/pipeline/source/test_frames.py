"""Many frames of one size, checked by one checksum of all of them: it must find what one by one would find."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yirangmq.core.topics import NewRecord
from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.frames import (
    FRAMES_PER_CHECK,
    MAX_PREPARED_FRAME,
    MIN_FRAMES_TO_PREPARE,
    BulkChecksums,
    FrameColumns,
    find_frames,
)
from yirangmq.wire.records import encode_batch


def frames(data: bytes | bytearray) -> FrameColumns:
    return FrameColumns(find_frames(memoryview(data)))


def made(count: int, size: int, seed: int = 0) -> bytearray:
    chance = random.Random(seed)
    records = [NewRecord("orders", chance.randbytes(size)) for _ in range(count)]
    return bytearray(encode_batch(records, 1, 1, {}, synced=False).data)


class Counted(BulkChecksums):
    """Tells how often all were found right at one go."""

    def __init__(self) -> None:
        super().__init__()
        self.agreed: list[bool] = []

    def all_match(self, data: memoryview, size: int, stored: object) -> bool:
        self.agreed.append(super().all_match(data, size, stored))  # type: ignore[arg-type]
        return self.agreed[-1]


def ready(data: bytes | bytearray) -> Counted:
    """One that has met enough frames of that size."""
    sums, found = Counted(), frames(data)
    for _ in range(-(-MIN_FRAMES_TO_PREPARE // len(found))):
        found.verify(sums)
    assert not any(sums.agreed)
    sums.agreed.clear()
    return sums


@pytest.mark.parametrize(
    "count", [64, 65, FRAMES_PER_CHECK - 1, FRAMES_PER_CHECK, FRAMES_PER_CHECK + 1, 3 * FRAMES_PER_CHECK + 17]
)
@pytest.mark.parametrize("size", [0, 1, 7, 300])
def test_frame_checksum_accepts_sound_frames_whatever_their_number(count: int, size: int) -> None:
    data = made(count, size)
    sums = ready(data)
    frames(data).verify(sums)
    assert sums.agreed == [True]


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_frame_checksum_finds_any_changed_bit_and_names_the_record(chance: random.Random, flips: int) -> None:
    data = made(150, 90)
    sums, size = ready(data), len(data) // 150
    places = sorted(chance.sample([n for n in range(len(data)) if n % size >= 12], flips))
    for place in places:
        data[place] ^= 1 << chance.randrange(8)
    try:
        found = frames(data)
    except SourceError:  # the parts of a record no longer fit into it
        return
    with pytest.raises(SourceError, match=f"record {found.sequence[places[0] // size]} is damaged"):
        found.verify(sums)
    assert sums.agreed[-1] is False


def swapped(data: bytearray, size: int) -> None:
    data[size : 2 * size], data[2 * size : 3 * size] = data[2 * size : 3 * size], data[size : 2 * size]


def test_frame_checksum_does_not_depend_on_the_order_of_frames() -> None:
    """That numbers follow each other is looked at elsewhere."""
    data = made(100, 40)
    sums = ready(data)
    swapped(data, len(data) // 100)
    frames(data).verify(sums)
    assert sums.agreed[-1] is True


def test_frame_checksum_finds_bodies_that_changed_places() -> None:
    data = made(100, 40)
    sums, size = ready(data), len(data) // 100
    one, two = slice(size - 40, size), slice(2 * size - 40, 2 * size)
    data[one], data[two] = data[two], data[one]
    with pytest.raises(SourceError, match="record 1 is damaged"):
        frames(data).verify(sums)


def sizes(*wanted: tuple[int, int]) -> Sequence[bytearray]:
    return [made(count, size, seed) for seed, (count, size) in enumerate(wanted)]


def test_frame_checksum_starts_anew_at_another_size_and_checks_long_frames_one_by_one() -> None:
    sums = ready(made(80, 30))
    for data in sizes((80, 30), (90, 30), (80, 31), (80, 30), (80, 30)):
        frames(data).verify(sums)
    assert sums.agreed == [True, True, False, False, False]
    long = made(70, MAX_PREPARED_FRAME)
    sums = ready(long)
    frames(long).verify(sums)
    assert sums.agreed == [False]


def test_frame_checksum_checks_frames_of_many_sizes_one_by_one() -> None:
    records = [NewRecord("t", b"x" * (n % 50)) for n in range(300)]
    data = bytearray(encode_batch(records, 1, 1, {}, synced=False).data)
    sums = Counted()
    frames(data).verify(sums)
    assert sums.agreed == [], "nobody asked"
    data[-1] ^= 1
    with pytest.raises(SourceError, match="record 300 is damaged"):
        frames(data).verify(sums)


def test_frame_checksum_checks_a_choice_of_frames_one_by_one() -> None:
    data = made(100, 40)
    sums = ready(data)
    data[60] ^= 1  # in the first, which is not chosen
    found = frames(data)
    select = found.select(found.sequence > 1)
    select.verify(sums)
    assert sums.agreed == []
