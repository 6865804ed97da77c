"""Stages as files: what was put is there as it was put, on disk before it has its name, and whole or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from yirangmq.core.errors import NotFound, StoreFull
from yirangmq.stores.past_cache import BLOCK, DIRECT, LARGE, ROOM
from yirangmq.stores.stages import StageFiles

SIZES = [0, 1, LARGE - 1, LARGE, LARGE + 1, 2 * LARGE + BLOCK, ROOM, ROOM + 1, 2 * ROOM + 17]
PLACE = "q-1", 7, "task-0"


def some(size: int, seed: int = 1) -> bytes:
    """No two blocks of it are alike."""
    return Random(seed).randbytes(size)


@pytest.fixture
def stages(tmp_path: Path) -> StageFiles:
    return StageFiles(tmp_path / "stages")


def files(tmp_path: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_is_read_again_to_the_byte(stages: StageFiles, tmp_path: Path, size: int) -> None:
    stages.put(*PLACE, 0, some(size))
    assert stages.read(*PLACE, 0) == some(size)
    assert files(tmp_path) == {"task-0.000000": size}


def test_the_same_piece_again_replaces_the_one_before_and_no_other(stages: StageFiles, tmp_path: Path) -> None:
    stages.put(*PLACE, 0, some(ROOM + 5))
    stages.put(*PLACE, 1, some(LARGE, 3))
    stages.put(*PLACE, 0, some(LARGE + 5, 9))
    assert stages.read(*PLACE, 0) == some(LARGE + 5, 9)
    assert stages.read(*PLACE, 1) == some(LARGE, 3)
    assert files(tmp_path) == {"task-0.000000": LARGE + 5, "task-0.000001": LARGE}


@pytest.mark.parametrize("refuses", ["open", "pwrite"])
def test_a_file_system_that_knows_the_cache_alone_holds_the_same(
    stages: StageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    """Some say so when a file is opened, some when it is written to."""
    real_open, real_write = os.open, os.pwrite
    direct: set[int] = set()

    def open_it(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & DIRECT and refuses == "open":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        handle = real_open(path, flags, *more, **named)
        (direct.add if flags & DIRECT else direct.discard)(handle)
        return handle

    def write(handle: int, data: Any, offset: int) -> int:
        if handle in direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_write(handle, data, offset)

    monkeypatch.setattr(os, "open", open_it)
    monkeypatch.setattr(os, "pwrite", write)
    for piece, size in enumerate((LARGE - 1, LARGE + 1)):
        stages.put(*PLACE, piece, some(size))
        assert stages.read(*PLACE, piece) == some(size)
    assert files(tmp_path) == {"task-0.000000": LARGE - 1, "task-0.000001": LARGE + 1}


@pytest.mark.parametrize("size", [100, ROOM + 1])
def test_a_piece_is_on_disk_before_it_has_its_name_and_its_name_before_it_is_told(
    stages: StageFiles, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    stages.put(*PLACE, 0, b"the folder is there")
    done: list[str] = []

    def noted(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            done.append(name)
            return act(*given)

        return call

    for name in ("pwrite", "ftruncate", "fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    stages.put(*PLACE, 1, some(size))
    monkeypatch.undo()
    writes = [name for name in done if name in ("pwrite", "ftruncate")]
    assert writes
    assert done == [*writes, "fsync", "replace", "fsync"]


def test_a_full_disk_leaves_nothing_behind(stages: StageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreFull, match="nothing was stored"):
            stages.put(*PLACE, 0, some(LARGE))
    assert files(tmp_path) == {}
    with pytest.raises(NotFound, match="piece 0"):
        stages.read(*PLACE, 0)
    stages.put(*PLACE, 0, some(LARGE))
    assert stages.read(*PLACE, 0) == some(LARGE)
