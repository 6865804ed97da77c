"""Reader of queues, dead letters and archives: messages are read without a lease and stay unchanged.

A server returns pages of record frames, with the members of a message as headers. There is a task per queue and state.
Filters that the filter language can express are evaluated by the server; Spark evaluates them again."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.frames import FrameColumns, find_frames
from yirangmq.pipeline.source.http_client import broker_of
from yirangmq.pipeline.source.options import MAP, STATES, Options, arrow_schema, arrow_type, columns_of

if TYPE_CHECKING:
    import pyarrow

PER_PAGE = 1000
STATE_OF = {"dlq": "dead", "archive": "done"}
HEADER_OF_COLUMN = {
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
"""Columns that are headers of a message's frame: column name to header name."""
COLUMN_HEADERS = frozenset({*HEADER_OF_COLUMN.values(), "seq", "isJson"})
FIELDS = {
    "failure_reason": "reasonCode",
    "type": "type",
    "worker": "consumerId",
    "message_id": "messageId",
    "attempt": "attempt",
    "failed_at": "failedAt",
    "enqueued_at": "publishedAt",
}
"""Columns that the filter language has, with their names in it."""
OPERATORS = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


@dataclass
class QueuePartition(InputPartition):
    queue: str
    state: str


class QueueReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        for name in ("subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "path"):
            if name in options:
                raise SourceError(f"the option {name} is for topics; a {options.source} is chosen with queue")
        self._options = options
        self._columns = columns_of(options)
        self._broker = broker_of(options)
        self._states = self._wanted_states()
        self._only: frozenset[str] | None = None
        self._conditions: list[str] = []

    def _wanted_states(self) -> tuple[str, ...]:
        source = self._options.source
        if source != "queue":
            if "state" in self._options:
                raise SourceError(f"state does not apply to the source {source}; remove it")
            return (STATE_OF[source],)
        states = self._options.names("state")
        return STATES if "all" in states else states

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per queue and state."""
        try:
            known = self._known()
        finally:
            self._broker.close()
        wanted = self._options.names("queue") or tuple(known)
        if self._only is not None:
            wanted = tuple(queue for queue in wanted if queue in self._only)
        # A queue is created by its first message: a missing queue is an empty one.
        parts = [QueuePartition(queue, state) for queue in wanted if queue in known for state in self._states]
        return parts or [QueuePartition("", "")]

    def _known(self) -> list[str]:
        """Return the queues of the server, read page by page. An older server has one page and no cursor."""
        found: list[str] = []
        cursor, is_first = "", True
        while cursor or is_first:
            page = self._broker.document("GET", "/v1/queues" + (f"?cursor={quote(cursor)}" if cursor else ""))
            found += [row["queue"] for row in page["queues"]]
            cursor, is_first = page.get("cursor", ""), False
        return found

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        part = cast("QueuePartition", partition)
        cursor, has_more = "", bool(part.queue)
        values = {"state": part.state, "limit": str(PER_PAGE)}
        condition = self.condition()
        if condition:
            values["filter"] = condition
        try:
            while has_more:
                query = urlencode(values | ({"cursor": cursor} if cursor else {}))
                raw, cursor = self._broker.request_page(
                    "GET", f"/v1/queues/{quote(part.queue, safe='')}/records?{query}"
                )
                run = find_frames(raw)
                if run.end != len(raw):
                    raise SourceError("the server sent an invalid record")
                found = FrameColumns(run)
                if len(found):
                    if self._options.flag("verify"):
                        found.verify()
                    yield _batch(found, self._columns)
                has_more = bool(cursor)
        finally:
            self._broker.close()

    def condition(self) -> str:
        """Return the condition in the filter language: the option ``filter`` and the filters Spark pushed down."""
        given = self._options.text("filter")
        parts = ([f"({given})"] if given and given.strip() else []) + self._conditions
        return " and ".join(parts)


class PushingQueueReader(QueueReader):
    """Reader with filter pushdown: Spark's filters reduce the rows read. Spark evaluates them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for filter in filters:
            self._push_down(filter)
            yield filter

    def _push_down(self, filter: Filter) -> None:
        name, value = ".".join(getattr(filter, "attribute", ())), getattr(filter, "value", None)
        if name == "queue" and isinstance(filter, EqualTo | In):
            wanted = frozenset([value] if isinstance(filter, EqualTo) else cast("Any", value))
            self._only = wanted if self._only is None else self._only & wanted
        elif name == "status" and isinstance(filter, EqualTo | In):
            wanted = frozenset([value] if isinstance(filter, EqualTo) else cast("Any", value))
            self._states = tuple(state for state in self._states if state in wanted)
        elif name in FIELDS and type(filter) in OPERATORS:
            written = _written(value, type(filter))
            if written and not (name == "failure_reason" and type(filter) is not EqualTo):
                self._conditions.append(f"{FIELDS[name]}{OPERATORS[type(filter)]}{written}")


def _written(value: object, kind: type[Filter]) -> str:
    """Return the value as a literal of the filter language, or an empty text if it cannot be expressed.

    Instants are rounded to the second so that the range is slightly wider than requested."""
    if isinstance(value, datetime):
        at = int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
        if kind is EqualTo:
            return ""
        at += kind in (LessThan, LessThanOrEqual)
        return datetime.fromtimestamp(at, UTC).isoformat()
    if type(value) is int:
        return str(value)
    if isinstance(value, str) and kind is EqualTo and re.fullmatch(r"[\w .:@/+-]{1,200}", value):
        return f'"{value}"'
    return ""


def _batch(found: FrameColumns, columns: Mapping[str, str]) -> "pyarrow.RecordBatch":
    import pyarrow as pa

    headers = found.headers()
    arrays = [_column(name, kind, found, headers) for name, kind in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _column(name: str, kind: str, found: FrameColumns, headers: list[dict[str, str]]) -> "pyarrow.Array[Any]":
    import pyarrow as pa

    match name:
        case "message_id":
            return found.keys()
        case "queue":
            codes, names = found.topics()
            return pa.array(names, pa.string()).take(pa.array(codes))
        case "value":
            return found.payloads()
        case "seq":
            return pa.array(found.sequence)
        case "headers":
            rest = [[pair for pair in one.items() if pair[0] not in COLUMN_HEADERS] for one in headers]
            return pa.array(rest, arrow_type(MAP))
        case _:
            return pa.array([_read(one.get(HEADER_OF_COLUMN[name]), kind) for one in headers], arrow_type(kind))


def _read(text: str | None, kind: str) -> Any:
    """Convert a header's text to a value of the column."""
    if text is None or kind == "string":
        return text
    if kind == "timestamp":
        if text.isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        return datetime.fromisoformat(text)
    return int(text)
