"""Small files that must be there after a power cut: what is synced, in which order, and what is left of a failure."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from yirangmq.alerts.monitor import AlertFile
from yirangmq.cli.main import run
from yirangmq.client.cursors import CursorFile, CursorPosition
from yirangmq.failover.state_file import FailoverStateFolder
from yirangmq.fsio.atomic_file import replace_file
from yirangmq.fsio.permissions import GROUP
from yirangmq.stores.staging import StageFiles


def export(folder: Path) -> None:
    assert run(["publish", "--db", str(folder / "q.db"), "--queue", "mail", "1"]) == 0
    assert run(["export", "--db", str(folder / "q.db"), str(folder / "out" / "all.jsonl")]) == 0


WRITERS: dict[str, Callable[[Path], object]] = {
    "file": lambda folder: replace_file(folder / "out" / "a", b"x"),
    "alerts": lambda folder: AlertFile(folder / "out").save({}),
    "term": lambda folder: FailoverStateFolder(folder / "out").save(7),
    "cursor": lambda folder: CursorFile(folder / "out" / "c").write(CursorPosition("e", 1)),
    "stage": lambda folder: StageFiles(folder / "out").put("q", 1, "s", 0, b"x"),
    "export": export,
}


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_atomic_file_syncs_the_file_before_the_rename_and_the_folder_after(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls reach the system; they are only written down."""
    out = tmp_path / "out"
    out.mkdir()
    steps: list[tuple[str, str]] = []
    sync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        steps.append(("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        sync(fd)

    def replaced(old: Path, new: Path) -> None:
        steps.append(("replace", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    WRITERS[name](tmp_path)
    [at] = [place for place, (what, _) in enumerate(steps) if what == "replace"]
    path = Path(steps[at][1])
    assert path.is_relative_to(out)
    assert steps[at - 1][0] == "sync"
    assert Path(steps[at - 1][1]).name.startswith(path.name)
    assert ("sync", str(path.parent)) in steps[at:]


def test_atomic_file_that_cannot_be_written_keeps_its_content_and_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "term"
    replace_file(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no room"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_file_mode_is_0600_by_default_or_the_given_mode(tmp_path: Path) -> None:
    replace_file(tmp_path / "secret", b"x")
    replace_file(tmp_path / "shared", b"x", GROUP)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o660
