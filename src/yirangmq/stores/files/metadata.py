"""Metadata of a files store: number counter, notes, policy files, and the list of queues.

- Counter: ``.counter`` is ahead of every number given out, 10,000 at a time, so that no number is given twice.
- Notes: a text file each in ``.notes``, whose path is its key. File names end in ``~.txt``; no key contains ``~``, so
  a note and a folder of notes may have the same name.
- Policies: ``config/policy.json`` of each queue. A person may edit it at any time; it is read again when its
  modification time, size or inode has changed.
- Queues: folders below the root that have an inbox. A listing is reused while the root's modification time is
  unchanged, so the cost of a commit does not depend on the number of queues. Only new folders are looked into.

Totals of a queue are in ``stores.files.totals``."""

import os
import time
from bisect import bisect_right
from typing import NamedTuple

from yirangmq.core.errors import BadInput, BadPolicy, QueueError, StoreError, StoreTooNew
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.validation import QUEUE
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.disk import exists, isdir, read_bytes, subfolders
from yirangmq.stores.files.undo_log import Home

# -- number counter ----------------------------------------------------------------------------------------------------

COUNTER = ".counter"
FORMAT = 3
"""Of the folder as a whole. 1 has no groups, no messages for one consumer and no sizes: names without their marks are
read as before, so that such a folder opens as it is; from then on an older program leaves it alone. 2 keeps whole
totals where 3 keeps their base (totals.py)."""
AHEAD = 10_000
"""Numbers reserved at once in the counter file, so that it need not be written with every batch."""


def write_counter(home: Home, reserved: int) -> None:
    """Temp, sync, rename, sync: by itself, before the numbers are used."""
    root, disk, full = home
    temp = f"{root}/{COUNTER}.tmp"
    if exists(temp):
        disk.unlink(temp)
    fd = disk.open_write(temp)
    try:
        disk.write(fd, dumps({"format": FORMAT, "reserved": reserved}) + b"\n")
        if full:
            disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.rename(temp, f"{root}/{COUNTER}")
    if full:
        disk.fsync_folder(root)


class Counter(NamedTuple):
    format: int
    reserved: int


def read_counter(root: str) -> Counter | None:
    """How far numbers are reserved; None: the file is missing or torn. A store of a later version is refused."""
    try:
        document = loads(read_bytes(f"{root}/{COUNTER}") or b"")
        found = Counter(int(document["format"]), int(document["reserved"]))
    except (QueueError, KeyError, TypeError, ValueError):
        return None
    if found.format > FORMAT:
        raise StoreTooNew(
            f"{root} has format {found.format}, this version knows up to {FORMAT}; upgrade yirangmq to open it"
        )
    return found


# -- notes -------------------------------------------------------------------------------------------------------------

FOLDER = ".notes"
TEMP = ".temp"
"""Where a note is written before it gets its name."""
SUFFIX = "~.txt"


def note_path(root: str, key: str) -> str:
    return f"{root}/{FOLDER}/{key}{SUFFIX}"


def read_note(root: str, key: str) -> str | None:
    text = read_bytes(note_path(root, key))
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{note_path(root, key)} is not UTF-8 text: {error}") from None


def note_keys(root: str, prefix: str) -> list[str]:
    """Those that begin so."""
    folder = f"{root}/{FOLDER}"
    found = []
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            key = os.path.relpath(f"{path}/{name}", folder)
            if name.endswith(SUFFIX) and key.startswith(prefix):
                found.append(key.removesuffix(SUFFIX))
    return found


def unfinished(root: str) -> list[str]:
    """Files of notes that were never finished."""
    try:
        return sorted(os.listdir(f"{root}/{FOLDER}/{TEMP}"))
    except FileNotFoundError:
        return []


# -- policies ----------------------------------------------------------------------------------------------------------

FILE = "config/policy.json"
_Stamp = tuple[int, int, int]


class Policies:
    """One per opening of a store."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._texts: dict[str, tuple[_Stamp, str]] = {}
        self._read: dict[str, tuple[str | None, QueuePolicy]] = {}

    def path(self, queue: str) -> str:
        return f"{self._root}/{queue}/{FILE}"

    def text(self, queue: str) -> str | None:
        """What the file says now; None: there is none."""
        try:
            about = os.stat(self.path(queue))
            stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
            known = self._texts.get(queue)
            if known is None or known[0] != stamp:
                with open(self.path(queue), "rb") as file:
                    known = self._texts[queue] = (stamp, file.read().decode())
            return known[1]
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise BadPolicy(f"{self.path(queue)} is not UTF-8 text: {error}") from None

    def policy(self, queue: str, text: str | None) -> QueuePolicy:
        """Text to values; the same text is read once."""
        known = self._read.get(queue)
        if known is None or known[0] != text:
            known = self._read[queue] = (text, self._parsed(queue, text))
        return known[1]

    def _parsed(self, queue: str, text: str | None) -> QueuePolicy:
        try:
            return read_policy({} if text is None else loads(text.encode()), queue)
        except BadInput as error:
            problem = BadPolicy(f"in {self.path(queue)}: {error}")
            problem.field = error.field
            raise problem from None


# -- queues ------------------------------------------------------------------------------------------------------------

SETTLED_NS = 50_000_000
"""A listing made sooner after the root changed is not reused: a change within the same tick of the file system's clock
would not be noticed."""
IN_TURN = 200
"""Queues that one round of housekeeping looks at beside those that changed."""
LOOKED_AT = 500
"""Queues in which one call of ``policied`` looks for a policy that was put there by hand."""


class QueueFolders:
    def __init__(self, root: str) -> None:
        self._root = root
        self._stamp: int | None = None
        self._names: list[str] = []
        self._known: set[str] = set()
        self._incomplete: list[str] = []
        """Folders without an inbox: it may come without a change of the root."""
        self._policied: set[str] | None = None
        self._looked_to = ""

    def names(self) -> list[str]:
        """In order. Not to be changed."""
        stamp = os.stat(self._root).st_mtime_ns
        if stamp != self._stamp or any(self._has_inbox(name) for name in self._incomplete):
            self._list(stamp)
        return self._names

    def _list(self, stamp: int) -> None:
        now = time.time_ns()
        found = {name for name in subfolders(self._root) if QUEUE.fullmatch(name)}
        known = self._known & found
        known |= {name for name in found - known if self._has_inbox(name)}
        self._known, self._names = known, sorted(known)
        self._incomplete = sorted(found - known)
        self._stamp = stamp if now - stamp > SETTLED_NS else None

    def _has_inbox(self, name: str) -> bool:
        return isdir(f"{self._root}/{name}/inbox")

    def has(self, name: str) -> bool:
        return self._has_inbox(name)

    def policied(self) -> set[str]:
        """Queues with a policy file. The first call looks into all, later ones into those and some others in turn."""
        names = self.names()
        if self._policied is None:
            looked_at = names
        else:
            begin = bisect_right(names, self._looked_to)
            looked_at = [*names[begin : begin + LOOKED_AT], *self._policied]
            self._looked_to = names[begin + LOOKED_AT - 1] if begin + LOOKED_AT < len(names) else ""
        fresh = {name for name in looked_at if exists(f"{self._root}/{name}/{FILE}")}
        self._policied = (self._policied or set()).difference(looked_at) | fresh
        return self._policied

    def note_policy(self, name: str) -> None:
        """It was set here."""
        if self._policied is not None:
            self._policied.add(name)


class Rotation:
    """Which queues housekeeping looks at next, so that a commit looks at few of them. One per opening of a store."""

    def __init__(self) -> None:
        self.finished: set[str] = set()
        """Queues that got done messages since their history was last trimmed."""
        self._at: dict[str, str] = {}
        self.due: tuple[int, int | None] | None = None
        """A commit, and the moment before which nothing on disk was due after it (None: never)."""

    def next(self, what: str, names: list[str]) -> list[str]:
        """Some of the queues, in turn, for one kind of housekeeping."""
        if len(names) <= IN_TURN:
            return names
        after = self._at.get(what)
        if after is None:  # a process that does not live long begins somewhere, not always at the first
            begin = time.time_ns() // 1000 % len(names) // IN_TURN * IN_TURN
        else:
            begin = bisect_right(names, after)
        found = names[begin : begin + IN_TURN]
        self._at[what] = found[-1] if begin + IN_TURN < len(names) else ""
        return found
