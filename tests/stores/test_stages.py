"""Stages of batches: what was put is read, and what is read once does not stay in memory."""

import os
from pathlib import Path

import pytest

from yirangmq.core.errors import NotFound
from yirangmq.stores.stages import KEPT_PIECES, StageFiles

PIECE = os.urandom(1 << 20)


def is_in_memory(path: Path) -> bool:
    """Its first page, by asking for it without waiting for a disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(handle, [bytearray(512)], 0, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:
        pytest.skip("this file system cannot tell")
    finally:
        os.close(handle)


@pytest.fixture
def stages(tmp_path: Path) -> StageFiles:
    """On a disk, where pages can be forgotten; a file system in memory keeps what it has."""
    probe = tmp_path / "probe"
    probe.write_bytes(PIECE)
    with probe.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_in_memory(probe):
        pytest.skip("this file system forgets nothing")
    return StageFiles(tmp_path / "stages")


def piece(stages: StageFiles, number: int) -> Path:
    return stages._of("query", 1) / f"task.{number:06d}"


def test_the_first_pieces_wait_in_memory_and_the_others_on_disk(stages: StageFiles) -> None:
    for number in range(KEPT_PIECES + 2):
        stages.put("query", 1, "task", number, PIECE)
    there = [is_in_memory(piece(stages, number)) for number in range(KEPT_PIECES + 2)]
    assert there == [True] * KEPT_PIECES + [False] * 2


def test_what_was_read_is_forgotten(stages: StageFiles) -> None:
    for number in range(3):
        stages.put("query", 1, "task", number, bytes([number]) + PIECE)
    for number in range(3):
        assert stages.read("query", 1, "task", number) == bytes([number]) + PIECE
        assert not is_in_memory(piece(stages, number))
    assert stages.read("query", 1, "task", 1) == b"\1" + PIECE  # again, as after a crash in the middle


def test_a_piece_that_is_not_there_is_named(stages: StageFiles) -> None:
    stages.put("query", 1, "task", 0, PIECE)
    stages.read("query", 1, "task", 0)
    with pytest.raises(NotFound, match="piece 1 of stage 'task' of batch 1"):
        stages.read("query", 1, "task", 1)
