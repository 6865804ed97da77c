"""Deduplication keys: an empty file each, whose name is the record, in ``meta/keys``, by the end of the window::

    meta/keys/0002947160/1768296360000.16.a3f09c2d11b7e845~018f3c5e-0b7a

That is: until when, the message's number in base 36, the key's fingerprint, the message's id. Keys without an end lie
by the number, a thousand in a folder: ``meta/keys/far-0000000000``. A key outlives its message; when the message is
forgotten first, or was there already when it was given the key, the name has the mark ``.f``, so that a key without
mark and without message is known for what it is: left by a power cut, of a message that never was.

Knows: names. Does not know: messages."""

import re
from typing import NamedTuple

from yirangmq.format.filenames import PER_FOLDER, base36
from yirangmq.stores.files_entries import Key

STRETCH_MS = 600_000
FAR_MS = 9_000_000_000_000
"""In the year 2255: a window that ends then, or later, has no end."""
KEY_FOLDER = "meta/keys"
_NAME = re.compile(r"([0-9]{13,16})\.([0-9a-z]+)\.([0-9a-f]{16})(\.f)?~([a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99})")


class KeyFile(NamedTuple):
    key: Key
    id: str
    outlived: bool = False

    @property
    def path(self) -> str:
        """Below the queue's folder."""
        mark = ".f" if self.outlived else ""
        return f"{KEY_FOLDER}/{folder_of(self.key)}/{beginning(self.key)}{mark}~{self.id}"

    @property
    def is_far(self) -> bool:
        return self.key.until >= FAR_MS


def folder_of(key: Key) -> str:
    """Below ``meta/keys``."""
    return far_folder(key.seq) if key.until >= FAR_MS else near_folder(key.until)


def near_folder(until: int) -> str:
    return f"{until // STRETCH_MS:010d}"


def far_folder(seq: int) -> str:
    return f"far-{seq // PER_FOLDER:010d}"


def beginning(key: Key) -> str:
    """Of the name of its file."""
    return f"{key.until:013d}.{base36(key.seq)}.{key.print.hex()}"


def read_key(name: str) -> KeyFile | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    until, seq, fingerprint, mark, id = found.groups()
    return KeyFile(Key(bytes.fromhex(fingerprint), int(seq, 36), int(until)), id, bool(mark))
