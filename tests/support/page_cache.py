"""Which pages of files the system keeps in memory: what went past its cache is not there."""

import os
from pathlib import Path

import pytest


def is_in_memory(path: Path, offset: int = 0) -> bool:
    """The page there, by asking for it without waiting for a disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(handle, [bytearray(512)], offset, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:
        pytest.skip("this file system cannot tell")
    finally:
        os.close(handle)


def on_disk(folder: Path) -> Path:
    """The folder, if it is on a disk where pages can be forgotten; a file system in memory keeps what it has."""
    probe = folder / "probe"
    probe.write_bytes(bytes(1 << 20))
    with probe.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_in_memory(probe):
        pytest.skip("this file system forgets nothing")
    probe.unlink()
    return folder
