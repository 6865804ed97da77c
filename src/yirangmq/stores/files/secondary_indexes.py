"""Secondary indexes of the files store: a hash index on disk, and linked lists of the members of each group.

``Shards`` is a set of fixed-width records in 64 files, each record beginning with the 8-byte fingerprint of a text. A
lookup reads one file, an insert appends to it. Two texts may share a fingerprint, so callers check what they find.

``Chains`` links the unfinished members of each group in order of their places: the first member, and the next of each,
are found however many wait. ``.index/groups`` has the first and last member of each group. ``.index/links`` has, at a
fixed offset for each member, its place and its two neighbours.

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
from yirangmq.fsio.permissions import OWNER, Access, open_file

# -- hash index --------------------------------------------------------------------------------------------------------

PRINT = 8
"""Bytes of a fingerprint. Two texts may share one: who looks something up checks what was found."""


SHARDS = 64
"""At 100 000 messages each has some 25 kB: a few microseconds to read, and a batch opens most of them once."""


def fingerprint(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=PRINT).digest()


def shard_of(record: bytes | bytearray) -> int:
    return record[0] % SHARDS


class Shards:
    """``width`` is the length of a whole record, fingerprint included."""

    def __init__(self, folder: str, width: int, access: Access = OWNER) -> None:
        self._folder = folder
        self._access = access
        self._width = width

    def find(self, prints: Iterable[bytes]) -> dict[bytes, list[bytes]]:
        """For each fingerprint that is there, its records."""
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
        """Behind the last whole record: where a write failed and its truncation too, a torn record is overwritten, or
        all that follow it would be out of step."""
        size = os.fstat(fd).st_size
        end = size - size % self._width
        try:
            _write_all(fd, new, end)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, end)
            raise

    def change(self, changes: Mapping[bytes, bytes]) -> None:
        """Records by what takes their place, under the same fingerprint."""
        for shard, old in _by_shard(changes).items():
            data = self._read(shard)
            with writing(self._path(shard), self._access) as fd:
                for record in old:
                    at = self._at(data, record)
                    if at >= 0:
                        os.pwrite(fd, changes[record], at)

    def remove(self, records: Sequence[bytes]) -> None:
        """The last record takes the place of one that goes: what is written does not grow with what is there."""
        for shard, old in _by_shard(records).items():
            data = bytearray(self._read(shard))
            size, places = len(data), set()
            for record in old:
                while (at := self._at(data, record)) >= 0:
                    data[at : at + self._width] = data[-self._width :]
                    del data[-self._width :]
                    places.add(at)
            if len(data) < size:
                with writing(self._path(shard), self._access) as fd:
                    for at in places:
                        os.pwrite(fd, data[at : at + self._width], at)
                    os.ftruncate(fd, len(data))

    def _at(self, data: bytes | bytearray, record: bytes) -> int:
        """Where this very record begins; -1: it is not there."""
        at = data.find(record)
        while at >= 0 and at % self._width:
            at = data.find(record, at + 1)
        return at

    def replace_all(self, shards: Mapping[int, bytearray]) -> None:
        """Files that are there are written over: making new ones costs more than all the rest."""
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
        """The whole records."""
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
        with writing(self._path(shard), self._access) as fd:
            _write_all(fd, data, 0)
            os.ftruncate(fd, len(data))


class writing:
    """A file of the index open for writing."""

    def __init__(self, path: str, access: Access) -> None:
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
    """``queue`` is the number the index has for it."""

    queue: int
    group: int
    place: int
    seq: int


class Link(NamedTuple):
    place: int
    before: int
    behind: int


class Ends(NamedTuple):
    """The first and the last member of a group; 0: it has none."""

    first: int = 0
    last: int = 0


Key = tuple[int, int]
"""Queue and group."""


class Chains:
    def __init__(self, folder: str, access: Access = OWNER) -> None:
        self._links = f"{folder}/links"
        self._groups = Shards(f"{folder}/groups", _END.size, access)
        self._access = access

    # -- looking --------------------------------------------------------------------------------------------------

    def first(self, queue: int, group: int) -> int:
        """The number of the first member; 0: there is none."""
        found = self._ends([(queue, group)]).get((queue, group))
        return found.first if found else 0

    def behind(self, seq: int) -> int:
        """Who comes after this one; 0: nobody."""
        link = self._link(seq)
        return link.behind if link else 0

    def _ends(self, keys: Iterable[Key]) -> dict[Key, Ends]:
        wanted = set(keys)
        records = self._groups.find({_print(group) for _, group in wanted})
        found: dict[Key, Ends] = {}
        for group, queue, first, last in map(_END.unpack, (one for some in records.values() for one in some)):
            if (queue, group) in wanted:
                found[queue, group] = Ends(first, last)
        return found

    def _link(self, seq: int) -> Link | None:
        try:
            fd = os.open(self._path(seq // PER_SEGMENT), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            raw = os.pread(fd, LINK.size, seq % PER_SEGMENT * LINK.size)
        finally:
            os.close(fd)
        return Link(*LINK.unpack(raw)) if len(raw) == LINK.size and raw != _ABSENT else None

    def _path(self, segment: int) -> str:
        return f"{self._links}/{segment}"

    # -- changing -------------------------------------------------------------------------------------------------

    def reserve(self, joining: Sequence[Member]) -> None:
        """Make room for these now, so that a full disk refuses before anything has happened."""
        keys = {(queue, group) for queue, group, _, _ in joining}
        known = self._ends(keys)
        self._groups.add([_record(key, Ends()) for key in keys if key not in known])
        for segment in {member.seq // PER_SEGMENT for member in joining}:
            if not exists(self._path(segment)):
                with writing(self._path(segment), self._access) as fd:
                    os.posix_fallocate(fd, 0, PER_SEGMENT * LINK.size)

    def withdraw(self, joining: Sequence[Member]) -> None:
        """They do not come after all: groups that were to begin with them need no record."""
        empty = [_record((queue, group), Ends()) for queue, group, _, _ in joining]
        self._groups.remove(empty)

    def change(self, leaving: Sequence[Member], joining: Sequence[Member], last: int) -> None:
        """Take members out of their chains, put others in. ``last``: the last number given out."""
        if not leaving and not joining:
            return
        known = self._ends((queue, group) for queue, group, _, _ in (*leaving, *joining))
        edit = _Edit(known, self._link)
        for member in leaving:
            edit.leave(member)
        for member in sorted(joining, key=lambda member: (member.place, member.seq)):
            edit.join(member)
        self._write_ends(known, edit.ends)
        self._write_links(edit.links, last)

    def _write_ends(self, known: Mapping[Key, Ends], after: Mapping[Key, Ends]) -> None:
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

    def _write_links(self, links: Mapping[int, Link | None], last: int) -> None:
        by_segment: defaultdict[int, list[int]] = defaultdict(list)
        for seq in links:
            by_segment[seq // PER_SEGMENT].append(seq)
        for segment, seqs in by_segment.items():
            with writing(self._path(segment), self._access) as fd:
                for seq in seqs:
                    link = links[seq]
                    raw = LINK.pack(*link) if link else _ABSENT
                    os.pwrite(fd, raw, seq % PER_SEGMENT * LINK.size)
                size = PER_SEGMENT * LINK.size
                is_over = None in map(links.get, seqs) and not any(os.pread(fd, size, 0))
            if is_over and segment < last // PER_SEGMENT:
                os.unlink(self._path(segment))

    def replace(self, groups: "Mapping[Key, array[int]]") -> None:
        """All of it anew: of each group places and numbers, in order."""
        ends: defaultdict[int, bytearray] = defaultdict(bytearray)
        segments: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(PER_SEGMENT * LINK.size))
        for key, members in groups.items():
            record = _record(key, Ends(members[1], members[-1]))
            ends[shard_of(record)] += record
            for at in range(0, len(members), 2):
                place, seq = members[at : at + 2]
                before, behind = members[at - 1] if at else 0, members[at + 3] if at + 3 < len(members) else 0
                LINK.pack_into(segments[seq // PER_SEGMENT], seq % PER_SEGMENT * LINK.size, place, before, behind)
        self._groups.replace_all(ends)
        for name in os.listdir(self._links):
            os.unlink(f"{self._links}/{name}")
        for segment, data in segments.items():
            with writing(self._path(segment), self._access) as fd:
                os.pwrite(fd, bytes(data), 0)


class _Edit:
    """Chains as they become, in memory."""

    def __init__(self, ends: Mapping[Key, Ends], read: Callable[[int], Link | None]) -> None:
        self.ends = dict(ends)
        self.links: dict[int, Link | None] = {}
        self._read = read

    def _link(self, seq: int) -> Link | None:
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
        self.ends[key] = Ends(first, last)

    def _bind(self, one: int, other: int) -> None:
        """Neighbours from now on."""
        link = self._link(one) if one else None
        if link is not None:
            self.links[one] = link._replace(behind=other)
        link = self._link(other) if other else None
        if link is not None:
            self.links[other] = link._replace(before=one)

    def join(self, member: Member) -> None:
        """Nearly all come with a larger place than those that are there, so the way to theirs is short."""
        key = (member.queue, member.group)
        ends = self.ends.get(key, Ends())
        before, behind = ends.last, 0
        while before and (link := self._link(before)) and (link.place, before) > (member.place, member.seq):
            before, behind = link.before, before
        self.links[member.seq] = Link(member.place, before, behind)
        self._bind(before, member.seq)
        self._bind(member.seq, behind)
        self.ends[key] = Ends(ends.first if before else member.seq, ends.last if behind else member.seq)


def _print(group: int) -> bytes:
    return group.to_bytes(8, "little")


def _record(key: Key, ends: Ends) -> bytes:
    queue, group = key
    return _END.pack(group, queue, *ends)
