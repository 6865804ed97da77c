"""Metadata of a files store: number counter, notes, policy files, and the list of queues.

- Counter: ``.counter`` is ahead of every number in use, by steps of 10,000, so that no number is assigned twice.
- Notes: one text file per note in ``.notes``; the path is the key. File names end in ``~.txt``. No key contains ``~``,
  so a note and a folder of notes may have the same name.
- Policies: ``config/policy.json`` of each queue. It may be edited by hand at any time; it is read again when its
  modification time, size or inode has changed.
- Queues: folders below the root that have an inbox. A listing is reused while the root's modification time is
  unchanged, so the cost of a commit does not depend on the number of queues. Only new folders are inspected.

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
from yirangmq.stores.files.undo_log import StoreRoot

# -- number counter ----------------------------------------------------------------------------------------------------

COUNTER = ".counter"
FORMAT = 3
"""Format version of the store. Format 1 has no groups, targets and sizes in file names. Names without these marks are
still valid, so a folder of format 1 opens without conversion; after that an older release refuses it. Format 2 stores
whole totals, format 3 their base (``stores.files.totals``)."""
NUMBERS_AHEAD = 10_000
"""Numbers reserved per write of the counter file, so that not every batch writes it."""


def write_counter(store_root: StoreRoot, reserved: int) -> None:
    """Write the counter file: temporary file, sync, rename, sync of the folder. It is durable before the numbers are
    used."""
    root, disk, full = store_root
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
    """Content of the counter file: the store's format version, and the last reserved number."""

    format: int
    reserved: int


def read_counter(root: str) -> Counter | None:
    """Read the counter file. Return None if it is missing or torn; raise ``StoreTooNew`` for a later format."""
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
"""Folder for notes that are being written, before the rename."""
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
    """Return the keys of all notes that begin with ``prefix``."""
    folder = f"{root}/{FOLDER}"
    found = []
    for path, folders, names in os.walk(os.path.dirname(f"{folder}/{prefix}")):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            key = os.path.relpath(f"{path}/{name}", folder)
            if name.endswith(SUFFIX) and key.startswith(prefix):
                found.append(key.removesuffix(SUFFIX))
    return found


def unfinished_notes(root: str) -> list[str]:
    """Return the temporary files of interrupted note writes."""
    try:
        return sorted(os.listdir(f"{root}/{FOLDER}/{TEMP}"))
    except FileNotFoundError:
        return []


# -- policies ----------------------------------------------------------------------------------------------------------

FILE = "config/policy.json"
_Stamp = tuple[int, int, int]


class Policies:
    """Policy files of all queues, with a cache of texts and parsed policies. One instance per open store."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._texts: dict[str, tuple[_Stamp, str]] = {}
        self._read: dict[str, tuple[str | None, QueuePolicy]] = {}

    def path(self, queue: str) -> str:
        return f"{self._root}/{queue}/{FILE}"

    def text(self, queue: str) -> str | None:
        """Return the current text of the policy file, or None if there is none."""
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
        """Parse a policy text. The result is cached until the text changes."""
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

MIN_STAMP_AGE_NS = 50_000_000
"""Minimum age in ns of the root's last change for a listing to be reused. A change within the same tick of the file
system's clock would not alter the modification time."""
QUEUES_PER_TURN = 200
"""Queues that one round of housekeeping checks in addition to those that changed."""
POLICIES_PER_CALL = 500
"""Queues that one call of ``queues_with_policy`` checks for a policy file written by hand."""


class QueueFolders:
    """Cached list of the queues of a store, and of those with a policy file. Not thread-safe."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._stamp: int | None = None
        self._names: list[str] = []
        self._known: set[str] = set()
        self._incomplete: list[str] = []
        """Folders without an inbox. Creating the inbox does not change the root's modification time."""
        self._policied: set[str] | None = None
        self._checked_up_to = ""

    def names(self) -> list[str]:
        """Return the names of all queues, sorted. The caller must not change the list."""
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
        self._stamp = stamp if now - stamp > MIN_STAMP_AGE_NS else None

    def _has_inbox(self, name: str) -> bool:
        return isdir(f"{self._root}/{name}/inbox")

    def has(self, name: str) -> bool:
        return self._has_inbox(name)

    def queues_with_policy(self) -> set[str]:
        """Return the queues with a policy file.

        The first call checks all queues. Later calls check the queues already found and ``POLICIES_PER_CALL`` others,
        in rotation."""
        names = self.names()
        if self._policied is None:
            checked = names
        else:
            begin = bisect_right(names, self._checked_up_to)
            checked = [*names[begin : begin + POLICIES_PER_CALL], *self._policied]
            self._checked_up_to = names[begin + POLICIES_PER_CALL - 1] if begin + POLICIES_PER_CALL < len(names) else ""
        fresh = {name for name in checked if exists(f"{self._root}/{name}/{FILE}")}
        self._policied = (self._policied or set()).difference(checked) | fresh
        return self._policied

    def note_policy(self, name: str) -> None:
        """Record that this process has set a policy of the queue."""
        if self._policied is not None:
            self._policied.add(name)


class Rotation:
    """Rotation of housekeeping over the queues, so that one commit checks only a few. One instance per open store."""

    def __init__(self) -> None:
        self.finished: set[str] = set()
        """Queues with new done messages since their history was last trimmed."""
        self._at: dict[str, str] = {}
        self.due: tuple[int, int | None] | None = None
        """Generation of a commit, and the earliest due time on disk after it, in ms (None: nothing is due)."""

    def next(self, what: str, names: list[str]) -> list[str]:
        """Return the next ``QUEUES_PER_TURN`` queues for one kind of housekeeping, or all if there are no more than
        that."""
        if len(names) <= QUEUES_PER_TURN:
            return names
        after = self._at.get(what)
        if after is None:  # start at a time-dependent offset, so that short-lived processes cover all queues
            begin = time.time_ns() // 1000 % len(names) // QUEUES_PER_TURN * QUEUES_PER_TURN
        else:
            begin = bisect_right(names, after)
        found = names[begin : begin + QUEUES_PER_TURN]
        self._at[what] = found[-1] if begin + QUEUES_PER_TURN < len(names) else ""
        return found
