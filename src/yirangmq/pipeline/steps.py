"""Pipeline steps: functions from DataFrame to DataFrame, for batches and streams alike.

    orders = parse_envelope(spark.readStream.format("yirangmq")…load())
    checked = validate(orders, schema)
    route(checked, {"queue:large": "payload.amount > 1000"}, "queue:small").writeStream.format("yirangmq")…

Each step adds columns and drops none, so that the original bytes are there at the end. The column ``errors`` lists the
problems of a row; ``route`` sends such rows to the dead letters, with the reason and the original bytes.

A wrong column, a bad expression or a bad schema is an error when the step is built, before any data moves. Inside a
query function of a declarative pipeline Spark does not say which columns a frame has. There Spark itself reports the
error, at ``dry-run``. There ``parse_envelope`` counts as the first step and every other step as a later one."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructType

from yirangmq.core.errors import BadInput, MissingExtra
from yirangmq.format.json_schema import check_limits
from yirangmq.pipeline.source.errors import MAX_REASON, NOT_JSON, NULL, SchemaValidator

Made = TypeVar("Made")
ENVELOPE = (
    "messageId string, timestamp string, queue string, type string, version int, attributes map<string,string>, "
    "traceId string, deduplicationKey string, payload string"
)
"""JSON members of an envelope; the payload is kept as its own JSON text."""
ERRORS = "errors"
TARGET = "target"
REASON = "reason"
UNFIT, AHEAD = "the payload does not fit its schema", "the time is in the future"
HASHED = 2**32
FOR_SINK = ("key", "headers", TARGET, REASON, "message_id", "type", "version", "trace_id", "priority", "group")


def parse_envelope(frame: DataFrame, payload: StructType | str | None = None, *, value: str = "value") -> DataFrame:
    """Add the members of an envelope as columns: ``message_id``, ``type``, ``version``, ``sent_at``, ``attributes``,
    ``trace_id`` and ``payload``. A value that is no envelope is all payload; a value that is no JSON gets an error.

    A value is an envelope by the rule of ``format.envelope.is_envelope``, as an expression of Spark.

    With a schema (Spark's, or its text) ``payload`` is a struct, and a payload that does not match gets an error."""
    _need(frame, value)
    text = F.col(value).cast("string")
    read = F.from_json(text, f"{ENVELOPE}, _bad string", {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"})
    is_json = F.coalesce(_is_json(text), F.lit(False))
    wrong = F.when(text.isNull(), F.lit(NULL)).when(~is_json, F.lit(NOT_JSON))
    names = F.json_object_keys(text)
    is_one = F.coalesce(F.array_contains(names, "messageId") & F.array_contains(names, "payload"), F.lit(False))
    raw = F.when(is_one, F.coalesce(read["payload"], F.lit("null"))).otherwise(F.when(is_json, text))
    made = frame.withColumns(
        {
            "message_id": F.coalesce(_existing(frame, "message_id"), F.when(is_one, read["messageId"])),
            "type": F.when(is_one, read["type"]),
            "version": F.when(is_one, read["version"]),
            "sent_at": F.when(is_one, F.try_to_timestamp(read["timestamp"])),
            "attributes": F.when(is_one, read["attributes"]),
            "trace_id": F.when(is_one, read["traceId"]),
            "payload": raw,
            ERRORS: F.concat(_errors(frame, first=True), _if_any(wrong)),
        }
    )
    return made if payload is None else _typed(made, payload)


def _is_json(text: Column) -> Column:
    """Return whether the text is a single JSON value.

    Spark's readers stop after the first value and ignore the rest. Therefore the text is parsed as the only element of
    a list and as a member of an object; trailing text makes one of the two invalid."""
    listed = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]")))
    member = F.try_parse_json(F.concat(F.lit('{"v":'), text, F.lit("}")))
    return member.isNotNull() & (F.size(F.try_variant_get(listed, "$", "array<variant>")) == 1)


def _typed(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """Convert the payload to a struct. Its members are null if it does not match the schema."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
    read = F.from_json(F.col("payload"), f"{_ddl(schema)}, _bad string", options)
    unfit = F.when(F.col("payload").isNotNull() & read["_bad"].isNotNull(), F.lit(UNFIT))
    made = {ERRORS: F.concat(F.col(ERRORS), _if_any(unfit)), "payload": read.dropFields("_bad")}
    return _checked(lambda: frame.withColumns(made), "payload")


def validate(frame: DataFrame, schema: Mapping[str, Any], *, column: str = "value") -> DataFrame:
    """Check each value against a JSON Schema, and add the violations to ``errors``.

    Needs the extra ``schema``, on the machines of the executors too."""
    _need(frame, column)
    text = json.dumps(schema)
    check_limits(schema, len(text), "schema", BadInput)
    validator = SchemaValidator(text)
    try:
        validator.ready()  # report a bad schema here instead of in a task
    except ImportError:
        raise MissingExtra("checking against a schema needs jsonschema-rs; pip install 'yirangmq[schema]'") from None
    except ValueError as error:
        raise BadInput(f"is not a JSON Schema: {error}", field="schema") from None
    complaints = F.udf(validator, ArrayType(StringType()), useArrow=True)
    found = complaints(F.col(column).cast("binary"))  # as binary: invalid UTF-8 would stop the task
    return frame.withColumn(ERRORS, F.array_distinct(F.concat(_errors(frame), found)))


def enrich(frame: DataFrame, table: DataFrame, on: str | Sequence[str], *, small: bool = True) -> DataFrame:
    """Add the columns of the table row with the same key; a row without a match gets nulls.

    ``small``: the table is sent to every task, and neither side is sorted."""
    keys = [on] if isinstance(on, str) else list(on)
    _need(frame, *keys)
    _need(table, *keys)
    there = columns_of(frame) or ()
    clash = [name for name in columns_of(table) or () if name in there and name not in keys]
    if clash:
        raise BadInput(f"both have the column {clash[0]!r}; rename it in the table", field="table")
    return frame.join(F.broadcast(table) if small else table, keys, "left")


def guard_time(frame: DataFrame, *, time: str = "timestamp", ahead: str = "1 minute") -> DataFrame:
    """Replace times in the future by the current time, and add an error to the row.

    Otherwise a sender with a clock that is ahead would move the watermark and make the rows of all others late. Use
    this step before ``deduplicate`` and ``aggregate`` if the time is set by the sender. ``ahead`` is the tolerance."""
    _need(frame, time)
    limit = _checked(lambda: F.current_timestamp() + F.expr(f"interval {ahead}"), "ahead")
    is_ahead = F.coalesce(F.col(time) > limit, F.lit(False))
    made = {
        ERRORS: F.concat(_errors(frame), _if_any(F.when(is_ahead, F.lit(AHEAD)))),
        time: F.when(is_ahead, F.current_timestamp()).otherwise(F.col(time)),
    }
    return _checked(lambda: frame.withColumns(made), "ahead")


def deduplicate(
    frame: DataFrame, by: str | Sequence[str] = "message_id", *, within: str = "10 minutes", time: str = "timestamp"
) -> DataFrame:
    """Keep one row per key. In a stream, rows with the same key are duplicates if their times differ by at most
    ``within``."""
    keys = [by] if isinstance(by, str) else list(by)
    _need(frame, *keys)
    if columns_of(frame) is not None and not frame.isStreaming:
        return frame.dropDuplicates(keys)
    _need(frame, time)
    return _checked(lambda: frame.withWatermark(time, within).dropDuplicatesWithinWatermark(keys), "within")


def aggregate(
    frame: DataFrame,
    every: str = "1 minute",
    by: Sequence[str] = (),
    measures: Mapping[str, str] | None = None,
    *,
    time: str = "timestamp",
    late: str = "1 minute",
) -> DataFrame:
    """Compute measures by time window and the columns ``by``.

    ``measures`` maps a name to an SQL expression; the default is the number of rows, and of rows with errors. A
    stream's windows leave out rows that arrive more than ``late`` after the newest time."""
    _need(frame, time, *by)
    if measures is None:
        measures = {"rows": "count(*)"}
        if ERRORS in (columns_of(frame) or ()):
            measures = {**measures, "failed": f"count_if(size({ERRORS}) > 0)"}
    timed = _checked(lambda: frame.withWatermark(time, late), "late")
    made = [_expression(frame, text, name).alias(name) for name, text in measures.items()]
    grouped = _checked(lambda: timed.groupBy(F.window(time, every), *by).agg(*made), "measures")
    return grouped.withColumns({"start": F.col("window.start"), "end": F.col("window.end")}).drop("window")


def route(frame: DataFrame, rules: Mapping[str, str], otherwise: str, *, dead: str | None = None) -> DataFrame:
    """Add a column ``target`` by content: the first rule (target to SQL condition) that holds, or ``otherwise``.

    Rows with ``errors`` go to the dead letters: of ``dead`` (a queue's name), or of the queue they were routed to."""
    for target in (*rules, otherwise):
        check_target(target)
    chosen: Column = F.lit(otherwise)
    for target, condition in reversed(list(rules.items())):
        chosen = F.when(_expression(frame, condition, target), F.lit(target)).otherwise(chosen)
    there = columns_of(frame)
    if there is not None and ERRORS not in there:
        return _checked(lambda: frame.withColumn(TARGET, chosen), "rules")
    bad = F.size(ERRORS) > 0
    own = F.concat(F.lit("dlq:"), F.substring_index(chosen, ":", -1))
    grave = own if dead is None else F.lit(f"dlq:{dead}")
    reason = F.when(bad, F.substring(F.array_join(ERRORS, "; "), 1, MAX_REASON))
    return _checked(lambda: frame.withColumns({TARGET: F.when(bad, grave).otherwise(chosen), REASON: reason}), "rules")


def sample(frame: DataFrame, share: float, *, by: str | None = None) -> DataFrame:
    """Keep about this share of the rows.

    ``by``: keep all rows with the same value in this column, or none. The same rows are kept in every run."""
    if not 0 < share <= 1:
        raise BadInput(f"must be more than 0 and at most 1, not {share}", field="share")
    if by is None:
        return frame.where(F.rand() < share)
    _need(frame, by)
    return frame.where(F.pmod(F.xxhash64(by), F.lit(HASHED)) < round(share * HASHED))


def for_sink(frame: DataFrame, *, value: str = "value", columns: Sequence[str] | None = None) -> DataFrame:
    """Select the columns the sink accepts: value, key, headers, and the target of the row.

    ``columns``: the columns that exist, if Spark does not report them."""
    _need(frame, value)
    there = columns_of(frame) if columns is None else columns
    if there is None:
        raise BadInput("name the existing columns; the query function of a pipeline cannot read them", field="columns")
    return frame.select(F.col(value).alias("value"), *(name for name in FOR_SINK if name in there))


def check_target(target: str) -> str:
    kind, _, name = target.partition(":")
    if kind not in ("queue", "topic", "dlq") or not name:
        raise BadInput(f"{target!r} is not queue:NAME, topic:NAME or dlq:NAME", field="target")
    return target


def columns_of(frame: DataFrame) -> list[str] | None:
    """Return the columns, or None inside a pipeline's query function, where Spark does not report them."""
    return None if _is_being_declared() else frame.columns


def _is_being_declared() -> bool:
    registry = sys.modules.get("pyspark.pipelines.graph_element_registry")
    current = getattr(registry, "_graph_element_registry_context_var", None)
    return current is not None and current.get(None) is not None


def _need(frame: DataFrame, *names: str) -> None:
    there = columns_of(frame)
    for name in names:
        if there is not None and name not in there:
            close = get_close_matches(name, there, 1, 0.6)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise BadInput(f"there is no column {name!r} among {', '.join(there)}{hint}", field="column")


def _existing(frame: DataFrame, name: str) -> Column:
    return F.col(name) if name in (columns_of(frame) or ()) else F.lit(None)


def _errors(frame: DataFrame, *, first: bool = False) -> Column:
    """Return the problems found by earlier steps.

    ``first``: whether this counts as the first step if the columns are unknown."""
    there = columns_of(frame)
    is_there = not first if there is None else ERRORS in there
    none = F.array().cast("array<string>")
    return F.coalesce(F.col(ERRORS), none) if is_there else none


def _if_any(error: Column) -> Column:
    return F.filter(F.array(error), lambda one: one.isNotNull())


def _expression(frame: DataFrame, text: str, name: str) -> Column:
    """Parse an expression. Spark checks an expression on use, so it is used once here, to name the wrong one."""
    made = F.expr(text)
    if columns_of(frame) is not None:
        _checked(lambda: frame.select(made).schema, name, f"{text!r}: ")
    return made


def _checked(build: Callable[[], Made], field: str, prefix: str = "") -> Made:
    """Build a frame or column. Raise Spark's error about a wrong name or type as ``BadInput`` with its field."""
    try:
        return build()
    except (AnalysisException, ParseException) as error:
        raise BadInput(f"{prefix}{_first_line(error)}", field=field) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]


def _ddl(schema: StructType | str) -> str:
    if isinstance(schema, str):
        return schema
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
