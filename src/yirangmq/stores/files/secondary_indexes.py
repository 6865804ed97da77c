"""Secondary indexes of the files store: a hash index on disk, and linked lists of the members of each group.

``HashIndex`` is a hash index: fixed-width records in 64 files. Each record begins with the 8-byte fingerprint of a
text. A lookup reads one file, an insert appends to it. Two texts may share a fingerprint, so callers check the results.

``GroupLists`` links the unfinished members of each group in order of their places. The cost of finding the first
member, or the next one of a member, does not depend on the number of members. ``.index/groups`` has the first and last
member of each group. ``.index/links`` has, at a fixed offset for each member, its place and its two neighbours.

Both are part of the index: never synced, and rebuilt after a loss (``stores.files.index``)."""

import os
import struct
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from yirangmq.fsio.disk import exists
from yirangmq.fsio.permissions import OWNER, FileModes, open_file

# -- hash index --------------------------------------------------------------------------------------------------------

FINGERPRINT_BYTES = 8
"""Size of a fingerprint in bytes. Two texts may share one, so the caller of a lookup checks the results."""


SHARDS = 64
"""Number of files of a hash index. At 100,000 messages each file has about 25 kB and is read in a few µs; a batch opens
most of them once."""


def fingerprint(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=FINGERPRINT_BYTES).digest()


def shard_of(record: bytes | bytearray) -> int:
    return record[0] % SHARDS


class HashIndex:
    """Hash index on disk. ``width``: size of a record in bytes, fingerprint included."""

    def __init__(self, folder: str, width: int, access: FileModes = OWNER) -> None:
        self._folder = folder
        self._access = access
        self._width = width

    def find(self, prints: Iterable[bytes]) -> dict[bytes, list[bytes]]:
        """Return the records of each fingerprint that is present."""
        found: dict[bytes, list[bytes]] = {}
        for shard, wanted in _by_shard(prints).items():
            data = self._read(shard)
            if data:
                for one in wanted:
                    records = self._find_in(data, one)
                    if records:
                        found[one] = records
        return found

    def _find_in(self, data: bytes, one: bytes) -> list[bytes]:
        records = []
        at = data.find(one)
        while at >= 0:
            if at % self._width == 0:
                records.append(data[at : at + self._width])
            at = data.find(one, at + 1)
        return records

    def add(self, records: Sequence[bytes]) -> None:
        for shard, new in _by_shard(records).items():
            fd = open_file(self._path(shard), os.O_WRONLY, self._access)
            try:
                self._append(fd, b"".join(new))
            finally:
                os.close(fd)

    def _append(self, fd: int, new: bytes) -> None:
        """Write behind the last complete record. A torn record, left when a write and its truncation both failed, is
        overwritten; otherwise all later records would be misaligned."""
        size = os.fstat(fd).st_size
        end = size - size % self._width
        try:
            _write_all(fd, new, end)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, end)
            raise

    def change(self, changes: Mapping[bytes, bytes]) -> None:
        """Overwrite records in place. ``changes``: old record to new record, with the same fingerprint."""
        for shard, old in _by_shard(changes).items():
            data = self._read(shard)
            with OpenIndexFile(self._path(shard), self._access) as fd:
                for record in old:
                    at = self._at(data, record)
                    if at >= 0:
                        os.pwrite(fd, changes[record], at)

    def remove(self, records: Sequence[bytes]) -> None:
        """Remove records: the last record of the file moves into each gap, so the bytes written do not depend on the
        size of the file."""
        for shard, old in _by_shard(records).items():
            data = bytearray(self._read(shard))
            size, places = len(data), set()
            for record in old:
                while (at := self._at(data, record)) >= 0:
                    data[at : at + self._width] = data[-self._width :]
                    del data[-self._width :]
                    places.add(at)
            if len(data) < size:
                with OpenIndexFile(self._path(shard), self._access) as fd:
                    for at in places:
                        os.pwrite(fd, data[at : at + self._width], at)
                    os.ftruncate(fd, len(data))

    def _at(self, data: bytes | bytearray, record: bytes) -> int:
        """Return the offset of a record, or -1 if it is absent."""
        at = data.find(record)
        while at >= 0 and at % self._width:
            at = data.find(record, at + 1)
        return at

    def replace_all(self, shards: Mapping[int, bytearray]) -> None:
        """Replace all records. Existing files are overwritten, because creating files costs more than the rest of a
        rebuild."""
        kept = {self._name(shard) for shard in shards}
        for name in os.listdir(self._folder):
            if name not in kept:
                os.unlink(f"{self._folder}/{name}")
        for shard, data in shards.items():
            self._write(shard, bytes(data))

    def _path(self, shard: int) -> str:
        return f"{self._folder}/{self._name(shard)}"

    def _name(self, shard: int) -> str:
        return f"{shard:02d}"

    def _read(self, shard: int) -> bytes:
        """Return the complete records of a file, without a torn one at its end."""
        try:
            fd = os.open(self._path(shard), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            data = os.read(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        torn = len(data) % self._width
        return data[:-torn] if torn else data

    def _write(self, shard: int, data: bytes) -> None:
        with OpenIndexFile(self._path(shard), self._access) as fd:
            _write_all(fd, data, 0)
            os.ftruncate(fd, len(data))


class OpenIndexFile:
    """Context manager: an index file open for reading and writing. Yields the descriptor."""

    def __init__(self, path: str, access: FileModes) -> None:
        self._fd = open_file(path, os.O_RDWR, access)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _by_shard(records: Iterable[bytes]) -> dict[int, list[bytes]]:
    grouped: defaultdict[int, list[bytes]] = defaultdict(list)
    for record in records:
        grouped[shard_of(record)].append(record)
    return grouped


def _write_all(fd: int, data: bytes, at: int) -> None:
    done = os.pwrite(fd, data, at)
    while done < len(data):
        done += os.pwrite(fd, data[done:], at + done)


# -- linked lists of groups --------------------------------------------------------------------------------------------

PER_SEGMENT = 1000
LINK = struct.Struct("<qqq")
_END = struct.Struct("<qqqq")
_ABSENT = bytes(LINK.size)


class Member(NamedTuple):
    """A member of a group. ``queue``: the number of the queue in the index."""

    queue: int
    group: int
    place: int
    seq: int


class GroupNode(NamedTuple):
    """A node of a group's list: place, and the numbers of the previous and the next member (0: none)."""

    place: int
    before: int
    behind: int


class GroupEnds(NamedTuple):
    """Numbers of the first and the last member of a group; 0 if it has none."""

    first: int = 0
    last: int = 0


GroupKey = tuple[int, int]
"""Key of a group: number of the queue in the index, and group."""


class GroupLists:
    """Doubly linked lists of the unfinished members of each group, on disk."""

    def __init__(self, folder: str, access: FileModes = OWNER) -> None:
        self._links = f"{folder}/links"
        self._groups = HashIndex(f"{folder}/groups", _END.size, access)
        self._access = access

    # -- lookups --------------------------------------------------------------------------------------------------

    def first(self, queue: int, group: int) -> int:
        """Return the number of the first member of a group, or 0."""
        found = self._ends([(queue, group)]).get((queue, group))
        return found.first if found else 0

    def behind(self, seq: int) -> int:
        """Return the number of the next member, or 0."""
        link = self._link(seq)
        return link.behind if link else 0

    def _ends(self, keys: Iterable[GroupKey]) -> dict[GroupKey, GroupEnds]:
        wanted = set(keys)
        records = self._groups.find({_print(group) for _, group in wanted})
        found: dict[GroupKey, GroupEnds] = {}
        for group, queue, first, last in map(_END.unpack, (one for some in records.values() for one in some)):
            if (queue, group) in wanted:
                found[queue, group] = GroupEnds(first, last)
        return found

    def _link(self, seq: int) -> GroupNode | None:
        try:
            fd = os.open(self._path(seq // PER_SEGMENT), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            raw = os.pread(fd, LINK.size, seq % PER_SEGMENT * LINK.size)
        finally:
            os.close(fd)
        return GroupNode(*LINK.unpack(raw)) if len(raw) == LINK.size and raw != _ABSENT else None

    def _path(self, segment: int) -> str:
        return f"{self._links}/{segment}"

    # -- changes --------------------------------------------------------------------------------------------------

    def reserve(self, joining: Sequence[Member]) -> None:
        """Allocate space for these members, so that a full disk fails the commit before it has changed anything."""
        keys = {(queue, group) for queue, group, _, _ in joining}
        known = self._ends(keys)
        self._groups.add([_record(key, GroupEnds()) for key in keys if key not in known])
        for segment in {member.seq // PER_SEGMENT for member in joining}:
            if not exists(self._path(segment)):
                with OpenIndexFile(self._path(segment), self._access) as fd:
                    os.posix_fallocate(fd, 0, PER_SEGMENT * LINK.size)

    def withdraw(self, joining: Sequence[Member]) -> None:
        """Undo ``reserve``: remove the empty records of groups that these members would have been the first of."""
        empty = [_record((queue, group), GroupEnds()) for queue, group, _, _ in joining]
        self._groups.remove(empty)

    def change(self, leaving: Sequence[Member], joining: Sequence[Member], last: int) -> None:
        """Remove members from their lists and insert others. ``last``: the highest message number in use."""
        if not leaving and not joining:
            return
        known = self._ends((queue, group) for queue, group, _, _ in (*leaving, *joining))
        edit = _ListEdit(known, self._link)
        for member in leaving:
            edit.leave(member)
        for member in sorted(joining, key=lambda member: (member.place, member.seq)):
            edit.join(member)
        self._write_ends(known, edit.ends)
        self._write_links(edit.links, last)

    def _write_ends(self, known: Mapping[GroupKey, GroupEnds], after: Mapping[GroupKey, GroupEnds]) -> None:
        gone: list[bytes] = []
        new: list[bytes] = []
        changed: dict[bytes, bytes] = {}
        for key, ends in after.items():
            old = known.get(key)
            if old is None:
                new += [_record(key, ends)] if ends.first else []
            elif not ends.first:
                gone.append(_record(key, old))
            elif ends != old:
                changed[_record(key, old)] = _record(key, ends)
        self._groups.change(changed)
        self._groups.add(new)
        self._groups.remove(gone)

    def _write_links(self, links: Mapping[int, GroupNode | None], last: int) -> None:
        by_segment: defaultdict[int, list[int]] = defaultdict(list)
        for seq in links:
            by_segment[seq // PER_SEGMENT].append(seq)
        for segment, seqs in by_segment.items():
            with OpenIndexFile(self._path(segment), self._access) as fd:
                for seq in seqs:
                    link = links[seq]
                    raw = LINK.pack(*link) if link else _ABSENT
                    os.pwrite(fd, raw, seq % PER_SEGMENT * LINK.size)
                size = PER_SEGMENT * LINK.size
                is_over = None in map(links.get, seqs) and not any(os.pread(fd, size, 0))
            if is_over and segment < last // PER_SEGMENT:
                os.unlink(self._path(segment))

    def replace(self, groups: "Mapping[GroupKey, array[int]]") -> None:
        """Replace all lists. ``groups``: the members of each group in order, alternating place and number."""
        ends: defaultdict[int, bytearray] = defaultdict(bytearray)
        segments: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(PER_SEGMENT * LINK.size))
        for key, members in groups.items():
            record = _record(key, GroupEnds(members[1], members[-1]))
            ends[shard_of(record)] += record
            for at in range(0, len(members), 2):
                place, seq = members[at : at + 2]
                before, behind = members[at - 1] if at else 0, members[at + 3] if at + 3 < len(members) else 0
                LINK.pack_into(segments[seq // PER_SEGMENT], seq % PER_SEGMENT * LINK.size, place, before, behind)
        self._groups.replace_all(ends)
        for name in os.listdir(self._links):
            os.unlink(f"{self._links}/{name}")
        for segment, data in segments.items():
            with OpenIndexFile(self._path(segment), self._access) as fd:
                os.pwrite(fd, bytes(data), 0)


class _ListEdit:
    """Edit of the lists in memory. ``ends`` and ``links`` hold the result."""

    def __init__(self, ends: Mapping[GroupKey, GroupEnds], read: Callable[[int], GroupNode | None]) -> None:
        self.ends = dict(ends)
        self.links: dict[int, GroupNode | None] = {}
        self._read = read

    def _link(self, seq: int) -> GroupNode | None:
        if seq not in self.links:
            self.links[seq] = self._read(seq)
        return self.links[seq]

    def leave(self, member: Member) -> None:
        key, seq = (member.queue, member.group), member.seq
        link, ends = self._link(seq), self.ends.get(key)
        if link is None or ends is None:
            return
        self.links[seq] = None
        self._bind(link.before, link.behind)
        first = link.behind if seq == ends.first else ends.first
        last = link.before if seq == ends.last else ends.last
        self.ends[key] = GroupEnds(first, last)

    def _bind(self, one: int, other: int) -> None:
        """Make two members neighbours; 0 means the end of the list."""
        link = self._link(one) if one else None
        if link is not None:
            self.links[one] = link._replace(behind=other)
        link = self._link(other) if other else None
        if link is not None:
            self.links[other] = link._replace(before=one)

    def join(self, member: Member) -> None:
        """Insert a member. The search for its position starts at the end of the list, because nearly every new member
        has the largest place."""
        key = (member.queue, member.group)
        ends = self.ends.get(key, GroupEnds())
        before, behind = ends.last, 0
        while before and (link := self._link(before)) and (link.place, before) > (member.place, member.seq):
            before, behind = link.before, before
        self.links[member.seq] = GroupNode(member.place, before, behind)
        self._bind(before, member.seq)
        self._bind(member.seq, behind)
        self.ends[key] = GroupEnds(ends.first if before else member.seq, ends.last if behind else member.seq)


def _print(group: int) -> bytes:
    return group.to_bytes(8, "little")


def _record(key: GroupKey, ends: GroupEnds) -> bytes:
    queue, group = key
    return _END.pack(group, queue, *ends)
