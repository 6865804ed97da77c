"""Stages of batches: what was put is read, to memory that is used again, and does not fill the system's."""

import os
from pathlib import Path

import pytest

from tests.support.page_cache import is_in_memory, on_disk
from yirangmq.core.errors import NotFound, StoreError
from yirangmq.fsio.disk import LARGE
from yirangmq.stores.staging import StageFiles

PIECE = os.urandom(LARGE)


@pytest.fixture
def stages(tmp_path: Path) -> StageFiles:
    return StageFiles(on_disk(tmp_path) / "stages")


def piece(stages: StageFiles, number: int) -> Path:
    return stages._of("query", 1) / f"task.{number:06d}"


@pytest.mark.parametrize("is_read", [False, True])
def test_staging_keeps_large_pieces_out_of_the_page_cache_and_small_ones_in_it(
    stages: StageFiles, is_read: bool
) -> None:
    pieces = (PIECE, PIECE[:-1], PIECE)
    for number, data in enumerate(pieces):
        stages.put("query", 1, "task", number, data)
    read = stages.reader("query", 1)
    for number, data in enumerate(pieces if is_read else ()):
        assert read("task", number) == data
    # asked once: who asks makes the system read ahead
    assert [is_in_memory(piece(stages, number)) for number in range(3)] == [False, True, False]


def test_staging_piece_stays_valid_while_another_reader_reads(stages: StageFiles) -> None:
    for number in range(4):
        stages.put("query", 1, "task", number, bytes([number]) + PIECE + bytes(100 * number))
    read, other = stages.reader("query", 1), stages.reader("query", 1)
    before = read("task", 3)
    for number in (0, 2, 1, 1):  # also again, as after a crash in the middle
        assert bytes(other("task", number)) == bytes([number]) + PIECE + bytes(100 * number)
    assert bytes(before) == b"\3" + PIECE + bytes(300)


def test_staging_piece_that_is_missing_is_named_in_the_error(stages: StageFiles) -> None:
    stages.put("query", 1, "task", 0, PIECE)
    read = stages.reader("query", 1)
    read("task", 0)
    with pytest.raises(NotFound, match="piece 1 of stage 'task' of batch 1"):
        read("task", 1)
    with pytest.raises(NotFound, match="piece 1 of stage 'task' of batch 1"):
        stages.check("query", 1, "task", 1)


def test_staging_piece_that_cannot_be_read_is_named_in_the_error(stages: StageFiles) -> None:
    piece(stages, 0).mkdir(parents=True)
    with pytest.raises(StoreError, match=r"task\.000000 cannot be read"):
        stages.reader("query", 1)("task", 0)
