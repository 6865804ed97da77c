"""``audit``: what is missing from each topic, and what is there twice.

A topic's offsets follow each other without a gap; so whatever lies between the first and the last that are there
should be there, once. Rows as the data source or an archive gives them."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def audit(records: DataFrame) -> DataFrame:
    """A row for each topic: first and last offset, records, how many are missing and how many are there again."""
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
    """A row for each gap: the offsets from ``begin`` to ``end`` are not there."""
    line = Window.partitionBy("topic").orderBy("offset")
    before = F.lag("offset").over(line)
    there = records.select("topic", "offset").distinct().withColumn("before", before)
    holes = there.where(F.col("offset") > F.col("before") + 1)
    found = holes.select("topic", (F.col("before") + 1).alias("begin"), (F.col("offset") - 1).alias("end"))
    return found.withColumn("missing", F.col("end") - F.col("begin") + 1).orderBy("topic", "begin")


def repeats(records: DataFrame) -> DataFrame:
    """A row for each offset that is there more than once, and whether its values differ."""
    grouped = records.groupBy("topic", "offset").agg(
        F.count(F.lit(1)).alias("times"), (F.count_distinct(F.xxhash64("value")) > 1).alias("differ")
    )
    return grouped.where("times > 1").orderBy("topic", "offset")
