"""``poison``: messages that keep failing, and the shapes of payload that keep failing.

A shape is the structure of a JSON payload, its members and their types; what is no JSON is of the shape ``not JSON``.
Rows are messages as the data source gives them, of dead letters above all."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from yirangmq.core.errors import BadInput

NO_SHAPE = "not JSON"
SAMPLES = 3


def poison_messages(messages: DataFrame, least: int = 3) -> DataFrame:
    """Payloads, to the byte, whose failures are ``least`` or more, in one message or in several together."""
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
    """Shapes of which ``least`` or more messages failed for the same reason, in different payloads or not."""
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
