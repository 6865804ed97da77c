"""Index of the files store, derived from the file names: records by number, and lookups by id, key and group.

The file names are authoritative; the index, in ``.index``, only avoids listing all folders. It holds

- a record per message, by number, at a fixed offset of a small file;
- ids and deduplication keys (hash indexes), and groups (linked lists): ``stores.files.secondary_indexes``;
- due times: ``stores.files.timer_index``;
- the counters of each queue.

The index is never synced. It is valid only if its state file was written since the machine booted, for this very
folder (inode and device), by a process that finished its commit. Otherwise ``stores.files.recovery`` rebuilds it. All
access is under the store's lock."""

import os
import struct
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from yirangmq.core.message import Counts, Message, sum_of
from yirangmq.fsio.disk import exists
from yirangmq.fsio.permissions import access_in, make_folder, open_file
from yirangmq.stores.files.names import STATE_FOLDERS, FileRow, state_folder_of
from yirangmq.stores.files.secondary_indexes import (
    FINGERPRINT_BYTES,
    GroupLists,
    HashIndex,
    Member,
    OpenIndexFile,
    fingerprint,
)

# -- records -----------------------------------------------------------------------------------------------------------

PER_SEGMENT = 1000
"""Messages per index file: consecutive numbers."""
RECORD = struct.Struct("<IBxxxqqqqq")
EMPTY = bytes(RECORD.size)
ID_SIZE = FINGERPRINT_BYTES + 8
KEY_SIZE = FINGERPRINT_BYTES + 16
STATE_FOLDER_NAMES = tuple(STATE_FOLDERS)
CODE_OF = {top: code for code, top in enumerate(STATE_FOLDER_NAMES, 1)}


class IndexRecord(NamedTuple):
    """Index record of a message: the fields that determine its folder.

    ``until``: the end of its deduplication window, or 0."""

    queue: str
    top: str
    rank: int
    place: int
    changed_at: int
    target: int
    until: int


class KeyRecord(NamedTuple):
    """Index record of a deduplication key: fingerprint, message number and end of the window."""

    print: bytes
    seq: int
    until: int


def pack(queue: int, message_row: FileRow, until: int) -> bytes:
    """Encode an index record. ``queue``: the number of the queue in the index."""
    message = message_row.message
    code = CODE_OF[state_folder_of(message)]
    return RECORD.pack(queue, code, message.rank, message.place, message.changed_at, message.target, until)


def unpack(raw: bytes, queues: Mapping[int, str]) -> IndexRecord:
    queue, code, *rest = RECORD.unpack(raw)
    return IndexRecord(queues.get(queue, ""), STATE_FOLDER_NAMES[code - 1], *rest)


def by_segment(seqs: Iterable[int]) -> dict[int, list[int]]:
    grouped: defaultdict[int, list[int]] = defaultdict(list)
    for seq in seqs:
        grouped[seq // PER_SEGMENT].append(seq)
    return grouped


def id_print(queue: str, id: str) -> bytes:
    return fingerprint(f"{queue}/{id}")


def id_record(queue: str, id: str, seq: int) -> bytes:
    return id_print(queue, id) + seq.to_bytes(8, "little")


def read_id_record(record: bytes) -> int:
    """Return the message number of an id record."""
    return int.from_bytes(record[FINGERPRINT_BYTES:], "little")


def key_print(queue: str, key: str) -> bytes:
    return fingerprint(f"{queue}/{key}")


def key_record(key: KeyRecord) -> bytes:
    return key.print + key.seq.to_bytes(8, "little") + key.until.to_bytes(8, "little")


def read_key_record(record: bytes) -> KeyRecord:
    return KeyRecord(
        record[:FINGERPRINT_BYTES],
        int.from_bytes(record[FINGERPRINT_BYTES:-8], "little"),
        int.from_bytes(record[-8:], "little"),
    )


# -- index files -------------------------------------------------------------------------------------------------------

MAGIC = b"yrMQidx3"
_STATE = struct.Struct("<8sIIQQQ40sQQ")
_DIRTY_AT = 8
_DIRTY, _CLEAN = b"\1", b"\0"
"""The first byte of a 4-byte field; the other three are 0. A single byte is written completely or not at all, so a torn
write never marks an index as clean."""
_GENERATION_AT = 16
_QUEUE = struct.Struct(f"<200s{len(Counts._fields)}q")
NAMES_BEGIN = 1
SUM_SHARE = 100
"""Bounds the time spent on summing the counts of all queues to 1/100: after a sum that took t seconds, the next one is
at least 100 t later."""


class Index:
    """Index of an open store. One instance per open store, used only under the store's lock."""

    def __init__(self, root: str, folder: str = "") -> None:
        self._root = root
        self.folder = folder or f"{root}/.index"
        self._fd = -1
        self._inode = -1
        self._boot = boot_id()
        self._access = access_in(root)
        self._ids = HashIndex(f"{self.folder}/ids", ID_SIZE, self._access)
        self._keys = HashIndex(f"{self.folder}/keys", KEY_SIZE, self._access)
        self.group_lists = GroupLists(self.folder, self._access)
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._names_at = 0
        """Version of the set of queues in ``_numbers``. Every commit that creates or deletes a queue changes the
        version in the state file. 0: nothing is loaded, or the state file is from a release without this version."""
        self._names_now = 0
        self._total: tuple[Counts, int] | None = None
        """Sum of the counts of all queues, and the generation it is valid for."""
        self._sum_at = 0.0
        self.generation = 0
        self.last = 0
        self.reserved = 0
        self._open()

    # -- the state of the index itself ----------------------------------------------------------------------------

    @property
    def state_path(self) -> str:
        """The state file. Every commit of every process writes it, so watching it reports commits."""
        return f"{self.folder}/state"

    def _open(self) -> None:
        for folder in ("", "/seq", "/ids", "/keys", "/due", "/groups", "/links"):
            try:
                make_folder(self.folder + folder, self._access)
            except FileExistsError:
                pass
        self.close()
        self._fd = open_file(self.state_path, os.O_RDWR, self._access)
        self._inode = os.fstat(self._fd).st_ino

    def close(self) -> None:
        """Close the state file. The descriptor and the inode are reset first: if the close fails, ``load`` reopens the
        file."""
        fd, self._fd, self._inode = self._fd, -1, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def load(self) -> bool:
        """Read the state file. Return False if the index is not valid and must be rebuilt."""
        try:
            if os.stat(self.state_path).st_ino != self._inode:
                self._open()
        except FileNotFoundError:
            self._open()
        data = os.pread(self._fd, _STATE.size, 0)
        if len(data) < _STATE.size:
            return False
        magic, dirty, names_now, generation, last, reserved, boot, inode, device = _STATE.unpack(data)
        if (
            magic != MAGIC
            or dirty
            or (boot.rstrip(b"\0").decode(), inode, device) != (self._boot, *self._folder_identity())
        ):
            return False
        if generation != self.generation and not names_now:
            self._names_at = 0
        self._names_now = names_now
        self.generation, self.last, self.reserved = generation, last, reserved
        return True

    def _folder_identity(self) -> tuple[int, int]:
        found = os.stat(self._root)
        return found.st_ino, found.st_dev

    def begin(self) -> None:
        """Mark the index as dirty. If the process dies before ``finish``, the index is rebuilt."""
        os.pwrite(self._fd, _DIRTY, _DIRTY_AT)

    invalidate = begin
    """Invalidate the index, for instance after another program moved files. The next transaction rebuilds it."""

    def end(self) -> None:
        """Mark the index as clean: the batch was undone."""
        os.pwrite(self._fd, _CLEAN, _DIRTY_AT)

    def latest_generation(self) -> int:
        """Return the generation of the latest commit by any process. May be called without the lock."""
        data = os.pread(self._fd, 8, _GENERATION_AT)
        return int.from_bytes(data, "little")

    def finish(self, last: int, reserved: int) -> None:
        self.generation += 1
        self.last, self.reserved = last, reserved
        if self._total is not None and self._total[1] == self.generation - 1:
            self._total = self._total[0], self.generation
        self._names_now = self._names_now or NAMES_BEGIN
        state = (self._names_now, self.generation, last, reserved, self._boot.encode(), *self._folder_identity())
        os.pwrite(self._fd, _STATE.pack(MAGIC, 0, *state), 0)

    # -- queues and counters --------------------------------------------------------------------------------------

    def _load_queues(self) -> None:
        """Load names and numbers of all queues if a process has created or deleted a queue since the last load."""
        if self._names_at and self._names_at == self._names_now:
            return
        self._numbers, self._names = {}, {}
        data = self._read("queues")
        for number in range(len(data) // _QUEUE.size):
            name = data[number * _QUEUE.size : number * _QUEUE.size + 200].rstrip(b"\0").decode()
            if name:
                self._numbers[name] = number
                self._names[number] = name
        self._names_at = self._names_now = self._names_now or NAMES_BEGIN

    def counts(self, queue: str) -> Counts:
        self._load_queues()
        number = self._numbers.get(queue)
        if number is None:
            return Counts()
        data = self._read("queues", number * _QUEUE.size, _QUEUE.size)
        return Counts(*_QUEUE.unpack(data)[1:])

    def put_counts(self, counts: Mapping[str, Counts]) -> None:
        self._load_queues()
        try:
            with OpenIndexFile(f"{self.folder}/queues", self._access) as fd:
                for queue, numbers in counts.items():
                    number = self._number(queue)
                    self._update_sum(fd, number, numbers)
                    os.pwrite(fd, _QUEUE.pack(queue.encode(), *numbers), number * _QUEUE.size)
        except BaseException:
            self._forget_queues()
            raise

    def _forget_queues(self) -> None:
        """Discard the loaded names. After an error a queue may have a number in memory and none in the file."""
        self._names_at, self._total = 0, None

    def _number(self, queue: str) -> int:
        number = self._numbers.get(queue)
        if number is None:
            number = len(self._numbers) if len(self._numbers) not in self._names else max(self._names) + 1
            self._numbers[queue], self._names[number] = number, queue
            self._names_changed()
        return number

    def _names_changed(self) -> None:
        """Change the version of the set of queues. ``finish`` writes it for other processes. It is never 0, which means
        unknown."""
        self._names_at = self._names_now = self._names_now % 0xFFFFFFFF + 1

    def _update_sum(self, fd: int, number: int, now: Counts) -> None:
        """Update the sum of all queues with one queue's change. ``finish`` sets the generation it is valid for."""
        if self._total is not None:
            data = os.pread(fd, _QUEUE.size, number * _QUEUE.size)
            before = _QUEUE.unpack(data)[1:] if len(data) == _QUEUE.size else Counts()
            changed = zip(self._total[0], now, before, strict=True)
            self._total = Counts(*(total + new - old for total, new, old in changed)), self._total[1]

    def totals(self) -> Counts:
        """Return the sum of the counts of all queues.

        The sum is computed once and follows this process's commits. After a commit of another process it is computed
        again, at a rate limited by ``SUM_SHARE``; until then the old sum is returned."""
        if self._total is None or (self._total[1] != self.generation and time.monotonic() >= self._sum_at):
            begun = time.monotonic()
            rows = (Counts(*row[1:]) for row in _QUEUE.iter_unpack(_whole(self._read("queues"))))
            self._total = sum_of(rows), self.generation
            self._sum_at = begun + SUM_SHARE * (time.monotonic() - begun)
        return self._total[0]

    def drop_queue(self, queue: str) -> None:
        """Remove the counters of a queue. The caller removes its messages one by one."""
        self._load_queues()
        number = self._numbers.pop(queue, None)
        if number is not None:
            del self._names[number]
            self._names_changed()
            try:
                with OpenIndexFile(f"{self.folder}/queues", self._access) as fd:
                    self._update_sum(fd, number, Counts())
                    os.pwrite(fd, bytes(_QUEUE.size), number * _QUEUE.size)
            except BaseException:
                self._forget_queues()
                raise

    def _read(self, name: str, offset: int = 0, size: int = 1 << 30) -> bytes:
        try:
            fd = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(fd, min(size, os.fstat(fd).st_size), offset)
        finally:
            os.close(fd)

    # -- by number ------------------------------------------------------------------------------------------------

    def records(self, seqs: Iterable[int]) -> dict[int, IndexRecord]:
        self._load_queues()
        found: dict[int, IndexRecord] = {}
        for segment, numbers in by_segment(seqs).items():
            data = self._read(f"seq/{segment}")
            for seq in numbers:
                at = seq % PER_SEGMENT * RECORD.size
                raw = data[at : at + RECORD.size]
                if len(raw) == RECORD.size and raw != EMPTY:
                    found[seq] = unpack(raw, self._names)
        return found

    def reserve(self, seqs: Iterable[int], queues: Iterable[str]) -> None:
        """Allocate index space for these numbers and queues, so that a full disk fails the commit before it has changed
        anything."""
        self._load_queues()
        self.put_counts({queue: Counts() for queue in queues if queue not in self._numbers})
        size = PER_SEGMENT * RECORD.size
        for segment in by_segment(seqs):
            path = f"{self.folder}/seq/{segment}"
            if not exists(path):
                with OpenIndexFile(path, self._access) as fd:
                    os.posix_fallocate(fd, 0, size)

    def put_records(self, changed_rows: Mapping[int, tuple[FileRow, int] | None]) -> None:
        """Write the records, by message number: the card with the end of its deduplication window, or None to remove
        the record. A segment file below the newest one is deleted when it has no records left."""
        self._load_queues()
        for segment, numbers in by_segment(changed_rows).items():
            path = f"{self.folder}/seq/{segment}"
            gone = False
            with OpenIndexFile(path, self._access) as fd:
                for seq in numbers:
                    entry = changed_rows[seq]
                    gone = gone or entry is None
                    packed = EMPTY if entry is None else pack(self._number(entry[0].message.queue), *entry)
                    os.pwrite(fd, packed, seq % PER_SEGMENT * RECORD.size)
            if gone and segment < self.last // PER_SEGMENT and not any(self._read(f"seq/{segment}")):
                os.unlink(path)

    # -- by group -------------------------------------------------------------------------------------------------

    def first_of(self, queue: str, group: int) -> int:
        """Return the number of the first member of a group, or 0 if it has none."""
        self._load_queues()
        number = self._numbers.get(queue)
        return 0 if number is None else self.group_lists.first(number, group)

    def has_group_list(self, queue: str, group: int, members: "array[int]") -> bool:
        """Return True if the index has exactly these members of a group. ``members``: alternating place and number."""
        seq = self.first_of(queue, group)
        for expected in members[1::2]:
            if seq != expected:
                return False
            seq = self.group_lists.behind(seq)
        return seq == 0

    def member(self, message: Message) -> Member:
        self._load_queues()
        return Member(self._number(message.queue), message.group, message.place, message.seq)

    # -- by id and by key -----------------------------------------------------------------------------------------

    def seqs_of(self, queue: str, ids: Iterable[str]) -> dict[str, list[int]]:
        """Return candidate message numbers for each id. Fingerprints may collide, so the caller compares the ids."""
        prints = {id: id_print(queue, id) for id in ids}
        found = self._ids.find(prints.values())
        return {id: [read_id_record(record) for record in found[one]] for id, one in prints.items() if one in found}

    def add_ids(self, names: Iterable[tuple[str, str, int]]) -> None:
        self._ids.add([id_record(*name) for name in names])

    def remove_ids(self, names: Iterable[tuple[str, str, int]]) -> None:
        self._ids.remove([id_record(*name) for name in names])

    def keys_of(self, queue: str, keys: Iterable[str]) -> dict[str, list[KeyRecord]]:
        prints = {key: key_print(queue, key) for key in keys}
        found = self._keys.find(prints.values())
        return {key: [read_key_record(record) for record in found[one]] for key, one in prints.items() if one in found}

    def add_keys(self, keys: Iterable[KeyRecord]) -> None:
        self._keys.add([key_record(key) for key in keys])

    def remove_keys(self, keys: Iterable[KeyRecord]) -> None:
        self._keys.remove([key_record(key) for key in keys])

    # -- rebuild --------------------------------------------------------------------------------------------------

    def replace(
        self,
        counts: Mapping[str, Counts],
        segments: Mapping[int, bytearray],
        ids: Mapping[int, bytearray],
        keys: Mapping[int, bytearray],
        groups: "Mapping[tuple[int, int], array[int]]",
    ) -> None:
        """Replace the whole index. It becomes valid with ``finish``."""
        self.generation = max(self.generation, time.time_ns() // 1000)  # differs from all that other processes have
        kept = {str(segment) for segment in segments}
        for name in os.listdir(f"{self.folder}/seq"):
            if name not in kept:
                os.unlink(f"{self.folder}/seq/{name}")
        with OpenIndexFile(f"{self.folder}/queues", self._access) as fd:
            os.ftruncate(fd, 0)
        self._numbers, self._names, self._total = {}, {}, None
        self._names_changed()
        self.put_counts(counts)
        for segment, data in segments.items():
            with OpenIndexFile(f"{self.folder}/seq/{segment}", self._access) as fd:
                os.posix_fallocate(fd, 0, PER_SEGMENT * RECORD.size)
                os.pwrite(fd, bytes(data), 0)
        self._ids.replace_all(ids)
        self._keys.replace_all(keys)
        self.group_lists.replace(groups)


def _whole(data: bytes) -> bytes:
    """Return ``data`` without a torn row at its end."""
    return data[: len(data) // _QUEUE.size * _QUEUE.size]


def boot_id() -> str:
    """Return the boot id of the machine; without one, a random id, so that the index is not trusted after a reopen."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.urandom(16).hex()
