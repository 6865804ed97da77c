"""Adapters of the topic log: for sink batches, for bridges, and for readers that read page by page.

``broker.sink_batches`` publishes a batch's records and reads those of an unfinished one. ``broker.bridges`` reads the
matching records after a bridge's cursor. Its reads are returned as functions that may run in any thread.

A page ends after the record that reaches a limit: count, bytes, or sequences examined. Reading blocks on the disk: call
it off the event loop. The only state between two pages is ``RecordPage.last``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.core.bridges import BridgeCursor
from yirangmq.core.errors import QueueError, Retired, WrongEpoch
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import MAX_SEQUENCE, Log, LogReader, NewRecord, Record, Start
from yirangmq.topics.cursors import SubscriptionParameters, start_sequence

if TYPE_CHECKING:
    from yirangmq.topics.publisher import Publisher


# -- sink batches ------------------------------------------------------------------------------------------------------


class TopicLogForBatches:
    """Topic log as sink batches see it."""

    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    def last(self) -> int:
        return self._publisher.ensure_open().feed.log.last

    def publish(self, records: Sequence[NewRecord], done: Callable[[Any, QueueError | None], None]) -> None:
        self._publisher.publish(records, done)

    def records_after(self, sequence: int) -> Iterator[Record]:
        """Yield the records after ``sequence``, from any thread.

        Records that retention has removed meanwhile are skipped."""
        reader = self._publisher.ensure_open().feed.log.reader()
        try:
            yield from reader.records(max(sequence + 1, reader.first))
        finally:
            reader.close()


# -- pages -------------------------------------------------------------------------------------------------------------

FOLLOW_SPAN = 100_000
"""Upper bound of sequences examined for one page of a subscriber, whether they match its filter or not."""


class PageLimits(NamedTuple):
    """Limits of a page. A page ends after the record that reaches a limit, so it can always hold one record."""

    records: int
    size: int = MAX_SEQUENCE
    """Bytes of payloads, or of the output of ``render``."""
    span: int = MAX_SEQUENCE
    """Number of sequences examined."""


class RecordPage(NamedTuple):
    """Page of matching records. ``last`` is the last sequence examined.

    All matching records up to ``last`` are on this page or an earlier one."""

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
    """Return the page of matching records from ``start`` on.

    ``render`` encodes each record; its outputs are joined and count for ``limits.size``. Raises ``Retired`` or
    ``BadInput`` if ``start`` is not in the log."""
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
    """Return the page after ``seen``. It is empty if no record follows, or if the log started a new epoch meanwhile."""
    with closing(log.reader()) as reader:
        if reader.epoch != log.epoch or reader.last <= seen:
            return RecordPage([], seen)
        return read_page(reader, filter, seen + 1, limits, render)


# -- bridges -----------------------------------------------------------------------------------------------------------

SPAN = 20_000
"""Upper bound of sequences examined in one step, so that a bridge that matches few of them still saves its cursor at
intervals."""

RecordsAfter = tuple[list[Record], int]


class TopicLogForBridges:
    """Topic log as bridges see it. Loop thread only; the functions it returns may run in any thread."""

    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    @property
    def last(self) -> int | None:
        """Return the last sequence of the log, or None if the log is not open."""
        return self._publisher.ensure_open().feed.log.last if self._publisher.is_open else None

    def position_reader(self, start: Start, at: int, now: int) -> Callable[[], BridgeCursor]:
        """Return a function that computes the initial cursor of a bridge with this start.

        Opens the log if it is not open."""
        return partial(_initial_cursor, self._publisher.ensure_open().feed.log, start, at, now)

    def record_reader(
        self, reached: BridgeCursor, filter: Filter, most: int, most_bytes: int
    ) -> Callable[[], RecordsAfter]:
        """Return a function that reads the matching records after ``reached``, and the last sequence examined.

        That function raises ``Retired`` or ``WrongEpoch`` if the bridge cannot continue from ``reached``."""
        return partial(_records_after, self._publisher.ensure_open().feed.log, reached, filter, most, most_bytes)


def _initial_cursor(log: Log, start: Start, at: int, now: int) -> BridgeCursor:
    next = start_sequence(log, SubscriptionParameters(Filter(), start=start, at=at))
    if next < log.first:
        raise Retired(f"sequence {next} is no longer kept: the log begins at {log.first}", field="at")
    return BridgeCursor(log.epoch, next - 1, now)


def _records_after(log: Log, reached: BridgeCursor, filter: Filter, most: int, most_bytes: int) -> RecordsAfter:
    if reached.epoch != log.epoch or reached.sequence > log.last:
        raise WrongEpoch(
            f"it is at sequence {reached.sequence} of epoch {reached.epoch}, and the log ends at {log.last} of "
            f"epoch {log.epoch}: it is a new log"
        )
    with closing(log.reader()) as reader:
        page = read_page(reader, filter, reached.sequence + 1, PageLimits(most, most_bytes, SPAN))
    return page.records, page.last
