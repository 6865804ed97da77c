"""Partitioning of reads: the range of the log, lost records, the split into tasks, the topic filter.

A range is (after, last]. Tasks get ranges of about equal bytes. Records that retention removed before they were read,
and gaps in the log, are an error, or a notice with ``failOnDataLoss=false``.

The filter selects records by topic and by their offsets within it. Patterns have the same meaning as in
``core.topic_filter``; a test compares both."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from yirangmq.pipeline.source.errors import RecordsRetired, SourceError, print_notice
from yirangmq.pipeline.source.frames import FrameColumns
from yirangmq.pipeline.source.local_log import LogAccess, LogInfo, SplitPoint
from yirangmq.pipeline.source.options import Options

if TYPE_CHECKING:
    from yirangmq.pipeline.source.frames import Numbers


# -- ranges ------------------------------------------------------------------------------------------------------------

SMALL = 1 << 20
"""Minimum size of a range, in bytes, for more than one task."""


@dataclass
class LogRange(InputPartition):
    """Spark partition of a topic: the records (after, last], for one task."""

    after: int
    last: int
    hints: Sequence[Any] = ()


def resolve_start(options: Options, log: LogAccess, info: LogInfo, default: str) -> int:
    """Return the sequence before the first requested record."""
    if "startingTimestamp" in options:
        if "startingOffsets" in options:
            raise SourceError("give startingTimestamp or startingOffsets, not both")
        return max(log.sequence_at(options.instant_ms("startingTimestamp")), info.first) - 1
    found = options.offsets("startingOffsets") or default
    if found == "latest":
        return info.last
    if isinstance(found, dict) and "global_seq" in found:
        wanted = max(1, found["global_seq"])
        if wanted > info.last + 1:
            raise SourceError(f"startingOffsets: {wanted} is past the end, the log ends at {info.last}")
        return wanted - 1
    return info.first - 1


def resolve_end(options: Options, log: LogAccess, info: LogInfo) -> int:
    if "endingTimestamp" in options:
        if "endingOffsets" in options:
            raise SourceError("give endingTimestamp or endingOffsets, not both")
        return log.sequence_at(options.instant_ms("endingTimestamp")) - 1
    found = options.offsets("endingOffsets")
    if found == "earliest":
        raise SourceError("endingOffsets: earliest reads nothing; set latest or numbers")
    if isinstance(found, dict) and "global_seq" in found:
        return min(info.last, found["global_seq"])
    return info.last


def check_kept(after: int, first: int, *, fail: bool) -> int:
    """Return the sequence after which reading can begin.

    Records that were retired before they were read are an error if ``fail`` is set, else a notice."""
    if after + 1 >= first:
        return after
    lost = f"{first - after - 1} records were removed: the next one is {after + 1}, the log begins at {first}"
    if fail:
        raise SourceError(
            f"{lost}. Set failOnDataLoss=false (pipeline process: "
            "--lost-records skip) to continue without them. To prevent it, increase the retention or give the query a "
            "groupId"
        )
    print_notice(f"{lost}; continuing without them (failOnDataLoss=false)")
    return first - 1


def check_missing(first: int, last: int, *, fail: bool) -> None:
    """Report a gap in the log: an error if ``fail`` is set, else a notice."""
    if first > last:
        return
    lost = f"{last - first + 1} records are missing, {first} to {last}: the log has a gap there"
    if fail:
        raise SourceError(f"{lost}; run 'yirangmq log check'. Set failOnDataLoss=false to continue without them")
    print_notice(f"{lost}; continuing without them (failOnDataLoss=false)")


def ranges_of(log: LogAccess, options: Options, after: int, last: int) -> list[LogRange]:
    """Return the ranges of the tasks. If retention removes records meanwhile, plan again from the new first record."""
    while last > after:
        try:
            return _ranges(log, options, after, last)
        except RecordsRetired as error:
            after = check_kept(error.requested - 1, error.first, fail=options.flag("failOnDataLoss"))
    return []


def _ranges(log: LogAccess, options: Options, after: int, last: int) -> list[LogRange]:
    tasks = options.whole("minPartitions") if "minPartitions" in options else 0
    split_points = log.split_points(after, last) if tasks != 1 else []
    if not tasks:
        size = split_points[-1].size - split_points[0].size if split_points else 0
        tasks = max(2, os.cpu_count() or 2) if size >= SMALL else 1
    parts = split(split_points, after, last, tasks, options.whole("maxRecordsPerPartition"))
    return [LogRange(begin, end, log.hints(begin, end)) for begin, end in parts]


def split(split_points: Sequence[SplitPoint], after: int, last: int, tasks: int, most: int) -> list[tuple[int, int]]:
    """Split (after, last] into ranges of about equal bytes, each of at most ``most`` records.

    There are ``tasks`` ranges if there are enough records. Together the ranges are (after, last]."""
    if last <= after:
        return []
    tasks = max(tasks, -(-(last - after) // most))
    edges = [after]
    if len(split_points) > tasks:
        edges += _edges(split_points, tasks)
    else:
        step = -(-(last - after) // tasks)
        edges += range(after + step, last, step)
    edges = [edge for edge in edges if after <= edge < last]
    parts = [
        (begin, min(begin + most, end))
        for start, end in zip(edges, [*edges[1:], last], strict=True)
        for begin in range(start, end, most)
    ]
    while len(parts) < min(tasks, last - after):  # a few large records hold most of the bytes
        number, (begin, end) = max(enumerate(parts), key=lambda part: part[1][1] - part[1][0])
        middle = (begin + end) // 2
        parts[number : number + 1] = [(begin, middle), (middle, end)]
    return parts


def _edges(split_points: Sequence[SplitPoint], tasks: int) -> list[int]:
    """Return the sequences to cut at, without duplicates."""
    begin, size = split_points[0].size, split_points[-1].size - split_points[0].size
    found: list[int] = []
    number = 1
    for point in split_points[1:]:
        if number < tasks and point.size - begin >= size * number // tasks:
            found.append(point.sequence - 1)
            while number < tasks and point.size - begin >= size * number // tasks:
                number += 1
    return found


# -- topic filter ------------------------------------------------------------------------------------------------------


class TopicSelection(NamedTuple):
    """Topic filter of a read.

    Without topics and patterns it selects all topics. ``only`` restricts the selection further (pushed down by Spark).
    ``floors`` holds the first wanted offset per topic, ``ceilings`` the last."""

    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    floors: Mapping[str, int] = {}
    ceilings: Mapping[str, int] = {}
    only: frozenset[str] | None = None

    def wants(self, topic: str) -> bool:
        if self.only is not None and topic not in self.only:
            return False
        if not self.topics and not self.patterns:
            return True
        return topic in self.topics or any(matches(pattern, topic) for pattern in self.patterns)

    def rows(self, found: FrameColumns) -> "Numbers | None":
        """Return the mask of the selected rows, or None if all are selected."""
        import numpy as np

        codes, names = found.topics()
        wanted = np.array([self.wants(name) for name in names], bool)
        kept = None if wanted.all() else wanted[codes]
        for bounds, is_floor in ((self.floors, True), (self.ceilings, False)):
            for topic, bound in bounds.items():
                if topic in names:
                    outside = found.topic_sequence < bound if is_floor else found.topic_sequence > bound
                    inside = ~((codes == names.index(topic)) & outside)
                    kept = inside if kept is None else kept & inside
        return kept

    def narrowed(self, topics: frozenset[str]) -> "TopicSelection":
        return self._replace(only=topics if self.only is None else self.only & topics)


def topic_selection(options: Options) -> TopicSelection:
    topics, patterns = options.names("subscribe"), options.names("subscribePattern")
    if topics and patterns:
        raise SourceError("give subscribe or subscribePattern, not both")
    if not topics and not patterns:
        raise SourceError("set what to read: the option subscribe (topics, separated by commas) or subscribePattern")
    floors, ceilings = _by_topic(options, "startingOffsets"), _by_topic(options, "endingOffsets")
    made = TopicSelection(topics, () if "*" in patterns else patterns, floors, ceilings)
    for name, bounds in (("startingOffsets", floors), ("endingOffsets", ceilings)):
        for topic in bounds:
            if not made.wants(topic):
                raise SourceError(f"{name} names the topic {topic!r}, which is not subscribed to")
    return made


def _by_topic(options: Options, name: str) -> dict[str, int]:
    found = options.offsets(name)
    return {} if isinstance(found, str) or "global_seq" in found else found


def matches(pattern: str, name: str) -> bool:
    """Return whether the name matches the pattern.

    ``*`` is any characters, ``?`` is one, ``+`` is one level: at least one character, and no dot. The time is at most
    proportional to the length of the pattern times the length of the name."""
    here = {0}  # positions in the pattern that match the name up to this letter
    for letter in name:
        here = _advance(pattern, _expand_stars(pattern, here), letter)
        if not here:
            return False
    return len(pattern) in _expand_stars(pattern, here)


def _expand_stars(pattern: str, here: set[int]) -> set[int]:
    """Return the positions that are also reached if each ``*`` matches nothing."""
    found = set(here)
    for point in here:
        while point < len(pattern) and pattern[point] == "*":
            point += 1
            found.add(point)
    return found


def _advance(pattern: str, here: set[int], letter: str) -> set[int]:
    found: set[int] = set()
    for point in here:
        sign = pattern[point] if point < len(pattern) else ""
        if sign == "*":
            found.add(point)
        elif sign == "+" and letter != ".":
            found |= {point, point + 1}
        elif sign and sign in ("?", letter) and sign != "+":
            found.add(point + 1)
    return found
