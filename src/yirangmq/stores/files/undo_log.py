"""Undo log of the files store: a batch of file operations that can be undone, and the quarantine.

``FileBatch`` records the inverse of each operation. When the batch fails, it applies the inverses in reverse order.
Only ``unlink`` cannot be undone. Contents are durable before their renames, and names before the commit returns. More
than six files, or six folders, are synced with one ``syncfs`` if the system has it.

``quarantine`` moves a file that is not a valid message to the queue's ``quarantine/``, with a file that states the
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
"""Suffix of spare files, which may be written again (``stores.files.layout``)."""
BLANK = b"{"
"""Content of a blanked file, and the first byte of every content. Truncating a file to one byte erases it and takes
microseconds. Truncating it to zero frees its block, which takes about 100 times as long on a busy disk, and as long
again when the file is next written."""
FEW_FILES = 6
FEW_FOLDERS = 6
"""Upper bounds for syncing files or folders one by one. Above it, one ``syncfs`` is used, which may also have to wait
for other programs' data."""


class StoreRoot(NamedTuple):
    """Root folder of a store, the disk interface, and ``full``: True if changes are synced."""

    root: str
    disk: Disk
    full: bool


class FileBatch:
    """One batch of file operations, with an undo log in memory.

    After ``sync_names`` the batch is durable. ``undo`` reverts the operations so far, in reverse order. An instance is
    used by one thread, under the store's lock."""

    def __init__(self, store_root: StoreRoot) -> None:
        self._root, self._disk, self._full = store_root
        self._undo: list[Callable[[], None]] = []
        self._existing_folders: set[str] = set()
        self._unsynced_parents: dict[str, None] = {}
        self._entered: dict[str, None] = {}
        self._left: dict[str, None] = {}
        self._appended: dict[str, None] = {}
        self.copies: list[str] = []
        """Backup copies of replaced files, for undo; deleted after the commit."""
        self.is_irreversible = False
        """True if the batch contains an operation that cannot be undone."""

    # -- contents -------------------------------------------------------------------------------------------------

    def write_files(self, files: Sequence[tuple[str, bytes]], foreign: Sequence[str] = ()) -> None:
        """Create files with these contents and sync them, together with ``foreign`` files that other programs wrote."""
        together = self._full and len(files) + len(foreign) > FEW_FILES and self._disk.has_syncfs
        for path, data in files:
            self._write(path, data, sync=self._full and not together)
        if together:
            self._disk.syncfs(self._root)
            self._unsynced_parents.clear()
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
            if path.endswith(SPARE):  # empty (the message ended on a full disk) or not blanked: write a new file
                self._unwrite(partial(disk.unlink, path))
            fd = disk.open_write(path)
            self._undo.append(lambda: self._unwrite(partial(disk.unlink, path)))
        try:
            disk.write(fd, data)
            if sync:
                disk.fsync(fd)
        finally:
            disk.close(fd)

    def _unwrite(self, inverse: Callable[[], None]) -> None:
        with suppress(FileNotFoundError):  # a later rename has moved another file there, and its undo moved it back
            inverse()

    def append(self, path: str, data: bytes) -> None:
        """Append to a file, and create it if needed. Durable after ``sync_names``."""
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
        """Create a folder and its parents if they do not exist."""
        if path in self._existing_folders:
            return
        if not isdir(path):
            parent = os.path.dirname(path)
            self.folder(parent)
            self._disk.mkdir(path)
            self._unsynced_parents[parent] = None
            self._undo.append(lambda: self._disk.rmdir(path))
        self._existing_folders.add(path)

    def _enter(self, path: str) -> None:
        """Prepare a folder for a rename into it. New folders are synced first: a folder lost in a power cut would take
        the renamed file with it."""
        self.folder(path)
        if self._full:
            for parent in self._unsynced_parents:
                self._disk.fsync_folder(parent)
        self._unsynced_parents.clear()
        self._entered[path] = None

    def create(self, path: str) -> None:
        """Create an empty file. Durable after ``sync_names``."""
        self.folder(os.path.dirname(path))
        disk = self._disk
        disk.close(disk.open_write(path))
        self._undo.append(lambda: disk.unlink(path))
        self._entered[os.path.dirname(path)] = None

    def rename(self, source: str, target: str) -> None:
        self.move(source, os.path.dirname(source), target, os.path.dirname(target))

    def move(self, source: str, left: str | None, target: str, entered: str) -> None:
        """Rename a file from one folder into another. ``left`` is None if it is harmless when the old name reappears
        after a power cut; that folder is then not synced."""
        disk = self._disk
        if self._unsynced_parents or entered not in self._entered:
            self._enter(entered)
        disk.rename(source, target)
        self._undo.append(lambda: disk.rename(target, source))
        if left is not None:
            self._left[left] = None

    def replace(self, source: str, target: str, old: bytes | None) -> None:
        """Rename a file over one that may exist. ``old`` is the content of the existing file, or None. A backup copy is
        written first for undo, because there may be no space for it later."""
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
        """Remove a file. This cannot be undone, so the caller does it last."""
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return
        self.is_irreversible = True
        self._left[os.path.dirname(path)] = None

    def sync_names(self) -> None:
        """Make the batch durable: sync appended files, the folders entered, then the folders left."""
        entered = {**self._unsynced_parents, **self._entered}
        folders = [*entered, *(path for path in self._left if path not in entered)]
        if self._full:
            for path in self._appended:
                self._disk.fsync_file(path)
            if len(folders) > FEW_FOLDERS and self._disk.has_syncfs:
                self._disk.syncfs(self._root)
            else:
                for folder in folders:
                    self._disk.fsync_folder(folder)
        self._unsynced_parents.clear()
        self._entered.clear()
        self._left.clear()
        self._appended.clear()

    def undo(self, *, skip_errors: bool = False) -> bool:
        """Undo all operations in reverse order. Return True if everything was reverted.

        The undo stops at the first disk error, because each step depends on the one before it. The remaining steps are
        kept for a retry (``is_undone``). ``skip_errors``: skip failed steps instead, without a retry."""
        whole = not self.is_irreversible
        while self._undo:
            try:
                self._undo[-1]()
            except FileNotFoundError:  # the file is gone, or another process has undone the step
                whole = False
            except OSError:
                whole = False
                if not skip_errors:
                    break
            self._undo.pop()
        if self._full:
            for folder in self._existing_folders:
                with suppress(OSError):  # removed again, or the disk still fails
                    self._disk.fsync_folder(folder)
        return whole

    @property
    def is_undone(self) -> bool:
        return not self._undo

    # -- clean-up -------------------------------------------------------------------------------------------------

    def remove_empty(self, folder: str) -> bool:
        """Remove a folder if it is empty. It is not synced, because an empty folder that reappears is harmless. Return
        True if it was removed."""
        try:
            self._disk.rmdir(folder)
        except OSError:
            return False
        return True

    def discard(self, path: str) -> bool:
        """Remove an unneeded file without undo. Return True if it no longer exists."""
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

    def blank(self, path: str, *, free_block: bool = False) -> bool:
        """Erase the content of a finished message and keep the file. Return False on an error. ``free_block``: free the
        disk block too."""
        try:
            self._disk.truncate(path, 0 if free_block else len(BLANK))
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

MAX_NAME_LENGTH = 240
"""Upper bound of characters kept of a name before a prefix or suffix is added."""


def quarantine(root: str, batch: FileBatch, queue: str, path: str, reason: str) -> None:
    """Move a file to the queue's ``quarantine/``, with a file that states the reason. Part of the batch ``batch``."""
    folder = f"{root}/{queue}/quarantine"
    batch.folder(folder)
    name = os.path.basename(path)
    while exists(f"{folder}/{name}"):
        name = f"again-{name[-MAX_NAME_LENGTH:]}"
    note = {
        "file": name,
        "from": os.path.relpath(path, f"{root}/{queue}"),
        "reason": reason,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    target = f"{folder}/{name[:MAX_NAME_LENGTH]}.reason.json"
    while exists(target):
        target = f"{target[:-12]}-.reason.json"
    batch.write_files([(target, dumps(note) + b"\n")])
    batch.rename(path, f"{folder}/{name}")
