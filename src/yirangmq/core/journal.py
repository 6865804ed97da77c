"""Message journal (files by date): outcomes of messages, retention of days, and recovery after a crash.

Three decisions: which changes of a message are recorded as an outcome; which days may be deleted; and, at startup,
which bytes of the files the store never confirmed and must be truncated. A day is a day of a time zone,
UTC by default.

The store keeps the journal's position in the same commit as the messages, so the journal is complete up to there.
``format.journal_line`` has the lines, ``stores.journal`` the files. Pure: today's date is an argument."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import NamedTuple

from yirangmq.core.message import Message, Reason
from yirangmq.core.ports import Change
from yirangmq.core.states import State

SETTLED = frozenset({State.DONE, State.DROPPED})
"""Final states. Dead letters are not final: an operator may redrive them."""
IN_FLIGHT = frozenset({State.LEASED, State.CLAIMED})
FAILED_STATES = frozenset({State.DEAD, State.PARKED})
FILE = re.compile(r"(\d{8,18})\.jsonl")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class JournalRecordKind(StrEnum):
    """Kinds of journal records. A record is one line."""

    ACCEPTED = "accepted"
    REWRITTEN = "rewritten"
    OUTCOME = "outcome"
    QUEUE_DELETED = "queue_deleted"


class DeliveryResult(StrEnum):
    """Result of a delivery."""

    DELIVERED = "DELIVERED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"


class MessageOutcome(NamedTuple):
    """Outcome of a message, or of one attempt. After a failed attempt ``state`` is the one in which it waits for the
    next. ``row``: the message before the change."""

    row: Message
    state: State
    delivery: DeliveryResult | None
    attempt: int
    consumer: str
    leased_at: int
    reason: str = ""
    text: str = ""


def outcome_of(change: Change) -> MessageOutcome | None:
    """Return the outcome of a change; None if it is none: leased, held, extended, or a delay that ended."""
    before, after, failure = change
    if after.state is before.state:
        return None
    leased_at = before.changed_at if before.state in IN_FLIGHT else 0
    if after.state is State.DONE:
        return MessageOutcome(before, after.state, DeliveryResult.DELIVERED, before.attempt, before.consumer, leased_at)
    reason, text = ("", "") if failure is None else (failure.reason_code, failure.reason_message)
    is_end = after.state in FAILED_STATES or after.state is State.DROPPED
    if before.state in IN_FLIGHT and (failure is not None or is_end):
        timed_out = failure is not None and failure.reason_code == Reason.TIMEOUT
        delivery = DeliveryResult.TIMEOUT if timed_out else DeliveryResult.FAILED if failure is not None else None
        return MessageOutcome(before, after.state, delivery, before.attempt, before.consumer, leased_at, reason, text)
    is_redriven = before.state in FAILED_STATES and after.state is State.READY
    if (is_end and before.state is not State.DRAFT) or is_redriven:
        return MessageOutcome(
            before, after.state, None, before.attempt, "", leased_at, reason or str(after.reason), text
        )
    return None


# -- days -----------------------------------------------------------------------------------------------------------


class Day(NamedTuple):
    """Day folder of the journal. ``last``: the highest file number in it; numbers rise with each file, independent of
    the clock."""

    name: str
    last: int


class RetentionVerdict(NamedTuple):
    """Retention verdict of a day: whether it may be deleted by its age, and if not, why."""

    day: str
    may_delete: bool
    why: str


class ZoneHour(NamedTuple):
    """Hour of a day in some time zone. ``is_repeated``: the second of two hours of the same name, which occur
    when clocks are put back."""

    day: str
    hour: int
    is_repeated: bool


def hour_of(now_ms: int, zone: tzinfo | None = UTC) -> ZoneHour:
    """Return the hour of an instant in a zone. ``zone``: None is the local time of the system."""
    there = datetime.fromtimestamp(now_ms / 1000, zone)
    return ZoneHour(there.date().isoformat(), there.hour, there.fold == 1)


def day_of(now_ms: int, zone: tzinfo | None = UTC) -> str:
    return hour_of(now_ms, zone).day


def is_day(name: str) -> bool:
    try:
        return bool(DAY.fullmatch(name)) and date.fromisoformat(name) is not None
    except ValueError:
        return False


def retention_verdicts(days: Iterable[Day], today: str, keep: int) -> list[RetentionVerdict]:
    """Return the retention verdict of each day. Today and ``keep`` days before it are kept.

    A day may be deleted only if two counts agree: the calendar's, and the number of days with later files. A clock that
    jumps ahead by a month or a century adds one later day, not thirty. A clock that is in 1970 for an hour writes a day
    that is old by the calendar and the latest by its files."""
    written = sorted(days, key=lambda day: day.last, reverse=True)
    edge = date.fromisoformat(today) - timedelta(days=keep)
    found = []
    for later, day in enumerate(written):
        if date.fromisoformat(day.name) >= edge:
            found.append(RetentionVerdict(day.name, False, f"not older than {keep} days"))
        elif later <= keep:
            found.append(RetentionVerdict(day.name, False, f"files were written on {later} later days only"))
        else:
            found.append(RetentionVerdict(day.name, True, ""))
    return sorted(found)


# -- recovery of the files ------------------------------------------------------------------------------------------


class Position(NamedTuple):
    """Position of the journal, kept in the store in the same commit as the messages: the files are complete up to here.
    ``seq``: messages up to this number are recorded. ``begin``: offset of the latest commit's lines in the file."""

    file: str = ""
    size: int = 0
    seq: int = 0
    begin: int = 0


class Truncation(NamedTuple):
    """Truncation of a file to ``size`` bytes, required before it is written again."""

    file: str
    size: int


class JournalRecoveryPlan(NamedTuple):
    """Recovery plan. ``cuts`` truncate bytes that the store never confirmed. ``lost``: files, or ends of files, that
    the store confirmed and that are missing. ``begin``: the number of the next file."""

    cuts: tuple[Truncation, ...]
    lost: tuple[str, ...]
    begin: int


def number_of(file: str) -> int:
    """Return the number of a file such as ``2026-11-15/00000042.jsonl``; 0 if it has no such name."""
    found = FILE.fullmatch(file.rpartition("/")[2])
    return int(found[1]) if found else 0


def plan_recovery(sizes: Sequence[tuple[str, int]], known: Position | None) -> JournalRecoveryPlan:
    """Compute the recovery plan. ``sizes``: all existing files with their sizes, in order of name. Without a position
    nothing is confirmed, and all files are left unchanged."""
    begin = 1 + max((number_of(file) for file, _ in sizes), default=0)
    if known is None or not known.file:
        return JournalRecoveryPlan((), (), begin)
    there = dict(sizes)
    after = [Truncation(file, 0) for file, size in sizes if size and number_of(file) > number_of(known.file)]
    if there.get(known.file, -1) < known.size:
        return JournalRecoveryPlan(tuple(after), (known.file,), max(begin, number_of(known.file) + 1))
    own = [Truncation(known.file, known.size)] if there[known.file] > known.size else []
    return JournalRecoveryPlan((*own, *after), (), begin)
