"""Files by date, a row for each message: what was accepted, with what became of it last.

Knows: rows as ``source=files`` gives them. Does not know: files."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SETTLED = ("done", "dropped")
LATEST = ("value", "type", "priority", "enqueued_at", "due_at", "headers", "sha256")
"""What comes from the latest content of a message."""


def messages(records: DataFrame) -> DataFrame:
    """The columns of a queue or an archive, and ``leased_at``, ``delivery`` and ``sha256``. A message of whose day no
    file is left has no row, also where a later day tells how it ended."""
    is_content = F.col("record").isin("accepted", "rewritten")
    content_at, ended_at = F.when(is_content, F.col("position")), F.when(~is_content, F.col("position"))
    failed_at = F.when(F.col("failure_reason").isNotNull(), F.col("position"))
    latest = [F.max_by(name, content_at).alias(name) for name in LATEST]
    told = [F.max_by(name, ended_at).alias(name) for name in ("worker", "leased_at", "delivery")]
    why = [F.max_by(name, failed_at).alias(name) for name in ("failure_reason", "failure_message", "failed_at")]
    ways = [F.max_by(name, "position").alias(name) for name in ("status", "changed_at")]
    whole = (
        records.where("record != 'queue_deleted'")
        .groupBy("queue", "message_id", "seq")
        .agg(*latest, *told, *why, *ways, F.max("attempt").cast("int").alias("attempt"))
        .where("enqueued_at is not null")
    )
    return _without_deleted(whole, records)


def settled(records: DataFrame) -> DataFrame:
    """Those of which nothing more will be told: what an archive takes in."""
    return messages(records).where(F.col("status").isin(*SETTLED))


def _without_deleted(whole: DataFrame, records: DataFrame) -> DataFrame:
    """With a queue that was deleted all its messages were dropped."""
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
