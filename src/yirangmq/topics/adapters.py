"""Topic log for its other users: sink batches, bridges, and readers that go page by page.

``broker.sink_batches`` publishes a batch's records and reads those of an unfinished one. ``broker.bridges`` reads the
wanted records after a bridge's cursor. Its reads are returned as functions, to be run in any thread.

A page ends after the record that reaches a limit: count, bytes, or sequences examined. Reading blocks on the disk: call
it off the event loop. Nothing is kept between two pages but ``RecordPage.last``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.core.bridges import Reached
from yirangmq.core.errors import QueueError, Retired, WrongEpoch
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import MOST_SEQUENCE, Log, LogReader, NewRecord, Record, Start
from yirangmq.topics.cursors import Ask, begins_at

if TYPE_CHECKING:
    from yirangmq.topics.publisher import Publisher


# -- sink batches ------------------------------------------------------------------------------------------------------


class FeedForBatches:
    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    def last(self) -> int:
        return self._publisher.opened().feed.log.last

    def publish(self, records: Sequence[NewRecord], done: Callable[[Any, QueueError | None], None]) -> None:
        self._publisher.publish(records, done)

    def records_after(self, sequence: int) -> Iterator[Record]:
        """From any thread; what retention took meanwhile was there, and is passed over."""
        reader = self._publisher.opened().feed.log.reader()
        try:
            yield from reader.records(max(sequence + 1, reader.first))
        finally:
            reader.close()


# -- pages -------------------------------------------------------------------------------------------------------------

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


# -- bridges -----------------------------------------------------------------------------------------------------------

SPAN = 20_000
"""Sequences looked at in one step: a bridge that wants few of them says now and then how far it is."""

Following = tuple[list[Record], int]


class FeedForBridges:
    """Used from the loop's thread; the works it gives out may be done on any other."""

    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    @property
    def last(self) -> int | None:
        """None: the log is not open."""
        return self._publisher.opened().feed.log.last if self._publisher.is_open else None

    def beginning(self, start: Start, at: int, now: int) -> Callable[[], Reached]:
        """Where a bridge that begins there has come to; opens the log, if nobody has."""
        return partial(_begin, self._publisher.opened().feed.log, start, at, now)

    def following(self, reached: Reached, filter: Filter, most: int, most_bytes: int) -> Callable[[], Following]:
        """What is wanted after that, and how far was looked. ``Retired`` or ``WrongEpoch``: it cannot go on so."""
        return partial(_follow, self._publisher.opened().feed.log, reached, filter, most, most_bytes)


def _begin(log: Log, start: Start, at: int, now: int) -> Reached:
    next = begins_at(log, Ask(Filter(), start=start, at=at))
    if next < log.first:
        raise Retired(f"sequence {next} is no longer kept: the log begins at {log.first}", field="at")
    return Reached(log.epoch, next - 1, now)


def _follow(log: Log, reached: Reached, filter: Filter, most: int, most_bytes: int) -> Following:
    if reached.epoch != log.epoch or reached.sequence > log.last:
        raise WrongEpoch(
            f"it has come to sequence {reached.sequence} of epoch {reached.epoch}, and the log ends at {log.last} of "
            f"epoch {log.epoch}: it began anew"
        )
    with closing(log.reader()) as reader:
        page = read_page(reader, filter, reached.sequence + 1, PageLimits(most, most_bytes, SPAN))
    return page.records, page.last
