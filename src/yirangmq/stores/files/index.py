"""Index of the files store, derived from the file names: records by number, and lookups by id, key and group.

The names of the files are the truth; the index, in ``.index``, only spares listing them all. It holds

- a record per message, by number, at a fixed offset of a small file;
- ids and deduplication keys (hash indexes), and groups (linked lists): ``stores.files.secondary_indexes``;
- due times: ``stores.files.timer_index``;
- the counters of each queue.

The index is never synced. It is trusted only if its state file was written since the machine started, for this very
folder, by a process that finished its commit. Otherwise ``stores.files.recovery`` rebuilds it. Used under the store's
lock."""

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
from yirangmq.stores.files.names import TOPS, Card, top_of
from yirangmq.stores.files.secondary_indexes import PRINT, Chains, Member, Shards, fingerprint, writing

# -- records -----------------------------------------------------------------------------------------------------------

PER_SEGMENT = 1000
"""Messages of one file, by their numbers."""
RECORD = struct.Struct("<IBxxxqqqqq")
EMPTY = bytes(RECORD.size)
ID_SIZE = PRINT + 8
KEY_SIZE = PRINT + 16
TOP_NAMES = tuple(TOPS)
CODE_OF = {top: code for code, top in enumerate(TOP_NAMES, 1)}


class Record(NamedTuple):
    """Enough to name the folder a message is in. ``until``: the end of its deduplication window, or 0."""

    queue: str
    top: str
    rank: int
    place: int
    changed_at: int
    target: int
    until: int


class Key(NamedTuple):
    """A deduplication key as the index has it."""

    print: bytes
    seq: int
    until: int


def pack(queue: int, card: Card, until: int) -> bytes:
    """``queue``: its number in the index."""
    message = card.message
    code = CODE_OF[top_of(message)]
    return RECORD.pack(queue, code, message.rank, message.place, message.changed_at, message.target, until)


def unpack(raw: bytes, queues: Mapping[int, str]) -> Record:
    queue, code, *rest = RECORD.unpack(raw)
    return Record(queues.get(queue, ""), TOP_NAMES[code - 1], *rest)


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
    """The message's number."""
    return int.from_bytes(record[PRINT:], "little")


def key_print(queue: str, key: str) -> bytes:
    return fingerprint(f"{queue}/{key}")


def key_record(key: Key) -> bytes:
    return key.print + key.seq.to_bytes(8, "little") + key.until.to_bytes(8, "little")


def read_key_record(record: bytes) -> Key:
    return Key(record[:PRINT], int.from_bytes(record[PRINT:-8], "little"), int.from_bytes(record[-8:], "little"))


# -- index files -------------------------------------------------------------------------------------------------------

MAGIC = b"yrMQidx3"
_STATE = struct.Struct("<8sIIQQQ40sQQ")
_DIRTY_AT = 8
_DIRTY, _CLEAN = b"\1", b"\0"
"""The first byte of a field of four, the others of which are 0. One byte is written or not: a write that fails half way
through never marks an index as clean."""
_GENERATION_AT = 16
_QUEUE = struct.Struct(f"<200s{len(Counts._fields)}q")
NAMES_BEGIN = 1
SUM_SHARE = 100
"""Summing up the counts of all queues may take this part of the time: it is not done again before so many times as long
as it took."""


class Index:
    """One per opening of a store; used under the store's lock only."""

    def __init__(self, root: str, folder: str = "") -> None:
        self._root = root
        self.folder = folder or f"{root}/.index"
        self._fd = -1
        self._inode = -1
        self._boot = boot_id()
        self._access = access_in(root)
        self._ids = Shards(f"{self.folder}/ids", ID_SIZE, self._access)
        self._keys = Shards(f"{self.folder}/keys", KEY_SIZE, self._access)
        self.chains = Chains(self.folder, self._access)
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._names_at = 0
        """Which set of queues ``_numbers`` has: changed by every commit that makes or drops a queue; 0: none, or one of
        a program before there was such a number."""
        self._names_now = 0
        self._total: tuple[Counts, int] | None = None
        """The counts of all queues together, and the commit for which that is so."""
        self._sum_at = 0.0
        self.generation = 0
        self.last = 0
        self.reserved = 0
        self._open()

    # -- the state of the index itself ----------------------------------------------------------------------------

    @property
    def state_path(self) -> str:
        """Changed by every commit of every process: the file to watch."""
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
        """The descriptor is forgotten first, and the inode with it: if what follows fails, ``load`` opens it again."""
        fd, self._fd, self._inode = self._fd, -1, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def load(self) -> bool:
        """Read how things stand; False: the index is not to be believed."""
        try:
            if os.stat(self.state_path).st_ino != self._inode:
                self._open()
        except FileNotFoundError:
            self._open()
        data = os.pread(self._fd, _STATE.size, 0)
        if len(data) < _STATE.size:
            return False
        magic, dirty, names_now, generation, last, reserved, boot, inode, device = _STATE.unpack(data)
        if magic != MAGIC or dirty or (boot.rstrip(b"\0").decode(), inode, device) != (self._boot, *self._place()):
            return False
        if generation != self.generation and not names_now:
            self._names_at = 0
        self._names_now = names_now
        self.generation, self.last, self.reserved = generation, last, reserved
        return True

    def _place(self) -> tuple[int, int]:
        found = os.stat(self._root)
        return found.st_ino, found.st_dev

    def begin(self) -> None:
        """From here until ``finish`` a death leaves the index in doubt."""
        os.pwrite(self._fd, _DIRTY, _DIRTY_AT)

    doubt = begin
    """Somebody moved files behind our back: whoever comes next makes the index anew."""

    def end(self) -> None:
        """Nothing happened after all."""
        os.pwrite(self._fd, _CLEAN, _DIRTY_AT)

    def seen(self) -> int:
        """The number of the latest commit by anybody, also without the lock."""
        data = os.pread(self._fd, 8, _GENERATION_AT)
        return int.from_bytes(data, "little")

    def finish(self, last: int, reserved: int) -> None:
        self.generation += 1
        self.last, self.reserved = last, reserved
        if self._total is not None and self._total[1] == self.generation - 1:
            self._total = self._total[0], self.generation
        self._names_now = self._names_now or NAMES_BEGIN
        state = (self._names_now, self.generation, last, reserved, self._boot.encode(), *self._place())
        os.pwrite(self._fd, _STATE.pack(MAGIC, 0, *state), 0)

    # -- queues and counters --------------------------------------------------------------------------------------

    def _load_queues(self) -> None:
        """Names and numbers; they are read again when another process has made or dropped a queue."""
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
            with writing(f"{self.folder}/queues", self._access) as fd:
                for queue, numbers in counts.items():
                    number = self._number(queue)
                    self._count_in(fd, number, numbers)
                    os.pwrite(fd, _QUEUE.pack(queue.encode(), *numbers), number * _QUEUE.size)
        except BaseException:
            self._forget_queues()
            raise

    def _forget_queues(self) -> None:
        """After an error a queue may have a number here and none in the file: they are read again."""
        self._names_at, self._total = 0, None

    def _number(self, queue: str) -> int:
        number = self._numbers.get(queue)
        if number is None:
            number = len(self._numbers) if len(self._numbers) not in self._names else max(self._names) + 1
            self._numbers[queue], self._names[number] = number, queue
            self._names_changed()
        return number

    def _names_changed(self) -> None:
        """``finish`` tells others. Never 0, which says that it is not known."""
        self._names_at = self._names_now = self._names_now % 0xFFFFFFFF + 1

    def _count_in(self, fd: int, number: int, now: Counts) -> None:
        """The sum over all queues follows what changes; ``finish`` says for which commit it holds."""
        if self._total is not None:
            data = os.pread(fd, _QUEUE.size, number * _QUEUE.size)
            before = _QUEUE.unpack(data)[1:] if len(data) == _QUEUE.size else Counts()
            changed = zip(self._total[0], now, before, strict=True)
            self._total = Counts(*(total + new - old for total, new, old in changed)), self._total[1]

    def totals(self) -> Counts:
        """The counts of all queues together. Summed up once, and again when another process has committed, but not too
        often (``SUM_SHARE``): until then they are what they were."""
        if self._total is None or (self._total[1] != self.generation and time.monotonic() >= self._sum_at):
            begun = time.monotonic()
            rows = (Counts(*row[1:]) for row in _QUEUE.iter_unpack(_whole(self._read("queues"))))
            self._total = sum_of(rows), self.generation
            self._sum_at = begun + SUM_SHARE * (time.monotonic() - begun)
        return self._total[0]

    def drop_queue(self, queue: str) -> None:
        """Its counters; its messages are dropped one by one."""
        self._load_queues()
        number = self._numbers.pop(queue, None)
        if number is not None:
            del self._names[number]
            self._names_changed()
            try:
                with writing(f"{self.folder}/queues", self._access) as fd:
                    self._count_in(fd, number, Counts())
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

    def records(self, seqs: Iterable[int]) -> dict[int, Record]:
        self._load_queues()
        found: dict[int, Record] = {}
        for segment, numbers in by_segment(seqs).items():
            data = self._read(f"seq/{segment}")
            for seq in numbers:
                at = seq % PER_SEGMENT * RECORD.size
                raw = data[at : at + RECORD.size]
                if len(raw) == RECORD.size and raw != EMPTY:
                    found[seq] = unpack(raw, self._names)
        return found

    def reserve(self, seqs: Iterable[int], queues: Iterable[str]) -> None:
        """Make room for these now, so that a full disk refuses before anything has happened."""
        self._load_queues()
        self.put_counts({queue: Counts() for queue in queues if queue not in self._numbers})
        size = PER_SEGMENT * RECORD.size
        for segment in by_segment(seqs):
            path = f"{self.folder}/seq/{segment}"
            if not exists(path):
                with writing(path, self._access) as fd:
                    os.posix_fallocate(fd, 0, size)

    def put_records(self, cards: Mapping[int, tuple[Card, int] | None]) -> None:
        """Each message with the end of its deduplication window, or None: it is gone."""
        self._load_queues()
        for segment, numbers in by_segment(cards).items():
            path = f"{self.folder}/seq/{segment}"
            gone = False
            with writing(path, self._access) as fd:
                for seq in numbers:
                    entry = cards[seq]
                    gone = gone or entry is None
                    packed = EMPTY if entry is None else pack(self._number(entry[0].message.queue), *entry)
                    os.pwrite(fd, packed, seq % PER_SEGMENT * RECORD.size)
            if gone and segment < self.last // PER_SEGMENT and not any(self._read(f"seq/{segment}")):
                os.unlink(path)

    # -- by group -------------------------------------------------------------------------------------------------

    def first_of(self, queue: str, group: int) -> int:
        """The number of the first of this group; 0: it has none."""
        self._load_queues()
        number = self._numbers.get(queue)
        return 0 if number is None else self.chains.first(number, group)

    def has_chain(self, queue: str, group: int, members: "array[int]") -> bool:
        """Whether these, places and numbers, are what it has of a group."""
        seq = self.first_of(queue, group)
        for expected in members[1::2]:
            if seq != expected:
                return False
            seq = self.chains.behind(seq)
        return seq == 0

    def member(self, message: Message) -> Member:
        self._load_queues()
        return Member(self._number(message.queue), message.group, message.place, message.seq)

    # -- by id and by key -----------------------------------------------------------------------------------------

    def seqs_of(self, queue: str, ids: Iterable[str]) -> dict[str, list[int]]:
        """The numbers that may belong to these ids; the message's own name decides."""
        prints = {id: id_print(queue, id) for id in ids}
        found = self._ids.find(prints.values())
        return {id: [read_id_record(record) for record in found[one]] for id, one in prints.items() if one in found}

    def add_ids(self, names: Iterable[tuple[str, str, int]]) -> None:
        self._ids.add([id_record(*name) for name in names])

    def remove_ids(self, names: Iterable[tuple[str, str, int]]) -> None:
        self._ids.remove([id_record(*name) for name in names])

    def keys_of(self, queue: str, keys: Iterable[str]) -> dict[str, list[Key]]:
        prints = {key: key_print(queue, key) for key in keys}
        found = self._keys.find(prints.values())
        return {key: [read_key_record(record) for record in found[one]] for key, one in prints.items() if one in found}

    def add_keys(self, keys: Iterable[Key]) -> None:
        self._keys.add([key_record(key) for key in keys])

    def remove_keys(self, keys: Iterable[Key]) -> None:
        self._keys.remove([key_record(key) for key in keys])

    # -- all of it anew -------------------------------------------------------------------------------------------

    def replace(
        self,
        counts: Mapping[str, Counts],
        segments: Mapping[int, bytearray],
        ids: Mapping[int, bytearray],
        keys: Mapping[int, bytearray],
        groups: "Mapping[tuple[int, int], array[int]]",
    ) -> None:
        """Put what was found by listing in place of what is there. ``finish`` makes it valid."""
        self.generation = max(self.generation, time.time_ns() // 1000)  # unlike any that others remember
        kept = {str(segment) for segment in segments}
        for name in os.listdir(f"{self.folder}/seq"):
            if name not in kept:
                os.unlink(f"{self.folder}/seq/{name}")
        with writing(f"{self.folder}/queues", self._access) as fd:
            os.ftruncate(fd, 0)
        self._numbers, self._names, self._total = {}, {}, None
        self._names_changed()
        self.put_counts(counts)
        for segment, data in segments.items():
            with writing(f"{self.folder}/seq/{segment}", self._access) as fd:
                os.posix_fallocate(fd, 0, PER_SEGMENT * RECORD.size)
                os.pwrite(fd, bytes(data), 0)
        self._ids.replace_all(ids)
        self._keys.replace_all(keys)
        self.chains.replace(groups)


def _whole(data: bytes) -> bytes:
    """Without a record that is not whole."""
    return data[: len(data) // _QUEUE.size * _QUEUE.size]


def boot_id() -> str:
    """Which start of the machine this is; where that cannot be known, one that nobody else will ever have."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.urandom(16).hex()
