"""Journal files by date, ``2026-11-15/00000042.jsonl``: append, rollback, recovery at open, removal of a day.

One process writes. Appended lines are on disk when ``append`` returns; if it raises, none of them is. Until the store
has committed, the lines can be truncated again. Opening truncates lines that no store commit confirmed.

After a file exceeds 64 MiB, a new one with the next number is started. A day's folder is renamed before its files are
removed, so readers see it disappear in one step."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from yirangmq.core.journal import Day, Position, Truncation, is_day, number_of, plan_recovery
from yirangmq.core.ports import Finding
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.errors import os_errors_translated
from yirangmq.fsio.permissions import access_in, make_folders

DEFAULT_FOLDER = "by-date"
"""Name of the default folder, beside the store."""
FILE_BYTES = 64 << 20
"""Size after which a new file is started: 64 MiB, small enough for a text editor."""
REMOVAL_PREFIX = ".going-"
"""Name prefix of a day's folder while its files are being removed."""
READ_BYTES = 1 << 20


class JournalEnd(NamedTuple):
    """End of the journal to return to when a commit fails: file name and size in bytes."""

    file: str
    size: int


class JournalFiles:
    """Journal files of one store, with one writer.

    The appender holds ``lock`` until the store commit has succeeded or failed."""

    def __init__(
        self, root: Path, disk: Disk | None = None, *, durability: str = "full", file_bytes: int = FILE_BYTES
    ) -> None:
        self.root = root
        self.lock = threading.Lock()
        self._disk = disk or Disk()
        self._sync = durability == "full"
        self._file_bytes = file_bytes
        self._file = ""
        self._size = 0
        self._fd = -1
        self._next = 1
        self._is_dirty = False

    # -- opening --------------------------------------------------------------------------------------------------

    def open(self, known: Position | None) -> list[Finding]:
        """Recover the files: truncate lines behind the store's position ``known``. They may be open already.

        Return findings about truncated lines, and about files that are shorter than the position says."""
        self._close_file()
        self._file, self._size, self._is_dirty = "", 0, False
        with os_errors_translated(self.root):
            make_folders(self.root)
            self._disk.access = access_in(self.root)
            self._finish_removals()
            plan = plan_recovery([(name, (self.root / name).stat().st_size) for name in files(self.root)], known)
            found = [self._cut(cut) for cut in plan.cuts]
            if known is None:
                found += self._cut_torn()
        self._next = plan.begin
        if known is not None and known.file and not plan.lost:
            self._file, self._size = known.file, known.size
        return found + [Finding("lost", file, "it is shorter than the position in the store") for file in plan.lost]

    def _cut(self, cut: Truncation) -> Finding:
        path = self.root / cut.file
        size = path.stat().st_size - cut.size
        self._disk.truncate(str(path), cut.size)
        self._disk.fsync_file(str(path))
        return Finding("unconfirmed", cut.file, f"{size} bytes without a commit were truncated", True)

    def _cut_torn(self) -> list[Finding]:
        """Truncate incomplete last lines. Without a position in the store, all complete lines are kept."""
        found = []
        for name in files(self.root):
            size, whole = (self.root / name).stat().st_size, whole_bytes(self.root / name)
            if whole < size:
                found.append(self._cut(Truncation(name, whole)))
        return found

    # -- writing --------------------------------------------------------------------------------------------------

    @property
    def end(self) -> JournalEnd:
        return JournalEnd(self._file, self._size)

    def append(self, day: str, lines: Sequence[bytes]) -> JournalEnd:
        """Append lines, sync them, and return the new end. Requires ``lock``.

        If it raises, none of the lines remains."""
        before = self.end
        with os_errors_translated(self.root):
            try:
                self._open_for(day)
                if self._is_dirty:
                    self._disk.truncate(str(self.root / self._file), self._size)
                    self._is_dirty = False
                data = b"".join(lines)
                self._is_dirty = True
                self._disk.write_at(self._fd, data, self._size)
                if self._sync:
                    self._disk.fdatasync(self._fd)
                self._is_dirty = False
            except BaseException:
                self.truncate_to(before)
                raise
        self._size += len(data)
        return self.end

    def truncate_to(self, mark: JournalEnd) -> None:
        """Truncate everything appended since ``mark``. Requires ``lock``.

        If the truncation fails, it is repeated before the next append, or at the next opening."""
        if mark.file == self._file:
            self._size = mark.size
        else:  # a new file was started meanwhile: it stays, empty
            self._size = 0
        if self._fd >= 0:
            self._is_dirty = True
            with contextlib.suppress(OSError):
                self._disk.truncate(str(self.root / self._file), self._size)
                self._is_dirty = False

    def _open_for(self, day: str) -> None:
        is_same = self._file.startswith(f"{day}/") and self._size < self._file_bytes
        if is_same and self._fd < 0:
            self._fd = self._disk.open_update(str(self.root / self._file))
        if not is_same:
            self._start_file(day)

    def _start_file(self, day: str) -> None:
        folder = self.root / day
        if not folder.is_dir():
            self._disk.mkdir(str(folder))
            self._disk.fsync_folder(str(self.root))
        name = f"{day}/{self._next:08d}.jsonl"
        self._next += 1
        fd = self._disk.open_write(str(self.root / name))
        try:
            self._disk.fsync_folder(str(folder))
        except BaseException:
            self._disk.close(fd)
            raise
        self._close_file()
        self._file, self._size, self._fd, self._is_dirty = name, 0, fd, False

    def _close_file(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        with self.lock:
            self._close_file()

    # -- additional files and removal -----------------------------------------------------------------------------

    def write_extra_file(self, day: str, name: str, data: bytes) -> None:
        """Write an additional file to a day's folder, atomically and durably; it replaces one of the same name."""
        with os_errors_translated(self.root):
            folder = self.root / day
            if not folder.is_dir():
                self._disk.mkdir(str(folder))
                self._disk.fsync_folder(str(self.root))
            temp = folder / f".{name}"
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(str(temp))
            fd = self._disk.open_write(str(temp))
            try:
                self._disk.write(fd, data)
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename(str(temp), str(folder / name))
            self._disk.fsync_folder(str(folder))

    def remove(self, day: str) -> None:
        """Remove a whole day, in one step for readers. Raises ``ValueError`` for the day that is being written."""
        remove(self.root, day, self._disk, self._file.partition("/")[0])

    def _finish_removals(self) -> None:
        for path in self.root.glob(f"{REMOVAL_PREFIX}*"):
            _empty(path, self._disk)


def remove(root: Path, day: str, disk: Disk, current: str = "") -> None:
    if day == current:
        raise ValueError(f"{day} is being written")
    removal = root / f"{REMOVAL_PREFIX}{day}"
    with os_errors_translated(root):
        if removal.exists():
            _empty(removal, disk)
        disk.rename(str(root / day), str(removal))
        disk.fsync_folder(str(root))
        _empty(removal, disk)


def _empty(folder: Path, disk: Disk) -> None:
    for path in folder.iterdir():
        disk.unlink(str(path))
    disk.rmdir(str(folder))


# -- reading --------------------------------------------------------------------------------------------------------


def day_names(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root) if is_day(name)) if root.is_dir() else []


def days(root: Path) -> list[Day]:
    """List the days that have files. File numbers give the order in which the days were written."""
    found: dict[str, int] = {}
    for name in files(root):
        day = name.partition("/")[0]
        found[day] = max(found.get(day, 0), number_of(name))
    return [Day(day, last) for day, last in sorted(found.items())]


def files(root: Path, day: str | None = None) -> list[str]:
    """List files as ``DAY/NUMBER.jsonl``, in the order they were written."""
    names = []
    for one in day_names(root) if day is None else [day]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names += [f"{one}/{name}" for name in os.listdir(root / one) if number_of(name)]
    return sorted(names, key=number_of)


def lines(path: Path, begin: int = 0, on_end: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """Yield complete lines with their line ends. An incomplete last line (being written, or torn) is omitted.

    ``on_end`` is called at the end with the offset after the last complete line."""
    at = begin
    with path.open("rb", READ_BYTES) as file:
        file.seek(begin)
        for line in file:
            if not line.endswith(b"\n"):
                break
            at += len(line)
            yield line
    if on_end is not None:
        on_end(at)


def whole_bytes(path: Path) -> int:
    """Return the offset after the last complete line."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = size
        while at > 0:
            begin = max(0, at - READ_BYTES)
            file.seek(begin)
            found = file.read(at - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
    return 0
