"""Prints docs/spark-options.md from the table of the data source's options and columns; ``python tools/spark_docs.py``
writes it, a test sees that it is current."""

from pathlib import Path

from yirangmq.pipeline.source.options import FILES_COLUMNS, OPTIONS, QUEUE_COLUMNS, TOPIC_COLUMNS, USES, Option
from yirangmq.pipeline.source.sink import IGNORED_COLUMNS, MEMBERS, SINK_COLUMNS

PAGE = Path(__file__).parents[1] / "docs" / "spark-options.md"
INTRO = """# Options and columns of `format("yirangmq")`

What they are for is told in [Spark](spark.md).

*This page is printed from the program by `python tools/spark_docs.py`.*

Names of options may be written in any case. One that is not known is refused with the nearest that is, and so is one
that belongs to another use, a value that makes no sense, and an option that is given twice. All of that happens before
any data moves.
"""
SINK = """Only `value` (string or binary) is needed. `target` is `queue:NAME`, `topic:NAME` or `dlq:NAME`, row by row;
`queue` and `topic` are a name alone; where all of them are null or missing the option of the same name says where a row
goes.
"""
COLUMNS = {
    "key": "null where there is none",
    "value": "the payload, to the byte; `CAST(value AS STRING)` makes it a text",
    "topic": "",
    "partition": "always 0",
    "offset": "the number within the topic, from 1, without gaps",
    "global_seq": "the number within the whole log: one order over all topics",
    "timestamp": "when it was published",
    "headers": "none: an empty map",
    "message_id": "",
    "queue": "",
    "type": "of the envelope",
    "status": "the state: `ready`, `leased`, `dead`, … ([states](states.md))",
    "priority": "0 goes first; null goes last",
    "attempt": "how often it was leased",
    "enqueued_at": "when it was published",
    "changed_at": "when it got into its state",
    "due_at": "when time will act on it: a lease's end, a delay's end",
    "worker": "who has or had it",
    "failure_reason": "of the latest failure ([reasons](dead-letters.md))",
    "failure_message": "",
    "failed_at": "",
    "seq": "the number in the store",
    "record": "`accepted`, `rewritten`, `outcome` or `queue_deleted` ([files by date](files-by-date.md))",
    "delivery": "`DELIVERED`, `FAILED` or `TIMEOUT`, of an outcome",
    "leased_at": "when the attempt began that ended so",
    "sha256": "of the payload",
    "position": "rises from record to record, in the order they were committed",
}


def option_rows(use: str) -> list[str]:
    found = [option for option in OPTIONS if use in option.where]
    return ["| option | default | meaning |", "|---|---|---|", *(_row(option) for option in found)]


def _row(option: Option) -> str:
    names = "".join(f", `{name}`" for name in option.same_as)
    default = "–" if option.default is None else f"`{option.default}`"
    allowed = f" ({', '.join(f'`{one}`' for one in option.allows)})" if option.kind == "choice" else ""
    return f"| `{option.name}`{names} | {default} | {option.about}{allowed} |"


def column_rows(columns: dict[str, str]) -> list[str]:
    return [
        "| column | type | |",
        "|---|---|---|",
        *(f"| `{name}` | `{kind}` | {COLUMNS[name]} |" for name, kind in columns.items()),
    ]


def page() -> str:
    parts = [INTRO]
    for use, title in (("r", "Batch reads"), ("s", "Streams"), ("w", "Writes")):
        parts += [f"## {title}", "", *option_rows(use), ""]
    parts += ["## Columns of topics", "", *column_rows(TOPIC_COLUMNS), ""]
    parts += ["## Columns of queues, dead letters and archives", "", *column_rows(QUEUE_COLUMNS), ""]
    more = {name: kind for name, kind in FILES_COLUMNS.items() if name not in QUEUE_COLUMNS}
    parts += ["## Columns of files by date", "", "Those of queues, and:", "", *column_rows(more), ""]
    parts += ["## Columns that the sink takes", "", SINK]
    plain = sorted(SINK_COLUMNS - set(MEMBERS))
    parts += ["| column | becomes |", "|---|---|"]
    parts += [f"| `{name}` | the row's own {name} |" for name in plain]
    parts += [f"| `{name}` | `{member}` of the envelope |" for name, member in MEMBERS.items()]
    left = ", ".join(f"`{name}`" for name in sorted(IGNORED_COLUMNS))
    parts += ["", f"Columns that reading gives and writing has no use for are passed over: {left}.", ""]
    assert set(USES) == set("rsw")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
