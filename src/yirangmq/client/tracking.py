"""What a subscriber knows of its feed, sans-IO: which records are new, which come twice, whether one is missing.

The rules are those of ``docs/topics.md``, "Is anything missing?". Knows: frames' values. Does not know: connections."""

from collections.abc import Callable, Iterable, Sequence

from yirangmq.client.topic_values import Event, LostRecords, Missing, NewEpoch, TopicRecord
from yirangmq.wire import messages

MOST_REMEMBERED = 1_000_000
"""Sequences since the last count that agreed; past them a wrong count can only be told."""


class Tracker:
    """``is_all``: no filter, so that sequences have no holes. ``tell`` hears what a program should know of."""

    def __init__(self, *, is_all: bool, tell: Callable[[Event], None]) -> None:
        self._is_all = is_all
        self._tell = tell
        self.epoch = ""
        self.last = 0
        """The latest record handed on, or the place before the first."""
        self.reached = 0
        """Everything wanted up to here has come."""
        self.feed_last = 0
        """Of the feed, as far as it was told."""
        self.needed: int | None = None
        """Something is missing: everything after this sequence must be sent again. Until then nothing is taken."""
        self.duplicates = 0
        self.lost: list[tuple[int, int]] = []
        """Told gaps, each once."""
        self._count = 0
        self._span_last = 0
        """Since the latest beginning: how many records came, each once, and the last of them."""
        self._topics: dict[str, tuple[int, int]] = {}
        self._checked = 0
        """Where a count last agreed; ``_since``: what was handed on after it, None where that was too much."""
        self._since: set[int] | None = set()

    @property
    def go_on_after(self) -> int:
        """Where a new connection has to begin: everything wanted up to there has come for certain."""
        if self.needed is not None:
            return self.needed
        return self.reached if self._is_all or self._since is None else self._checked

    # -- what the server says ---------------------------------------------------------------------------------------

    def subscribed(self, about: messages.TopicSubscribed) -> bool:
        """True: this is another feed than the one before."""
        before, self.epoch = self.epoch, about.epoch
        self.feed_last = about.last
        if before != self.epoch:
            self._begin_anew(about.next - 1)
            self.lost.clear()
            if before:
                self._tell(NewEpoch(before, self.epoch))
        elif about.next - 1 > self.reached:  # somebody confirmed more under this name
            self._begin_anew(about.next - 1)
        elif about.next - 1 > self.go_on_after:  # of what lies between them nobody knows whether it came
            self.needed = self.go_on_after
        self._begin_count(about.next, about.gaps)
        return bool(before) and before != self.epoch

    def response(self, about: messages.RecoveryResponse) -> None:
        self._begin_count(about.start, about.gaps)

    def complete(self, about: messages.RecoveryComplete) -> None:
        self._compare(about.sequence, about.sent)

    def progress(self, about: messages.Progress) -> None:
        self.feed_last = about.last
        self._compare(about.sequence, about.sent)

    def _begin_anew(self, last: int) -> None:
        self.last = self.reached = self._checked = last
        self.needed, self._since = None, set()
        self._topics.clear()

    def _begin_count(self, start: int, gaps: Iterable[tuple[int, int]]) -> None:
        """What follows begins there."""
        self._count, self._span_last = 0, start - 1
        for first, last in gaps:
            if (first, last) not in self.lost:
                self.lost.append((first, last))
                self._tell(LostRecords(first, last))
        if self.needed is not None:
            if start <= self.needed + 1:
                self.needed = None  # here it comes again
        elif start > self.last:  # else some of it comes again, and is known by what was handed on
            self._agree(start - 1)

    def _compare(self, sequence: int, sent: int) -> None:
        if self.needed is not None:
            return
        if self._count == sent:
            self.reached = max(self.reached, sequence)
            self._agree(sequence)
        else:
            self._miss(f"{sent} records were sent, {self._count} have come")

    def _agree(self, sequence: int) -> None:
        """Everything wanted up to there is here. (What follows it may be here as well, and come again.)"""
        self._checked = max(sequence, self._checked)
        if self._checked >= self.last:
            self._since = set()
        elif self._since is not None:
            self._since = {one for one in self._since if one > self._checked}

    def _miss(self, why: str) -> None:
        """Without a filter the first missing one follows the last; with one it lies somewhere after the last count."""
        is_known = not self._is_all and self._since is not None
        self.needed = self._checked if is_known else self.last
        self._tell(Missing(self.needed, why))

    # -- records ------------------------------------------------------------------------------------------------------

    def take(self, records: Sequence[TopicRecord]) -> Sequence[TopicRecord]:
        """Those to be handed on, each once, in order: but for one that came for the first time when it was asked for
        again, after others had been handed on."""
        if self.needed is not None:
            return ()
        if self._is_all:
            first, count = records[0].sequence, len(records)
            if first == self.last + 1 and [one.sequence for one in records] == list(range(first, first + count)):
                self._count += count
                self.last = self.reached = self._span_last = first + count - 1
                return records
        return [one for one in records if self._is_new(one)]

    def _is_new(self, record: TopicRecord) -> bool:
        sequence = record.sequence
        if self.needed is not None:
            return False
        if sequence <= self._span_last:
            self.duplicates += 1
            return False
        self._count, self._span_last = self._count + 1, sequence
        if sequence <= self.last:
            return self._is_late(record)
        if not self._follows(record):
            self._miss(f"after {self.last} came {sequence}, {record.topic} {record.topic_sequence}")
            return False
        self.last = sequence
        self.reached = max(self.reached, sequence)
        if not self._is_all:
            self._remember(record)
        return True

    def _is_late(self, record: TopicRecord) -> bool:
        """It comes again, or for the first time although later ones were here before it."""
        sequence = record.sequence
        if self._is_all or self._since is None or sequence <= self._checked or sequence in self._since:
            self.duplicates += 1
            return False
        self._remember(record)
        return True

    def _remember(self, record: TopicRecord) -> None:
        sequence = record.sequence
        known = self._topics.get(record.topic)
        if known is None or known[1] < sequence:
            self._topics[record.topic] = record.topic_sequence, sequence
        if self._since is not None:
            self._since.add(sequence)
            if len(self._since) > MOST_REMEMBERED:
                self._since = None

    def _follows(self, record: TopicRecord) -> bool:
        """Nothing is missing between it and the one before it, but what was told to be lost."""
        if self._is_all:
            return record.sequence == self.last + 1 or self._is_lost(self.last + 1, record.sequence - 1)
        known = self._topics.get(record.topic)
        if known is None or record.topic_sequence == known[0] + 1:
            return True
        return record.topic_sequence > known[0] and any(
            known[1] < first and last < record.sequence for first, last in self.lost
        )

    def _is_lost(self, first: int, last: int) -> bool:
        """Every one of them was told to be."""
        for low, high in sorted(self.lost):
            if low <= first <= high:
                first = high + 1
        return first > last
