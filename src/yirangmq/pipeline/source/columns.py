"""The columns of what is read, and their types in Arrow. Knows: names and types. Does not know: where values are."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.options import Options

if TYPE_CHECKING:
    import pyarrow

MAP = "map<string,string>"
TOPIC_COLUMNS = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "global_seq": "bigint",
    "timestamp": "timestamp",
    "headers": MAP,
}
"""As jobs for other feeds expect them; ``partition`` is always 0."""
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
    "headers": MAP,
}
FILES_COLUMNS = QUEUE_COLUMNS | {
    "record": "string",
    "delivery": "string",
    "leased_at": "timestamp",
    "sha256": "string",
    "position": "bigint",
}
"""Of files by date, where each record is a row; ``position`` tells their order."""
COLUMNS = {"topic": TOPIC_COLUMNS, "files": FILES_COLUMNS}


def columns_of(options: Options) -> dict[str, str]:
    """Name to type, as the options ask for them."""
    columns = dict(COLUMNS.get(options.source, QUEUE_COLUMNS))
    wanted = options.names("columns")
    for name in wanted:
        if name not in columns:
            close = get_close_matches(name, columns, 1, 0.6)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(columns)}"
            raise SourceError(f"columns: there is no column {name!r}{hint}")
    if not options.flag("includeHeaders"):
        if "headers" in wanted:
            raise SourceError("columns asks for headers, includeHeaders=false says no; leave one of them out")
        del columns["headers"]
    return {name: columns[name] for name in wanted} if wanted else columns


def arrow_type(name: str) -> "pyarrow.DataType":
    import pyarrow as pa

    return {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        MAP: pa.map_(pa.string(), pa.string()),
    }[name]


def arrow_schema(columns: Mapping[str, str]) -> "pyarrow.Schema":
    import pyarrow as pa

    return pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
