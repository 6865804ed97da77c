"""Files of a queue in the files store: deduplication key files, spare files, and the walk over its folders.

A deduplication key is an empty file in ``meta/keys``; its name is the record. A folder covers ten minutes of expiry::

    meta/keys/0002947160/1768296360000.16.a3f09c2d11b7e845~018f3c5e-0b7a

The name holds the end of the window in ms, the message's number in base 36, the key's fingerprint, and the message's
id. Keys without an end are grouped by message number, 1000 per folder: ``meta/keys/far-0000000000``. A key may outlive
its message. The mark ``.f`` is set if the message is forgotten before its key, or existed before it got the key. A key
with neither mark nor message was left by a publish that a power cut interrupted.

Spare files (``meta/spare``, at most 500 per queue) are files of forgotten messages, blanked and reused. On ext4,
creating a file is many times slower for about 30 s after other files were removed; reusing one costs two renames. A
spare holds one byte, the opening brace of every message. Recovery removes all spares."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from yirangmq.fsio.disk import listdir
from yirangmq.stores.files.index import KeyRecord
from yirangmq.stores.files.names import DEPTH, PER_FOLDER, base36
from yirangmq.stores.files.undo_log import SPARE

# -- deduplication keys ------------------------------------------------------------------------------------------------

KEY_BUCKET_MS = 600_000
ENDLESS_FROM_MS = 9_000_000_000_000
"""An instant in the year 2255, in ms. A window that ends then or later counts as having no end."""
KEY_FOLDER = "meta/keys"
_NAME = re.compile(r"([0-9]{13,16})\.([0-9a-z]+)\.([0-9a-f]{16})(\.f)?~([a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99})")


class KeyFile(NamedTuple):
    """A deduplication key file. ``outlived``: the mark ``.f`` is set."""

    key: KeyRecord
    id: str
    outlived: bool = False

    @property
    def path(self) -> str:
        """Path relative to the queue's folder."""
        mark = ".f" if self.outlived else ""
        return f"{KEY_FOLDER}/{folder_of(self.key)}/{name_prefix(self.key)}{mark}~{self.id}"

    @property
    def is_endless(self) -> bool:
        return self.key.until >= ENDLESS_FROM_MS


def folder_of(key: KeyRecord) -> str:
    """Return the key's folder, relative to ``meta/keys``."""
    return endless_folder(key.seq) if key.until >= ENDLESS_FROM_MS else expiry_folder(key.until)


def expiry_folder(until: int) -> str:
    return f"{until // KEY_BUCKET_MS:010d}"


def endless_folder(seq: int) -> str:
    return f"far-{seq // PER_FOLDER:010d}"


def name_prefix(key: KeyRecord) -> str:
    """Return the part of the key's file name before the mark and the message id."""
    return f"{key.until:013d}.{base36(key.seq)}.{key.print.hex()}"


def read_key(name: str) -> KeyFile | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    until, seq, fingerprint, mark, id = found.groups()
    return KeyFile(KeyRecord(bytes.fromhex(fingerprint), int(seq, 36), int(until)), id, bool(mark))


# -- spare files -------------------------------------------------------------------------------------------------------

SPARE_FOLDER = "meta/spare"
MAX_SPARES = 500
"""Upper bound of spare files per queue. Files beyond it are removed."""


class SpareFiles:
    """Spare files of all queues. One instance per open store.

    The remembered names are hints only, because other processes use the same spare files."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, list[str]] = {}
        self._listed_queues: set[str] = set()
        self._taken: set[str] = set()

    def begin(self) -> None:
        """Start a batch: queues without spare files are listed again when one is needed."""
        self._listed_queues.clear()
        self._taken.clear()

    def folder(self, queue: str) -> str:
        return f"{self._root}/{queue}/{SPARE_FOLDER}"

    def path(self, queue: str, seq: int) -> str:
        return f"{self.folder(queue)}/{seq}{SPARE}"

    def take(self, queue: str) -> str | None:
        """Return the path of a spare file to write, or None. If another process has used it meanwhile, the write
        creates a new file of that name."""
        known = self._known.setdefault(queue, [])
        if not known and queue not in self._listed_queues:
            self._listed_queues.add(queue)
            known += [name for name in listdir(self.folder(queue)) if f"{queue}/{name}" not in self._taken]
        if not known:
            return None
        name = known.pop()
        self._taken.add(f"{queue}/{name}")
        return f"{self.folder(queue)}/{name}"

    def free_slots(self, queue: str) -> int:
        """Return how many more spare files the queue may keep."""
        return MAX_SPARES - len(listdir(self.folder(queue)))

    def forget(self, queue: str) -> None:
        self._known.pop(queue, None)


# -- walk over a queue's folders ---------------------------------------------------------------------------------------

FAILURES = "meta/failures"
TEMP = "meta/temp"


def walk(folder: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield for each message folder of a queue: the folder of the state, the folder below it, and its file names."""
    for top, depth in DEPTH.items():
        for below, names in _at_depth(f"{folder}/{top}", "", depth):
            yield top, below, names


def stray_files(folder: str) -> Iterator[str]:
    """Yield paths of files that are not deep enough to be messages, relative to the queue's folder.

    Files directly in ``inbox`` are not included: they were dropped there."""
    for top, depth in DEPTH.items():
        for level in range(depth):
            if (top, level) == ("inbox", 0):
                continue
            for below, names in _at_depth(f"{folder}/{top}", "", level):
                for name in names:
                    if (top, name) != ("archive", "results.jsonl"):
                        yield "/".join(part for part in (top, below, name) if part)


def walk_keys(folder: str) -> Iterator[tuple[str, list[str]]]:
    return _at_depth(f"{folder}/{KEY_FOLDER}", "", 1)


def walk_failures(folder: str) -> Iterator[tuple[str, list[str]]]:
    return _at_depth(f"{folder}/{FAILURES}", "", 1)


def temps(folder: str) -> list[str]:
    return sorted(listdir(f"{folder}/{TEMP}"))


def spares(folder: str) -> list[str]:
    return sorted(listdir(f"{folder}/{SPARE_FOLDER}"))


def _at_depth(base: str, below: str, depth: int) -> Iterator[tuple[str, list[str]]]:
    folders, names = _entries(f"{base}/{below}" if below else base)
    if depth == 0:
        yield below, names
        return
    for name in folders:
        yield from _at_depth(base, f"{below}/{name}" if below else name, depth - 1)


def _entries(path: str) -> tuple[list[str], list[str]]:
    folders: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name[0] != ".":
                    (folders if entry.is_dir() else names).append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return sorted(folders), sorted(names)


def folder_number(folder: str) -> int:
    """Return the number in the name of a folder ordered by place or message number; -1 for one ordered by time."""
    name = os.path.basename(folder)
    by_time = os.path.basename(os.path.dirname(folder)) == "keys"
    return int(name) if len(name) == 10 and name.isdecimal() and not by_time else -1
