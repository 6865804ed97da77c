"""Analysis jobs: messages from files by date, ``audit`` of topic offsets, ``poison`` messages and shapes.

Messages: files by date (``source=files``) have a row per record; the result has a row per message, with its latest
content and its last state.

Audit: the offsets of a topic have no gaps, so each offset between the first and the last should be there once. The rows
come from the data source or an archive.

Poison: payloads and shapes of payload that keep failing. A shape is the structure of a JSON payload, its members and
their types; any other payload has the shape ``not JSON``. The rows are messages, dead letters above all."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from yirangmq.core.errors import BadInput

# -- messages from files by date ---------------------------------------------------------------------------------------

SETTLED = ("done", "dropped")
LATEST = ("value", "type", "priority", "enqueued_at", "due_at", "headers", "sha256")
"""Columns taken from the latest content of a message."""


def messages(records: DataFrame) -> DataFrame:
    """Return a row per message: the columns of a queue or an archive, and ``leased_at``, ``delivery`` and ``sha256``.

    A message is left out if no file of the day that accepted it is left, even if a later day holds its outcome."""
    is_content = F.col("record").isin("accepted", "rewritten")
    content_at, ended_at = F.when(is_content, F.col("position")), F.when(~is_content, F.col("position"))
    failed_at = F.when(F.col("failure_reason").isNotNull(), F.col("position"))
    latest = [F.max_by(name, content_at).alias(name) for name in LATEST]
    delivery_columns = [F.max_by(name, ended_at).alias(name) for name in ("worker", "leased_at", "delivery")]
    why = [F.max_by(name, failed_at).alias(name) for name in ("failure_reason", "failure_message", "failed_at")]
    ways = [F.max_by(name, "position").alias(name) for name in ("status", "changed_at")]
    whole = (
        records.where("record != 'queue_deleted'")
        .groupBy("queue", "message_id", "seq")
        .agg(*latest, *delivery_columns, *why, *ways, F.max("attempt").cast("int").alias("attempt"))
        .where("enqueued_at is not null")
    )
    return _without_deleted(whole, records)


def settled(records: DataFrame) -> DataFrame:
    """Return the messages in a final state: the rows that an archive accepts."""
    return messages(records).where(F.col("status").isin(*SETTLED))


def _without_deleted(whole: DataFrame, records: DataFrame) -> DataFrame:
    """Mark the messages of a deleted queue as dropped."""
    gone = (
        records.where("record = 'queue_deleted'")
        .groupBy("queue")
        .agg(F.max("seq").alias("deleted_seq"), F.max("changed_at").alias("deleted_at"))
    )
    joined = whole.join(F.broadcast(gone), "queue", "left")
    is_gone: Column = (F.col("seq") <= F.col("deleted_seq")) & ~F.col("status").isin(*SETTLED)
    changed = {
        "status": F.when(is_gone, F.lit("dropped")).otherwise(F.col("status")),
        "changed_at": F.when(is_gone, F.col("deleted_at")).otherwise(F.col("changed_at")),
    }
    return joined.withColumns(changed).drop("deleted_seq", "deleted_at")


# -- audit -------------------------------------------------------------------------------------------------------------


def audit(records: DataFrame) -> DataFrame:
    """Return a row per topic: first and last offset, number of records, of missing offsets and of repeated records."""
    distinct = F.count_distinct("offset")
    return (
        records.groupBy("topic")
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count(F.lit(1)).alias("records"),
            (F.max("offset") - F.min("offset") + 1 - distinct).alias("missing"),
            (F.count(F.lit(1)) - distinct).alias("repeated"),
        )
        .orderBy("topic")
    )


def gaps(records: DataFrame) -> DataFrame:
    """Return a row per gap: the offsets from ``begin`` to ``end`` are missing."""
    line = Window.partitionBy("topic").orderBy("offset")
    before = F.lag("offset").over(line)
    there = records.select("topic", "offset").distinct().withColumn("before", before)
    holes = there.where(F.col("offset") > F.col("before") + 1)
    found = holes.select("topic", (F.col("before") + 1).alias("begin"), (F.col("offset") - 1).alias("end"))
    return found.withColumn("missing", F.col("end") - F.col("begin") + 1).orderBy("topic", "begin")


def repeats(records: DataFrame) -> DataFrame:
    """Return a row per offset that occurs more than once, and whether its values differ."""
    grouped = records.groupBy("topic", "offset").agg(
        F.count(F.lit(1)).alias("times"), (F.count_distinct(F.xxhash64("value")) > 1).alias("differ")
    )
    return grouped.where("times > 1").orderBy("topic", "offset")


# -- poison ------------------------------------------------------------------------------------------------------------

NO_SHAPE = "not JSON"
SAMPLES = 3


def poison_messages(messages: DataFrame, least: int = 3) -> DataFrame:
    """Return identical payloads with ``least`` or more failures, in one message or in several together."""
    failed = _failed(messages, least).withColumn("payload", F.sha2("value", 256))
    return (
        failed.groupBy("queue", "payload")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("attempt").alias("failures"),
            F.count_distinct("worker").alias("workers"),
            F.array_sort(F.collect_set("failure_reason")).alias("reasons"),
            F.slice(F.array_sort(F.collect_set("message_id")), 1, SAMPLES).alias("ids"),
        )
        .where(F.col("failures") >= least)
        .orderBy(F.desc("failures"), "queue", "payload")
    )


def poison_shapes(messages: DataFrame, least: int = 3) -> DataFrame:
    """Return the shapes of which ``least`` or more messages failed for the same reason, with equal or different
    payloads."""
    text = F.col("value").cast("string")
    shape = F.coalesce(F.schema_of_variant(F.try_parse_json(text)), F.lit(NO_SHAPE))
    return (
        _failed(messages, least)
        .withColumn("shape", shape)
        .groupBy("queue", "shape", F.col("failure_reason").alias("reason"))
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("attempt").alias("failures"),
            F.count_distinct(F.sha2("value", 256)).alias("payloads"),
            F.slice(F.array_sort(F.collect_set("message_id")), 1, SAMPLES).alias("ids"),
        )
        .where(F.col("messages") >= least)
        .orderBy(F.desc("messages"), "queue", "shape", "reason")
    )


def _failed(messages: DataFrame, least: int) -> DataFrame:
    if least < 1:
        raise BadInput(f"must be at least 1, not {least}", field="least")
    return messages.where("failure_reason is not null or status in ('dead', 'parked')")
