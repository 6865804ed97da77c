"""Undo log of the files store: a batch of file operations that can be taken back, and the quarantine.

``Deeds`` records the inverse of each operation and applies them backwards when the batch fails; only ``unlink`` cannot
be taken back. Contents are durable before they get their names, names before the caller is answered. More than six
files or folders share one ``syncfs`` where the system has it.

``quarantine`` moves a file that is no message, or no longer one, to the queue's ``quarantine/``, with a note of the
reason."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from yirangmq.format.json_codec import dumps
from yirangmq.fsio.disk import Disk, exists, isdir

# -- batch of file operations ------------------------------------------------------------------------------------------

SPARE = ".spare"
"""How names of files end that may be written again (layout.py)."""
BLANK = b"{"
"""What is left of a content that is not kept, and what every content begins with. To cut a file down to one byte
erases it and takes microseconds; to cut it down to none frees its block, for which a disk at work takes a hundred times
as long, and as long again when it is written next."""
FEW_FILES = 6
FEW_FOLDERS = 6
"""Up to so many are synced one by one; more of them share a ``syncfs``, which may wait for other programs' data."""


class Home(NamedTuple):
    """Where a store lives: its folder, the way to the disk, and whether what is done is synced."""

    root: str
    disk: Disk
    full: bool


class Deeds:
    """One batch of changes. After ``sync_names`` they are on disk; ``undo`` takes back what was done so far."""

    def __init__(self, home: Home) -> None:
        self._root, self._disk, self._full = home
        self._undo: list[Callable[[], None]] = []
        self._there: set[str] = set()
        self._grown: dict[str, None] = {}
        self._entered: dict[str, None] = {}
        self._left: dict[str, None] = {}
        self._appended: dict[str, None] = {}
        self.copies: list[str] = []
        """Of files that others took the place of; nobody needs them when all is done."""
        self.is_final = False
        """Something was done that cannot be taken back."""

    # -- contents -------------------------------------------------------------------------------------------------

    def write_files(self, files: Sequence[tuple[str, bytes]], foreign: Sequence[str] = ()) -> None:
        """New files with these contents, durable; and the contents of ``foreign`` files, which others wrote."""
        together = self._full and len(files) + len(foreign) > FEW_FILES and self._disk.has_syncfs
        for path, data in files:
            self._write(path, data, sync=self._full and not together)
        if together:
            self._disk.syncfs(self._root)
            self._grown.clear()
        elif self._full:
            for path in foreign:
                self._disk.fsync_file(path)

    def _write(self, path: str, data: bytes, *, sync: bool) -> None:
        disk = self._disk
        if path.endswith(SPARE) and is_blank(path):
            fd = disk.open_write(path, append=True)
            data = data[len(BLANK) :]
            self._undo.append(lambda: self._unwrite(partial(disk.truncate, path, len(BLANK))))
        else:
            if path.endswith(SPARE):  # empty, of a message that was finished on a full disk, or not blanked: begin anew
                self._unwrite(partial(disk.unlink, path))
            fd = disk.open_write(path)
            self._undo.append(lambda: self._unwrite(partial(disk.unlink, path)))
        try:
            disk.write(fd, data)
            if sync:
                disk.fsync(fd)
        finally:
            disk.close(fd)

    def _unwrite(self, way_back: Callable[[], None]) -> None:
        with suppress(FileNotFoundError):  # another file has taken its place since, and that was taken back
            way_back()

    def append(self, path: str, data: bytes) -> None:
        """At the end of a file; durable with the names."""
        disk = self._disk
        size = os.stat(path).st_size if exists(path) else None
        self.folder(os.path.dirname(path))
        fd = disk.open_write(path, append=True)
        if size is None:
            self._entered[os.path.dirname(path)] = None
            self._undo.append(lambda: disk.unlink(path))
        else:
            length = size
            self._undo.append(lambda: disk.truncate(path, length))
        try:
            disk.write(fd, data)
        finally:
            disk.close(fd)
        self._appended[path] = None

    # -- names ----------------------------------------------------------------------------------------------------

    def folder(self, path: str) -> None:
        """Make sure that a folder is there."""
        if path in self._there:
            return
        if not isdir(path):
            parent = os.path.dirname(path)
            self.folder(parent)
            self._disk.mkdir(path)
            self._grown[parent] = None
            self._undo.append(lambda: self._disk.rmdir(path))
        self._there.add(path)

    def _enter(self, path: str) -> None:
        """A folder about to be renamed into must not itself be lost, or it takes the file with it."""
        self.folder(path)
        if self._full:
            for parent in self._grown:
                self._disk.fsync_folder(parent)
        self._grown.clear()
        self._entered[path] = None

    def create(self, path: str) -> None:
        """A file without content, whose name says all."""
        self.folder(os.path.dirname(path))
        disk = self._disk
        disk.close(disk.open_write(path))
        self._undo.append(lambda: disk.unlink(path))
        self._entered[os.path.dirname(path)] = None

    def rename(self, source: str, target: str) -> None:
        self.move(source, os.path.dirname(source), target, os.path.dirname(target))

    def move(self, source: str, left: str | None, target: str, entered: str) -> None:
        """A rename out of one folder into another; ``left`` is None where nobody minds if the old name comes back
        after a power cut."""
        disk = self._disk
        if self._grown or entered not in self._entered:
            self._enter(entered)
        disk.rename(source, target)
        self._undo.append(lambda: disk.rename(target, source))
        if left is not None:
            self._left[left] = None

    def replace(self, source: str, target: str, old: bytes | None) -> None:
        """A rename over a file that may be there. ``old`` is what it held and would hold again: a copy is made first,
        because afterwards there may be no space for one."""
        disk, copy = self._disk, f"{source}.old"
        if old is not None:
            self._write(copy, old, sync=False)
            self.copies.append(copy)
        self._enter(os.path.dirname(target))
        disk.rename(source, target)
        self._undo.append(lambda: disk.unlink(target) if old is None else self._restore(copy, target))

    def _restore(self, copy: str, path: str) -> None:
        if self._full:
            self._disk.fsync_file(copy)
        self._disk.rename(copy, path)

    def unlink(self, path: str) -> None:
        """The one thing that cannot be taken back: do it last."""
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return
        self.is_final = True
        self._left[os.path.dirname(path)] = None

    def sync_names(self) -> None:
        """New names first, then the folders they left."""
        entered = {**self._grown, **self._entered}
        folders = [*entered, *(path for path in self._left if path not in entered)]
        if self._full:
            for path in self._appended:
                self._disk.fsync_file(path)
            if len(folders) > FEW_FOLDERS and self._disk.has_syncfs:
                self._disk.syncfs(self._root)
            else:
                for folder in folders:
                    self._disk.fsync_folder(folder)
        self._grown.clear()
        self._entered.clear()
        self._left.clear()
        self._appended.clear()

    def undo(self, *, at_any_cost: bool = False) -> bool:
        """Backwards through all that was done; whether all of it could be taken back. Where the disk refuses, it stops:
        each step needs the one before it, and the rest is tried again later (``is_undone``). ``at_any_cost``: go on
        with the rest, never to try again."""
        whole = not self.is_final
        while self._undo:
            try:
                self._undo[-1]()
            except FileNotFoundError:  # gone, or taken back by another process
                whole = False
            except OSError:
                whole = False
                if not at_any_cost:
                    break
            self._undo.pop()
        if self._full:
            for folder in self._there:
                with suppress(OSError):  # gone again, or as broken as before
                    self._disk.fsync_folder(folder)
        return whole

    @property
    def is_undone(self) -> bool:
        return not self._undo

    # -- afterwards -----------------------------------------------------------------------------------------------

    def remove_empty(self, folder: str) -> bool:
        """A folder that has become empty is not kept; one that comes back after a power cut is no harm."""
        try:
            self._disk.rmdir(folder)
        except OSError:
            return False
        return True

    def discard(self, path: str) -> bool:
        """Remove a file nobody needs; whether it is gone."""
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def discard_tree(self, path: str) -> bool:
        gone = True
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                gone = self.discard(f"{folder}/{name}") and gone
            gone = self.remove_empty(folder) and gone
        return gone

    def blank(self, path: str, *, wholly: bool = False) -> bool:
        """The content of a finished message is not kept; the name is. Whether it is gone now. ``wholly``: with its
        block."""
        try:
            self._disk.truncate(path, 0 if wholly else len(BLANK))
        except OSError:
            return False
        return True


def is_blank(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(2) == BLANK
    except FileNotFoundError:
        return False


# -- quarantine --------------------------------------------------------------------------------------------------------

MOST = 240
"""Letters of a name that a suffix can be put to."""


def quarantine(root: str, deeds: Deeds, queue: str, path: str, reason: str) -> None:
    """Set a file aside with a note that says why."""
    folder = f"{root}/{queue}/quarantine"
    deeds.folder(folder)
    name = os.path.basename(path)
    while exists(f"{folder}/{name}"):
        name = f"again-{name[-MOST:]}"
    note = {
        "file": name,
        "from": os.path.relpath(path, f"{root}/{queue}"),
        "reason": reason,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    target = f"{folder}/{name[:MOST]}.reason.json"
    while exists(target):
        target = f"{target[:-12]}-.reason.json"
    deeds.write_files([(target, dumps(note) + b"\n")])
    deeds.rename(path, f"{folder}/{name}")
