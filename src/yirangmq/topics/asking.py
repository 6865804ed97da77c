"""What a subscriber asks for, and where that begins. Knows: a log's numbers, cursors. Does not know: lines.

Finding a time in the log may have to wait for the disk; everything else is answered at once."""

from typing import NamedTuple

from yirangmq.core.errors import BadInput, WrongEpoch
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import MOST_SEQUENCE, Cursor, Log, Start

MOST_PROGRESS_SECONDS = 3600.0


class Ask(NamedTuple):
    filter: Filter
    name: str = ""
    start: Start = Start.NEW
    at: int = 0
    epoch: str = ""
    resume: bool = True
    progress_seconds: float = 1.0


def check_epoch(log: Log, epoch: str, whose: str) -> None:
    if epoch and epoch != log.epoch:
        raise WrongEpoch(
            f"{whose} is of epoch {epoch[:40]}, and the feed is of epoch {log.epoch}: it began anew", field="epoch"
        )


def resumed(log: Log, cursor: Cursor) -> int:
    """The first sequence that this cursor has not confirmed."""
    check_epoch(log, cursor.epoch, f"the cursor of {cursor.name!r}")
    if cursor.sequence > log.last:
        raise WrongEpoch(
            f"{cursor.name!r} has confirmed sequence {cursor.sequence}, and the feed ends at {log.last}: records that "
            "were confirmed are lost",
            field="name",
        )
    return cursor.sequence + 1


def begins_at(log: Log, ask: Ask) -> int:
    """The first sequence looked at; for a time this reads the log."""
    if ask.start is Start.NEW:
        return log.last + 1
    if ask.start is Start.BEGINNING:
        return log.first
    if ask.start is Start.TIME:
        if not 0 <= ask.at <= MOST_SEQUENCE:
            raise BadInput(f"must be nanoseconds since 1970, not {ask.at}", field="at")
        reader = log.reader()
        try:
            return max(reader.sequence_at(ask.at), log.first)
        finally:
            reader.close()
    if not 1 <= ask.at <= log.last + 1:
        raise BadInput(f"must be a sequence from 1 to {log.last + 1}, not {ask.at}", field="at")
    return ask.at


def read_start(text: str) -> Start:
    try:
        return Start(text)
    except ValueError:
        known = ", ".join(Start)
        raise BadInput(f"{text[:40]!r} is no place to begin; known: {known}", field="start") from None
