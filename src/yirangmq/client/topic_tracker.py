"""Tracker of a topic subscription: detects duplicate and missing records.

Sans-IO; it follows ``docs/wire.md``, "Is anything missing?". Without a filter, sequences have no holes. With a filter
it compares the number of records with the counts that the server sends. When something is missing, it accepts no record
until everything after the last certain sequence is sent again."""

from collections.abc import Callable, Iterable, Sequence

from yirangmq.client.values import Event, LostRecords, Missing, NewEpoch, TopicRecord
from yirangmq.wire import messages

MAX_REMEMBERED = 1_000_000
"""Upper bound of the sequences remembered since the last matching count. Beyond it the tracker can report a wrong
count but cannot repair it."""


class Tracker:
    """Detects duplicate and missing records of one topic subscription.

    ``is_all``: there is no filter, so sequences have no holes. ``report`` receives the events for the program."""

    def __init__(self, *, is_all: bool, report: Callable[[Event], None]) -> None:
        self._is_all = is_all
        self._report = report
        self.epoch = ""
        self.last = 0
        """Sequence of the latest record passed on, or the position before the first one."""
        self.reached = 0
        """All matching records up to this sequence have arrived."""
        self.feed_last = 0
        """Last sequence of the log, as last reported by the server."""
        self.needed: int | None = None
        """If not None, records are missing: the server must send everything after this sequence again. Until then no
        record is accepted."""
        self.duplicates = 0
        self.lost: list[tuple[int, int]] = []
        """Gaps that the server reported, each once."""
        self._count = 0
        self._span_last = 0
        """Since the latest start of a count: the number of records that arrived (``_count``), each once, and the
        last of them."""
        self._topics: dict[str, tuple[int, int]] = {}
        self._checked = 0
        """Sequence of the last matching count. ``_since`` holds the sequences passed on after it, or None if there
        were too many."""
        self._since: set[int] | None = set()

    @property
    def resume_after(self) -> int:
        """Sequence after which a new connection must start. All matching records up to it have arrived for certain."""
        if self.needed is not None:
            return self.needed
        return self.reached if self._is_all or self._since is None else self._checked

    # -- frames about records ------------------------------------------------------------------------------------------

    def subscribed(self, about: messages.TopicSubscribed) -> bool:
        """Process TOPIC_SUBSCRIBED. Return True if the epoch differs from the one before."""
        before, self.epoch = self.epoch, about.epoch
        self.feed_last = about.last
        if before != self.epoch:
            self._restart(about.next - 1)
            self.lost.clear()
            if before:
                self._report(NewEpoch(before, self.epoch))
        elif about.next - 1 > self.reached:  # another process confirmed more under this name
            self._restart(about.next - 1)
        elif about.next - 1 > self.resume_after:  # it is unknown whether the records between them arrived
            self.needed = self.resume_after
        self._start_count(about.next, about.gaps)
        return bool(before) and before != self.epoch

    def response(self, about: messages.TopicRecoveryResponse) -> None:
        self._start_count(about.start, about.gaps)

    def complete(self, about: messages.TopicRecoveryComplete) -> None:
        self._compare(about.sequence, about.sent)

    def progress(self, about: messages.TopicProgress) -> None:
        self.feed_last = about.last
        self._compare(about.sequence, about.sent)

    def _restart(self, last: int) -> None:
        self.last = self.reached = self._checked = last
        self.needed, self._since = None, set()
        self._topics.clear()

    def _start_count(self, start: int, gaps: Iterable[tuple[int, int]]) -> None:
        """Start a count at sequence ``start``, and record the gaps."""
        self._count, self._span_last = 0, start - 1
        for first, last in gaps:
            if (first, last) not in self.lost:
                self.lost.append((first, last))
                self._report(LostRecords(first, last))
        if self.needed is not None:
            if start <= self.needed + 1:
                self.needed = None  # the missing records are sent again
        elif start > self.last:  # else records are repeated and recognised by ``_since``
            self._mark_complete(start - 1)

    def _compare(self, sequence: int, sent: int) -> None:
        if self.needed is not None:
            return
        if self._count == sent:
            self.reached = max(self.reached, sequence)
            self._mark_complete(sequence)
        else:
            self._report_missing(f"{sent} records were sent, {self._count} were received")

    def _mark_complete(self, sequence: int) -> None:
        """Note that all matching records up to ``sequence`` have arrived. Later records may be present as well, and
        arrive again."""
        self._checked = max(sequence, self._checked)
        if self._checked >= self.last:
            self._since = set()
        elif self._since is not None:
            self._since = {one for one in self._since if one > self._checked}

    def _report_missing(self, why: str) -> None:
        """Report missing records and request them again.

        Without a filter the first missing record follows the last one; with a filter it is somewhere after the last
        matching count."""
        is_known = not self._is_all and self._since is not None
        self.needed = self._checked if is_known else self.last
        self._report(Missing(self.needed, why))

    # -- records ------------------------------------------------------------------------------------------------------

    def take(self, records: Sequence[TopicRecord]) -> Sequence[TopicRecord]:
        """Return the new records, each once.

        They are in order, except a record that arrives for the first time on a resend, after later ones were passed
        on."""
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
            self._report_missing(f"after {self.last} came {sequence}, {record.topic} {record.topic_sequence}")
            return False
        self.last = sequence
        self.reached = max(self.reached, sequence)
        if not self._is_all:
            self._remember(record)
        return True

    def _is_late(self, record: TopicRecord) -> bool:
        """Handle a record before the last one: a duplicate (False), or its first arrival after later records (True)."""
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
            if len(self._since) > MAX_REMEMBERED:
                self._since = None

    def _follows(self, record: TopicRecord) -> bool:
        """Return True if no record is missing between this one and the one before it, other than reported gaps."""
        if self._is_all:
            return record.sequence == self.last + 1 or self._is_lost(self.last + 1, record.sequence - 1)
        known = self._topics.get(record.topic)
        if known is None or record.topic_sequence == known[0] + 1:
            return True
        return record.topic_sequence > known[0] and any(
            known[1] < first and last < record.sequence for first, last in self.lost
        )

    def _is_lost(self, first: int, last: int) -> bool:
        """Return True if every sequence of the range is in a reported gap."""
        for low, high in sorted(self.lost):
            if low <= first <= high:
                first = high + 1
        return first > last
