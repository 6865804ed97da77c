"""The end of the log: many callers, one write and one sync for all that wait. Knows: the segment in use, the next one.
Does not know: the segments before it, readers.

Nothing is counted before it is on disk. A write that fails is taken back; after a sync that fails nobody can say what
is on disk, and the log takes no more until it is opened again."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from yirangmq.core.errors import StoreError
from yirangmq.core.topics import Appended, NewRecord
from yirangmq.fsio.disk import LARGE
from yirangmq.fsio.errors import as_store_error
from yirangmq.stores.segments_chain import Segment
from yirangmq.stores.segments_house import House
from yirangmq.stores.segments_make import ZEROS, End, Workshop
from yirangmq.wire import records

MOST_AT_ONCE = 4 << 20
"""Bytes of payloads written with one sync, if several callers wait: enough that the sync hardly counts."""
MOST_RECORDS = 1 << 18
"""In one segment, unless they come at once: the last one is scanned when a log is opened."""
Durability = Literal["full", "os"]
OnCommit = Callable[[Sequence[Appended]], None]


class Ticket:
    """One call of ``append`` on its way."""

    __slots__ = ("error", "records", "result", "size")

    def __init__(self, batch: Sequence[NewRecord], size: int) -> None:
        self.records = batch
        self.size = size
        self.result: Appended | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None


class Appender:
    def __init__(
        self, workshop: Workshop, end: End, durability: Durability, now_ns: Callable[[], int], house: House
    ) -> None:
        self._disk = workshop.disk
        self._root = Path(workshop.folder)
        self._is_full = durability == "full"
        self._now_ns = now_ns
        self._house = house
        self._asked: Segment | None = None
        self._waiting: deque[Ticket] = deque()
        self.turn = threading.RLock()
        """Whoever has it may write, and put another segment at the end."""
        self.end = end
        self.on_commit: OnCommit | None = None
        state = end.segment.own_sums.state
        self._numbers = {name: topic.topic_sequence for name, topic in state.items()}
        self._is_synced = True
        self._broken: str | None = None
        self._last_ns = max([end.segment.own_sums.last_ns, *(topic.at_ns for topic in state.values())])

    def append(self, batch: Sequence[NewRecord]) -> Appended:
        ticket = Ticket(batch, records.check_batch(batch, self._numbers))
        self._waiting.append(ticket)
        while not ticket.is_done:
            with self.turn:
                if not ticket.is_done:
                    self._serve(self._taken())
        if ticket.error is not None:
            raise ticket.error
        if ticket.result is None:
            raise StoreError("an append ended without a result")
        return ticket.result

    def _taken(self) -> list[Ticket]:
        """Those who wait, as many as go into one write; one at least."""
        taken = [self._waiting.popleft()]
        size = taken[0].size
        while self._waiting and size + self._waiting[0].size <= MOST_AT_ONCE:
            taken.append(self._waiting.popleft())
            size += taken[-1].size
        return taken

    def _serve(self, tickets: list[Ticket]) -> None:
        """Every ticket gets its result or its error, whatever happens."""
        try:
            results = self._commit(tickets)
        except OSError as error:
            self._fail(tickets, as_store_error(error, self._root))
        except Exception as error:
            self._fail(tickets, error)
        except BaseException:
            self._broken = "a write was interrupted"
            self._fail(tickets, StoreError(f"the log in {self._root} was interrupted; open it again"))
            raise
        else:
            for ticket, result in zip(tickets, results, strict=True):
                ticket.result = result
            if self.on_commit is not None:
                self.on_commit(results)

    def _fail(self, tickets: list[Ticket], error: Exception) -> None:
        for ticket in tickets:
            ticket.error = error

    # -- one write ------------------------------------------------------------------------------------------------

    def _commit(self, tickets: list[Ticket]) -> list[Appended]:
        self._check_usable()
        at_ns = max(self._now_ns(), self._last_ns)
        before: dict[str, int] = {}
        try:
            results, batches = self._encoded(tickets, at_ns, before)
            data = batches[0].data if len(batches) == 1 else b"".join(batch.data for batch in batches)
            if not self._has_room(len(data), results[-1].last):
                self.end = self._house.roll(self.end, len(data))
            self._write(data)
        except BaseException:
            for name, number in before.items():
                self._numbers[name] = number
            self._numbers = {name: number for name, number in self._numbers.items() if number}
            raise
        self._count(tickets, batches, at_ns)
        # Who writes much at a time waits for the disk, and not for what a file costs that grows.
        if self._asked is not self.end.segment and len(data) < LARGE:
            self._asked = self.end.segment
            self._house.prepare()
        return results

    def _has_room(self, size: int, last: int) -> bool:
        segment, file = self.end
        return segment.tail.end + size <= file.size and last - segment.first < MOST_RECORDS

    def _encoded(
        self, tickets: list[Ticket], at_ns: int, before: dict[str, int]
    ) -> tuple[list[Appended], list[records.Batch]]:
        """``before`` gets the numbers of the topics as they were, to go back to."""
        sequence = self.end.segment.tail.last + 1
        synced = self._is_synced
        results, batches = [], []
        numbers = self._numbers
        for ticket in tickets:
            batch = records.encode_batch(ticket.records, sequence, at_ns, numbers, synced=synced)
            for name, number in batch.topics.items():
                before.setdefault(name, numbers.get(name, 0))
                numbers[name] = number
            batches.append(batch)
            last = sequence + len(ticket.records) - 1
            results.append(Appended(sequence, last, at_ns, batch.data, batch.offsets))
            sequence, synced = last + 1, False
        return results, batches

    def _write(self, data: bytes) -> None:
        fd, offset = self.end.file.fd, self.end.segment.tail.end
        if len(data) >= LARGE:  # a full disk in the middle of it would let readers see what is taken back then
            self._disk.reserve(fd, offset, len(data))
        try:
            self._disk.write_at(fd, data, offset)
        except OSError:
            self._take_back(len(data))
            raise
        if not self._is_full:
            self._is_synced = False
            return
        try:
            self._disk.fdatasync(fd)
        except OSError as error:
            self._broken = f"a sync failed ({error.strerror}); what is on disk is not known"
            self._take_back(len(data))
            raise
        self._is_synced = True

    def _take_back(self, size: int) -> None:
        """What was written without being confirmed must not be found by anybody later, nor after a power cut."""
        begin = self.end.segment.tail.end
        try:
            try:
                for offset in range(begin, begin + size, len(ZEROS)):
                    self._disk.write_at(self.end.file.fd, ZEROS[: begin + size - offset], offset)
            except OSError:  # no space for zeros either: the file grows as it is written
                self._disk.truncate(self.end.file.path, begin)
            self._disk.fdatasync(self.end.file.fd)
        except OSError as error:
            self._broken = self._broken or f"half a write could not be taken back ({error.strerror})"

    def _count(self, tickets: list[Ticket], batches: list[records.Batch], at_ns: int) -> None:
        sums = self.end.segment.own_sums
        for ticket, batch in zip(tickets, batches, strict=True):
            if len(batch.topics) == 1:
                [(name, number)] = batch.topics.items()
                sums.add_same(name, number, at_ns, len(ticket.records), len(batch.data))
                continue
            counts = Counter(record.topic for record in ticket.records)
            numbers = {name: batch.topics[name] - count for name, count in counts.items()}
            ends = [*batch.offsets[1:], len(batch.data)]
            for record, begin, end in zip(ticket.records, batch.offsets, ends, strict=True):
                numbers[record.topic] += 1
                sums.add(record.topic, numbers[record.topic], at_ns, end - begin)
        self._last_ns = at_ns
        self.end.segment.confirm()

    # -- the rest -------------------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """False: it takes no more until the log is opened again."""
        return self._broken is None and self._house.trouble is None

    def _check_usable(self) -> None:
        why = self._broken or self._house.trouble
        if why is not None:
            raise StoreError(f"the log in {self._root} takes no more: {why}; open it again")

    def roll(self) -> None:
        """Go on in a new segment."""
        with self.turn:
            self._check_usable()
            self.end = self._house.roll(self.end, 0)

    def close(self) -> None:
        with self.turn:
            try:
                if not self._is_synced and self._broken is None:
                    self._disk.fdatasync(self.end.file.fd)
            finally:
                self._disk.close(self.end.file.fd)

    def sync(self) -> None:
        """Where appending does not sync: do it now."""
        with self.turn:
            self._check_usable()
            try:
                self._disk.fdatasync(self.end.file.fd)
            except OSError as error:
                self._broken = f"a sync failed ({error.strerror}); what is on disk is not known"
                raise
            self._is_synced = True
