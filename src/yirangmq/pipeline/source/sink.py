"""Sink: DataFrames into queues and topics, encoded as record frames, staged by tasks and committed once.

Every task stages its rows at the server, where they are invisible. A single commit makes all of them visible. The
server (``broker.sink_batches``) stores a batch once, also if tasks or the commit are repeated (docs/http-topics.md).

The topic of a frame names the target of the row (``queue:mail``, ``topic:trades``, ``dlq:mail``). Its headers are
members of the envelope. The sequence numbers in such a frame have no meaning; the broker assigns them."""

import gc
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import pairwise
from struct import calcsize, pack
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from yirangmq.pipeline.source.errors import RequestRejected, SourceError, print_notice
from yirangmq.pipeline.source.frames import HAS_KEY, MAX_FRAME_BYTES, SIGNATURE, crc32
from yirangmq.pipeline.source.http_client import broker_of
from yirangmq.pipeline.source.msgpack import MAX_TEXT_BYTES, write_map
from yirangmq.pipeline.source.options import Options

if TYPE_CHECKING:
    import pyarrow

    from yirangmq.pipeline.source.frames import Numbers


# -- rows as record frames ---------------------------------------------------------------------------------------------

MEMBERS = {
    "message_id": "messageId",
    "type": "type",
    "version": "version",
    "priority": "priority",
    "delay": "delaySec",
    "ttl": "ttlSec",
    "group": "groupId",
    "target_consumer": "targetConsumerId",
    "deduplication_key": "deduplicationKey",
    "trace_id": "traceId",
    "content_type": "contentType",
    "reason": "reason",
}
"""Row columns that are members of the envelope: column name to JSON member."""
TARGET_COLUMNS = ("target", "queue", "topic")
SINK_COLUMNS = frozenset({"value", "key", "headers", *TARGET_COLUMNS, *MEMBERS})
IGNORED_COLUMNS = frozenset({"partition", "offset", "global_seq", "timestamp"})
"""Columns that a read returns and a write assigns anew; the sink ignores them."""
TARGETS = ("queue:", "topic:", "dlq:")
IS_JSON = "isJson"
"""Header for the broker: ``yes`` if the value is JSON, ``maybe`` if the broker is to check."""
MAX_CACHED_PREFIXES = 1000
OUTER = ">I8sI"
"""Length, signature, checksum."""
OUTER_SIZE = calcsize(OUTER)
BLOCK_BYTES = 1 << 20
"""Upper bound of the rows that are encoded together, in bytes."""


class Block(NamedTuple):
    """Consecutive frames as parts to be joined, with the number of frames and their size in bytes."""

    parts: "Sequence[bytes | memoryview]"
    rows: int
    size: int


class BadRow(Exception):
    """This row cannot be written; the text is the reason."""


class FramePrefix:
    """Bytes of a frame before its value. Rows that differ only in their values share one prefix."""

    __slots__ = ("crc", "data", "max_value_bytes")

    def __init__(self, target: str, key: str | None, headers: Mapping[str, str]) -> None:
        name, encoded_headers = target.encode(), write_map(headers)
        encoded_key = b"" if key is None else key.encode()
        for what, part in (("target", name), ("key", encoded_key), ("headers", encoded_headers)):
            if len(part) > MAX_TEXT_BYTES:
                raise BadRow(f"the {what} of the row has {len(part)} bytes, at most {MAX_TEXT_BYTES}")
        marks = 0 if key is None else HAS_KEY
        inner = pack(">QQQHHHH", 1, 1, 0, marks, len(name), len(encoded_key), len(encoded_headers))
        self.data = b"".join((inner, name, encoded_key, encoded_headers))
        self.crc = crc32(self.data)
        self.max_value_bytes = MAX_FRAME_BYTES - 16 - len(self.data)

    def frame(self, value: bytes) -> bytes:
        if len(value) > self.max_value_bytes:
            raise BadRow(f"a value of {len(value)} bytes, at most {self.max_value_bytes}")
        size = len(self.data) + len(value) + 4
        return b"".join((pack(OUTER, size, SIGNATURE, crc32(value, self.crc)), self.data, value))

    def heads(self, values: list[memoryview], sizes: "Numbers") -> bytes:
        """Return the checksummed prefixes for these values, concatenated in order."""
        import numpy as np

        crc = self.crc
        made = np.empty((len(values), OUTER_SIZE + len(self.data)), np.uint8)
        made[:] = np.frombuffer(pack(OUTER, 0, SIGNATURE, 0) + self.data, np.uint8)
        made[:, :4] = (sizes + (len(self.data) + 4)).astype(">u4").view(np.uint8).reshape(-1, 4)
        sums = np.array([crc32(value, crc) for value in values])
        made[:, OUTER_SIZE - 4 : OUTER_SIZE] = sums.astype(">u4").view(np.uint8).reshape(-1, 4)
        return made.tobytes()


class RowEncoder:
    """Encoder of rows as record frames.

    Holds plain values only, so that it can be sent to a task. ``columns`` maps a name to its type, in Spark's
    spelling."""

    def __init__(self, options: Options, columns: Mapping[str, str]) -> None:
        self._options = options
        self._columns = dict(columns)
        self._default = _target_by_option(options)
        self._dead_letters_bad_rows = options.text("onBadRow") == "dlq"
        self._bad_row_queue = options.needed("badRowQueue")
        self._check()
        kind = options.needed("valueFormat")
        is_text = columns["value"] == "string"
        self._is_json = {"json": "yes", "bytes": "", "auto": "maybe" if is_text else ""}[kind]
        self._prefixes: dict[Any, FramePrefix] = {}

    def _check(self) -> None:
        """Check the columns and options, before any data moves."""
        columns = self._columns
        if "value" not in columns:
            close = get_close_matches("value", columns, 1, 0.3)
            hint = f"; rename {close[0]!r}?" if close else ""
            raise SourceError(f"a column value is needed (string or binary), there are {', '.join(columns)}{hint}")
        for name, kinds in (("value", ("string", "binary")), ("target", ("string",)), ("queue", ("string",)),
                            ("topic", ("string",)), ("key", ("string", "binary", "int", "bigint"))):  # fmt: skip
            if columns.get(name, kinds[0]) not in kinds:
                hint = "; try to_json(struct(*))" if name == "value" else ""
                raise SourceError(f"the column {name} must be {' or '.join(kinds)}, not {columns[name]}{hint}")
        if not columns.get("headers", "map<").startswith("map<"):
            raise SourceError(f"the column headers must be map<string,string>, not {columns['headers']}")
        if self._default is None and not any(name in columns for name in TARGET_COLUMNS):
            raise SourceError(
                "set the target of rows: the option topic or queue, or a column target (queue:x, topic:y, dlq:z)"
            )
        unknown = [name for name in columns if name not in SINK_COLUMNS and name not in IGNORED_COLUMNS]
        if unknown and not self._options.flag("ignoreUnknownColumns"):
            close = get_close_matches(unknown[0], sorted(SINK_COLUMNS), 1, 0.6)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SourceError(
                f"the sink does not know the column {unknown[0]!r}{hint}; leave it out, put it into value or headers, "
                "or set ignoreUnknownColumns=true"
            )

    def blocks(self, found: "pyarrow.RecordBatch") -> Iterator[Block]:
        """Yield the rows in order, in blocks of at most ``BLOCK_BYTES`` or of a single row."""
        names = [name for name in found.schema.names if name in SINK_COLUMNS]
        if names == ["value"] and self._default is not None:
            yield from self._plain_blocks(found.column("value"), self._default)
        else:
            yield from _group_blocks(self._frames(found, names))

    def _frames(self, found: "pyarrow.RecordBatch", names: list[str]) -> Iterator[bytes]:
        columns = {name: found.column(name).to_pylist() for name in names}
        for number, value in enumerate(columns.pop("value")):
            yield self._frame({name: cells[number] for name, cells in columns.items()}, value)

    def _plain_blocks(self, values: "pyarrow.Array[Any]", target: str) -> Iterator[Block]:
        """Yield blocks of rows that have only a value and share one target.

        All prefixes of a block are built with one numpy operation. The values are views of the Arrow buffer, without a
        copy."""
        marks_json = self._is_json and not target.startswith("topic:")
        prefix = FramePrefix(target, None, {IS_JSON: self._is_json} if marks_json else {})
        found = edges_of(values)
        if found is None or (found[1:] - found[:-1]).max(initial=0) > prefix.max_value_bytes:
            yield from _group_blocks(self._frame({}, value) for value in values.to_pylist())
            return
        data = memoryview(values.buffers()[2] or b"")
        size = OUTER_SIZE + len(prefix.data)
        for edges in _cut(found, BLOCK_BYTES):
            raw = [data[begin:end] for begin, end in pairwise(edges.tolist())]
            heads = prefix.heads(raw, edges[1:] - edges[:-1])
            parts: list[bytes | memoryview] = [b""] * (2 * len(raw))
            parts[0::2] = [heads[at : at + size] for at in range(0, len(heads), size)]
            parts[1::2] = raw
            yield Block(parts, len(raw), len(heads) + int(edges[-1] - edges[0]))

    def _frame(self, row: dict[str, Any], value: Any) -> bytes:
        target = ""
        try:
            target = self._target_of(row)
            if value is None:
                raise BadRow("the value is null")
            headers = _headers(row)
            if self._is_json and not target.startswith("topic:") and "contentType" not in headers:
                headers[IS_JSON] = self._is_json
            return self._prefix(target, _key(row.get("key")), headers).frame(_raw(value))
        except (BadRow, UnicodeEncodeError, SourceError) as error:
            if not self._dead_letters_bad_rows:
                raise SourceError(f"{error}; remove such rows, or set onBadRow=dlq ({_shown(target, value)})") from None
            return self._dead_letter_frame(target, value, str(error))

    def _prefix(self, target: str, key: str | None, headers: dict[str, str]) -> FramePrefix:
        mark = (target, key, *headers.items())
        found = self._prefixes.get(mark)
        if found is None:
            found = FramePrefix(target, key, headers)
            if len(self._prefixes) >= MAX_CACHED_PREFIXES:
                self._prefixes.clear()
            self._prefixes[mark] = found
        return found

    def _dead_letter_frame(self, target: str, value: Any, why: str) -> bytes:
        """Return a dead-letter frame for a bad row: for its target's dead-letter queue, with the reason and as many
        bytes of the value as fit."""
        queue = target.partition(":")[2] if target else self._bad_row_queue
        prefix = self._prefix(f"dlq:{queue}", None, {"reason": why[:500]})
        raw = b"" if value is None else _raw(value)
        return prefix.frame(raw[: prefix.max_value_bytes])

    def _target_of(self, row: dict[str, Any]) -> str:
        target = row.get("target")
        if target:
            if not str(target).startswith(TARGETS):
                raise BadRow(f"the target {str(target)[:60]!r} is not queue:NAME, topic:NAME or dlq:NAME")
            return str(target)
        for name in ("queue", "topic"):
            if row.get(name):
                return f"{name}:{row[name]}"
        if self._default is None:
            raise BadRow("the row has no target: the columns target, queue and topic are null, and no option names one")
        return self._default


def edges_of(values: "pyarrow.Array[Any]") -> "Numbers | None":
    """Return the offset of each value in the data buffer of a column, and the end of the last value.

    None if a value is null or the column is neither string nor binary."""
    import numpy as np
    import pyarrow as pa

    if values.null_count or not (pa.types.is_binary(values.type) or pa.types.is_string(values.type)):
        return None
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def _cut(edges: "Numbers", most: int) -> "Iterator[Numbers]":
    """Split the offsets into parts of at most ``most`` bytes, or of a single value."""
    begin = 0
    while begin < len(edges) - 1:
        end = max(begin + 1, int(edges.searchsorted(int(edges[begin]) + most, "right")) - 1)
        yield edges[begin : end + 1]
        begin = end


def _group_blocks(frames: Iterable[bytes]) -> Iterator[Block]:
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        if parts and size + len(frame) > BLOCK_BYTES:
            yield Block(parts, len(parts), size)
            parts, size = [], 0
        parts.append(frame)
        size += len(frame)
    if parts:
        yield Block(parts, len(parts), size)


def _target_by_option(options: Options) -> str | None:
    topic, queue = options.text("topic"), options.text("queue")
    if topic and queue:
        raise SourceError("set topic or queue, not both; a column target names the target of each row")
    return f"topic:{topic}" if topic else f"queue:{queue}" if queue else None


def _raw(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _key(key: Any) -> str | None:
    if key is None or isinstance(key, str):
        return key
    try:
        return key.decode() if isinstance(key, bytes) else str(key)
    except UnicodeDecodeError:
        raise BadRow("the key is not text") from None


def _headers(row: Mapping[str, Any]) -> dict[str, str]:
    """The row's own, and the columns that are members of an envelope."""
    found: dict[str, str] = {}
    if row:
        given = row.get("headers") or ()
        for name, value in given.items() if isinstance(given, dict) else given:
            if value is not None:
                found[str(name)] = str(value)
        for column, member in MEMBERS.items():
            value = row.get(column)
            if value is not None:
                found[member] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found


def _shown(target: str, value: Any) -> str:
    about = "null" if value is None else f"{len(value)} characters" if isinstance(value, str) else f"{len(value)} bytes"
    return f"a row for {target or 'an unnamed target'}, value: {about}"


# -- stages and commits ------------------------------------------------------------------------------------------------

PIECE_BYTES = 8 << 20
"""Upper bound of the rows a task sends in one request, in bytes, unless a single row is larger. Each piece is synced
separately."""
GC_THRESHOLD = 100_000
"""Allocations between two runs of Python's cyclic garbage collector. A piece holds a view for each row, and none of
them is in a cycle. At Python's default threshold the collector takes a tenth of a task's time."""
RECORDS_TYPE = "application/vnd.yirangmq.records"
WRITE_PREFIX = "write-"
"""Prefix of the generated name of a batch write without ``publishId``."""


@dataclass(frozen=True)
class Staged:
    """The rows that one task staged at the broker: a stage, its pieces, rows and checksum."""

    id: str
    pieces: int
    rows: int
    checksum: int


@dataclass
class StageMessage(WriterCommitMessage):
    query: str
    staged: Staged


class Stager:
    """Encoder and uploader of a task: rows to frames to stages. Holds plain values only, so that it can be sent to a
    task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._broker = broker_of(options)
        self._dead_letters_bad_rows = options.text("onBadRow") == "dlq"
        self._bad_queue = options.needed("badRowQueue")
        self._encoder = RowEncoder(options, {field.name: field.dataType.simpleString() for field in schema.fields})

    def check_server(self) -> None:
        """Send one request, so that an unreachable server or a rejected token is reported before any data moves."""
        try:
            self._broker.document("GET", "/v1/batches?query=-")
        finally:
            self._broker.close()

    def stage(self, batches: Iterator["pyarrow.RecordBatch"], query: str, batch: int) -> StageMessage:
        """Store every row on the broker's disk; none of them is visible yet."""
        id, pieces, rows, checksum = task_name(), 0, 0, 0
        path = f"/v1/batches/{quote(query)}/{batch}/stages/{id}"
        sent: Future[None] | None = None
        try:
            with _rare_garbage_collection(), ThreadPoolExecutor(1) as sender:
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
        """Upload one piece and check the reply. The next piece is encoded while this one is sent."""
        got = json.loads(self._broker.request("PUT", path, data, RECORDS_TYPE))
        if got["rows"] != count or got["checksum"] != crc32(data):
            raise SourceError(f"the server stored {got['rows']} of {count} rows, or their content differs")

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
        """Commit the stages of a batch. A repeated commit has no effect: the broker's ledger accepts a batch once.

        Spark creates the writer anew for the commit. The server has answered the tasks by then, so the full timeout
        applies."""
        self._broker.mark_reachable()
        body: dict[str, Any] = {"stages": [asdict(one) for one in staged]}
        if self._dead_letters_bad_rows:
            body["badRowQueue"] = self._bad_queue
        try:
            answer = self._broker.document("POST", f"/v1/batches/{quote(query)}/{batch}/commit", body)
        except RequestRejected as error:
            raise SourceError(
                f"batch {batch} of {query} was not written, and nothing of it was stored: {error}"
            ) from None
        finally:
            self._broker.close()
        if not answer["first"]:
            print_notice(f"batch {batch} of {query} was in already; nothing was written again")


class BatchWriter(DataSourceArrowWriter):
    """Batch writer: a DataFrame into queues or topics, all rows or none."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("a queue or a topic cannot be overwritten; use mode('append')")
        self._stager = Stager(options, schema)
        self._stager.check_server()
        self._query = options.text("publishId") or f"{WRITE_PREFIX}{uuid.uuid4().hex}"

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        return self._stager.stage(iterator, self._query, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._stager.commit(self._query, 0, [one.staged for one in in_order(messages)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: staged rows are invisible, and the broker removes stages that are not committed."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Stream writer: micro-batches into queues or topics, each stored once.

    The batches are stored at the broker under Spark's id of the query, which stays the same for the life of a
    checkpoint."""

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
        """Do nothing: staged rows are invisible, and the broker removes stages that are not committed."""


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def task_name() -> str:
    """Return a unique name for this attempt of this task. Names sort in the order of the partitions."""
    context = TaskContext.get()
    if context is None:
        return f"000000-{uuid.uuid4().hex[:12]}"
    return f"{context.partitionId():06d}-{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}"


def in_order(messages: Sequence[WriterCommitMessage | None]) -> list[StageMessage]:
    """Return the messages in the order of the partitions, which is the order of the rows."""
    found = [message for message in messages if isinstance(message, StageMessage)]
    if len(found) != len(messages):
        raise SourceError("a task did not report its stage; nothing is committed")
    return sorted(found, key=lambda one: one.staged.id)
