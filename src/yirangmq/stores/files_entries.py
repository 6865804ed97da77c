"""What stands in the index of a files store, entry by entry: a message by its number, an id, a deduplication key.

Knows: their bytes. Does not know: files (files_index.py, files_shards.py)."""

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from yirangmq.format.filenames import TOPS, Card, top_of
from yirangmq.stores.files_shards import PRINT, fingerprint

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
