"""The files store's and the log's way to the disk, with everything it asks written down. Knows: ``fsio.disk.Disk``.
Does not know: what the files mean."""

import os

from yirangmq.fsio.disk import Disk
from yirangmq.torture.journal import Journal, SyncAll, SyncFile, SyncFolder, Truncate, Write


class RecordingDisk(Disk):
    """Does what it is asked, then notes it. What the journal's folder does not hold is done and not noted."""

    def __init__(self, journal: Journal, *, use_syncfs: bool) -> None:
        super().__init__()
        self._journal = journal
        self._use_syncfs = use_syncfs
        self._nodes: dict[int, int] = {}

    @property
    def has_syncfs(self) -> bool:
        return self._use_syncfs and super().has_syncfs

    # -- contents -------------------------------------------------------------------------------------------------

    def open_write(self, path: str, *, append: bool = False) -> int:
        is_new = not os.path.lexists(path)
        fd = super().open_write(path, append=append)
        if self._journal.holds(path):
            self._nodes[fd] = self._journal.create(path) if is_new else self._known(path)
        return fd

    def write(self, fd: int, data: bytes) -> None:
        offset = os.fstat(fd).st_size  # new files and appended ones alike are written at their end
        super().write(fd, data)
        if fd in self._nodes:
            self._journal.add(Write(self._nodes[fd], offset, bytes(data)))

    def open_update(self, path: str) -> int:
        fd = super().open_update(path)
        if self._journal.holds(path):
            self._nodes[fd] = self._known(path)
        return fd

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        super().write_at(fd, data, offset)
        if fd in self._nodes:
            self._journal.add(Write(self._nodes[fd], offset, bytes(data)))

    def truncate(self, path: str, size: int) -> None:
        super().truncate(path, size)
        if self._journal.holds(path):
            self._journal.add(Truncate(self._known(path), size))

    def close(self, fd: int) -> None:
        self._nodes.pop(fd, None)
        super().close(fd)

    # -- syncs ----------------------------------------------------------------------------------------------------

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        if fd in self._nodes:
            self._journal.add(SyncFile(self._nodes[fd]))

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        if fd in self._nodes:
            self._journal.add(SyncFile(self._nodes[fd]))

    def fsync_file(self, path: str) -> None:
        super().fsync_file(path)
        if self._journal.holds(path):
            self._journal.add(SyncFile(self._known(path)))

    def fsync_folder(self, path: str) -> None:
        super().fsync_folder(path)
        if self._journal.holds(path):
            self._journal.add(SyncFolder(self._known(path)))

    def syncfs(self, path: str) -> None:
        super().syncfs(path)
        if self._journal.holds(path):
            self._journal.add(SyncAll())

    # -- names ----------------------------------------------------------------------------------------------------

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self._journal.holds(source):
            self._journal.rename(source, target)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if self._journal.holds(path):
            self._journal.remove(path)

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        if self._journal.holds(path):
            self._journal.create(path, is_folder=True)

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        if self._journal.holds(path):
            self._journal.remove(path)

    def _known(self, path: str) -> int:
        node = self._journal.node(path)
        if node is None:
            raise ValueError(f"{path} was made behind the recorder's back")
        return node
