"""The rows of a batch as they lie in its stages: counted when they come, and read again for the commit.

Knows: stages, record frames, how rows are sorted. Does not know: the store, the log, the ledger. Reads piece by piece;
rows for queues are kept until they are stored together, those for topics only while there are few."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol
from zlib import crc32

from yirangmq.core.batches import MARK, Stage, check_rows
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Clock, Ids
from yirangmq.core.topics import NewRecord, Record
from yirangmq.format.rows import Rows, Sorter
from yirangmq.wire.records import HEAD, RecordReader, check_record, is_sound, read_head

KEPT_BYTES = 32 << 20
"""Payloads for topics that are kept in memory between the two halves of a commit; more are read again."""


class Stages(Protocol):
    """Where stages lie. What ``put`` was given is on disk when it returns."""

    def put(self, query: str, batch: int, stage: str, piece: int, data: bytes) -> None: ...

    def read(self, query: str, batch: int, stage: str, piece: int) -> bytes: ...

    def drop(self, query: str, batch: int) -> None: ...

    def batches(self) -> Iterator[tuple[str, int, int]]: ...


class Loaded(NamedTuple):
    """``rows.records`` are all there are for topics, or none of them if they are too many to keep."""

    rows: Rows
    topic_rows: int


class StagedRows:
    """Of one batch. Every method is called aside."""

    def __init__(
        self, stages: Stages, clock: Clock, ids: Ids, query: str, batch: int, named: Sequence[Stage], bad_queue: str
    ) -> None:
        self._stages = stages
        self._clock = clock
        self._ids = ids
        self._query = query
        self._batch = batch
        self._named = named
        self._bad_queue = bad_queue

    def load(self) -> Loaded:
        """In the order of the stages, each checked against what its task said of it."""
        all, count, size, is_kept = Rows({}, {}, []), 0, 0, True
        for rows in self._sorted():
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
        """Those for topics, piece by piece, without the first so many."""
        for rows in self._sorted():
            if passed < len(rows.records):
                yield rows.records[passed:]
            passed = max(0, passed - len(rows.records))

    def _sorted(self) -> Iterator[Rows]:
        mark = MARK, f"{self._query}/{self._batch}"
        sorter = Sorter(self._ids, self._clock.now_ms(), mark, check_record, self._bad_queue)
        for stage in self._named:
            rows = checksum = 0
            for piece in range(stage.pieces):
                data = self._stages.read(self._query, self._batch, stage.id, piece)
                checksum = crc32(data, checksum)
                found = _records(data)
                rows += len(found)
                yield sorter.sort(found)
            check_rows(stage, rows, checksum)


def count_rows(data: bytes) -> int:
    """Whole and sound records, one after the other; ``BadInput`` if it is anything else."""
    at, rows, end = 0, 0, len(data)
    view = memoryview(data)
    while at < end:
        head = read_head(view, at) if end - at >= HEAD else None
        if head is None or at + head.size > end or not is_sound(view, at, head):
            raise BadInput(f"no whole record begins at byte {at}", field="body")
        at += head.size
        rows += 1
    return rows


def _records(data: bytes) -> list[Record]:
    reader = RecordReader()
    found = list(reader.feed(data))
    if reader.held:
        raise BadInput(f"the last {reader.held} bytes are no whole record", field="body")
    return found
