"""The Spark data source ``yirangmq``: topics, queues and dead letters as DataFrames, batch and streaming, in and out.

Self-contained on purpose, and therefore long: Spark pickles this module to executors that may not have yirangmq
installed, so it imports the standard library, pyspark, and late pyarrow and numpy, and nothing of ours. What it knows
of the log's files and frames it knows a second time; tests hold both to the same bytes (docs/log.md).

Two ways to the data: ``path`` reads the log's files of this machine, ``broker`` asks a server over HTTP. Offsets are
sequences of the whole log; a range is (after, last], so an offset says "everything up to here"."""

import fcntl
import fnmatch
import json
import os
import re
import struct
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from urllib.parse import quote, urlencode, urlsplit

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import numpy
    import pyarrow

NAME = "yirangmq"
BATCH_BYTES = 4 << 20
"""Bytes of frames that become one Arrow batch."""
PIECE_BYTES = 4 << 20
"""Bytes of rows a task sends at once."""
PER_TRIGGER_ROWS = 100_000
PER_TRIGGER_BYTES = 64 << 20
MOST_FRAME = 16 << 20
RECORDS_TYPE = "application/vnd.yirangmq.records"


class SourceError(ValueError):
    """Something is wrong with an option, a row or the data; the text says what, and what to do."""


# -- options ----------------------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """``where``: r in batch reads, s in streams, w in writes. The reference in docs/spark-options.md is printed from
    these."""

    name: str
    default: str | None
    where: str
    about: str
    same_as: tuple[str, ...] = ()


OPTIONS: tuple[Option, ...] = (
    Option("path", None, "rs", "the log's folder, or the server's data folder, on this machine"),
    Option("broker", None, "rsw", "the server's HTTP address, such as http://127.0.0.1:8080"),
    Option("token", None, "rsw", "the server's token; YIRANGMQ_TOKEN in the environment if not said"),
    Option("source", "topic", "rs", "what to read: topic, queue, dlq (dead letters) or archive (acknowledged)"),
    Option("subscribe", None, "rs", "topics to read, split by commas", ("topic", "topics")),
    Option("subscribePattern", None, "rs", "topics to read: a pattern with * and ?"),
    Option("queue", None, "rsw", "the queue to read, several split by commas; the queue to write to"),
    Option("state", "ready", "r", "of a queue: messages of this state"),
    Option("filter", None, "r", "of a queue or its dead letters: which, in the filter language"),
    Option("startingOffsets", None, "rs", 'earliest, latest, {"global_seq": N} or {"topic": N}; default earliest in a '
           "batch, latest in a stream"),
    Option("endingOffsets", "latest", "r", 'latest, {"global_seq": N} or {"topic": N}: the last ones read'),
    Option("startingTimestamp", None, "rs", "begin with records from this time on, in milliseconds since 1970"),
    Option("endingTimestamp", None, "r", "end before this time, in milliseconds since 1970"),
    Option("maxOffsetsPerTrigger", str(PER_TRIGGER_ROWS), "s", "records in one micro-batch at most",
           ("maxRecordsPerTrigger",)),
    Option("maxBytesPerTrigger", str(PER_TRIGGER_BYTES), "s", "bytes in one micro-batch, more or less"),
    Option("minOffsetsPerTrigger", "0", "s", "wait for so many records before a micro-batch …"),
    Option("maxTriggerDelay", "15000", "s", "… but no longer than so many milliseconds"),
    Option("minPartitions", "2", "rs", "tasks to split a range into at least"),
    Option("maxRecordsPerPartition", "500000", "rs", "records of one task at most"),
    Option("failOnDataLoss", "true", "rs", "fail if records that were not read yet are gone; false: go on, and say how "
           "many"),
    Option("includeHeaders", "true", "rs", "the column headers"),
    Option("columns", None, "rs", "only these columns, split by commas; the others are not even read"),
    Option("groupId", None, "s", "a durable name at the broker: nothing this query has not committed is retired"),
    Option("verify", "true", "rs", "compare each record with its checksum"),
    Option("timeoutSec", "60", "rsw", "patience with the server"),
    Option("topic", None, "w", "the topic to write to"),
    Option("publishId", None, "w", "the name of a batch write: written again under the same name, it is in once"),
    Option("onBadRow", "fail", "w", "fail, or dlq: rows that cannot be written go to the dead letters of their queue"),
    Option("valueFormat", "auto", "w", "json, bytes, or auto: JSON if a string column holds JSON"),
    Option("ignoreUnknownColumns", "false", "w", "leave columns out that mean nothing to the sink"),
    Option("pushFilters", "false", "r", "let Spark push filters down; set by the session of yirangmq"),
)  # fmt: skip
OURS_TOO = frozenset({"checkpointlocation", "mode", "__planner"})
"""What Spark puts among the options by itself."""


class Options:
    """Checked, by their proper names, with their defaults."""

    def __init__(self, given: Mapping[str, str], where: str) -> None:
        known = {option.name.lower(): option for option in OPTIONS if set(option.where) & set(where)}
        for option in OPTIONS:
            if set(option.where) & set(where):
                for other in option.same_as:
                    known.setdefault(other.lower(), option)
        self._values: dict[str, str] = {}
        for name, value in dict(given).items():
            lowered = name.lower()
            if lowered in OURS_TOO:
                continue
            if lowered not in known:
                raise SourceError(_unknown(name, known))
            self._values[known[lowered].name] = value
        self._defaults = {option.name: option.default for option in known.values()}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name, self._defaults.get(name))

    def needed(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise SourceError(f"the option {name} is needed")
        return value

    def whole(self, name: str, least: int = 0) -> int:
        value = self.text(name) or ""
        if not value.isascii() or not value.isdecimal() or int(value) < least:
            raise SourceError(f"the option {name} must be a whole number from {least}, not {value!r}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = (self.text(name) or "").lower()
        if value not in ("true", "false"):
            raise SourceError(f"the option {name} must be true or false, not {value!r}")
        return value == "true"

    def choice(self, name: str, *allowed: str) -> str:
        value = self.text(name) or ""
        if value not in allowed:
            raise SourceError(f"the option {name} must be one of {', '.join(allowed)}, not {value!r}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in (self.text(name) or "").split(",") if part.strip())


def _unknown(name: str, known: Mapping[str, Option]) -> str:
    close = get_close_matches(name.lower(), known, 1, 0.6)
    hint = f"; did you mean {known[close[0]].name}?" if close else ""
    return f"there is no option {name!r} here{hint} (docs/spark-options.md lists them all)"


# -- columns ----------------------------------------------------------------------------------------------------------

TOPIC_COLUMNS = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "global_seq": "bigint",
    "timestamp": "timestamp",
    "headers": "map<string,string>",
}
QUEUE_COLUMNS = {
    "message_id": "string",
    "queue": "string",
    "value": "binary",
    "type": "string",
    "status": "string",
    "priority": "bigint",
    "attempt": "int",
    "enqueued_at": "timestamp",
    "changed_at": "timestamp",
    "due_at": "timestamp",
    "worker": "string",
    "failure_reason": "string",
    "failure_message": "string",
    "failed_at": "timestamp",
    "seq": "bigint",
    "headers": "map<string,string>",
}


def columns_of(options: Options) -> dict[str, str]:
    """Name to type, as the options ask for them."""
    source = options.choice("source", "topic", "queue", "dlq", "archive")
    columns = dict(TOPIC_COLUMNS if source == "topic" else QUEUE_COLUMNS)
    if not options.flag("includeHeaders"):
        del columns["headers"]
    wanted = options.names("columns")
    for name in wanted:
        if name not in columns:
            close = get_close_matches(name, columns, 1, 0.6)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SourceError(f"columns: there is no column {name!r}{hint}")
    return {name: columns[name] for name in wanted} if wanted else columns


def _arrow_type(name: str) -> "pyarrow.DataType":
    import pyarrow as pa

    return {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }[name]


# -- frames -----------------------------------------------------------------------------------------------------------

HEAD = 48
SIGN = bytes((1, 20, 0, 0, 0, 0, 0, 0))
HAS_KEY = 1
_LENGTH = struct.Struct(">I")
_FRAME = struct.Struct(">I8sIQQQHHHH")


class Frames:
    """A buffer of whole record frames, its heads as columns of numbers."""

    def __init__(self, buffer: "bytes | memoryview", *, verify: bool) -> None:
        import numpy as np

        self.buffer = memoryview(buffer)
        self.starts = np.array(_walk(self.buffer), dtype=np.int64)
        raw = np.frombuffer(self.buffer, np.uint8)
        heads = raw[self.starts[:, None] + np.arange(HEAD)] if len(self.starts) else np.empty((0, HEAD), np.uint8)
        if len(heads) and not (heads[:, 4:12] == np.frombuffer(SIGN, np.uint8)).all():
            raise SourceError("the data holds something that is no record")

        def column(at: int, kind: str, size: int) -> "numpy.ndarray[Any, Any]":
            return np.ascontiguousarray(heads[:, at : at + size]).view(kind).reshape(-1).astype(np.int64)

        self.ends = self.starts + column(0, ">u4", 4) + 12
        self.sequence = column(16, ">u8", 8)
        self.topic_sequence = column(24, ">u8", 8)
        self.at_ns = column(32, ">u8", 8)
        self.has_key = (column(40, ">u2", 2) & HAS_KEY).astype(bool)
        self.topic_size = column(42, ">u2", 2)
        self.key_size = column(44, ">u2", 2)
        self.headers_size = column(46, ">u2", 2)
        if verify:
            self._verify(column(12, ">u4", 4))

    def __len__(self) -> int:
        return len(self.starts)

    def _verify(self, sums: "numpy.ndarray[Any, Any]") -> None:
        view, crc32 = self.buffer, zlib.crc32
        for start, end, wanted in zip(self.starts.tolist(), self.ends.tolist(), sums.tolist(), strict=True):
            if crc32(view[start + 16 : end]) != wanted:
                number = struct.unpack_from(">Q", view, start + 16)[0]
                raise SourceError(
                    f"record {number} does not hold what was written: its checksum differs; run 'yirangmq log check'"
                )

    def topics(self) -> list[str]:
        """Of each frame; mostly all are the same."""
        starts, sizes = (self.starts + HEAD).tolist(), self.topic_size.tolist()
        known: dict[bytes, str] = {}
        found = []
        for start, size in zip(starts, sizes, strict=True):
            raw = bytes(self.buffer[start : start + size])
            name = known.get(raw)
            if name is None:
                name = known[raw] = raw.decode("utf-8", "replace")
            found.append(name)
        return found

    def chosen(self, rows: "numpy.ndarray[Any, Any]") -> "Frames":
        """Only these."""
        made = object.__new__(Frames)
        made.buffer = self.buffer
        for name in ("starts", "ends", "sequence", "topic_sequence", "at_ns", "has_key", "topic_size", "key_size",
                     "headers_size"):  # fmt: skip
            setattr(made, name, getattr(self, name)[rows])
        return made

    def slices(
        self, begin: "numpy.ndarray[Any, Any]", end: "numpy.ndarray[Any, Any]", *, text: bool
    ) -> "pyarrow.Array[Any]":
        """Parts of the buffer as an Arrow array: each and the gap behind it as one long array, of which every second
        is taken. One copy, made by Arrow."""
        import numpy as np
        import pyarrow as pa

        if not len(begin):
            return pa.array([], pa.string() if text else pa.binary())
        edges = np.empty(2 * len(begin), np.int32)
        edges[0::2] = begin
        edges[1::2] = end
        both = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * len(begin) - 1, [None, pa.py_buffer(edges), pa.py_buffer(self.buffer)]
        )
        taken = both.take(pa.array(np.arange(0, 2 * len(begin) - 1, 2)))
        return taken.cast(pa.string()) if text else taken

    def keys(self) -> "pyarrow.Array[Any]":
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.has_key.any():
            return pa.nulls(len(self), pa.string())
        begin = self.starts + HEAD + self.topic_size
        found = self.slices(begin, begin + self.key_size, text=True)
        return pc.if_else(pa.array(self.has_key), found, pa.nulls(len(self), pa.string()))

    def payloads(self) -> "pyarrow.Array[Any]":
        return self.slices(
            self.starts + HEAD + self.topic_size + self.key_size + self.headers_size, self.ends, text=False
        )

    def headers(self) -> list[dict[str, str]]:
        begin = (self.starts + HEAD + self.topic_size + self.key_size).tolist()
        return [
            read_map(self.buffer, at) if size else {}
            for at, size in zip(begin, self.headers_size.tolist(), strict=True)
        ]


def _walk(view: memoryview) -> list[int]:
    """Where each frame begins."""
    starts: list[int] = []
    add, unpack, at, end = starts.append, _LENGTH.unpack_from, 0, len(view)
    while at < end:
        add(at)
        at += unpack(view, at)[0] + 12
    if at != end:
        raise SourceError("the data ends in the middle of a record")
    return starts


def read_map(view: memoryview, at: int) -> dict[str, str]:
    """A MessagePack map of strings to strings: all that headers are written in."""
    first = view[at]
    if first & 0xF0 == 0x80:
        count, at = first & 0x0F, at + 1
    elif first == 0xDE:
        count, at = struct.unpack_from(">H", view, at + 1)[0], at + 3
    else:
        raise SourceError("a record's headers cannot be read")
    found: dict[str, str] = {}
    for _ in range(count):
        name, at = _read_text(view, at)
        found[name], at = _read_text(view, at)
    return found


def _read_text(view: memoryview, at: int) -> tuple[str, int]:
    first = view[at]
    if first & 0xE0 == 0xA0:
        size, at = first & 0x1F, at + 1
    elif first == 0xD9:
        size, at = view[at + 1], at + 2
    elif first == 0xDA:
        size, at = struct.unpack_from(">H", view, at + 1)[0], at + 3
    else:
        raise SourceError("a record's headers cannot be read")
    return bytes(view[at : at + size]).decode("utf-8", "replace"), at + size


def write_map(values: Mapping[str, str]) -> bytes:
    if not values:
        return b""
    count = len(values)
    parts = [bytes((0x80 | count,)) if count < 16 else struct.pack(">BH", 0xDE, count)]
    for name, value in values.items():
        parts += (_text(name), _text(value))
    return b"".join(parts)


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) < 32:
        return bytes((0xA0 | len(raw),)) + raw
    if len(raw) < 256:
        return bytes((0xD9, len(raw))) + raw
    if len(raw) < 65536:
        return struct.pack(">BH", 0xDA, len(raw)) + raw
    raise SourceError(f"a header of {len(raw)} bytes, at most 65535")


def frame(target: bytes, key: str | None, headers: bytes, value: bytes) -> bytes:
    """A row as a record frame. Its numbers are 0: the broker gives them out."""
    raw_key = b"" if key is None else key.encode()
    if len(raw_key) > 65535 or len(headers) > 65535:
        raise SourceError("a key or the headers of a row have more than 65535 bytes")
    inner = struct.pack(">QQQHHHH", 1, 1, 0, 0 if key is None else HAS_KEY, len(target), len(raw_key), len(headers))
    body = b"".join((inner, target, raw_key, headers, value))
    if len(body) > MOST_FRAME - 4:
        raise SourceError(f"a row of {len(value)} bytes, a record has at most {MOST_FRAME} with its head")
    return struct.pack(">I8sI", len(body) + 4, SIGN, zlib.crc32(body)) + body


# -- ways to the log --------------------------------------------------------------------------------------------------


class Info(NamedTuple):
    """Where the log stands."""

    epoch: str
    first: int
    last: int


class Place(NamedTuple):
    """A sequence, and how many bytes of frames lie before it in the log, more or less."""

    sequence: int
    size: int


class LogAccess(Protocol):
    """A way to the log's records."""

    def info(self) -> Info: ...

    def sequence_at(self, at_ms: int) -> int:
        """The first from that time on; ``last + 1`` if there is none."""

    def places(self, after: int, last: int) -> list[Place]:
        """Some sequences between, with sizes, to split the range by."""

    def frames(self, after: int, last: int) -> Iterator[bytes]:
        """The records of (after, last] as buffers of whole frames; a few around them may come with them."""


class Segment(NamedTuple):
    path: str
    first: int
    last: int
    begin: int
    end: int
    epoch: str
    marks: tuple[tuple[int, int, int], ...]
    """(sequence, time in ns, offset), about every 64 KiB; of one in use those we made."""


class SegmentFiles:
    """The log's own files, read as they lie there. No lock, nothing is changed; shows what is on disk."""

    def __init__(self, folder: str) -> None:
        self._folder = _log_folder(folder)
        self._known: dict[str, Segment] = {}

    def _segments(self) -> list[Segment]:
        for _ in range(50):
            try:
                names = sorted(name for name in os.listdir(self._folder) if re.fullmatch(r"[0-9]{20}\.log", name))
                if not names:
                    raise SourceError(f"there is no log in {self._folder}")
                found = [self._segment(f"{self._folder}/{name}") for name in names]
                self._known = {segment.path: segment for segment in found[:-1]}
                return found
            except FileNotFoundError:
                time.sleep(0.002)  # a writer was at work just then
        raise SourceError(f"the segments in {self._folder} change faster than they can be read")

    def _segment(self, path: str) -> Segment:
        known = self._known.get(path)
        if known is not None:
            return known
        with open(path, "rb") as file:
            head = file.read(96)
            if len(head) < 96 or head[:8] != b"YRGMQLOG":
                raise SourceError(f"{path} is no segment of a log")
            epoch, first, begin = head[16:32].hex(), *struct.unpack_from(">QxxxxxxxxQ", head, 48)
            size = os.fstat(file.fileno()).st_size
            if size > 160:
                file.seek(size - 64)
                seal = file.read(64)
                if seal[:8] == b"YRGMQEND":
                    _, last, _, _, end = struct.unpack_from(">QQQQQ", seal, 16)
                    marks = _read_marks(_read_at(file.fileno(), end, size - 64 - end))
                    return Segment(path, first, last, begin, end, epoch, marks)
            return self._open_one(path, file.fileno(), first, begin, size, epoch)

    def _open_one(self, path: str, fd: int, first: int, begin: int, size: int, epoch: str) -> Segment:
        """The segment in use: whole, sound records one after the other, synced before they are shown."""
        last, at, marks, next_mark, at_ns = first - 1, begin, [], begin, 0
        view = memoryview(_read_at(fd, begin, size - begin))
        while len(view) - (at - begin) >= HEAD:
            length, sign, crc, sequence, _, now_ns, *_ = _FRAME.unpack_from(view, at - begin)
            end = at + 12 + length
            if sign != SIGN or sequence != last + 1 or now_ns < at_ns or end - begin > len(view):
                break
            if zlib.crc32(view[at - begin + 16 : end - begin]) != crc:
                break
            if at >= next_mark:
                marks.append((sequence, now_ns, at))
                next_mark = at + (1 << 16)
            last, at, at_ns = sequence, end, now_ns
        os.fdatasync(fd)
        return Segment(path, first, last, begin, at, epoch, tuple(marks))

    def info(self) -> Info:
        segments = self._segments()
        return Info(segments[-1].epoch, segments[0].first, segments[-1].last)

    def sequence_at(self, at_ms: int) -> int:
        wanted = at_ms * 1_000_000
        segments = self._segments()
        for segment in segments:
            earlier = [mark for mark in segment.marks if mark[1] < wanted]
            start = earlier[-1][0] if earlier else segment.first
            for buffer in self.frames(start - 1, segment.last):
                found = Frames(buffer, verify=False)
                later = (found.at_ns >= wanted).nonzero()[0]
                if len(later):
                    return int(found.sequence[later[0]])
        return segments[-1].last + 1

    def places(self, after: int, last: int) -> list[Place]:
        found, size = [], 0
        for segment in self._segments():
            for sequence, _, offset in segment.marks:
                if after < sequence <= last:
                    found.append(Place(sequence, size + offset - segment.begin))
            size += segment.end - segment.begin
        return found

    def frames(self, after: int, last: int) -> Iterator[bytes]:
        for segment in self._segments():
            if segment.last > after and segment.first <= last:
                yield from _cut(segment, max(after, segment.first - 1), min(last, segment.last))


def _log_folder(folder: str) -> str:
    """The folder of the log, given itself or as part of a server's data."""
    for path in (folder, os.path.join(folder, "topics")):
        if os.path.isdir(path) and any(name.endswith(".log") for name in os.listdir(path)):
            return path
    raise SourceError(f"path: there is no log in {folder}; give the server's data folder, or the option broker")


def _read_at(fd: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.pread(fd, min(size, 1 << 30), offset)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_marks(data: bytes) -> tuple[tuple[int, int, int], ...]:
    """The marks in the index of a sealed segment: the second of two arrays, each of arrays."""
    view = memoryview(data)[16:]
    _, at = _read_count(view, 0)
    topics, at = _read_count(view, at)
    for _ in range(topics):
        _, at = _read_count(view, at)
        _, at = _read_text(view, at)
        for _ in range(4):
            _, at = _read_whole(view, at)
    count, at = _read_count(view, at)
    marks = []
    for _ in range(count):
        _, at = _read_count(view, at)
        sequence, at = _read_whole(view, at)
        at_ns, at = _read_whole(view, at)
        offset, at = _read_whole(view, at)
        marks.append((sequence, at_ns, offset))
    return tuple(marks)


def _read_count(view: memoryview, at: int) -> tuple[int, int]:
    first = view[at]
    if first & 0xF0 == 0x90:
        return first & 0x0F, at + 1
    if first == 0xDC:
        return struct.unpack_from(">H", view, at + 1)[0], at + 3
    if first == 0xDD:
        return struct.unpack_from(">I", view, at + 1)[0], at + 5
    raise SourceError("the index of a segment cannot be read")


def _read_whole(view: memoryview, at: int) -> tuple[int, int]:
    first = view[at]
    if first < 0x80:
        return first, at + 1
    for sign, form, size in ((0xCC, ">B", 1), (0xCD, ">H", 2), (0xCE, ">I", 4), (0xCF, ">Q", 8)):
        if first == sign:
            return struct.unpack_from(form, view, at + 1)[0], at + 1 + size
    raise SourceError("the index of a segment cannot be read")


def _cut(segment: Segment, after: int, last: int) -> Iterator[bytes]:
    """Some megabytes at a time. Marks lie between frames, so a buffer from mark to mark holds whole ones."""
    begin = max((offset for sequence, _, offset in segment.marks if sequence <= after + 1), default=segment.begin)
    end = min((offset for sequence, _, offset in segment.marks if sequence > last), default=segment.end)
    edges = [begin]
    for _, _, offset in segment.marks:
        if begin + BATCH_BYTES <= offset < end and offset - edges[-1] >= BATCH_BYTES:
            edges.append(offset)
    with _held(segment, after, last) as fd:
        for start, stop in zip(edges, [*edges[1:], end], strict=True):
            yield _read_at(fd, start, stop - start)


@contextmanager
def _held(segment: Segment, after: int, last: int) -> Iterator[int]:
    """A descriptor of a file that is not used again meanwhile: writers leave alone what somebody holds."""
    gone = f"records {after + 1} to {last} were retired while they were read; see the option failOnDataLoss"
    try:
        fd = os.open(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        raise SourceError(gone) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if struct.unpack(">Q", os.pread(fd, 8, 48))[0] != segment.first:
            raise SourceError(gone)
        yield fd
    except BlockingIOError:
        raise SourceError(gone) from None
    finally:
        os.close(fd)


class HttpBroker:
    """A server, over HTTP. One connection, made when it is needed, and once more if it was lost."""

    def __init__(self, address: str, token: str | None, timeout: float) -> None:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceError(f"broker: {address!r} is not an HTTP address such as http://127.0.0.1:8080")
        self._parts = parts
        self._token = token or os.environ.get("YIRANGMQ_TOKEN")
        self._timeout = timeout
        self._connection: HTTPConnection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        """The body of the answer. Asked again after a lost answer: everything we ask for may be repeated."""
        for is_last in (False, False, True):
            try:
                response = self._send(method, path, body, kind)
                return self._checked(response, response.read(), path)
            except (OSError, HTTPException) as error:
                self.close()
                if is_last:
                    raise SourceError(f"the broker at {self._parts.geturl()} does not answer: {error}") from None
                time.sleep(0.5)
        raise AssertionError("not reached")

    def page(self, path: str) -> tuple[bytes, str]:
        """A page of records, and the cursor of what follows."""
        response = self._send("GET", path, None, "")
        raw = self._checked(response, response.read(), path)
        return raw, response.getheader("x-mq-cursor") or ""

    def document(self, method: str, path: str, body: object = None) -> Any:
        raw = self.ask(method, path, None if body is None else json.dumps(body).encode())
        return json.loads(raw) if raw else None

    def stream(self, path: str, size: int) -> Iterator[bytes]:
        """A long answer, so many bytes at a time."""
        response = self._send("GET", path, None, "")
        if response.status != 200:
            self._checked(response, response.read(), path)
        while part := response.read(size):
            yield part

    def _send(self, method: str, path: str, body: bytes | None, kind: str) -> HTTPResponse:
        if self._connection is None:
            make = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
            host = cast("str", self._parts.hostname)
            self._connection = make(host, self._parts.port, timeout=self._timeout)
        headers = {"content-type": kind} if body is not None else {}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        self._connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
        return self._connection.getresponse()

    def _checked(self, response: HTTPResponse, raw: bytes, path: str) -> bytes:
        if 200 <= response.status < 300:
            return raw
        try:
            error = json.loads(raw)["error"]
            words = f"{error['code']}: {error['message']}"
        except (ValueError, KeyError, TypeError):
            words = raw[:200].decode("utf-8", "replace")
        raise SourceError(f"the broker refuses {path.partition('?')[0]} ({response.status}): {words}")


class BrokerLog:
    """The log, asked for at a server."""

    def __init__(self, broker: HttpBroker) -> None:
        self._broker = broker

    def info(self) -> Info:
        found = self._broker.document("GET", "/v1/log")
        return Info(found["epoch"], found["first"], found["last"])

    def sequence_at(self, at_ms: int) -> int:
        found: int = self._broker.document("GET", f"/v1/log/sequence?atMs={at_ms}")["sequence"]
        return found

    def places(self, after: int, last: int) -> list[Place]:
        found = self._broker.document("GET", f"/v1/log/places?after={after}&last={last}")["places"]
        return [Place(*place) for place in found]

    def frames(self, after: int, last: int) -> Iterator[bytes]:
        rest = b""
        for part in self._broker.stream(f"/v1/log/frames?after={after}&last={last}", BATCH_BYTES):
            data = rest + part
            end = _whole(data)
            if end:
                yield data[:end]
            rest = data[end:]
        if rest:
            raise SourceError(f"the broker stopped in the middle of a record, on the way from {after + 1} to {last}")


def _whole(data: bytes) -> int:
    """Where the last whole frame ends."""
    at, end, unpack = 0, len(data), _LENGTH.unpack_from
    while end - at >= HEAD:
        after = at + unpack(data, at)[0] + 12
        if after > end:
            break
        at = after
    return at


def log_of(options: Options) -> LogAccess:
    """Files where there is a path, the broker else."""
    if "path" in options:
        return SegmentFiles(options.needed("path"))
    return BrokerLog(broker_of(options))


def broker_of(options: Options) -> HttpBroker:
    if "broker" not in options:
        raise SourceError("say where the data is: the option broker (http://host:port), or path for topics")
    return HttpBroker(options.needed("broker"), options.text("token"), options.whole("timeoutSec", 1))


# -- ranges -----------------------------------------------------------------------------------------------------------


@dataclass
class Range(InputPartition):
    """The records (after, last], for one task."""

    after: int
    last: int


class Choice(NamedTuple):
    """Which records of the log are wanted. ``floors``: the first offset of each topic; ``ceilings``: the last."""

    topics: tuple[str, ...]
    pattern: str | None
    floors: Mapping[str, int]
    ceilings: Mapping[str, int]

    @property
    def is_all(self) -> bool:
        return not self.topics and self.pattern is None and not self.floors and not self.ceilings

    def wants(self, topic: str) -> bool:
        if self.topics:
            return topic in self.topics
        return self.pattern is None or fnmatch.fnmatchcase(topic, self.pattern)

    def rows(self, found: Frames, names: list[str]) -> "numpy.ndarray[Any, Any]":
        import numpy as np

        known = {name: self.wants(name) for name in set(names)}
        kept = np.fromiter((known[name] for name in names), bool, len(names))
        for bounds, is_floor in ((self.floors, True), (self.ceilings, False)):
            for topic, bound in bounds.items():
                of_it = np.fromiter((name == topic for name in names), bool, len(names))
                outside = found.topic_sequence < bound if is_floor else found.topic_sequence > bound
                kept &= ~(of_it & outside)
        return kept


def choice_of(options: Options, *, ending: bool) -> Choice:
    if options.choice("source", "topic", "queue", "dlq", "archive") != "topic":
        raise SourceError("source: only topics have offsets; read queues in a batch")
    topics, pattern = options.names("subscribe"), options.text("subscribePattern")
    if topics and pattern:
        raise SourceError("give subscribe or subscribePattern, not both")
    if not topics and not pattern:
        raise SourceError("say what to read: the option subscribe (topics, split by commas) or subscribePattern")
    floors = _per_topic(options, "startingOffsets")
    ceilings = _per_topic(options, "endingOffsets") if ending else {}
    return Choice(topics, pattern, floors, ceilings)


def _per_topic(options: Options, name: str) -> dict[str, int]:
    found = _offsets(options, name)
    return {} if isinstance(found, str) or "global_seq" in found else found


def _offsets(options: Options, name: str) -> str | dict[str, int]:
    """earliest, latest, or numbers by name."""
    given = (options.text(name) or "").strip()
    if given in ("", "earliest", "latest"):
        return given
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(value) is int and value >= 0 for value in found.values()):
        raise SourceError(f'{name} must be earliest, latest, {{"global_seq": N}} or {{"TOPIC": N}}, not {given!r}')
    return found


def begins_after(options: Options, log: LogAccess, info: Info, default: str) -> int:
    """The sequence before the first that is wanted."""
    if "startingTimestamp" in options:
        if "startingOffsets" in options:
            raise SourceError("give startingTimestamp or startingOffsets, not both")
        return log.sequence_at(options.whole("startingTimestamp")) - 1
    found = _offsets(options, "startingOffsets") or default
    if found == "latest":
        return info.last
    if isinstance(found, dict) and "global_seq" in found:
        return max(0, found["global_seq"] - 1)
    return info.first - 1


def ends_with(options: Options, log: LogAccess, info: Info) -> int:
    if "endingTimestamp" in options:
        return log.sequence_at(options.whole("endingTimestamp")) - 1
    found = _offsets(options, "endingOffsets") or "latest"
    if found == "earliest":
        raise SourceError("endingOffsets: earliest would read nothing; give latest or numbers")
    if isinstance(found, dict) and "global_seq" in found:
        return min(info.last, found["global_seq"])
    return info.last


def check_kept(after: int, info: Info, *, fail: bool) -> int:
    """Where reading can begin. What was retired before it was read is an error, or a loud line."""
    if after + 1 >= info.first:
        return after
    lost = info.first - after - 1
    words = f"{lost} records are gone: asked for from {after + 1} on, the log begins at {info.first}"
    if fail:
        raise SourceError(
            f"{words}. They were retired before this query read them; set failOnDataLoss=false to go on without them, "
            "and keep more, or give the query a groupId, so that it does not happen again"
        )
    print(f"yirangmq: {words}; going on without them (failOnDataLoss=false)", flush=True)
    return info.first - 1


def split(log: LogAccess, after: int, last: int, tasks: int, most: int) -> list[Range]:
    """Ranges of about the same bytes, none with more than ``most`` records."""
    if last <= after:
        return []
    tasks = max(tasks, -(-(last - after) // most))
    places = log.places(after, last) if tasks > 1 else []
    if not places:
        step = -(-(last - after) // tasks)
        return [Range(begin, min(begin + step, last)) for begin in range(after, last, step)]
    size = places[-1].size - places[0].size
    edges = [after]
    for number in range(1, tasks):
        wanted = places[0].size + size * number // tasks
        edge = next((place.sequence - 1 for place in places if place.size >= wanted), last)
        if edges[-1] < edge < last:
            edges.append(edge)
    return [
        Range(begin, min(begin + most, end))
        for start, end in zip(edges, [*edges[1:], last], strict=True)
        for begin in range(start, end, most)
    ]


class TopicRows:
    """Arrow batches of a range. Holds plain values only, so that it can be sent to a task."""

    def __init__(self, options: Options, choice: Choice, columns: Mapping[str, str]) -> None:
        self._options = options
        self._choice = choice
        self._columns = dict(columns)
        self._verify = options.flag("verify")

    def read(self, part: Range) -> Iterator["pyarrow.RecordBatch"]:
        for buffer in log_of(self._options).frames(part.after, part.last):
            found = Frames(buffer, verify=self._verify)
            if len(found):
                batch = self._batch(found, part)
                if batch is not None:
                    yield batch

    def _batch(self, found: Frames, part: Range) -> "pyarrow.RecordBatch | None":
        import pyarrow as pa

        kept = (found.sequence > part.after) & (found.sequence <= part.last)
        names = found.topics() if "topic" in self._columns or not self._choice.is_all else []
        if not self._choice.is_all:
            kept &= self._choice.rows(found, names)
        if not kept.all():
            names = [name for name, is_kept in zip(names, kept.tolist(), strict=False) if is_kept]
            found = found.chosen(kept)
        if not len(found):
            return None
        arrays = [self._column(name, found, names) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(self._columns))

    def _column(self, name: str, found: Frames, names: list[str]) -> "pyarrow.Array[Any]":
        import numpy as np
        import pyarrow as pa

        match name:
            case "key":
                return found.keys()
            case "value":
                return found.payloads()
            case "topic":
                return pa.array(names, pa.string())
            case "partition":
                return pa.array(np.zeros(len(found), np.int32))
            case "offset":
                return pa.array(found.topic_sequence)
            case "global_seq":
                return pa.array(found.sequence)
            case "timestamp":
                return pa.array(found.at_ns // 1000).cast(pa.timestamp("us", tz="UTC"))
            case _:
                return pa.array([list(one.items()) for one in found.headers()], _arrow_type("map<string,string>"))


def _schema(columns: Mapping[str, str]) -> "pyarrow.Schema":
    import pyarrow as pa

    return pa.schema([(name, _arrow_type(kind)) for name, kind in columns.items()])


# -- reading topics ---------------------------------------------------------------------------------------------------


class TopicReader(DataSourceReader):
    """A range of the log, once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._choice = choice_of(options, ending=True)
        self._columns = columns_of(options)
        self._low = 0
        self._high: int | None = None

    def partitions(self) -> Sequence[InputPartition]:
        options, log = self._options, log_of(self._options)
        info = log.info()
        after = begins_after(options, log, info, "earliest")
        after = max(check_kept(after, info, fail=options.flag("failOnDataLoss")), self._low - 1)
        last = min(ends_with(options, log, info), info.last if self._high is None else self._high)
        tasks, most = options.whole("minPartitions", 1), options.whole("maxRecordsPerPartition", 1)
        return split(log, after, last, tasks, most) or [Range(0, 0)]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        if isinstance(partition, Range) and partition.last > partition.after:
            yield from TopicRows(self._options, self._choice, self._columns).read(partition)


class PushingTopicReader(TopicReader):
    """The same, with Spark's filters on topic and global_seq taken over."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for filter in filters:
            if not self._take(filter):
                yield filter

    def _take(self, filter: Filter) -> bool:
        attribute, value = getattr(filter, "attribute", None), getattr(filter, "value", None)
        if attribute == ("global_seq",) and type(value) is int:
            return self._take_range(filter, value)
        if attribute == ("topic",) and isinstance(filter, EqualTo | In):
            wanted = {str(value)} if isinstance(filter, EqualTo) else {str(one) for one in cast("Any", value)}
            kept = tuple(name for name in sorted(wanted) if self._choice.wants(name))
            self._choice = self._choice._replace(topics=kept or ("",), pattern=None)
            return True
        return False

    def _take_range(self, filter: Filter, value: int) -> bool:
        if isinstance(filter, EqualTo):
            low, high = value, value
        elif isinstance(filter, GreaterThan | GreaterThanOrEqual):
            low, high = value + isinstance(filter, GreaterThan), None
        elif isinstance(filter, LessThan | LessThanOrEqual):
            low, high = 0, value - isinstance(filter, LessThan)
        else:
            return False
        self._low = max(self._low, low)
        if high is not None:
            self._high = high if self._high is None else min(self._high, high)
        return True


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows. An offset is ``{"global_seq": last, "epoch": …}``: everything up to there."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._choice = choice_of(options, ending=False)
        self._columns = columns_of(options)
        self._log = log_of(options)
        self._target: int | None = None
        self._waiting_since: float | None = None
        self._group = options.text("groupId")
        self._broker = broker_of(options) if self._group else None

    def __getstate__(self) -> dict[str, Any]:
        """Only what a task needs."""
        return {"_options": self._options, "_choice": self._choice, "_columns": self._columns}

    def initialOffset(self) -> dict[str, Any]:
        info = self._log.info()
        after = begins_after(self._options, self._log, info, "latest")
        return _offset(min(after, info.last), info.epoch)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        info = self._log.info()
        after = info.first - 1 if start is None else int(start["global_seq"])
        if start is not None and start.get("epoch", info.epoch) != info.epoch:
            after = self._began_anew(start, info)
        last = info.last if self._target is None else min(info.last, self._target)
        last = max(last, after)
        if limit is None or isinstance(limit, ReadAllAvailable):
            return _offset(last, info.epoch)
        if isinstance(limit, ReadMinRows) or self._options.whole("minOffsetsPerTrigger"):
            last = self._enough(after, last)
        return _offset(self._limited(after, last, limit), info.epoch)

    def _began_anew(self, start: dict[str, Any], info: Info) -> int:
        words = f"the log began anew: this query knows epoch {start.get('epoch')}, the log is of epoch {info.epoch}"
        if self._options.flag("failOnDataLoss"):
            raise SourceError(f"{words}; set failOnDataLoss=false to read the new one from its beginning")
        print(f"yirangmq: {words}; reading it from its beginning (failOnDataLoss=false)", flush=True)
        return info.first - 1

    def _enough(self, after: int, last: int) -> int:
        """Nothing yet, while there is too little and the wait has not been too long."""
        if last - after >= self._options.whole("minOffsetsPerTrigger") or self._target is not None:
            self._waiting_since = None
            return last
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._options.whole("maxTriggerDelay") / 1000:
            return after
        self._waiting_since = None
        return last

    def _limited(self, after: int, last: int, limit: ReadLimit) -> int:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.whole("maxOffsetsPerTrigger", 1)
        last = min(last, after + rows)
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.whole("maxBytesPerTrigger", 1)
        places = self._log.places(after, last) if last > after else []
        begin = places[0].size if places else 0
        within = [place.sequence - 1 for place in places if place.size - begin <= most]
        if within and len(within) < len(places):
            last = max(within[-1], after + 1)
        return last

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.whole("maxOffsetsPerTrigger", 1))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log.info().last

    def reportLatestOffset(self) -> dict[str, Any] | None:
        info = self._log.info()
        return _offset(info.last, info.epoch)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        info = self._log.info()
        after, last = int(start["global_seq"]), int(end["global_seq"])
        if start.get("epoch", info.epoch) != end.get("epoch", info.epoch):
            after = info.first - 1  # latestOffset has said so, or failed
        after = check_kept(after, info, fail=self._options.flag("failOnDataLoss")) if last > after else after
        tasks = self._options.whole("minPartitions", 1)
        return split(self._log, after, last, tasks, self._options.whole("maxRecordsPerPartition", 1))

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        assert isinstance(partition, Range)
        return TopicRows(self._options, self._choice, self._columns).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to here is in the sink. A named query lets the broker retire it from now on."""
        if self._broker is not None and self._group:
            body = {"sequence": int(end["global_seq"]), "epoch": end.get("epoch"), "filter": "*"}
            self._broker.document("PUT", f"/v1/cursors/{quote(self._group)}", body)

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.close()


def _offset(sequence: int, epoch: str) -> dict[str, Any]:
    return {"global_seq": sequence, "epoch": epoch}


# -- reading queues ---------------------------------------------------------------------------------------------------


@dataclass
class OfQueue(InputPartition):
    queue: str


class QueueReader(DataSourceReader):
    """Messages of queues as they stand, dead letters or history: looked at, never taken."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._columns = columns_of(options)
        self._broker = broker_of(options)
        source = options.choice("source", "queue", "dlq", "archive")
        self._state = {"queue": options.needed("state"), "dlq": "dead", "archive": "done"}[source]

    def partitions(self) -> Sequence[InputPartition]:
        queues = self._options.names("queue")
        if not queues:
            rows = self._broker.document("GET", "/v1/queues")["queues"]
            queues = tuple(row["queue"] for row in rows)
        self._broker.close()
        return [OfQueue(queue) for queue in queues] or [OfQueue("")]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        assert isinstance(partition, OfQueue)
        cursor = ""
        while partition.queue:
            values = {"state": self._state, "cursor": cursor, "limit": "1000"}
            if self._options.text("filter"):
                values["filter"] = self._options.needed("filter")
            path = f"/v1/queues/{quote(partition.queue, safe='')}/records?{urlencode(values)}"
            raw, cursor = self._broker.page(path)
            found = Frames(raw, verify=self._options.flag("verify"))
            if len(found):
                yield _queue_batch(found, self._columns)
            if not cursor:
                return


def _queue_batch(found: Frames, columns: Mapping[str, str]) -> "pyarrow.RecordBatch":
    import pyarrow as pa

    headers = found.headers()
    arrays = [_queue_column(name, kind, found, headers) for name, kind in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(columns))


CARD = {
    "type": "type",
    "status": "state",
    "priority": "priority",
    "attempt": "attempt",
    "enqueued_at": "enqueuedAt",
    "changed_at": "changedAt",
    "due_at": "dueAt",
    "worker": "consumerId",
    "failure_reason": "reasonCode",
    "failure_message": "reasonMessage",
    "failed_at": "failedAt",
}
"""Columns that are headers of a message's frame."""


def _queue_column(name: str, kind: str, found: Frames, headers: list[dict[str, str]]) -> "pyarrow.Array[Any]":
    import pyarrow as pa

    match name:
        case "message_id":
            return found.keys()
        case "queue":
            return pa.array(found.topics(), pa.string())
        case "value":
            return found.payloads()
        case "seq":
            return pa.array(found.sequence)
        case "headers":
            taken = {*CARD.values(), "seq", "isJson"}
            rest = [[pair for pair in one.items() if pair[0] not in taken] for one in headers]
            return pa.array(rest, _arrow_type(kind))
        case _:
            return pa.array([_read(one.get(CARD[name]), kind) for one in headers], _arrow_type(kind))


def _read(text: str | None, kind: str) -> Any:
    """A header's text as a value of the column."""
    if text is None or kind == "string":
        return text
    if kind == "timestamp":
        if text.isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        return datetime.fromisoformat(text)
    return int(text)


# -- writing ----------------------------------------------------------------------------------------------------------

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
"""Columns of a row that are members of its envelope."""
PLACES = ("target", "queue", "topic")
KNOWN = frozenset({"value", "key", "headers", *PLACES, *MEMBERS})
PASSED_OVER = frozenset({"partition", "offset", "global_seq", "timestamp"})
"""Columns that reading has and writing gives out anew."""


class Staged(NamedTuple):
    """What one task laid down."""

    query: str
    id: str
    pieces: int
    rows: int
    checksum: int


@dataclass
class StageMessage(WriterCommitMessage):
    staged: Staged | None


class RowWriter:
    """Rows to frames to stages. Holds plain values only, so that it can be sent to a task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._broker = broker_of(options)
        self._columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        self._default = self._place_by_option()
        self._format = options.choice("valueFormat", "auto", "json", "bytes")
        self._bad = options.choice("onBadRow", "fail", "dlq")
        self._check()

    def _place_by_option(self) -> str | None:
        topic, queue = self._options.text("topic"), self._options.text("queue")
        if topic and queue:
            raise SourceError("give topic or queue, not both; a column target says it for each row")
        return f"topic:{topic}" if topic else f"queue:{queue}" if queue else None

    def _check(self) -> None:
        """Before any data moves."""
        columns = self._columns
        if "value" not in columns:
            close = get_close_matches("value", columns, 1, 0.3)
            hint = f"; rename {close[0]!r}?" if close else ""
            raise SourceError(f"a column value is needed (string or binary), there are {', '.join(columns)}{hint}")
        if columns["value"] not in ("string", "binary"):
            raise SourceError(
                f"the column value must be string or binary, not {columns['value']}; try to_json(struct(*))"
            )
        if self._default is None and not any(name in columns for name in PLACES):
            raise SourceError(
                "say where rows go: the option topic or queue, or a column target (queue:x, topic:y, dlq:z)"
            )
        unknown = [name for name in columns if name not in KNOWN and name not in PASSED_OVER]
        if unknown and not self._options.flag("ignoreUnknownColumns"):
            close = get_close_matches(unknown[0], KNOWN, 1, 0.6)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SourceError(
                f"the sink does not know the column {unknown[0]!r}{hint}; leave it out, put it into value or headers, "
                "or set ignoreUnknownColumns=true"
            )

    def stage(self, batches: Iterator["pyarrow.RecordBatch"], query: str, batch: int, id: str) -> Staged:
        """Every row on the broker's disk, none of them visible yet."""
        pieces = rows = checksum = 0
        parts: list[bytes] = []
        size = 0
        for found in batches:
            for part in self._frames(found):
                parts.append(part)
                size += len(part)
                if size >= PIECE_BYTES:
                    checksum = self._send(query, batch, id, pieces, b"".join(parts), len(parts), checksum)
                    pieces, rows, parts, size = pieces + 1, rows + len(parts), [], 0
        if parts:
            checksum = self._send(query, batch, id, pieces, b"".join(parts), len(parts), checksum)
            pieces, rows = pieces + 1, rows + len(parts)
        self._broker.close()
        return Staged(query, id, pieces, rows, checksum)

    def _send(self, query: str, batch: int, id: str, piece: int, data: bytes, rows: int, checksum: int) -> int:
        path = f"/v1/batches/{quote(query)}/{batch}/stages/{id}/{piece}"
        got = json.loads(self._broker.ask("PUT", path, data, RECORDS_TYPE))
        if got["rows"] != rows:
            raise SourceError(f"the broker found {got['rows']} rows where {rows} were sent")
        return zlib.crc32(data, checksum)

    def _frames(self, found: "pyarrow.RecordBatch") -> Iterator[bytes]:
        columns = {name: found.column(name).to_pylist() for name in found.schema.names if name in KNOWN}
        values = columns.pop("value")
        is_text = self._columns["value"] == "string"
        keys = columns.pop("key", None) or [None] * len(values)
        plain = not columns and self._default is not None
        for n, value in enumerate(values):
            if plain:
                yield self._row(self._default or "", keys[n], {}, value, is_text)
            else:
                row = {name: cells[n] for name, cells in columns.items()}
                yield self._row(self._place(row), keys[n], _headers(row), value, is_text)

    def _place(self, row: dict[str, Any]) -> str:
        target = row.get("target")
        if target:
            return str(target)
        for name in ("queue", "topic"):
            if row.get(name):
                return f"{name}:{row[name]}"
        if self._default is None:
            raise SourceError(
                "a row has no target: the columns target, queue and topic are null, and no option says it"
            )
        return self._default

    def _row(self, target: str, key: Any, headers: dict[str, str], value: Any, is_text: bool) -> bytes:
        if value is None:
            if self._bad == "fail":
                raise SourceError("a row's value is null; filter such rows out, or set onBadRow=dlq")
            target, value, headers = _as_dead(target), b"", {**headers, "reason": "the value is null"}
        raw = value.encode() if isinstance(value, str) else bytes(value)
        if not target.startswith("topic:") and "contentType" not in headers and self._is_json(raw, is_text):
            headers = {**headers, "contentType": "application/json"}
        return frame(target.encode(), None if key is None else _key(key), write_map(headers), raw)

    def _is_json(self, raw: bytes, is_text: bool) -> bool:
        if self._format == "bytes" or (self._format == "auto" and not is_text):
            return False
        if self._format == "json":
            return True
        try:
            json.loads(raw)
        except ValueError:
            return False
        return True

    def commit(self, query: str, batch: int, staged: Sequence[Staged]) -> dict[str, Any]:
        """Once, whatever is repeated: the broker's ledger sees to it."""
        stages = [one._asdict() for one in staged]
        for one in stages:
            del one["query"]
        answer: dict[str, Any] = self._broker.document(
            "POST", f"/v1/batches/{quote(query)}/{batch}/commit", {"stages": stages}
        )
        self._broker.close()
        return answer


def _as_dead(target: str) -> str:
    """Where a row goes that cannot go where it should; a topic has no dead letters, so its name's queue keeps them."""
    return f"dlq:{target.partition(':')[2]}"


def _key(key: Any) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _headers(row: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in row.get("headers") or ():
        if value is not None:
            found[str(name)] = str(value)
    for column, member in MEMBERS.items():
        value = row.get(column)
        if value is not None:
            found[member] = value if isinstance(value, str) else json.dumps(value)
    return found


class BatchWriter(DataSourceArrowWriter):
    """A DataFrame into queues or topics, all of it or none of it."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("a queue or a topic cannot be overwritten; use mode('append')")
        self._rows = RowWriter(options, schema)
        self._query = options.text("publishId") or f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        return StageMessage(self._rows.stage(iterator, self._query, 0, _task()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._rows.commit(self._query, 0, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is visible; the broker sweeps stages that nobody commits."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches into queues or topics, each once."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("a queue or a topic cannot be overwritten; use outputMode('append')")
        self._rows = RowWriter(options, schema)

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise SourceError("this sink is for streams; write a DataFrame with df.write")
        return StageMessage(self._rows.stage(iterator, query, int(batch), _task()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if staged:
            self._rows.commit(staged[0].query, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is visible; the broker sweeps stages that nobody commits."""


def _task() -> str:
    """This try of this task, told apart from every other."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return f"0-{uuid.uuid4().hex[:12]}"
    return f"{context.partitionId():06d}-{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}"


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """In the order of the partitions, which is the order of the rows."""
    found = [message.staged for message in messages if isinstance(message, StageMessage)]
    return sorted((one for one in found if one is not None), key=lambda one: one.id)


# -- the source -------------------------------------------------------------------------------------------------------


class YirangSource(DataSource):
    """What ``format("yirangmq")`` is."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        columns = columns_of(Options(_given(self.options, "rs"), "rs"))
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options(self.options, "r")
        _check_schema(schema, options)
        if options.choice("source", "topic", "queue", "dlq", "archive") != "topic":
            return QueueReader(options)
        return PushingTopicReader(options) if options.flag("pushFilters") else TopicReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = Options(self.options, "s")
        _check_schema(schema, options)
        return TopicStream(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(Options(self.options, "w"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(Options(self.options, "w"), schema, overwrite)


def _given(options: Mapping[str, str], where: str) -> dict[str, str]:
    """Spark asks for the schema before it says whether it reads a batch or a stream."""
    return dict(options)


def _check_schema(schema: StructType, options: Options) -> None:
    """A schema given by the user must be the one there is; the option columns chooses from it."""
    wanted = {field.name: field.dataType.simpleString() for field in schema.fields}
    there = columns_of(options)
    if wanted != there:
        raise SourceError(
            f"the schema is fixed: {there}, not {wanted}; choose with the option columns, or cast after it"
        )
