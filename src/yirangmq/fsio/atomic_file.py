"""Atomic replacement of files, and durable creation of folders.

``replace_file`` writes ``FILE.new``, syncs it, renames it over the file and syncs the folder. After a crash or a power
cut there is the old file or the new one, never a part of one. ``make_folder`` syncs the parent of every folder that it
creates, so that its name is on disk before anything is stored in it.

``make_folder`` raises ``StoreFull``, ``StoreReadOnly`` or ``StoreError``; the other functions raise ``OSError``. A
store that is tested with a fault at every single write uses ``fsio.disk`` instead."""

import contextlib
import errno
import os
from pathlib import Path

from yirangmq.core.errors import StoreError, StoreFull, StoreReadOnly
from yirangmq.fsio import permissions
from yirangmq.fsio.disk import write_at
from yirangmq.fsio.permissions import Access, open_file


def replace_file(path: Path, data: bytes, access: Access | None = None) -> None:
    """Temp, sync, rename, sync the folder: whatever happens, there is the file as it was, or as it is to be.
    ``access``: where it is not given, that of its folder."""
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
    """The names in it are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Missing folders, their names on disk before anything is stored in them."""
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
