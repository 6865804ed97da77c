"""Disks that fill up and turn read-only: a small one of the system's own where we may mount it, and everywhere a
pretended one, a layer between the store and the real disk that refuses as the system would."""

import ctypes
import errno
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import apsw

from yirangmq.core.ports import Store
from yirangmq.fsio.disk import Disk
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.open import open_store
from yirangmq.stores.sqlite.store import SqliteStore

KINDS = ("sqlite", "files")


class TightDisk(Protocol):
    def open(self, kind: str) -> Store: ...

    def fill(self) -> None: ...

    def free(self) -> None: ...

    def make_read_only(self) -> None: ...

    def make_writable(self) -> None: ...


class MountedDisk:
    """A file system of its own, a few megabytes large. It turns read-only only while no store is open on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, kind: str) -> Store:
        return open_store(f"{kind}:{self._folder / 'store'}")

    def fill(self) -> None:
        with (self._folder / "ballast").open("ab", buffering=0) as ballast:
            for size in (65536, 4096, 1):
                try:
                    while ballast.write(bytes(size)) == size:
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        (self._folder / "ballast").unlink()

    def make_read_only(self) -> None:
        _run("mount", "-o", "remount,ro", str(self._folder))

    def make_writable(self) -> None:
        _run("mount", "-o", "remount,rw", str(self._folder))


class PretendedDisk:
    """Refuses each write with the error the system would give, while told to."""

    def __init__(self, folder: Path, sqlite: "SqliteWrites") -> None:
        self._folder = folder
        self._sqlite = sqlite
        self._files = RefusingDisk()

    def open(self, kind: str) -> Store:
        place = self._folder / "store"
        return FilesStore(place, disk=self._files) if kind == "files" else SqliteStore(place)

    def _refuse(self, error: int) -> None:
        self._sqlite.refusal = self._files.refusal = error

    def fill(self) -> None:
        self._refuse(errno.ENOSPC)

    def make_read_only(self) -> None:
        self._refuse(errno.EROFS)

    def free(self) -> None:
        self._refuse(0)

    def make_writable(self) -> None:
        self._refuse(0)


class RefusingDisk(Disk):
    """What needs space is refused on a full disk, every change on a read-only one."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal = 0

    def _growing(self) -> None:
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))

    def _changing(self) -> None:
        if self.refusal == errno.EROFS:
            raise OSError(self.refusal, os.strerror(self.refusal))

    def open_write(self, path: str, *, append: bool = False) -> int:
        self._growing()
        return super().open_write(path, append=append)

    def write(self, fd: int, data: bytes) -> None:
        self._growing()
        super().write(fd, data)

    def mkdir(self, path: str) -> None:
        self._growing()
        super().mkdir(path)

    def truncate(self, path: str, size: int) -> None:
        self._changing()
        super().truncate(path, size)

    def rename(self, source: str, target: str) -> None:
        self._changing()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._changing()
        super().unlink(path)

    def rmdir(self, path: str) -> None:
        self._changing()
        super().rmdir(path)


class SqliteWrites:
    """Stands between SQLite and the system's calls for writing; ``refusal`` is the error number, 0 for none."""

    def __init__(self) -> None:
        self.refusal = 0
        self._vfs = apsw.VFS("refusing", "unix")
        self._callbacks: list[object] = []

    def __enter__(self) -> "SqliteWrites":
        for name, offset in (("write", []), ("pwrite", [ctypes.c_long]), ("pwrite64", [ctypes.c_long])):
            kind = ctypes.CFUNCTYPE(
                ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, *offset, use_errno=True
            )
            pointer = self._vfs.xGetSystemCall(name)
            if pointer:
                callback = kind(self._guarded(kind(pointer)))
                self._callbacks.append(callback)
                self._vfs.xSetSystemCall(name, ctypes.cast(callback, ctypes.c_void_p).value or 0)
        return self

    def _guarded(self, original: Callable[..., int]) -> Callable[..., int]:
        def write(*arguments: int) -> int:
            if self.refusal:
                ctypes.set_errno(self.refusal)
                return -1
            return original(*arguments)

        return write

    def __exit__(self, *error: object) -> None:
        self._vfs.xSetSystemCall(None, 0)
        self._vfs.unregister()


@contextmanager
def in_memory(folder: Path) -> Iterator[MountedDisk]:
    with _mounted(folder, "-t", "tmpfs", "-o", "size=4m", "tight") as disk:
        yield disk


@contextmanager
def ext4(folder: Path) -> Iterator[MountedDisk]:
    """A file system in a file: what most devices have, and it finds out late that there is no space."""
    image = folder.with_name(f"{folder.name}.img")
    with image.open("wb") as file:
        file.truncate(6 * 1024 * 1024)
    try:
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        with _mounted(folder, "-t", "ext4", "-o", "loop", str(image)) as disk:
            yield disk
    finally:
        image.unlink()


@contextmanager
def _mounted(folder: Path, *words: str) -> Iterator[MountedDisk]:
    folder.mkdir(exist_ok=True)
    _run("mount", *words, str(folder))
    try:
        yield MountedDisk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def pretended(folder: Path) -> Iterator[PretendedDisk]:
    folder.mkdir(exist_ok=True)
    with SqliteWrites() as writes:
        yield PretendedDisk(folder, writes)


def works(make: Callable[[Path], AbstractContextManager[TightDisk]]) -> bool:
    """Whether this process may have such a disk, found out by asking for one; root in a container often may not."""
    if os.geteuid() != 0:
        return False
    try:
        with tempfile.TemporaryDirectory() as folder, make(Path(folder) / "disk"):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


DISKS: dict[str, Callable[[Path], AbstractContextManager[TightDisk]]] = {"pretended": pretended}
DISKS |= {name: make for name, make in (("ext4", ext4), ("memory", in_memory)) if works(make)}
