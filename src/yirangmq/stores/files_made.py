"""A whole index in memory, while it is being made from the names: some 70 bytes a message, more for one in a group.

Knows: the records of the index. Does not know: where they come from (files_survey.py)."""

from array import array
from collections import defaultdict

from yirangmq.core.message import Counts
from yirangmq.format.filenames import Card
from yirangmq.stores.files_entries import (
    CODE_OF,
    EMPTY,
    PER_SEGMENT,
    RECORD,
    TOP_NAMES,
    Key,
    Record,
    id_record,
    key_record,
)
from yirangmq.stores.files_shards import PRINT, fingerprint, shard_of


class Made:
    """A queue at a time: ``add_queue``, then its messages."""

    def __init__(self) -> None:
        self.segments: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(PER_SEGMENT * RECORD.size))
        self._ids: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.keys: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.counts: dict[str, Counts] = {}
        self.groups: dict[tuple[int, int], array[int]] = {}
        """By the number of the queue and of the group, places and numbers of its members, in order."""
        self._queues: list[str] = []
        self.last = 0

    def add_queue(self, queue: str) -> None:
        self._queues.append(queue)

    def record(self, seq: int) -> Record | None:
        data = self.segments.get(seq // PER_SEGMENT)
        if data is None:
            return None
        at = seq % PER_SEGMENT * RECORD.size
        raw = bytes(data[at : at + RECORD.size])
        if raw == EMPTY:
            return None
        queue, code, *rest = RECORD.unpack(raw)
        return Record(self._queues[queue], TOP_NAMES[code - 1], *rest)

    def put(self, card: Card, top: str, until: int = 0) -> None:
        """Of the queue added last."""
        message = card.message
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
        data, width = self._ids[_fine(one)], PRINT + 8
        found = []
        at = data.find(one)
        while at >= 0:
            if at % width == 0:
                found.append(int.from_bytes(data[at + PRINT : at + width], "little"))
            at = data.find(one, at + 1)
        return found

    def add_new_id(self, queue: str, id: str, seq: int) -> bool:
        """False: there may be one of this id already, and nothing was added."""
        record = id_record(queue, id, seq)
        shard = self._ids[_fine(record)]
        if record[:PRINT] in shard:
            return False
        shard += record
        return True

    def add_id(self, queue: str, id: str, seq: int) -> None:
        record = id_record(queue, id, seq)
        self._ids[_fine(record)] += record

    def ids(self) -> dict[int, bytearray]:
        """As the index has them: in few files, where here they are in many heaps, to be told apart quickly."""
        joined: defaultdict[int, bytearray] = defaultdict(bytearray)
        for heap in self._ids.values():
            if heap:
                joined[shard_of(heap)] += heap
        return joined

    def add_group(self, group: int, members: "array[int]") -> None:
        """Of the queue added last."""
        self.groups[len(self._queues) - 1, group] = members

    def queue_of(self, number: int) -> str:
        return self._queues[number]

    def has_key(self, one: bytes) -> bool:
        data, width = self.keys[shard_of(one)], PRINT + 16
        at = data.find(one)
        while at >= 0 and at % width:
            at = data.find(one, at + 1)
        return at >= 0

    def add_key(self, key: Key) -> None:
        record = key_record(key)
        self.keys[shard_of(record)] += record


def _fine(record: bytes) -> int:
    """One of 4096 heaps, all of which go into the same shard."""
    return record[0] | (record[1] & 15) << 8
