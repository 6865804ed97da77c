"""Examples of records. ``python -m tests.support.record_examples`` prints what tests/golden/wire/records.txt holds; a
line that changes is a break of the format, and needs another version."""

from itertools import pairwise

from yirangmq.core.topics import NO_HEADERS, Record
from yirangmq.wire.records import HEAD, encode

AT = 1_768_296_060_123_456_789
EXAMPLES: dict[str, tuple[Record, bool]] = {
    "smallest": (Record(1, 1, 0, "t", None, NO_HEADERS, b""), False),
    "plain": (Record(7, 3, AT, "trades", None, NO_HEADERS, b"hello"), False),
    "first of a write": (Record(8, 4, AT, "trades", None, NO_HEADERS, b"hello"), True),
    "empty key": (Record(9, 1, AT, "quotes", "", NO_HEADERS, b"\x00\xff"), False),
    "all members": (Record(10, 2, AT, "quotes", "서울", {"type": "tick", "n": ""}, b'{"p":1}'), True),
    "past 2^32": (Record(2**32, 2**32 + 1, AT, "trades", None, NO_HEADERS, b"x"), False),
    "last of all": (Record(2**64 - 1, 2**64 - 1, 2**64 - 1, "trades", None, NO_HEADERS, b"x"), False),
}
CUTS = (0, 4, 5, 6, 8, 12, 16, 24, 32, 40, 42, 44, 46, HEAD)
"""Where the members of a head begin."""


def spelled(frame: bytes) -> str:
    head = " ".join(frame[begin:end].hex() for begin, end in pairwise(CUTS))
    return f"{head} | {frame[HEAD:].hex(' ')}".rstrip()


def frame_of(name: str) -> bytes:
    record, synced = EXAMPLES[name]
    return encode(record, synced=synced)


if __name__ == "__main__":
    for name in EXAMPLES:
        print(f"{name:<16}  {spelled(frame_of(name))}")
