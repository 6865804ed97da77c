"""Crash-safe totals of a queue (published, acked, failed, dropped, redriven): a stored base and an intent.

Most of a total is counted from the names of the messages: each message present was published, each one in ``archive``
or ``meta/done`` was acked, each one in ``meta/dropped`` was dropped. Only the rest is stored, the *base*: the share of
messages that are forgotten, and all failures and redrives. The base is the name of an empty file in ``meta/totals``:
``VERSION.published.acked.failed.dropped.redriven``. Publish, ack and drop never change it.

A batch that changes the base first writes an intent: the messages it moves and what each adds. The intent is durable
before the first rename, and the base is renamed after the last one is durable. After a crash in between, recovery adds
the share of the messages that did move. An intent counts only while the base still has the name the intent begins
with."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import add, sub
from typing import Any, NamedTuple
from zlib import crc32

from yirangmq.core.errors import QueueError
from yirangmq.core.message import Message
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.disk import exists, listdir, read_bytes
from yirangmq.stores.files.undo_log import Deeds, Home

TOTALS = ("published", "acked", "failed", "dropped", "redriven")
FOLDER = "meta/totals"
"""Below the queue's folder."""
INTENT = ".totals"
"""Below the root: a checksum, then JSON. Written in place."""
_NAME = re.compile(r"(?:(?P<version>[0-9]+)\.)?(?P<numbers>(?:-?[0-9]+\.){4}-?[0-9]+)")

Numbers = tuple[int, ...]
"""One for each of ``TOTALS``."""
NONE: Numbers = (0,) * len(TOTALS)


class Base(NamedTuple):
    """``version`` 0: a name of format 2, whose numbers are whole totals."""

    version: int
    numbers: Numbers

    @property
    def name(self) -> str:
        return ".".join(map(str, (self.version, *self.numbers)))

    def plus(self, more: Numbers) -> "Base":
        return Base(self.version + 1, plus(self.numbers, more))


class Move(NamedTuple):
    """What one message adds to the base. Paths are below the root; "": it is new, or it is forgotten."""

    before: str
    after: str
    share: Numbers


def plus(some: Iterable[int], more: Iterable[int]) -> Numbers:
    return tuple(map(add, some, more))


def minus(some: Iterable[int], less: Iterable[int]) -> Numbers:
    return tuple(map(sub, some, less))


def share_of(message: Message) -> Numbers:
    """What the name of a message says of the totals."""
    return shares_of({message.state: 1})


def shares_of(states: Mapping[State, int]) -> Numbers:
    """What the names of a queue say of its totals, by how many of them are in each state."""
    published = sum(count for state, count in states.items() if state is not State.DRAFT)
    return published, states.get(State.DONE, 0), 0, states.get(State.DROPPED, 0), 0


def read_base(name: str) -> Base | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Base(int(found["version"] or 0), tuple(map(int, found["numbers"].split("."))))


def latest(names: Iterable[str]) -> str | None:
    """The name in force: of the highest version; of format 2, whose totals only grow, the largest."""
    known = [(base.version, sum(base.numbers), name) for name in names if (base := read_base(name))]
    return max(known, default=(0, 0, None))[2]


def base_of(root: str, queue: str) -> tuple[str | None, Base]:
    """The name in force and what it says."""
    name = latest(listdir(f"{root}/{queue}/{FOLDER}"))
    return name, (read_base(name) if name is not None else None) or Base(0, NONE)


def put_base(root: str, queue: str, deeds: Deeds, base: Base) -> None:
    """One rename, or a new file. Durable with the names."""
    folder = f"{root}/{queue}/{FOLDER}"
    known = latest(listdir(folder))
    if known is None:
        deeds.create(f"{folder}/{base.name}")
    elif known != base.name:
        deeds.rename(f"{folder}/{known}", f"{folder}/{base.name}")


class Intent:
    """The moves of one batch that change the base of a queue, and what the bases become."""

    def __init__(self, home: Home, moves: Mapping[str, Sequence[Move]]) -> None:
        self._home = home
        self._moves = moves
        self._from = {queue: base_of(home.root, queue) for queue in moves}

    def write(self) -> None:
        """Durable when this returns. Raises what the disk says."""
        if self._moves:
            queues = {
                queue: [self._from[queue][0] or "", [[one.before, one.after, *one.share] for one in moves]]
                for queue, moves in self._moves.items()
            }
            _write(self._home, dumps(queues))

    def withdraw(self) -> bool:
        """The batch was taken back: its intent must not be found. Whether that is certain."""
        try:
            if self._moves:
                clear(self._home)
        except OSError:
            return False
        return True

    def fulfil(self) -> bool:
        """With every move durable, give the bases their new names. False: recovery has to do it."""
        deeds = Deeds(self._home)
        try:
            for queue, moves in self._moves.items():
                put_base(self._home.root, queue, deeds, self._from[queue][1].plus(_sum(moves)))
            deeds.sync_names()
        except OSError:
            return False
        return True


def cut_off(root: str) -> dict[str, tuple[str, Numbers]]:
    """By queue, the name of the base a batch began with, and what those of its messages add that did move."""
    found: dict[str, tuple[str, Numbers]] = {}
    for queue, (begun, rows) in _read(root).items():
        moves = [Move(row[0], row[1], tuple(row[2:])) for row in rows]
        found[queue] = begun, _sum(move for move in moves if _has_moved(root, move))
    return found


def _has_moved(root: str, move: Move) -> bool:
    if move.after:
        return exists(f"{root}/{move.after}")
    return not move.before or not exists(f"{root}/{move.before}")


def _sum(moves: Iterable[Move]) -> Numbers:
    total = NONE
    for move in moves:
        total = plus(total, move.share)
    return total


def clear(home: Home) -> None:
    """No batch is under way any more; durable."""
    path = f"{home.root}/{INTENT}"
    if exists(path) and os.stat(path).st_size:
        home.disk.truncate(path, 0)
        if home.full:
            home.disk.fsync_file(path)


def _write(home: Home, text: bytes) -> None:
    root, disk, full = home
    data = b"%08x %08x\n%s" % (crc32(text), len(text), text)
    with _opened(home, f"{root}/{INTENT}") as fd:
        disk.write_at(fd, data, 0)
        if full:
            disk.fdatasync(fd)


@contextmanager
def _opened(home: Home, path: str) -> Iterator[int]:
    disk = home.disk
    try:
        fd = disk.open_update(path)
    except FileNotFoundError:
        fd = disk.open_write(path)
        if home.full:
            disk.fsync_folder(home.root)
    try:
        yield fd
    finally:
        disk.close(fd)


def _read(root: str) -> dict[str, tuple[str, list[list[Any]]]]:
    """Nothing if there is none, or one that was never whole: then its batch never began."""
    head, _, text = (read_bytes(f"{root}/{INTENT}") or b"").partition(b"\n")
    try:
        checksum, length = (int(word, 16) for word in head.split())
        text = text[:length]
        document = loads(text) if len(text) == length and crc32(text) == checksum else {}
        return {queue: (begun, rows) for queue, (begun, rows) in document.items()}
    except (QueueError, ValueError, TypeError, AttributeError):
        return {}
