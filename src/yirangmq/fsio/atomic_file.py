"""Atomic replacement of files, and durable creation of folders.

``replace_file`` writes ``FILE.new``, syncs it, renames it over the file and syncs the folder. After a crash or a power
cut the old file or the new one exists, never a part of one. ``make_folder`` syncs the parent of every folder that it
creates, so that the folder's name is on disk before anything is stored in it.

``make_folder`` raises ``StoreFull``, ``StoreReadOnly`` or ``StoreError``; the other functions raise ``OSError``. A
store that is tested with a fault at every single write uses ``fsio.disk`` instead."""

import contextlib
import errno
import os
from pathlib import Path

from yirangmq.core.errors import StoreError, StoreFull, StoreReadOnly
from yirangmq.fsio import permissions
from yirangmq.fsio.disk import write_at
from yirangmq.fsio.permissions import FileModes, open_file


def replace_file(path: Path, data: bytes, access: FileModes | None = None) -> None:
    """Replace a file atomically: write a temporary file, sync it, rename it, sync the folder.

    After a crash the file has the old content or the new one. ``access`` defaults to that of the folder."""
    temporary = path.with_name(f"{path.name}.new")
    handle = open_file(temporary, os.O_WRONLY | os.O_TRUNC, access)
    try:
        try:
            write_at(handle, data, 0)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder. On return the names in it are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents. On return their names are on disk."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        for parent in reversed(missing):
            with contextlib.suppress(FileExistsError):
                permissions.make_folder(parent)
            sync_folder(parent.parent)
    except OSError as error:
        kind = {errno.ENOSPC: StoreFull, errno.EROFS: StoreReadOnly, errno.EACCES: StoreReadOnly}
        wrong = kind.get(error.errno or 0, StoreError)
        raise wrong(f"the folder {folder} cannot be made: {error.strerror}") from None
