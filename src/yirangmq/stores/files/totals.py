"""Crash-safe totals of a queue (published, acked, failed, dropped, redriven): a stored base and an intent.

Most of a total is counted from the names of the messages: each existing message was published, each one in ``archive``
or ``meta/done`` was acked, each one in ``meta/dropped`` was dropped. Only the remainder is stored, the *base*: the
share of forgotten messages, and all failures and redrives. The base is the name of an empty file in ``meta/totals``:
``VERSION.published.acked.failed.dropped.redriven``. Publish, ack and drop never change it.

A batch that changes the base first writes an intent: the messages it moves, and the share that each adds. The intent is
durable before the first rename, and the base is renamed after the last one is durable. After a crash in between,
recovery adds the shares of the messages that have moved. An intent is valid only while the base still has the name that
is recorded in the intent."""

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
from yirangmq.stores.files.undo_log import FileBatch, StoreRoot

TOTALS = ("published", "acked", "failed", "dropped", "redriven")
FOLDER = "meta/totals"
"""Folder of the base, relative to the queue's folder."""
INTENT = ".totals"
"""Intent file, relative to the root: checksum and length, then JSON. Overwritten in place."""
_NAME = re.compile(r"(?:(?P<version>[0-9]+)\.)?(?P<numbers>(?:-?[0-9]+\.){4}-?[0-9]+)")

Numbers = tuple[int, ...]
"""One number for each of ``TOTALS``."""
ZERO: Numbers = (0,) * len(TOTALS)


class TotalsBase(NamedTuple):
    """Base of a queue's totals. ``version`` 0: a name of format 2, in which the numbers are whole totals."""

    version: int
    numbers: Numbers

    @property
    def name(self) -> str:
        return ".".join(map(str, (self.version, *self.numbers)))

    def plus(self, more: Numbers) -> "TotalsBase":
        return TotalsBase(self.version + 1, plus(self.numbers, more))


class MessageMove(NamedTuple):
    """A message moved by a batch, and its share: the numbers it adds to the base.

    Paths are relative to the root. ``before`` is empty for a new message, ``after`` for a forgotten one."""

    before: str
    after: str
    share: Numbers


def plus(some: Iterable[int], more: Iterable[int]) -> Numbers:
    return tuple(map(add, some, more))


def minus(some: Iterable[int], less: Iterable[int]) -> Numbers:
    return tuple(map(sub, some, less))


def share_of(message: Message) -> Numbers:
    """Return the part of the totals that the name of a message accounts for."""
    return shares_of({message.state: 1})


def shares_of(states: Mapping[State, int]) -> Numbers:
    """Return the part of the totals that a queue's names account for. ``states``: number of messages by state."""
    published = sum(count for state, count in states.items() if state is not State.DRAFT)
    return published, states.get(State.DONE, 0), 0, states.get(State.DROPPED, 0), 0


def read_base(name: str) -> TotalsBase | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return TotalsBase(int(found["version"] or 0), tuple(map(int, found["numbers"].split("."))))


def latest(names: Iterable[str]) -> str | None:
    """Return the current name: the one with the highest version; in format 2, where totals only grow, the largest."""
    known = [(base.version, sum(base.numbers), name) for name in names if (base := read_base(name))]
    return max(known, default=(0, 0, None))[2]


def base_of(root: str, queue: str) -> tuple[str | None, TotalsBase]:
    """Return the current name of a queue's base, or None, and the base itself."""
    name = latest(listdir(f"{root}/{queue}/{FOLDER}"))
    return name, (read_base(name) if name is not None else None) or TotalsBase(0, ZERO)


def put_base(root: str, queue: str, batch: FileBatch, base: TotalsBase) -> None:
    """Store a base: one rename, or a new file. It is durable after ``sync_names``."""
    folder = f"{root}/{queue}/{FOLDER}"
    known = latest(listdir(folder))
    if known is None:
        batch.create(f"{folder}/{base.name}")
    elif known != base.name:
        batch.rename(f"{folder}/{known}", f"{folder}/{base.name}")


class TotalsIntent:
    """Intent of one batch: the messages it moves that change the base of a queue's totals, and the new bases."""

    def __init__(self, store_root: StoreRoot, moves: Mapping[str, Sequence[MessageMove]]) -> None:
        self._store_root = store_root
        self._moves = moves
        self._from = {queue: base_of(store_root.root, queue) for queue in moves}

    def write(self) -> None:
        """Write the intent. It is durable on return. Raise the disk's error."""
        if self._moves:
            queues = {
                queue: [self._from[queue][0] or "", [[one.before, one.after, *one.share] for one in moves]]
                for queue, moves in self._moves.items()
            }
            _write(self._store_root, dumps(queues))

    def withdraw(self) -> bool:
        """Remove the intent after the batch was undone. Return False if this failed."""
        try:
            if self._moves:
                clear(self._store_root)
        except OSError:
            return False
        return True

    def complete(self) -> bool:
        """Rename the bases, once every move is durable. Return False on an error; recovery must then do it."""
        batch = FileBatch(self._store_root)
        try:
            for queue, moves in self._moves.items():
                put_base(self._store_root.root, queue, batch, self._from[queue][1].plus(_sum(moves)))
            batch.sync_names()
        except OSError:
            return False
        return True


def interrupted_shares(root: str) -> dict[str, tuple[str, Numbers]]:
    """Read the intent of an interrupted batch. Return, per queue, the name of the base it started from and the sum of
    the shares of those messages that have moved."""
    found: dict[str, tuple[str, Numbers]] = {}
    for queue, (begun, rows) in _read(root).items():
        moves = [MessageMove(row[0], row[1], tuple(row[2:])) for row in rows]
        found[queue] = begun, _sum(move for move in moves if _has_moved(root, move))
    return found


def _has_moved(root: str, move: MessageMove) -> bool:
    if move.after:
        return exists(f"{root}/{move.after}")
    return not move.before or not exists(f"{root}/{move.before}")


def _sum(moves: Iterable[MessageMove]) -> Numbers:
    total = ZERO
    for move in moves:
        total = plus(total, move.share)
    return total


def clear(store_root: StoreRoot) -> None:
    """Truncate the intent file, durably."""
    path = f"{store_root.root}/{INTENT}"
    if exists(path) and os.stat(path).st_size:
        store_root.disk.truncate(path, 0)
        if store_root.full:
            store_root.disk.fsync_file(path)


def _write(store_root: StoreRoot, text: bytes) -> None:
    root, disk, full = store_root
    data = b"%08x %08x\n%s" % (crc32(text), len(text), text)
    with _opened(store_root, f"{root}/{INTENT}") as fd:
        disk.write_at(fd, data, 0)
        if full:
            disk.fdatasync(fd)


@contextmanager
def _opened(store_root: StoreRoot, path: str) -> Iterator[int]:
    disk = store_root.disk
    try:
        fd = disk.open_update(path)
    except FileNotFoundError:
        fd = disk.open_write(path)
        if store_root.full:
            disk.fsync_folder(store_root.root)
    try:
        yield fd
    finally:
        disk.close(fd)


def _read(root: str) -> dict[str, tuple[str, list[list[Any]]]]:
    """Read the intent file. Return an empty dict if there is none, or if it is torn: its batch then moved nothing."""
    head, _, text = (read_bytes(f"{root}/{INTENT}") or b"").partition(b"\n")
    try:
        checksum, length = (int(word, 16) for word in head.split())
        text = text[:length]
        document = loads(text) if len(text) == length and crc32(text) == checksum else {}
        return {queue: (begun, rows) for queue, (begun, rows) in document.items()}
    except (QueueError, ValueError, TypeError, AttributeError):
        return {}
