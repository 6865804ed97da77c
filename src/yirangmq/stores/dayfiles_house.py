"""Housekeeping of files by date: which days go, and what keeps the others.

A day goes when time says so (``core.journal.judged``) and no message accepted in it still waits in the store: its
lines are read and each message is looked up, a page at a time, so that this is exact and needs no books of its own.
Knows: files, cards. Does not know: who asks, when."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput
from yirangmq.core.journal import SETTLED, Kind, Position, judged
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.setting_types import KEEP_DAYS
from yirangmq.format.journal_line import Head, head_of
from yirangmq.fsio.disk import Disk
from yirangmq.stores import dayfiles
from yirangmq.stores.journal_told import read_position

PER_PAGE = 500
Read = Callable[[Callable[[Transaction], Any]], Any]
"""Work in a transaction that changes nothing."""


class Kept(NamedTuple):
    day: str
    why: str


class Housekept(NamedTuple):
    """What went, or would go, and what keeps the rest."""

    today: str
    removed: list[str]
    freed: int
    kept: list[Kept]


def housekeep(
    root: Path, read: Read, today: str, keep: int = KEEP_DAYS, *, dry_run: bool = False, disk: Disk | None = None
) -> Housekept:
    if keep < 1:
        raise BadInput(f"must be at least 1, not {keep}", field="days")
    removed, kept, freed = [], [], 0
    current = _current(read)
    for verdict in judged(dayfiles.days(root), today, keep):
        why = verdict.why
        if not why:
            why = "it is being written" if verdict.day == current else waits(root, verdict.day, read)
        if why:
            kept.append(Kept(verdict.day, why))
            continue
        freed += size_of(root, verdict.day)
        if not dry_run:
            dayfiles.remove(root, verdict.day, disk or Disk())
        removed.append(verdict.day)
    return Housekept(today, removed, freed, kept)


def waits(root: Path, day: str, read: Read) -> str:
    """Which message of that day is not settled; "" if all are."""
    heads = accepted(root, day)
    while page := list(islice(heads, PER_PAGE)):
        cards = cards_of(read, [head.seq for head in page])
        for head, card in zip(page, cards, strict=True):
            if card is not None and card.id == head.id and card.state not in SETTLED:
                return f"message {head.id} of {head.queue} is {card.state}"
    return ""


def cards_of(read: Read, seqs: Sequence[int]) -> list[Message | None]:
    found: list[Message | None] = read(lambda transaction: transaction.by_seq(seqs))
    return found


def accepted(root: Path, day: str) -> Iterator[Head]:
    """What was accepted on that day. A line that is no record keeps nobody: ``check`` tells of it."""
    for name in dayfiles.files(root, day):
        for line in dayfiles.lines(root / name):
            with contextlib.suppress(BadInput):
                head = head_of(line)
                if head.kind == Kind.ACCEPTED:
                    yield head


def size_of(root: Path, day: str) -> int:
    return sum(path.stat().st_size for path in (root / day).iterdir())


def _current(read: Read) -> str:
    known: Position | None = read(read_position)
    return "" if known is None else known.file.partition("/")[0]
