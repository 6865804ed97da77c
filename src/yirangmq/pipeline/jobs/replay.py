"""Replay jobs: ``replay`` and ``load`` of rows into a queue or a topic, ``redrive`` of dead letters.

A replay and a load have a name. The broker's ledger accepts a name once, so a repeated run under the same name does
nothing. A redrive moves the dead letters themselves; a moved message is no longer a dead letter."""

from collections.abc import Callable, Sequence
from typing import Protocol

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from yirangmq.core.errors import BadInput
from yirangmq.pipeline import steps

REPLAY_OF = "replayOf"
REDRIVE_BATCH = 500


def select_rows(
    frame: DataFrame,
    condition: str | None = None,
    since: str | None = None,
    until: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> DataFrame:
    """Select rows by SQL condition, time (from ``since`` to before ``until``) and sequence (from ``first`` to
    ``last``)."""
    time = "timestamp" if "timestamp" in frame.columns else "changed_at"
    sequence = "global_seq" if "global_seq" in frame.columns else "seq"
    if since is not None:
        frame = frame.where(F.col(time) >= _moment(frame, since, "since"))
    if until is not None:
        frame = frame.where(F.col(time) < _moment(frame, until, "until"))
    if first is not None:
        frame = frame.where(F.col(sequence) >= first)
    if last is not None:
        frame = frame.where(F.col(sequence) <= last)
    return frame if condition is None else where(frame, condition)


def where(frame: DataFrame, condition: str) -> DataFrame:
    """Filter rows by an SQL condition. ``BadInput`` with Spark's error text, before any data moves."""
    try:
        return frame.where(condition)
    except (AnalysisException, ParseException) as error:
        raise BadInput(str(error).strip().splitlines()[0][:400], field="where") from None


def _moment(frame: DataFrame, text: str, field: str) -> Column:
    (row,) = frame.sparkSession.range(1).select(F.try_to_timestamp(F.lit(text)).alias("at")).collect()
    if row["at"] is None:
        raise BadInput(f"{text!r} is not a time such as 2026-03-01T12:00:00Z", field=field)
    return F.try_to_timestamp(F.lit(text))


def for_replay(frame: DataFrame, target: str) -> DataFrame:
    """Return rows for the sink, in order, each with a header that names its origin.

    The rows get new ids. The broker knows the old ids and would reject the rows as duplicates."""
    steps.check_target(target)
    if "global_seq" in frame.columns:
        sequence, origin = "global_seq", F.concat_ws("/", "topic", F.col("offset").cast("string"))
    else:
        sequence, origin = "seq", F.concat_ws("/", "queue", "message_id")
    mark = F.create_map(F.lit(REPLAY_OF), origin)
    known = F.map_filter(
        F.coalesce(F.col("headers"), F.create_map().cast("map<string,string>")),
        lambda name, value: ~name.isin(REPLAY_OF, *NOT_REPLAYED),
    )
    kept = [name for name in ("key", "type") if name in frame.columns]
    ordered = frame.orderBy(sequence)
    if "queue" in frame.columns and not target.startswith("topic:"):
        kept = ["type"]  # the key of a message is its id
    return ordered.select("value", *kept, F.map_concat(known, mark).alias("headers"), F.lit(target).alias("target"))


NOT_REPLAYED = ("messageId", "deduplicationKey", "timestamp", "delaySec", "ttlSec", "yr-batch")
"""Headers that belong to the original message and are not copied to its replay."""


def for_load(table: DataFrame, to: str, id: str | None = None) -> DataFrame:
    """Return the rows of any table for the sink: its column ``value``, or each row as a JSON object.

    ``to`` is ``queue:NAME`` or ``topic:NAME``. ``id`` is the column with the message's id, which must be unique
    permanently."""
    target = F.lit(steps.check_target(to)).alias("target")
    if id is not None and id not in table.columns:
        raise BadInput(f"there is no column {id!r} among {', '.join(table.columns)}", field="id")
    if "value" in table.columns:
        kinds = dict(table.dtypes)
        if kinds["value"] not in ("string", "binary"):
            raise BadInput(f"the column value is {kinds['value']}, neither string nor binary", field="value")
        value = F.col("value")
    else:
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in table.columns)), {"ignoreNullFields": "false"})
    ids = [] if id is None else [F.col(f"`{id}`").cast("string").alias("message_id")]
    return table.select(value.alias("value"), *ids, target)


def write(rows: DataFrame, broker: str, name: str, token: str | None = None) -> None:
    """Write the rows to the broker: all or none, and once under this name."""
    writer = rows.write.format("yirangmq").option("broker", broker).option("publishId", name)
    if token:
        writer = writer.option("token", token)
    writer.mode("append").save()


class RedriveFunction(Protocol):
    """Function that redrives dead letters of a queue and returns their number."""

    def __call__(self, queue: str, ids: Sequence[str]) -> int: ...


def redrive(
    letters: DataFrame, condition: str, move: RedriveFunction, on_progress: Callable[[int], None] | None = None
) -> int:
    """Redrive the dead letters that match the SQL condition, oldest first, ``REDRIVE_BATCH`` per call."""
    found = where(letters, condition).orderBy("queue", "seq").select("queue", "message_id")
    done = 0
    waiting: dict[str, list[str]] = {}
    for row in found.toLocalIterator():
        ids = waiting.setdefault(row["queue"], [])
        ids.append(row["message_id"])
        if len(ids) == REDRIVE_BATCH:
            done += move(row["queue"], waiting.pop(row["queue"]))
            if on_progress is not None:
                on_progress(done)
    for queue, ids in waiting.items():
        done += move(queue, ids)
    return done
