"""DataFrames into queues and topics: every task lays its rows down at the broker, where nobody sees them, and one
commit puts all of them in, once, however often anything of it is repeated.

Knows: stages and commits of the broker (docs/http.md). Does not know: what is in a row."""

import gc
import json
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from yirangmq.pipeline.source.checksum import crc32
from yirangmq.pipeline.source.errors import Refused, SourceError, say
from yirangmq.pipeline.source.options import Options
from yirangmq.pipeline.source.rows import RowEncoder
from yirangmq.pipeline.source.ways import broker_of

if TYPE_CHECKING:
    import pyarrow

PIECE_BYTES = 8 << 20
"""Bytes of rows a task sends at once, if it is not a single row; each is synced by itself."""
BETWEEN_LOOKS = 100_000
"""New values until Python looks for cycles among them. A piece has a view for each row, none of them in a cycle: at
Python's own pace that takes a tenth of a task's time."""
RECORDS_TYPE = "application/vnd.yirangmq.records"
PASSING = "write-"
"""How the names of batch writes begin that nobody named."""


@dataclass(frozen=True)
class Staged:
    """What one task laid down."""

    id: str
    pieces: int
    rows: int
    checksum: int


@dataclass
class StageMessage(WriterCommitMessage):
    query: str
    staged: Staged


class Stager:
    """Rows to frames to stages. Holds plain values only, so that it can be sent to a task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._broker = broker_of(options)
        self._buries = options.text("onBadRow") == "dlq"
        self._bad_queue = options.needed("badRowQueue")
        self._encoder = RowEncoder(options, {field.name: field.dataType.simpleString() for field in schema.fields})

    def look(self) -> None:
        """A server that is not there, or will not have us, is told before any data moves."""
        try:
            self._broker.document("GET", "/v1/batches?query=-")
        finally:
            self._broker.close()

    def stage(self, batches: Iterator["pyarrow.RecordBatch"], query: str, batch: int) -> StageMessage:
        """Every row on the broker's disk, none of them visible yet."""
        id, pieces, rows, checksum = task_name(), 0, 0, 0
        path = f"/v1/batches/{quote(query)}/{batch}/stages/{id}"
        sent: Future[None] | None = None
        try:
            with _few_looks(), ThreadPoolExecutor(1) as sender:
                for data, count in self._pieces(batches):
                    if sent is not None:
                        sent.result()
                    sent = sender.submit(self._put, f"{path}/{pieces}", data, count)
                    checksum = crc32(data, checksum)
                    pieces, rows = pieces + 1, rows + count
            if sent is not None:
                sent.result()
        finally:
            self._broker.close()
        return StageMessage(query, Staged(id, pieces, rows, checksum))

    def _put(self, path: str, data: bytes, count: int) -> None:
        """While it is on its way the next one is made."""
        got = json.loads(self._broker.ask("PUT", path, data, RECORDS_TYPE))
        if got["rows"] != count or got["checksum"] != crc32(data):
            raise SourceError(f"the broker got {got['rows']} rows, {count} were sent, or not as they were sent")

    def _pieces(self, batches: Iterator["pyarrow.RecordBatch"]) -> Iterator[tuple[bytes, int]]:
        parts: list[bytes | memoryview] = []
        rows = size = 0
        for found in batches:
            for block in self._encoder.blocks(found):
                if parts and size + block.size > PIECE_BYTES:
                    yield b"".join(parts), rows
                    parts, rows, size = [], 0, 0
                parts += block.parts
                rows, size = rows + block.rows, size + block.size
        if parts:
            yield b"".join(parts), rows

    def commit(self, query: str, batch: int, staged: Sequence[Staged]) -> None:
        """Once, whatever is repeated: the broker's ledger sees to it. Spark makes the writer anew to commit; the tasks
        have had their answers."""
        self._broker.answered_others()
        body: dict[str, Any] = {"stages": [asdict(one) for one in staged]}
        if self._buries:
            body["badRowQueue"] = self._bad_queue
        try:
            answer = self._broker.document("POST", f"/v1/batches/{quote(query)}/{batch}/commit", body)
        except Refused as error:
            raise SourceError(
                f"batch {batch} of {query} was not written, and nothing of it is there: {error}"
            ) from None
        finally:
            self._broker.close()
        if not answer["first"]:
            say(f"batch {batch} of {query} was in already; nothing was written again")


class BatchWriter(DataSourceArrowWriter):
    """A DataFrame into queues or topics, all of it or none of it."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("a queue or a topic cannot be overwritten; use mode('append')")
        self._stager = Stager(options, schema)
        self._stager.look()
        self._query = options.text("publishId") or f"{PASSING}{uuid.uuid4().hex}"

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        return self._stager.stage(iterator, self._query, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._stager.commit(self._query, 0, [one.staged for one in in_order(messages)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is visible; the broker sweeps stages that nobody commits."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches into queues or topics, each once. Its name at the broker is Spark's id of the query, which is the
    same for the life of a checkpoint."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("a queue or a topic cannot be overwritten; use outputMode('append')")
        if "publishId" in options:
            raise SourceError("the option publishId is for batch writes; a stream has the name of its checkpoint")
        self._stager = Stager(options, schema)

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise SourceError("this sink is for streams; write a DataFrame with df.write")
        return self._stager.stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = in_order(messages)
        if found:
            self._stager.commit(found[0].query, batchId, [one.staged for one in found])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is visible; the broker sweeps stages that nobody commits."""


@contextmanager
def _few_looks() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(BETWEEN_LOOKS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def task_name() -> str:
    """This try of this task, told apart from every other; in the order of the partitions."""
    context = TaskContext.get()
    if context is None:
        return f"000000-{uuid.uuid4().hex[:12]}"
    return f"{context.partitionId():06d}-{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}"


def in_order(messages: Sequence[WriterCommitMessage | None]) -> list[StageMessage]:
    """Of the partitions, which is the order of the rows."""
    found = [message for message in messages if isinstance(message, StageMessage)]
    if len(found) != len(messages):
        raise SourceError("a task brought no word of what it laid down; nothing is committed")
    return sorted(found, key=lambda one: one.staged.id)
