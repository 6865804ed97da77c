"""Pages of a topic log: the records after a sequence, up to limits of count, bytes and sequences examined.

Reading blocks on the disk: call it off the event loop. Nothing is kept between two pages but ``RecordPage.last``."""

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import MOST_SEQUENCE, Log, LogReader, Record

FOLLOW_SPAN = 100_000
"""Sequences examined for one page of a subscriber, wanted or not."""


class PageLimits(NamedTuple):
    """A page ends after the record that reaches a limit, so it always has room for one."""

    records: int
    size: int = MOST_SEQUENCE
    """Bytes of payloads, or of what ``render`` made."""
    span: int = MOST_SEQUENCE
    """Sequences examined."""


class RecordPage(NamedTuple):
    """``last``: the last sequence examined; all wanted records up to it are on this page or an earlier one."""

    records: list[Record]
    last: int
    rendered: bytes = b""


def read_page(
    reader: LogReader,
    filter: Filter,
    start: int,
    limits: PageLimits,
    render: Callable[[Record], bytes] | None = None,
) -> RecordPage:
    """The wanted records from ``start`` on. ``render``: its bytes for each record are joined, and count for
    ``limits.size``. ``Retired`` or ``BadInput`` if ``start`` is not in the log."""
    last = min(reader.last, start + limits.span - 1)
    wanted = None if filter.is_all else filter.wants
    found: list[Record] = []
    parts: list[bytes] = []
    size = 0
    for record in reader.records(start, last + 1, wanted):
        found.append(record)
        if render is None:
            size += len(record.payload)
        else:
            part = render(record)
            parts.append(part)
            size += len(part)
        if size >= limits.size or len(found) >= limits.records:
            last = record.sequence
            break
    return RecordPage(found, last, b"".join(parts))


def page_after(
    log: Log, filter: Filter, seen: int, limits: PageLimits, render: Callable[[Record], bytes] | None = None
) -> RecordPage:
    """The page after ``seen``; empty where nothing follows, and where the log began a new epoch meanwhile."""
    with closing(log.reader()) as reader:
        if reader.epoch != log.epoch or reader.last <= seen:
            return RecordPage([], seen)
        return read_page(reader, filter, seen + 1, limits, render)
