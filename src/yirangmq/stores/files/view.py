"""Read view of a files store's disk: messages by number, by id and in order, and their contents.

There is one view per transaction. Nothing else changes while the lock is held, so each folder is listed at most once.
The index names the folder of a number or id; the listing of that folder has the file name. If a file is not where the
index says, ``is_index_stale`` is set, and the next transaction rebuilds the index.

The view has no uncommitted changes: ``stores.files.overlay`` merges them."""

import os
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageFailure
from yirangmq.core.states import State
from yirangmq.fsio.disk import listdir, read_all, read_bytes, subfolders
from yirangmq.stores.files.index import Index
from yirangmq.stores.files.message_file import UnreadableContent, fill_from_content, read_envelope, read_failure
from yirangmq.stores.files.metadata import QueueFolders
from yirangmq.stores.files.names import (
    BY_TIME,
    NO_PRIORITY_FOLDER,
    PER_FOLDER,
    STATE_FOLDER_OF,
    SUFFIX,
    TARGET_DIGITS,
    FileRow,
    folder_for,
    hour_folder,
    leading_number,
    line_folder,
    minute_folder,
    needs_content,
    read_name,
)
from yirangmq.stores.files.timer_index import DueMessages, TimerIndex

_TARGET = re.compile(rf"[0-9a-z]{{{TARGET_DIGITS}}}")
WITHOUT_CONTENT = 2**60
"""First sort key of done messages without content, so that they come after all done messages with content."""
Order = tuple[int, ...]
"""Sort key of messages in a listing of one state. ``()`` is smaller than all others."""


def order_of(message: Message) -> Order:
    match message.state:
        case State.READY:
            return message.target, message.rank, message.place
        case State.DEAD | State.PARKED:
            return message.changed_at, message.seq
        case State.DONE:
            return (message.changed_at if message.body else WITHOUT_CONTENT), message.seq
        case _:
            return 0, message.seq


class DiskView:
    """Read view of the disk, with listings and cards cached for one transaction."""

    def __init__(self, root: str, index: Index, timer_index: TimerIndex, queue_folders: QueueFolders) -> None:
        self._root = root
        self.queue_folders = queue_folders
        self._index = index
        self._names: dict[str, list[str]] = {}
        self._folders: dict[str, list[str]] = {}
        self._rows: dict[int, FileRow] = {}
        self._queues: list[str] | None = None
        self.empty_folders: list[str] = []
        """Inbox folders found empty; the commit removes them."""
        self.is_index_stale = False
        """True if a file was not where the index says."""
        self.due_messages = DueMessages(timer_index, self.names, self.row_at)

    # -- listing --------------------------------------------------------------------------------------------------

    def path(self, row: FileRow) -> str:
        return f"{self._root}/{row.message.queue}/{row.folder}/{row.name}"

    def names(self, folder: str) -> list[str]:
        """Return the sorted message file names in a folder, without hidden ones. ``folder``: relative to the root."""
        found = self._names.get(folder)
        if found is None:
            listed = listdir(f"{self._root}/{folder}")
            found = self._names[folder] = sorted(name for name in listed if name.endswith(SUFFIX) and name[0] != ".")
        return found

    def folders(self, folder: str) -> list[str]:
        """Return the sorted subfolders of a folder: ranks and numbers by value, dates by time. ``folder``: relative to
        the root."""
        found = self._folders.get(folder)
        if found is None:
            found = self._folders[folder] = sorted(subfolders(f"{self._root}/{folder}"), key=_folder_order)
        return found

    def queues(self) -> list[str]:
        """Return the names of all queues: folders with an inbox. Other folders below the root are ignored."""
        if self._queues is None:
            self._queues = self.queue_folders.names()
        return self._queues

    def _read(self, queue: str, top: str, folder: str, name: str) -> FileRow | None:
        row = read_name(queue, top, name)
        if row is not None and needs_content(row):
            row = self._fill_from_content(row, f"{self._root}/{folder}/{name}")
        if row is not None:
            self._rows[row.message.seq] = row
        return row

    def _fill_from_content(self, row: FileRow, path: str) -> FileRow | None:
        found = fill_from_content(row, read_bytes(path) or b"")
        self.is_index_stale |= found is None  # recovery before the next transaction quarantines the file
        return found

    def row_at(self, folder: str, name: str) -> FileRow | None:
        """Return the card of a file. ``folder``: relative to the root."""
        queue, _, rest = folder.partition("/")
        parts = rest.split("/")
        top = "/".join(parts[:2]) if parts[0] == "meta" else parts[0]
        return self._read(queue, top, folder, name)

    # -- one by one -----------------------------------------------------------------------------------------------

    def find(self, seqs: Iterable[int]) -> dict[int, FileRow]:
        """Return cards by number. The index names the folder, the listing of the folder has the name."""
        found, unknown = {}, []
        for seq in seqs:
            row = self._rows.get(seq)
            if row is None:
                unknown.append(seq)
            else:
                found[seq] = row
        for seq, (queue, top, rank, place, changed_at, target, _) in self._index.records(unknown).items():
            folder = f"{queue}/{folder_for(top, seq, rank, place, changed_at, target)}"
            for name in self._names_with_number(folder, leading_number(top, seq, place, changed_at)):
                self._read(queue, top, folder, name)
            row = self._rows.get(seq)
            if row is None:
                self.is_index_stale = True
            else:
                found[seq] = row
        return found

    def _names_with_number(self, folder: str, begin: str) -> Iterator[str]:
        """Yield the names that begin with this number: one name, or all with the same instant."""
        names = self.names(folder)
        for at in range(bisect_left(names, begin), len(names)):
            if not names[at].startswith(begin):
                break
            if not names[at][len(begin)].isdigit():
                yield names[at]

    def find_ids(self, queue: str, ids: Collection[str]) -> dict[str, FileRow]:
        candidates = self._index.seqs_of(queue, ids)
        rows = self.find(seq for seqs in candidates.values() for seq in seqs)
        return {
            id: rows[seq]
            for id, seqs in candidates.items()
            for seq in seqs
            if seq in rows and rows[seq].message.id == id and rows[seq].message.queue == queue
        }

    def members(self, queue: str, group: int, after: int = 0) -> Iterator[int]:
        """Yield the message numbers of a group's members in order, or only those behind the member ``after``."""
        seq = self._index.group_lists.behind(after) if after else self._index.first_of(queue, group)
        while seq:
            yield seq
            seq = self._index.group_lists.behind(seq)

    # -- in order -------------------------------------------------------------------------------------------------

    def targets(self, queue: str) -> list[int]:
        """Return the consumers with a folder for messages that only they may get. The folder may be empty."""
        return [int(name, 36) for name in self.folders(f"{queue}/inbox-for") if _TARGET.fullmatch(name)]

    def line(self, queue: str, target: int, after: Order = ()) -> Iterator[FileRow]:
        """Yield the ready messages for one consumer (``target``), or without a target (0), by rank, then place.

        Only messages behind ``after`` are returned. Folders are read lazily."""
        inbox = f"{queue}/{line_folder(target)}"
        top = "inbox-for" if target else "inbox"
        low, high = after or (-1, -1)
        for rank_folder in self.folders(inbox):
            rank = _rank(rank_folder)
            if rank is None or rank < low:
                continue
            first = high // PER_FOLDER if rank == low else 0
            for bucket in self.folders(f"{inbox}/{rank_folder}"):
                if bucket.isdecimal() and int(bucket) >= first:
                    folder = f"{inbox}/{rank_folder}/{bucket}"
                    if not self.names(folder):
                        self.empty_folders.append(f"{self._root}/{folder}")
                    for name in self.names(folder):
                        row = self._read(queue, top, folder, name)
                        if row is not None and (row.message.rank, row.message.place) > (low, high):
                            yield row

    def in_state(self, queue: str, state: State, after: Order = ()) -> Iterator[FileRow]:
        """Yield the messages in one state, which must not be READY, in the order of ``order_of``, behind ``after``.

        Folders are read lazily."""
        for body in (True, False):
            top = STATE_FOLDER_OF.get((state, body))
            if top is not None:
                yield from self._listed(queue, top, after or (-1, -1))

    def _listed(self, queue: str, top: str, after: Order) -> Iterator[FileRow]:
        begin = leading_number(top, after[1], 0, after[0]) if _is_within(top, after) else ""
        for bucket in self._buckets(queue, top, after):
            folder = f"{queue}/{top}/{bucket}"
            names = self.names(folder)
            for _, alike in groupby(names[bisect_left(names, begin) :], key=_first_number):
                rows = [row for name in alike if (row := self._read(queue, top, folder, name)) is not None]
                rows.sort(key=lambda row: order_of(row.message))
                yield from (row for row in rows if order_of(row.message) > after)

    def _buckets(self, queue: str, top: str, after: Order) -> Iterator[str]:
        low, high = after[0], after[1]
        moment = max(low, 0) if low < WITHOUT_CONTENT else None
        for folder in self.folders(f"{queue}/{top}"):
            if top == "archive":
                for minute in self.folders(f"{queue}/{top}/{folder}"):
                    if moment is not None and f"{folder}/{minute}" >= minute_folder(moment):
                        yield f"{folder}/{minute}"
            elif top in ("dlq", "parked"):
                if moment is not None and folder >= hour_folder(moment):
                    yield folder
            elif folder.isdecimal() and int(folder) >= (high // PER_FOLDER if _is_within(top, after) else 0):
                yield folder

    # -- contents -------------------------------------------------------------------------------------------------

    def envelope(self, row: FileRow) -> Envelope:
        """Read the content of a message. Raise ``UnreadableContent`` if it is missing or damaged."""
        path = self.path(row)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.is_index_stale = True
            raise UnreadableContent("its file is gone") from None
        try:
            about = os.fstat(fd)
            text = read_all(fd, about.st_size)
        finally:
            os.close(fd)
        return read_envelope(text, row.message, about.st_mtime_ns // 1_000_000)

    def failure(self, row: FileRow) -> MessageFailure | None:
        if not row.failure:
            return None
        try:
            with open(failure_path(self._root, row.message, row.failure), "rb") as file:
                return read_failure(file.read())
        except (FileNotFoundError, UnreadableContent):
            return None


def failure_path(root: str, message: Message, which: str) -> str:
    number = message.seq
    return f"{root}/{message.queue}/meta/failures/{number // PER_FOLDER:010d}/{number:012d}{which}.json"


def _is_within(top: str, after: Order) -> bool:
    """Return True if ``after`` is within this state folder, not at its start or in the folder before it."""
    low = after[0]
    return 0 <= low < WITHOUT_CONTENT if top in BY_TIME else low == (WITHOUT_CONTENT if top == "meta/done" else 0)


def _first_number(name: str) -> str:
    return name[: len(name) - len(name.lstrip("0123456789"))]


def _rank(folder: str) -> int | None:
    """Return the rank of an inbox subfolder; None if the folder does not belong to the store."""
    if folder == NO_PRIORITY_FOLDER:
        return RANK_LAST
    return int(folder) if folder.isdecimal() else None


def _folder_order(name: str) -> tuple[int, str]:
    if name == NO_PRIORITY_FOLDER:
        return RANK_LAST, name
    return (int(name) if name.isdecimal() else 0), name
