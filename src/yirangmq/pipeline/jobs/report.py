"""``report``: what went through the queues, how long it took, what failed and why; as frames of a few rows each.

Reads messages as the data source gives them (states together, or from an archive). Records of a topic are taken for
messages that were published and nothing more. How long a message waited is known of those that are leased right now;
where rows have a column ``leased_at``, of all, and then how long the work took as well."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from yirangmq.core.errors import BadInput

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ACCURACY = 10_000
GROWTH = timedelta(days=1)
"""Dead letters of the last so long are compared with those of as long before."""


def report(messages: DataFrame, now: datetime, growth: timedelta = GROWTH) -> dict[str, DataFrame]:
    """Name to frame; ``now`` has a time zone."""
    if now.tzinfo is None:
        raise BadInput("needs a time zone", field="now")
    rows = normal(messages)
    return {
        "totals": totals(rows),
        "rates": rates(rows),
        "times": times(rows),
        "dead_letters": dead_letters(rows, now, growth),
        "retries": retries(rows),
        "weeks": weeks(rows),
    }


def normal(frame: DataFrame) -> DataFrame:
    """Only the columns a report looks at, by the names that messages have."""
    if "global_seq" in frame.columns:
        made: Mapping[str, Column] = {
            "queue": F.col("topic"),
            "status": F.lit("record"),
            "attempt": F.lit(0),
            "enqueued_at": F.col("timestamp"),
            "ended_at": F.lit(None).cast("timestamp"),
            "leased_at": F.lit(None).cast("timestamp"),
            "failure_reason": F.lit(None).cast("string"),
            "size": F.octet_length("value"),
        }
        return frame.select(*(column.alias(name) for name, column in made.items()))
    leased = F.when(F.col("status") == "leased", F.col("changed_at"))
    if "leased_at" in frame.columns:
        leased = F.coalesce(F.col("leased_at"), leased)
    ended = F.when(F.col("status") == "done", F.col("changed_at")).when(
        F.col("status").isin("dead", "parked"), F.coalesce("failed_at", "changed_at")
    )
    return frame.select(
        "queue",
        "status",
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        "enqueued_at",
        ended.alias("ended_at"),
        leased.alias("leased_at"),
        F.coalesce("failure_reason", F.lit("unknown")).alias("failure_reason"),
        F.octet_length("value").alias("size"),
    )


def totals(rows: DataFrame) -> DataFrame:
    """Of each queue: how many stand where, and which share of those that ended are dead."""
    done, dead = F.count_if(F.col("status") == "done"), F.count_if(_is_dead())
    return (
        rows.groupBy("queue")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            done.alias("done"),
            dead.alias("dead"),
            F.count_if(F.col("attempt") > 1).alias("retried"),
            F.sum("size").alias("bytes"),
            F.when(done + dead > 0, dead / (done + dead)).alias("failure_rate"),
        )
        .orderBy("queue")
    )


def rates(rows: DataFrame) -> DataFrame:
    """Of each queue and minute: how many were published, done, dead."""
    happened = rows.select(
        "queue",
        F.explode(
            F.array(
                F.struct(F.lit("published").alias("what"), F.col("enqueued_at").alias("at")),
                F.struct(F.when(_is_dead(), "dead").otherwise("done").alias("what"), F.col("ended_at").alias("at")),
            )
        ).alias("one"),
    ).where("one.at is not null")
    return (
        happened.groupBy("queue", F.date_trunc("minute", "one.at").alias("minute"))
        .agg(*(F.count_if(F.col("one.what") == what).alias(what) for what in ("published", "done", "dead")))
        .orderBy("queue", "minute")
    )


def times(rows: DataFrame) -> DataFrame:
    """Of each queue, in seconds: from published to leased (wait), leased to done (processing), published to done."""
    is_done = F.col("status") == "done"
    spans = {
        "wait": _seconds("enqueued_at", "leased_at"),
        "processing": F.when(is_done, _seconds("leased_at", "ended_at")),
        "whole": F.when(is_done, _seconds("enqueued_at", "ended_at")),
    }
    each = F.explode(F.array(*(F.struct(F.lit(name).alias("span"), span.alias("s")) for name, span in spans.items())))
    found = rows.select("queue", each.alias("one")).where("one.s is not null")
    measures = [F.percentile_approx("one.s", share, ACCURACY).alias(name) for name, share in SHARES.items()]
    counted = F.count(F.lit(1)).alias("messages")
    grouped = found.groupBy("queue", F.col("one.span").alias("span"))
    return grouped.agg(counted, *measures, F.max("one.s").alias("most")).orderBy("queue", "span")


def dead_letters(rows: DataFrame, now: datetime, growth: timedelta) -> DataFrame:
    """Of each queue and reason: how many, how many of late, how many in the time before that."""
    edge, before = F.lit(now - growth), F.lit(now - 2 * growth)
    late = F.count_if(F.col("ended_at") >= edge)
    earlier = F.count_if((F.col("ended_at") >= before) & (F.col("ended_at") < edge))
    return (
        rows.where(_is_dead())
        .groupBy("queue", F.col("failure_reason").alias("reason"))
        .agg(
            F.count(F.lit(1)).alias("dead"),
            late.alias("late"),
            earlier.alias("before"),
            (late - earlier).alias("growth"),
        )
        .orderBy("queue", F.desc("dead"), "reason")
    )


def retries(rows: DataFrame) -> DataFrame:
    """Of each queue: how many messages took how many attempts."""
    tried = rows.where("attempt > 0")
    return tried.groupBy("queue", "attempt").agg(F.count(F.lit(1)).alias("messages")).orderBy("queue", "attempt")


def weeks(rows: DataFrame) -> DataFrame:
    """Of each queue and week, from Monday: how many were published, with how many bytes."""
    week = F.to_date(F.date_trunc("week", "enqueued_at")).alias("week")
    counted = [F.count(F.lit(1)).alias("published"), F.sum("size").alias("bytes")]
    return rows.groupBy("queue", week).agg(*counted).orderBy("queue", "week")


def _is_dead() -> Column:
    return F.col("status").isin("dead", "parked")


def _seconds(begin: str, end: str) -> Column:
    return F.col(end).cast("double") - F.col(begin).cast("double")
