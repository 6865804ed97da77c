"""The rows of a batch as they lie in its stages: counted when they come, and read again for the commit.

Knows: stages, record frames, how rows are sorted. Does not know: the store, the log, the ledger. Reads piece by piece;
rows for queues are kept until they are stored together, those for topics only while there are few."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol
from zlib import crc32

from yirangmq.core.batches import MARK, Stage, check_rows
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Clock, Ids
from yirangmq.core.topics import NewRecord
from yirangmq.format.rows import LARGE, Rows, Sorter, are_for_topics
from yirangmq.wire.records import HEAD, check_record, is_sound, read_head, read_many

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
        self._makes_all = True
        """Rows that are plain and for topics are made too; once there are too many they are only counted."""

    def load(self) -> Loaded:
        """In the order of the stages, each checked against what its task said of it."""
        all, count, size = Rows({}, {}, []), 0, 0
        for rows, passed in self._sorted():
            count += passed
            for queue, envelopes in rows.queues.items():
                all.queues.setdefault(queue, []).extend(envelopes)
            for queue, found in rows.dead.items():
                all.dead.setdefault(queue, []).extend(found)
            count += len(rows.records)
            size += sum(len(record.payload) for record in rows.records)
            self._makes_all = self._makes_all and size <= KEPT_BYTES
            all.records.extend(rows.records if self._makes_all else ())
        if not self._makes_all:
            all.records.clear()
        return Loaded(all, count)

    def topic_records(self, passed: int = 0) -> Iterator[list[NewRecord]]:
        """Those for topics, piece by piece, without the first so many."""
        self._makes_all = True
        for rows, _ in self._sorted():
            if passed < len(rows.records):
                yield rows.records[passed:]
            passed = max(0, passed - len(rows.records))

    def _sorted(self) -> Iterator[tuple[Rows, int]]:
        """Piece by piece, with how many of it were counted and not made."""
        mark = MARK, f"{self._query}/{self._batch}"
        sorter = Sorter(self._ids, self._clock.now_ms(), mark, check_record, self._bad_queue)
        for stage in self._named:
            rows = checksum = 0
            for piece in range(stage.pieces):
                data = self._stages.read(self._query, self._batch, stage.id, piece)
                checksum = crc32(data, checksum)
                passed = 0 if self._makes_all else count_plain(data)
                found = [] if passed else read_many(data)
                sorter.passed(passed)
                rows += passed or len(found)
                yield sorter.sort(found), passed
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


def count_plain(data: bytes) -> int:
    """Rows that are all for topics and have nothing that could be wrong; 0 if they must be looked at one by one."""
    at, rows, end = 0, 0, len(data)
    targets: set[bytes] = set()
    while at < end:
        head = read_head(data, at) if end - at >= HEAD else None
        if head is None or head.headers_size or head.size > LARGE or at + head.size > end:
            return 0
        targets.add(data[at + HEAD : at + HEAD + head.topic_size])
        at += head.size
        rows += 1
    return rows if are_for_topics(targets) else 0
