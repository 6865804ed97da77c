"""Index maintenance of the files store: the update with each commit, and a whole index in memory for a rebuild.

``IndexUpdate.prepare`` writes everything that needs disk space before the commit changes anything else, so that a full
disk fails the commit early. ``IndexUpdate.finish`` writes the rest when the batch is durable. If it fails, the index
stays dirty and the next transaction rebuilds it.

``IndexBuilder`` builds an index in memory for ``stores.files.fsck``, from the file names. It takes about 70 bytes a
message, and more for a member of a group."""

import os
from array import array
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from yirangmq.core.message import Counts
from yirangmq.core.states import UNFINISHED
from yirangmq.fsio.disk import read_bytes
from yirangmq.stores.files.index import (
    CODE_OF,
    EMPTY,
    PER_SEGMENT,
    RECORD,
    STATE_FOLDER_NAMES,
    Index,
    IndexRecord,
    KeyRecord,
    id_record,
    key_record,
)
from yirangmq.stores.files.layout import read_key, walk, walk_keys
from yirangmq.stores.files.message_file import fill_from_content
from yirangmq.stores.files.names import OMITTED, FileRow, read_name
from yirangmq.stores.files.secondary_indexes import FINGERPRINT_BYTES, Member, fingerprint, shard_of
from yirangmq.stores.files.timer_index import TimerEntry, TimerIndex
from yirangmq.stores.files.transaction import FilesTransaction

# -- update with a commit ----------------------------------------------------------------------------------------------


class CommitFacts(NamedTuple):
    """Facts from the file operations of a commit that the index update needs."""

    trashed: dict[str, str]
    """Deleted queues, and the folder in the trash that each was moved to."""
    untils: dict[int, int]
    """End of the deduplication window of each new message that has a key, in ms, by message number."""


class IndexUpdate:
    """Index update of one batch. An instance is used once, under the store's lock."""

    def __init__(self, index: Index, timer_index: TimerIndex, transaction: FilesTransaction) -> None:
        self._index = index
        self._timer_index = timer_index
        self._transaction = transaction
        self._pending = transaction.pending
        before, after = transaction.pending.before, transaction.pending.after
        self.before = {seq: row for seq, row in before.items() if row is not None}
        self.new = [seq for seq, row in before.items() if row is None and after[seq] is not None]

    @property
    def _keys_in(self) -> list[KeyRecord]:
        return [file.key for file in self._pending.keys.values()]

    @property
    def _keys_out(self) -> list[KeyRecord]:
        given = set(self._keys_in)
        return [key for key in (*self._pending.revoked_keys, *self._pending.expired_keys) if key not in given]

    def prepare(self, folders: Mapping[int, str]) -> None:
        """Write what needs disk space. ``folders``: new folder of each message, relative to the root."""
        pending, index = self._pending, self._index
        index.reserve(self.new, pending.deltas)
        index.add_ids([self._name(seq) for seq in self.new])
        index.add_keys(self._keys_in)
        index.group_lists.reserve(self._joining())
        notes: defaultdict[int, list[TimerEntry]] = defaultdict(list)
        for seq, row in pending.after.items():
            if row is not None and row.message.due_at:
                notes[row.message.changed_at].append(TimerEntry(row.message.due_at, folders[seq]))
        for now, some in notes.items():
            self._timer_index.add_entries(some, now)

    def _joining(self) -> list[Member]:
        """Return the members that are inserted into a group's list, or moved within it."""
        rows = (row for row in self._pending.after.values() if row is not None)
        return [self._index.member(row.message) for row in rows if _position_in_group(row) and self._is_elsewhere(row)]

    def _leaving(self) -> list[Member]:
        rows = self.before.values()
        return [self._index.member(row.message) for row in rows if _position_in_group(row) and self._is_elsewhere(row)]

    def _is_elsewhere(self, row: FileRow) -> bool:
        seq = row.message.seq
        return _position_in_group(self.before.get(seq)) != _position_in_group(self._pending.after.get(seq))

    def withdraw(self) -> None:
        """Undo ``prepare`` after a failed batch. Errors are ignored, because stale entries are harmless."""
        try:
            self._index.group_lists.withdraw(self._joining())
            self._index.remove_ids([self._name(seq) for seq in self.new])
            self._index.remove_keys(self._keys_in)
        except OSError:
            pass  # lookups compare with the file names, so stale entries are harmless

    def _name(self, seq: int) -> tuple[str, str, int]:
        row = self._pending.after[seq] or self.before[seq]
        return row.message.queue, row.message.id, seq

    def finish(self, reserved: int, done: CommitFacts) -> None:
        """Write the rest of the update. The batch is durable already: after an error here the index stays dirty, and
        the next transaction rebuilds it."""
        pending, index, last = self._pending, self._index, self._transaction.last
        try:
            for queue, folder in done.trashed.items():
                self._drop_from_index(queue, folder)
            index.put_counts({queue: self._transaction.counts(queue) for queue in pending.deltas})
            known = index.records(self.before)
            entries: dict[int, tuple[FileRow, int] | None] = dict.fromkeys(self.before)
            for seq, row in pending.after.items():
                if row is not None:
                    until = done.untils.get(seq) or (known[seq].until if seq in known else 0)
                    entries[seq] = (row, until)
            index.put_records(entries)
            index.group_lists.change(self._leaving(), self._joining(), last)
            index.remove_ids([self._name(seq) for seq, entry in entries.items() if entry is None])
            index.remove_keys(self._keys_out)
            index.finish(last, reserved)
        except OSError:
            pass

    def _drop_from_index(self, queue: str, folder: str) -> None:
        """Remove all entries of a deleted queue from the index, one folder at a time."""
        for top, below, names in walk(folder):
            paths = [f"{folder}/{top}/{below}/{name}" for name in names]
            rows = [row for path in paths if (row := _read_row(queue, top, path)) is not None]
            members = [self._index.member(row.message) for row in rows if _position_in_group(row)]
            self._index.group_lists.change(members, [], self._index.last)
            self._index.put_records(dict.fromkeys(row.message.seq for row in rows))
            self._index.remove_ids([(queue, row.message.id, row.message.seq) for row in rows])
        for _, names in walk_keys(folder):
            self._index.remove_keys([file.key for name in names if (file := read_key(name)) is not None])
        self._index.drop_queue(queue)


def _read_row(queue: str, top: str, path: str) -> FileRow | None:
    row = read_name(queue, top, os.path.basename(path))
    is_short = row is not None and row.message.group == OMITTED
    return fill_from_content(row, read_bytes(path) or b"") if row is not None and is_short else row


def _position_in_group(row: FileRow | None) -> int:
    """Return the message's place in its group's list; 0 if it has no group or is finished."""
    if row is None or not row.message.group or row.message.state not in UNFINISHED:
        return 0
    return row.message.place


# -- index in memory, for a rebuild ------------------------------------------------------------------------------------


class IndexBuilder:
    """Index builder: a complete index in memory, to replace the one on disk.

    Queues are added one after the other: first ``add_queue``, then the messages of that queue."""

    def __init__(self) -> None:
        self.segments: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(PER_SEGMENT * RECORD.size))
        self._ids: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.keys: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.counts: dict[str, Counts] = {}
        self.groups: dict[tuple[int, int], array[int]] = {}
        """Members of each group, by queue number and group: alternating place and message number, in order."""
        self._queues: list[str] = []
        self.last = 0

    def add_queue(self, queue: str) -> None:
        self._queues.append(queue)

    def record(self, seq: int) -> IndexRecord | None:
        data = self.segments.get(seq // PER_SEGMENT)
        if data is None:
            return None
        at = seq % PER_SEGMENT * RECORD.size
        raw = bytes(data[at : at + RECORD.size])
        if raw == EMPTY:
            return None
        queue, code, *rest = RECORD.unpack(raw)
        return IndexRecord(self._queues[queue], STATE_FOLDER_NAMES[code - 1], *rest)

    def put(self, row: FileRow, top: str, until: int = 0) -> None:
        """Add or replace the record of a message of the queue added last."""
        message = row.message
        self.last = max(self.last, message.seq, message.place)
        offset = message.seq % PER_SEGMENT * RECORD.size
        number, _, _, _, rank, place, *_, target, _ = message
        record = (len(self._queues) - 1, CODE_OF[top], rank, place, message.changed_at, target, until)
        RECORD.pack_into(self.segments[number // PER_SEGMENT], offset, *record)

    def remove(self, seq: int) -> None:
        offset = seq % PER_SEGMENT * RECORD.size
        self.segments[seq // PER_SEGMENT][offset : offset + RECORD.size] = EMPTY

    def set_until(self, seq: int, until: int) -> None:
        offset = seq % PER_SEGMENT * RECORD.size
        raw = RECORD.unpack_from(self.segments[seq // PER_SEGMENT], offset)
        RECORD.pack_into(self.segments[seq // PER_SEGMENT], offset, *raw[:-1], until)

    def seqs_of(self, queue: str, id: str) -> list[int]:
        one = fingerprint(f"{queue}/{id}")
        data, width = self._ids[_fine(one)], FINGERPRINT_BYTES + 8
        found = []
        at = data.find(one)
        while at >= 0:
            if at % width == 0:
                found.append(int.from_bytes(data[at + FINGERPRINT_BYTES : at + width], "little"))
            at = data.find(one, at + 1)
        return found

    def add_new_id(self, queue: str, id: str, seq: int) -> bool:
        """Add an id and return True. If the fingerprint is present, add nothing and return False: the id may be a
        duplicate."""
        record = id_record(queue, id, seq)
        shard = self._ids[_fine(record)]
        if record[:FINGERPRINT_BYTES] in shard:
            return False
        shard += record
        return True

    def add_id(self, queue: str, id: str, seq: int) -> None:
        record = id_record(queue, id, seq)
        self._ids[_fine(record)] += record

    def ids(self) -> dict[int, bytearray]:
        """Return the id records by index file. In memory they are kept in 4096 heaps, so that a search is quick; the
        index has fewer files."""
        joined: defaultdict[int, bytearray] = defaultdict(bytearray)
        for heap in self._ids.values():
            if heap:
                joined[shard_of(heap)] += heap
        return joined

    def add_group(self, group: int, members: "array[int]") -> None:
        """Add the members of a group of the queue added last."""
        self.groups[len(self._queues) - 1, group] = members

    def queue_of(self, number: int) -> str:
        return self._queues[number]

    def has_key(self, one: bytes) -> bool:
        data, width = self.keys[shard_of(one)], FINGERPRINT_BYTES + 16
        at = data.find(one)
        while at >= 0 and at % width:
            at = data.find(one, at + 1)
        return at >= 0

    def add_key(self, key: KeyRecord) -> None:
        record = key_record(key)
        self.keys[shard_of(record)] += record


def _fine(record: bytes) -> int:
    """Return the heap of a record, one of 4096. All records of a heap belong to the same index file."""
    return record[0] | (record[1] & 15) << 8
