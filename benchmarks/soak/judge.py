"""What every subscriber must have had: each record it wanted, once, in order, as it was published."""

from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Record


class Seen(NamedTuple):
    """A record as far as it is compared."""

    sequence: int
    topic: str
    topic_sequence: int
    checksum: int


class Verdict(NamedTuple):
    wanted: int
    gaps: int
    duplicates: int
    disorder: int
    foreign: int
    """Records that it did not ask for, or that are not as they were published."""

    @property
    def is_good(self) -> bool:
        return not (self.gaps or self.duplicates or self.disorder or self.foreign)


def seen(record: Record) -> Seen:
    return Seen(record.sequence, record.topic, record.topic_sequence, crc32(record.payload))


def judge(truth: dict[int, Seen], filter: Filter, had: list[Seen]) -> Verdict:
    """``truth``: every record of the log, by its sequence."""
    wanted = {sequence for sequence, one in truth.items() if filter.wants(one.topic)}
    sequences = [one.sequence for one in had]
    foreign = sum(1 for one in had if one.sequence not in wanted or truth[one.sequence] != one)
    disorder = sum(1 for before, after in pairwise(sequences) if after < before)
    return Verdict(
        len(wanted), len(wanted.difference(sequences)), len(sequences) - len(set(sequences)), disorder, foreign
    )
