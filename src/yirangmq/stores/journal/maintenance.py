"""Journal retention, and the check of the journal against its store.

Retention removes a day when it is old enough (``core.journal.retention_verdicts``) and all messages accepted on it are
settled. It reads the day's lines and looks each message up in the store, a page at a time. This is exact and needs no
counters.

The check verifies three things: every line is complete and valid, every message occurs once, and the store agrees. It
reads the store before and after the files. Messages that are unsettled in the store before must be in the files.
Messages without an outcome in the files must be unsettled in the store after, or have been settled meanwhile. The check
changes nothing."""

import contextlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput
from yirangmq.core.journal import SETTLED, JournalRecordKind, Position, number_of, retention_verdicts
from yirangmq.core.message import Message
from yirangmq.core.ports import Finding, Transaction
from yirangmq.core.setting_types import KEEP_DAYS
from yirangmq.core.states import STORED_STATES, State
from yirangmq.format import journal_line
from yirangmq.format.journal_line import JournalLineHead, head_of
from yirangmq.fsio.disk import Disk
from yirangmq.stores.journal import files
from yirangmq.stores.journal.store import read_position

PER_PAGE = 500
Read = Callable[[Callable[[Transaction], Any]], Any]
"""Runs a function in a read-only store transaction and returns its result."""


# -- retention ---------------------------------------------------------------------------------------------------------


class KeptDay(NamedTuple):
    """Day that retention keeps, with the reason."""

    day: str
    why: str


class JournalRetention(NamedTuple):
    """Result of journal retention: removed days (or days to remove, in a dry run), freed bytes, kept days."""

    today: str
    removed: list[str]
    freed: int
    kept: list[KeptDay]


def housekeep(
    root: Path,
    read: Read,
    today: str,
    keep: int = KEEP_DAYS,
    *,
    dry_run: bool = False,
    disk: Disk | None = None,
    current: str | None = None,
) -> JournalRetention:
    """Remove the days that are old enough and settled. ``current``: the day that is being written; None is the one of
    the position in the store."""
    if keep < 1:
        raise BadInput(f"must be at least 1, not {keep}", field="days")
    removed, kept, freed = [], [], 0
    if current is None:
        current = _current(read)
    for verdict in retention_verdicts(files.days(root), today, keep):
        why = verdict.why
        if not why:
            why = "it is being written" if verdict.day == current else first_unsettled(root, verdict.day, read)
        if why:
            kept.append(KeptDay(verdict.day, why))
            continue
        freed += size_of(root, verdict.day)
        if not dry_run:
            files.remove(root, verdict.day, disk or Disk())
        removed.append(verdict.day)
    return JournalRetention(today, removed, freed, kept)


def first_unsettled(root: Path, day: str, read: Read) -> str:
    """Describe the first unsettled message of a day. Return "" if all are settled."""
    heads = accepted(root, day)
    while page := list(islice(heads, PER_PAGE)):
        page_messages = messages_of(read, [head.seq for head in page])
        for head, message in zip(page, page_messages, strict=True):
            if message is not None and message.id == head.id and message.state not in SETTLED:
                return f"message {head.id} of {head.queue} is {message.state}"
    return ""


def messages_of(read: Read, seqs: Sequence[int]) -> list[Message | None]:
    found: list[Message | None] = read(lambda transaction: transaction.by_seq(seqs))
    return found


def accepted(root: Path, day: str) -> Iterator[JournalLineHead]:
    """Yield the messages accepted on a day. Invalid lines are skipped; ``check`` reports them."""
    for name in files.files(root, day):
        for line in files.lines(root / name):
            with contextlib.suppress(BadInput):
                head = head_of(line)
                if head.kind == JournalRecordKind.ACCEPTED:
                    yield head


def size_of(root: Path, day: str) -> int:
    return sum(path.stat().st_size for path in (root / day).iterdir())


def _current(read: Read) -> str:
    known: Position | None = read(read_position)
    return "" if known is None else known.file.partition("/")[0]


# -- check -------------------------------------------------------------------------------------------------------------

BLOCK = 1 << 16
ACCEPTED, SETTLED_MARK = 1, 2
MAX_FINDINGS = 1000
"""Maximum number of findings listed; one more finding has the number of the others."""


class JournalCheckResult(NamedTuple):
    """Result of a journal check: numbers of files, lines and accepted messages, and the findings."""

    files: int
    records: int
    messages: int
    findings: list[Finding]


class MessageFlags:
    """Flags per message number, one byte each, in blocks of 64 KiB. Numbers are consecutive, so blocks are dense."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytearray] = {}

    def get(self, seq: int) -> int:
        block = self._blocks.get(seq // BLOCK)
        return 0 if block is None else block[seq % BLOCK]

    def add(self, seq: int, mark: int) -> None:
        self._blocks.setdefault(seq // BLOCK, bytearray(BLOCK))[seq % BLOCK] |= mark

    def with_only(self, mark: int) -> Iterator[int]:
        for number, block in sorted(self._blocks.items()):
            at = block.find(mark)
            while at >= 0:
                yield number * BLOCK + at
                at = block.find(mark, at + 1)


class JournalCheck:
    """One run of the journal check. Memory: one byte per message number, in blocks.

    ``is_shared``: other nodes have files of the same store, so that the outcome of a message may be in those."""

    def __init__(self, root: Path, read: Read | None, *, is_shared: bool = False) -> None:
        self._root = root
        self._read = read
        self._is_shared = is_shared
        self._flags = MessageFlags()
        self._ends: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._findings: list[Finding] = []
        self._more = 0
        self._records = self._messages = 0

    def run(self) -> JournalCheckResult:
        waiting = self._unsettled_in_store() if self._read is not None else array("q")
        self._check_files()
        for seq in waiting:
            if not self._flags.get(seq) & ACCEPTED:
                self._find("missing", str(self._root), f"message number {seq} waits in the store and is in no file")
        if self._read is not None and not self._is_shared:
            self._check_unsettled(self._read)
        if self._more:
            self._findings.append(Finding("more", str(self._root), f"and {self._more} more"))
        return JournalCheckResult(len(self._ends), self._records, self._messages, self._findings)

    def _find(self, kind: str, where: str, text: str) -> None:
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(Finding(kind, where, text))
        else:
            self._more += 1

    # -- the files ------------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        names = files.files(self._root)
        numbers = Counter(map(number_of, names))
        for name in names:
            if numbers[number_of(name)] > 1:
                self._find("number", name, "another file has this number too")
        for name in names:
            self._check_file(name)
            path = self._root / name
            if name != names[-1] and path.stat().st_size > self._ends[name]:
                self._find("torn", name, "its last line has no end")

    def _check_file(self, name: str) -> None:
        def on_end(size: int) -> None:
            self._ends[name] = size

        for number, line in enumerate(files.lines(self._root / name, self._ends.get(name, 0), on_end), 1):
            self._records += 1
            try:
                self._check_line(name, line)
            except BadInput as error:
                self._find("record", f"{name}, line {number}", str(error))

    def _check_line(self, name: str, line: bytes) -> None:
        head = journal_line.head_of(line)
        if head.kind == JournalRecordKind.QUEUE_DELETED:
            self._deleted[head.queue] = head.seq
        elif head.kind == JournalRecordKind.OUTCOME:
            if head.state in SETTLED:
                self._flags.add(head.seq, SETTLED_MARK)
        else:
            record = journal_line.read(line)
            if journal_line.payload_of(record) is None:
                raise BadInput("has no payload")
            if head.kind == JournalRecordKind.ACCEPTED:
                if self._flags.get(head.seq) & ACCEPTED:
                    self._find("twice", name, f"message {head.id} of {head.queue} is there twice")
                self._flags.add(head.seq, ACCEPTED)
                self._messages += 1

    # -- the store ------------------------------------------------------------------------------------------------

    def _unsettled_in_store(self) -> "array[int]":
        assert self._read is not None
        found = array("q")
        for queue in self._read(lambda transaction: transaction.queues()):
            for state in STORED_STATES:
                if state not in (State.DRAFT, State.DONE):
                    found.extend(_numbers(self._read, queue, state))
        return found

    def _check_unsettled(self, read: Read) -> None:
        """Check messages without an outcome in the files.

        Each must be unsettled in the store, or have been settled since the files were read; then it has a new line."""
        seqs = array("q", self._flags.with_only(ACCEPTED))
        over = array("q")
        for begin in range(0, len(seqs), PER_PAGE):
            page = seqs[begin : begin + PER_PAGE].tolist()
            page_messages = messages_of(read, page)
            over.extend(
                seq
                for seq, message in zip(page, page_messages, strict=True)
                if message is None or message.state in SETTLED
            )
        for name in files.files(self._root) if over else ():
            if (self._root / name).stat().st_size > self._ends.get(name, 0):
                self._check_file(name)
        gone = self._deleted_with_queues(set(over)) if self._deleted else set()
        for seq in over:
            if not self._flags.get(seq) & SETTLED_MARK and seq not in gone:
                self._find(
                    "unsettled",
                    str(self._root),
                    f"message number {seq} has ended, and the files have no outcome for it",
                )

    def _deleted_with_queues(self, seqs: set[int]) -> set[int]:
        heads = (head for day in files.day_names(self._root) for head in accepted(self._root, day))
        return {head.seq for head in heads if head.seq in seqs and head.seq <= self._deleted.get(head.queue, -1)}


def _numbers(read: Read, queue: str, state: State) -> Iterator[int]:
    cursor, is_first = "", True
    while cursor or is_first:

        def work(transaction: Transaction, at: str = cursor) -> tuple[list[int], str]:
            page = transaction.scan(queue, state, PER_PAGE, at)
            return [message.seq for message in page.messages], page.cursor

        numbers, cursor = read(work)
        yield from numbers
        is_first = False


def check(root: Path, read: Read | None, *, is_shared: bool = False) -> JournalCheckResult:
    """Check the journal. ``read`` runs read-only work in the store; None checks the files only."""
    return JournalCheck(root, read, is_shared=is_shared).run()
