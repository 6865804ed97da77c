"""Prints docs/spark-options.md from the table of the data source's options and columns; ``python tools/spark_docs.py``
writes it, a test checks that it is current."""

from pathlib import Path

from yirangmq.pipeline.source.options import FILES_COLUMNS, OPTIONS, QUEUE_COLUMNS, TOPIC_COLUMNS, USES, Option
from yirangmq.pipeline.source.sink import IGNORED_COLUMNS, MEMBERS, SINK_COLUMNS

PAGE = Path(__file__).parents[1] / "docs" / "spark-options.md"
INTRO = """# Options and columns of `format("yirangmq")`

[Spark](spark.md) explains their use.

*This page is printed from the program by `python tools/spark_docs.py`.*

Names of options are not case-sensitive. Options are checked before any data is read or written. An unknown option is
refused, and the error names the nearest known one. An option of another use, an invalid value, and an option that is
given twice are refused too.
"""
SINK = """Only `value` (string or binary) is required. `target` is `queue:NAME`, `topic:NAME` or `dlq:NAME` for each
row; `queue` and `topic` contain the name alone. If all of them are null or missing, the option `queue` or `topic` is
the target.
"""
COLUMNS = {
    "key": "null if the record has none",
    "value": "the payload, unchanged; `CAST(value AS STRING)` converts it to text",
    "topic": "name of the topic",
    "partition": "always 0",
    "offset": "sequence within the topic, from 1, without gaps",
    "global_seq": "sequence within the whole log: one order for all topics",
    "timestamp": "when the record was published",
    "headers": "an empty map if there are none",
    "message_id": "id of the message",
    "queue": "name of the queue",
    "type": "`type` of the envelope",
    "status": "the state: `ready`, `leased`, `dead`, … ([states](states.md))",
    "priority": "0 is first; null is last",
    "attempt": "how often the message was leased",
    "enqueued_at": "when the message was published",
    "changed_at": "when its state last changed",
    "due_at": "end of the lease or of the delay",
    "worker": "consumer of the current or last lease",
    "failure_reason": "reason of the last failure ([reasons](dead-letters.md))",
    "failure_message": "text of the last failure",
    "failed_at": "time of the last failure",
    "seq": "number of the message in the store",
    "record": "`accepted`, `rewritten`, `outcome` or `queue_deleted` ([files by date](files-by-date.md))",
    "delivery": "of an outcome: `DELIVERED`, `FAILED` or `TIMEOUT`",
    "leased_at": "of an outcome: when the attempt began",
    "sha256": "SHA-256 of the payload",
    "position": "rises with each record, in commit order",
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
        "| column | type | meaning |",
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
    parts += ["## Columns of files by date", "", "The columns of queues, and:", "", *column_rows(more), ""]
    parts += ["## Columns of the sink", "", SINK]
    plain = sorted(SINK_COLUMNS - set(MEMBERS))
    parts += ["| column | becomes |", "|---|---|"]
    parts += [f"| `{name}` | `{name}` of the row |" for name in plain]
    parts += [f"| `{name}` | `{member}` of the envelope |" for name, member in MEMBERS.items() if name != "reason"]
    parts += ["| `reason` | the reason of the dead letter, with the target `dlq:NAME` |"]
    left = ", ".join(f"`{name}`" for name in sorted(IGNORED_COLUMNS))
    parts += ["", f"These columns of a read are ignored in a write: {left}.", ""]
    assert set(USES) == set("rsw")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
