"""Segment files on disk: create, seal, retire and recycle, each with its order of syncs.

A file becomes a segment by its name: it is written and synced first, then renamed. A retired name is durably gone
before the file is reused. New files are filled with zeros ahead of time, because a sync costs less when the file does
not grow. A retired file becomes a spare unless a reader holds it. Errors pass as ``OSError``."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from yirangmq.fsio.disk import Disk
from yirangmq.fsio.lock import try_lock, unlock
from yirangmq.stores.log.segment import LogSegment
from yirangmq.stores.log.segment_format import (
    HEAD_SIZE,
    SEAL_SIZE,
    SPARE,
    Head,
    SegmentSums,
    TopicNumbers,
    file_name,
    write_head,
    write_index,
    write_seal,
    write_state,
)

ZEROS = bytes(1 << 20)
SYNC_EVERY = 4 << 20
"""Bytes of zeros between two syncs: 4 MiB. A longer disk queue would delay the syncs of live records."""


class SpareFile(NamedTuple):
    """Open, synced file that can become a segment. ``size`` is its capacity in bytes."""

    path: str
    fd: int
    size: int

    def with_capacity(self, size: int) -> "SpareFile":
        return self._replace(size=max(size, self.size))


class ActiveSegment(NamedTuple):
    """Segment that records are appended to, the last of the chain, with its open file."""

    segment: LogSegment
    file: SpareFile


class SegmentHeadValues(NamedTuple):
    """Head values of a new segment: epochs, first sequence, creation time."""

    epoch: bytes
    before: bytes
    first: int
    created_ns: int


class SegmentFileOperations:
    """File operations on the segments of one log that is open for writing."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = folder
        self.disk = disk
        self._made = 0

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    # -- create ---------------------------------------------------------------------------------------------------

    def new_spare(self, size: int) -> SpareFile:
        """Create a file of zeros. Overwriting zeros costs one sync less than extending a file."""
        self._made += 1
        path = self.path(f"{SPARE}-{self._made}")
        fd = self.disk.open_write(path)
        try:
            self._fill(fd, 0, size)
        except BaseException:
            self.disk.close(fd)
            self.disk.unlink(path)
            raise
        return SpareFile(path, fd, size)

    def extend(self, spare: SpareFile, size: int) -> SpareFile:
        """Extend the file with zeros to at least ``size`` bytes. On an error only its length may have changed."""
        if size <= spare.size:
            return spare
        self._fill(spare.fd, spare.size, size)
        return spare._replace(size=size)

    def _fill(self, fd: int, begin: int, end: int) -> None:
        unsynced = 0
        for offset in range(begin, end, len(ZEROS)):
            part = ZEROS[: end - offset]
            self.disk.write_at(fd, part, offset)
            unsynced += len(part)
            if unsynced >= SYNC_EVERY:
                self.disk.fdatasync(fd)
                unsynced = 0
        if unsynced:
            self.disk.fdatasync(fd)

    def begin(self, spare: SpareFile, head_values: SegmentHeadValues, state: Mapping[str, TopicNumbers]) -> LogSegment:
        """Turn the file into an empty segment; its name is durable on return."""
        segment = self.write_opening(spare, head_values, state)
        self.disk.fdatasync(spare.fd)
        self.rename_into_place(spare, segment)
        return segment

    def rename_into_place(self, spare: SpareFile, segment: LogSegment) -> None:
        """Unlock the file so that others can read it, rename it to the segment's name, and sync the folder."""
        unlock(spare.fd)
        self.disk.rename(spare.path, segment.path)
        self.disk.fsync_folder(self.folder)

    def write_opening(
        self, spare: SpareFile, head_values: SegmentHeadValues, state: Mapping[str, TopicNumbers]
    ) -> LogSegment:
        """Write the head and state frame of a new segment. The returned segment has its final path."""
        opening = write_state(state)
        head = Head(*head_values, HEAD_SIZE + len(opening))
        self.disk.write_at(spare.fd, write_head(head) + opening, 0)
        return LogSegment(
            self.path(file_name(head_values.first)), head, sums=SegmentSums(head_values.first, head.begin, dict(state))
        )

    # -- seal -----------------------------------------------------------------------------------------------------

    def seal(self, segment: LogSegment, fd: int) -> LogSegment:
        """Seal a segment: write its index, sync, write its seal, and truncate the file after it.

        The order guarantees that a seal on disk implies a complete index on disk."""
        sums = segment.sums
        if sums is None:
            return segment
        index, seal = write_index(sums.summary()), sums.seal(segment.first)
        self.disk.write_at(fd, index, sums.end)
        self.disk.fdatasync(fd)
        self.disk.write_at(fd, write_seal(seal), sums.end + len(index))
        self.disk.truncate(segment.path, sums.end + len(index) + SEAL_SIZE)
        self.disk.fdatasync(fd)
        return LogSegment(segment.path, segment.head, seal=seal)

    # -- retire ---------------------------------------------------------------------------------------------------

    def retire(self, segment: LogSegment, *, recycle: bool) -> SpareFile | None:
        """Remove the segment durably. With ``recycle`` its file becomes a spare, unless a reader holds it."""
        spare = self._lock_for_recycling(segment) if recycle else None
        try:
            if spare is None:
                self.disk.unlink(segment.path)
            else:
                self.disk.rename(segment.path, spare.path)
            self.disk.fsync_folder(self.folder)
        except BaseException:
            if spare is not None:
                self.disk.close(spare.fd)
            raise
        return spare

    def _lock_for_recycling(self, segment: LogSegment) -> SpareFile | None:
        """Open and lock the segment's file, so that no reader can open it. Return None if a reader has it open."""
        fd = self.disk.open_update(segment.path)
        try:
            is_free = try_lock(fd)
        except OSError:
            is_free = False
        if not is_free:
            self.disk.close(fd)
            return None
        self._made += 1
        return SpareFile(self.path(f"{SPARE}-{self._made}"), fd, os.fstat(fd).st_size)

    def discard(self, spare: SpareFile) -> None:
        self.disk.close(spare.fd)
        self.disk.unlink(spare.path)
