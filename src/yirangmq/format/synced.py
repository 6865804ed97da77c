"""Small files onto the disk: whole, and there after a power cut.

Knows: files, folders, their names. Does not know: what is in them. (A store that must be tested at every single write
goes through ``stores.disk`` instead.)"""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o666, *, keep: bool = True) -> None:
    """Temp, sync, rename, sync the folder: whatever happens, there is the file as it was, or as it is to be. ``mode``
    is that of a new file, of which the process's mask takes away. Not ``keep``: what was written is not kept in memory
    by the system, as it would be for whoever reads it soon."""
    temporary = path.with_name(f"{path.name}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
            if not keep:
                with suppress(OSError):
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
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
