"""Rows of a sink batch in its stages, and double buffering of their parts.

A stage holds the rows of a Spark task, as pieces of record frames. Rows are counted and checked when a piece arrives,
and read again, piece by piece, for the commit. The commit compares rows and checksum of each stage with the values that
its task reported. Rows for queues stay in memory until they are stored together; rows for topics only up to
``KEPT_BYTES``. A stage of plain topic rows that arrived since the server's start is not read again to count its rows.
Background threads only.

Double buffering: while a part is written, the next is read on a background thread. A part is valid until the part after
the next is requested. Event loop thread only."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from yirangmq.broker.commit_jobs import Done, RunInThread
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Clock, Ids
from yirangmq.core.sink_batches import BATCH_HEADER, BatchEntry, BatchStage, check_rows
from yirangmq.core.topics import NewRecord
from yirangmq.format.sink_rows import LARGE, TOPIC, Rows, SinkRowConverter, are_for_topics
from yirangmq.wire.records import check_record, crc32, read_bare, read_many, summarize

Read = TypeVar("Read")
KEPT_BYTES = 32 << 20
"""Upper bound of topic payloads, in bytes, kept in memory between the store commit and the append to the log. Larger
batches are read again from their stages."""


class StageStorage(Protocol):
    """Port to the storage of stages. ``put`` returns when the data is on disk."""

    def put(self, query: str, batch: int, stage: str, piece: int, data: bytes) -> None: ...

    def reader(self, query: str, batch: int) -> Callable[[str, int], memoryview]:
        """Return a function that reads a piece of a stage. Its result is valid until the function is called again."""

    def check(self, query: str, batch: int, stage: str, piece: int) -> None:
        """Raise ``NotFound`` if the piece does not exist."""

    def drop(self, query: str, batch: int) -> None: ...

    def batches(self) -> Iterator[tuple[str, int, int]]: ...


class Loaded(NamedTuple):
    """Rows of a batch. ``topic_rows`` counts all rows for topics.

    ``rows.records`` has all of them, or is empty if they exceed ``KEPT_BYTES`` or come from plain stages."""

    rows: Rows
    topic_rows: int


class Received(NamedTuple):
    """Receipt of a stored piece: its rows and their checksum."""

    rows: int
    checksum: int


class StageTotals(NamedTuple):
    """Totals of the pieces of a stage received up to now.

    ``is_plain``: all rows are for valid topics, have no headers, keys in UTF-8, and at most ``LARGE`` bytes. Such rows
    cannot be rejected."""

    pieces: int
    rows: int
    checksum: int
    is_plain: bool


NOTHING = StageTotals(0, 0, 0, True)


class ReceivedStages:
    """Totals of the stages received since the server started, so that plain stages need not be read to be counted.

    Background threads only."""

    def __init__(self) -> None:
        self._stages: dict[tuple[str, int], dict[str, StageTotals]] = {}

    def note(self, query: str, batch: int, stage: str, piece: int, data: bytes, scanned: "Scanned") -> Received:
        of_batch = self._stages.setdefault((query, batch), {})
        before = of_batch.pop(stage, NOTHING)
        if before.pieces == piece:  # else a piece was repeated or out of order: forget the stage
            of_batch[stage] = StageTotals(
                piece + 1,
                before.rows + scanned.rows,
                crc32(data, before.checksum),
                before.is_plain and scanned.is_plain,
            )
        return Received(scanned.rows, crc32(data))

    def is_plain(self, query: str, batch: int, stage: BatchStage) -> bool:
        known = self._stages.get((query, batch), {}).get(stage.id, NOTHING)
        received = (known.pieces, known.rows, known.checksum)
        return known.is_plain and received == (stage.pieces, stage.rows, stage.checksum)

    def forget(self, query: str, batch: int) -> None:
        self._stages.pop((query, batch), None)


class StagedRows:
    """Reader of the staged rows of one batch. Background threads only."""

    def __init__(self, stages: StageStorage, laid: ReceivedStages, clock: Clock, ids: Ids, entry: BatchEntry) -> None:
        self._stages = stages
        self._laid = laid
        self._clock = clock
        self._ids = ids
        self._entry = entry
        self._readers = [stages.reader(entry.query, entry.batch) for _ in range(2)]
        """Two readers, each with its own buffer. The first one reads; the buffer of the other holds the part in use."""

    def load(self) -> Loaded:
        """Load the rows in the order of the stages. Each stage is checked against the totals that its task reported."""
        all, count, size, is_kept = Rows({}, {}, []), 0, 0, True
        sorter = self._sorter()
        for stage in self._entry.stages:
            if self._laid.is_plain(self._entry.query, self._entry.batch, stage):
                self._check_there(stage)
                sorter.passed(stage.rows)
                count, is_kept = count + stage.rows, False
                continue
            for rows in self._sorted(sorter, stage):
                for queue, envelopes in rows.queues.items():
                    all.queues.setdefault(queue, []).extend(envelopes)
                for queue, found in rows.dead.items():
                    all.dead.setdefault(queue, []).extend(found)
                count += len(rows.records)
                size += sum(len(record.payload) for record in rows.records)
                is_kept = is_kept and size <= KEPT_BYTES
                all.records.extend(rows.records if is_kept else ())
        if not is_kept:
            all.records.clear()
        return Loaded(all, count)

    def topic_records(self, passed: int = 0) -> Iterator[list[NewRecord]]:
        """Yield the topic records in parts from two alternating buffers, without the first ``passed`` records.

        A part is valid until the part after the next is requested, so that the next part can be read while it is
        written."""
        sorter = self._sorter()
        for stage in self._entry.stages:
            for records in self._records(sorter, stage):
                if passed < len(records):
                    self._readers.reverse()
                    yield records[passed:]
                passed = max(0, passed - len(records))

    @property
    def _mark(self) -> str:
        return f"{self._entry.query}/{self._entry.batch}"

    def _sorter(self) -> SinkRowConverter:
        mark = BATCH_HEADER, self._mark
        return SinkRowConverter(self._ids, self._clock.now_ms(), mark, check_record, self._entry.bad_queue)

    def _records(self, sorter: SinkRowConverter, stage: BatchStage) -> Iterator[list[NewRecord]]:
        if not self._laid.is_plain(self._entry.query, self._entry.batch, stage):
            for rows in self._sorted(sorter, stage):
                yield rows.records
            return
        headers = {BATCH_HEADER: self._mark}
        yield from self._read(stage, lambda data: read_bare(data, len(TOPIC), headers))
        sorter.passed(stage.rows)

    def _sorted(self, sorter: SinkRowConverter, stage: BatchStage) -> Iterator[Rows]:
        for found in self._read(stage, lambda data: read_many(bytes(data))):
            yield sorter.convert(found)

    def _read(self, stage: BatchStage, read: Callable[[memoryview], list[Read]]) -> Iterator[list[Read]]:
        """Read a stage piece by piece, then compare its rows and checksum with those that its task reported."""
        rows = checksum = 0
        for piece in range(stage.pieces):
            data = self._readers[0](stage.id, piece)
            checksum = crc32(data, checksum)
            found = read(data)
            rows += len(found)
            yield found
        check_rows(stage, rows, checksum)

    def _check_there(self, stage: BatchStage) -> None:
        for piece in range(stage.pieces):
            self._stages.check(self._entry.query, self._entry.batch, stage.id, piece)


class Scanned(NamedTuple):
    """Result of the check of a piece."""

    rows: int
    is_plain: bool


def scan(data: bytes) -> Scanned:
    """Check that a piece is a sequence of complete, valid records, and count them. ``BadInput`` if it is not."""
    found = summarize(data)
    return Scanned(found.records, found.is_bare and found.largest <= LARGE and are_for_topics(found.topics))


# -- double buffering --------------------------------------------------------------------------------------------------

Part = TypeVar("Part")


class DoubleBuffer(Generic[Part]):
    """Double buffering: reads the next part on a background thread while the current one is written.

    ``write(part, done)`` is called for each part in order. ``over(error)`` is called once no read or write is in
    flight. Event loop thread only."""

    def __init__(
        self,
        parts: Iterator[Part],
        run_in_thread: RunInThread,
        write: Callable[[Part, Done], None],
        over: Callable[[QueueError | None], None],
    ) -> None:
        self._parts = parts
        self._run_in_thread = run_in_thread
        self._write = write
        self._over = over
        self._ready: Part | None = None
        self._is_reading = self._is_writing = False
        self._error: QueueError | None = None

    def start(self) -> None:
        self._is_reading = True
        self._run_in_thread(lambda: next(self._parts, None), self._read)

    def _read(self, part: Part | None, error: QueueError | None) -> None:
        self._is_reading = False
        self._ready, self._error = part, self._error or error
        self._advance()

    def _written(self, _: Any, error: QueueError | None) -> None:
        self._is_writing = False
        self._error = self._error or error
        self._advance()

    def _advance(self) -> None:
        if self._is_writing or self._is_reading:
            return
        part, self._ready = self._ready, None
        if part is None or self._error is not None:
            self._over(self._error)
            return
        self._is_writing = True
        self.start()
        try:
            self._write(part, self._written)
        except QueueError as error:
            self._written(None, error)
