"""Message journal (files by date): outcomes of messages, retention of days, and recovery after a crash.

Three decisions: which changes of a message are an outcome worth a record; which days may be deleted; and, at startup,
which bytes of the files the store never confirmed and must be cut off. A day is a day of UTC.

The store keeps the journal's position in the same commit as the messages, so the journal is true up to there.
``format.journal_line`` has the lines, ``stores.journal`` the files. Pure: today's date is an argument."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from yirangmq.core.message import Message, Reason
from yirangmq.core.ports import Change
from yirangmq.core.states import State

SETTLED = frozenset({State.DONE, State.DROPPED})
"""States out of which nothing comes: dead letters are not among them, somebody may still have them delivered."""
AT_WORK = frozenset({State.LEASED, State.CLAIMED})
GIVEN_UP = frozenset({State.DEAD, State.PARKED})
FILE = re.compile(r"(\d{8,18})\.jsonl")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class Kind(StrEnum):
    """The kinds of records, each a line."""

    ACCEPTED = "accepted"
    REWRITTEN = "rewritten"
    OUTCOME = "outcome"
    QUEUE_DELETED = "queue_deleted"


class Delivery(StrEnum):
    """How a delivery ended."""

    DELIVERED = "DELIVERED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"


class Outcome(NamedTuple):
    """What became of a message, or of one attempt at it: then ``state`` is the one it waits in for the next."""

    card: Message
    state: State
    delivery: Delivery | None
    attempt: int
    consumer: str
    leased_at: int
    reason: str = ""
    text: str = ""


def outcome_of(change: Change) -> Outcome | None:
    """None for a change that is no outcome: handed out, held back, extended, its delay over."""
    before, after, failure = change
    if after.state is before.state:
        return None
    leased_at = before.changed_at if before.state in AT_WORK else 0
    if after.state is State.DONE:
        return Outcome(before, after.state, Delivery.DELIVERED, before.attempt, before.consumer, leased_at)
    reason, text = ("", "") if failure is None else (failure.reason_code, failure.reason_message)
    is_end = after.state in GIVEN_UP or after.state is State.DROPPED
    if before.state in AT_WORK and (failure is not None or is_end):
        timed_out = failure is not None and failure.reason_code == Reason.TIMEOUT
        delivery = Delivery.TIMEOUT if timed_out else Delivery.FAILED if failure is not None else None
        return Outcome(before, after.state, delivery, before.attempt, before.consumer, leased_at, reason, text)
    is_redriven = before.state in GIVEN_UP and after.state is State.READY
    if (is_end and before.state is not State.DRAFT) or is_redriven:
        return Outcome(before, after.state, None, before.attempt, "", leased_at, reason or str(after.reason), text)
    return None


# -- days -----------------------------------------------------------------------------------------------------------


class Day(NamedTuple):
    """A folder. ``last``: the highest number of a file in it; numbers rise with each file, whatever the clock says."""

    name: str
    last: int


class Verdict(NamedTuple):
    """Whether a day may go as far as time is concerned, and if not, why."""

    day: str
    may_go: bool
    why: str


def day_of(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).date().isoformat()


def is_day(name: str) -> bool:
    try:
        return bool(DAY.fullmatch(name)) and date.fromisoformat(name) is not None
    except ValueError:
        return False


def judged(days: Iterable[Day], today: str, keep: int) -> list[Verdict]:
    """Today and ``keep`` days before it stay, by two counts that must both agree: the calendar's, and that of the days
    on which files were begun later. A clock that jumps ahead, by a month or by a century, is one later day, not thirty;
    one that stands in 1970 for an hour writes a day that is old by the calendar and the youngest by its files."""
    written = sorted(days, key=lambda day: day.last, reverse=True)
    edge = date.fromisoformat(today) - timedelta(days=keep)
    found = []
    for later, day in enumerate(written):
        if date.fromisoformat(day.name) >= edge:
            found.append(Verdict(day.name, False, f"not older than {keep} days"))
        elif later <= keep:
            found.append(Verdict(day.name, False, f"files were written on {later} later days only"))
        else:
            found.append(Verdict(day.name, True, ""))
    return sorted(found)


# -- where files and store agree ------------------------------------------------------------------------------------


class Position(NamedTuple):
    """Kept in the store, in the same commit as what it tells of: up to here the files are true. ``seq``: messages up to
    this number stand in them; ``begin``: where in the file the lines of the latest commit begin."""

    file: str = ""
    size: int = 0
    seq: int = 0
    begin: int = 0


class Cut(NamedTuple):
    """What must be done to a file before it is written to again."""

    file: str
    size: int


class Plan(NamedTuple):
    """``cuts`` take away what the store never confirmed. ``lost``: files, or ends of files, that the store vouches for
    and that are not there. ``begin``: the number of the next file."""

    cuts: tuple[Cut, ...]
    lost: tuple[str, ...]
    begin: int


def number_of(file: str) -> int:
    """Of ``2026-11-15/00000042.jsonl``; 0 if it is no such name."""
    found = FILE.fullmatch(file.rpartition("/")[2])
    return int(found[1]) if found else 0


def planned(sizes: Sequence[tuple[str, int]], known: Position | None) -> Plan:
    """``sizes``: all files there are, by name. Without a position nobody vouches for anything: all is left as it is."""
    begin = 1 + max((number_of(file) for file, _ in sizes), default=0)
    if known is None or not known.file:
        return Plan((), (), begin)
    there = dict(sizes)
    after = [Cut(file, 0) for file, size in sizes if size and number_of(file) > number_of(known.file)]
    if there.get(known.file, -1) < known.size:
        return Plan(tuple(after), (known.file,), max(begin, number_of(known.file) + 1))
    own = [Cut(known.file, known.size)] if there[known.file] > known.size else []
    return Plan((*own, *after), (), begin)
