"""Reader of files by date: a row per record, with accepted messages and their outcomes.

The format is in docs/files-by-date.md. An incomplete last line is ignored. Each task reads one file, which must be on a
disk of the task's machine. The store is not involved."""

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition

from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.options import Options, arrow_schema, arrow_type, columns_of

if TYPE_CHECKING:
    import pyarrow

DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
FILE = re.compile(r"(\d{8,18})\.jsonl")
ROWS = 1000
"""Rows per Arrow batch: about 2 MB of messages of usual size."""
OFFSET_BITS = 36
"""Bits of a position that hold the byte offset of the line; the bits above hold the number of the file."""
CONTENT = ("accepted", "rewritten")
FOREIGN = ("subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "broker", "filter", "state")
Record = dict[str, Any]


@dataclass
class DayFilePartition(InputPartition):
    path: str
    number: int


class DayFilesReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        for name in FOREIGN:
            if name in options:
                raise SourceError(f"the option {name} does not apply to files by date; use path, days and queue")
        self._root = options.needed("path")
        self._days = options.names("days")
        for day in self._days:
            if not DAY.fullmatch(day):
                raise SourceError(f"days: {day!r} is not a day such as 2026-11-15")
        self._queues: frozenset[str] | None = frozenset(options.names("queue")) or None
        self._verify = options.flag("verify")
        self._columns = columns_of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per file, in the order the files were written."""
        try:
            days = [name for name in os.listdir(self._root) if DAY.fullmatch(name)]
        except OSError as error:
            raise SourceError(f"path: {self._root} cannot be read: {error}") from None
        parts = []
        for day in days:
            if not self._days or day in self._days:
                for name in os.listdir(f"{self._root}/{day}"):
                    found = FILE.fullmatch(name)
                    if found:
                        parts.append(DayFilePartition(f"{self._root}/{day}/{name}", int(found[1])))
        return sorted(parts, key=lambda part: part.number) or [DayFilePartition("", 0)]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        part = cast("DayFilePartition", partition)
        rows: list[Record] = []
        for record in self._records(part) if part.path else ():
            rows.append(record)
            if len(rows) == ROWS:
                yield self._batch(rows)
                rows = []
        if rows:
            yield self._batch(rows)

    def _records(self, part: DayFilePartition) -> Iterator[Record]:
        try:
            with open(part.path, "rb") as file:
                yield from self._parse_lines(file, part)
        except FileNotFoundError:
            raise SourceError(f"{part.path} was removed with its day during the read") from None

    def _parse_lines(self, lines: Iterable[bytes], part: DayFilePartition) -> Iterator[Record]:
        at = 0
        for line in lines:
            if not line.endswith(b"\n"):
                return
            record = _read(line, part.path, at)
            if self._queues is None or record["queue"] in self._queues:
                record["position"] = part.number << OFFSET_BITS | at
                yield record
            at += len(line)

    def _batch(self, rows: list[Record]) -> "pyarrow.RecordBatch":
        import pyarrow as pa

        if self._verify:
            for row in rows:
                _compare(row)
        arrays = [
            pa.array([VALUES[name](row) for row in rows], arrow_type(kind)) for name, kind in self._columns.items()
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._columns))


class PushingDayFilesReader(DayFilesReader):
    """Reader with filter pushdown: filters on queues reduce the rows read. Spark evaluates them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for filter in filters:
            if ".".join(getattr(filter, "attribute", ())) == "queue" and isinstance(filter, EqualTo | In):
                value = cast("Any", filter.value)
                wanted = frozenset([value] if isinstance(filter, EqualTo) else value)
                self._queues = wanted if self._queues is None else self._queues & wanted
            yield filter


def _read(line: bytes, path: str, at: int) -> Record:
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or not {"record", "at", "seq", "queue", "messageId"} <= record.keys():
            raise ValueError("it is not a record")
    except ValueError as error:
        raise SourceError(f"{path}: the line at byte {at} cannot be read: {error}") from None
    if record["record"] in CONTENT:
        record["value"] = _payload(record)
    return record


def _payload(record: Mapping[str, Any]) -> bytes:
    if "payloadText" in record:
        return str(record["payloadText"]).encode()
    return base64.b64decode(record.get("payloadBase64", ""))


def _compare(record: Mapping[str, Any]) -> None:
    if "value" in record and sha256(record["value"]).hexdigest() != record.get("sha256"):
        raise SourceError(f"message {record['messageId']} of {record['queue']} is not the one that was accepted")


def _instant(name: str) -> Callable[[Record], datetime | None]:
    def read(record: Record) -> datetime | None:
        return datetime.fromisoformat(record[name]) if name in record else None

    return read


def _header(record: Record) -> dict[str, Any]:
    return record.get("header") or {}


def _headers(record: Record) -> list[tuple[str, str]]:
    """Return the envelope members without a column. A value that is no text is returned as its JSON."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        for name, value in _header(record).items()
        if name != "type" and value is not None
    ]


def _failed_at(record: Record) -> datetime | None:
    return _instant("at")(record) if record.get("delivery") in ("FAILED", "TIMEOUT") else None


VALUES: dict[str, Callable[[Record], Any]] = {
    "message_id": lambda record: record["messageId"],
    "queue": lambda record: record["queue"],
    "value": lambda record: record.get("value"),
    "type": lambda record: _header(record).get("type"),
    "status": lambda record: record.get("state", "ready"),
    "priority": lambda record: (_header(record).get("attributes") or {}).get("priority"),
    "attempt": lambda record: record.get("attempt", 0),
    "enqueued_at": _instant("enqueuedAt"),
    "changed_at": _instant("at"),
    "due_at": _instant("availableAt"),
    "worker": lambda record: record.get("consumerId"),
    "failure_reason": lambda record: record.get("reasonCode"),
    "failure_message": lambda record: record.get("reasonMessage"),
    "failed_at": _failed_at,
    "seq": lambda record: record["seq"],
    "headers": _headers,
    "record": lambda record: record["record"],
    "delivery": lambda record: record.get("delivery"),
    "leased_at": _instant("leasedAt"),
    "sha256": lambda record: record.get("sha256"),
    "position": lambda record: record["position"],
}
"""Function that reads the value of a column from a record, by column name."""
