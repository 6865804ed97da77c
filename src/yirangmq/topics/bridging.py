"""The feed as bridges need it (``broker.bridges``): where it stands, where somebody begins, and the next records.

Knows: the publisher, the log. Does not know: queues, bridges."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from yirangmq.core.bridges import Reached
from yirangmq.core.errors import Retired, WrongEpoch
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Log, Record, Start
from yirangmq.topics.asking import Ask, begins_at
from yirangmq.topics.paging import PageLimits, read_page

if TYPE_CHECKING:
    from yirangmq.topics.publisher import Publisher

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
