"""Files onto the disk: whole, and there after a power cut.

Knows: files, folders, their names. Does not know: what is in them. (A store that must be tested at every single write
goes through ``stores.disk`` instead.)"""

import os
from pathlib import Path

from yirangmq.format.direct import write_at
from yirangmq.format.permissions import Access, open_file


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
