"""Batch reads by Spark: topics from files and from a server, queues, dead letters, archives; what is chosen, what is
handed down, and what is said when something is wrong."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual

from tests.support.pipeline_server import Served
from yirangmq.pipeline.source.options import Options
from yirangmq.pipeline.source.queues import PushingQueueReader, QueuePartition
from yirangmq.pipeline.source.topics import PushingTopicReader

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
BYTES = b"\x00\xff not text \xfe"


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("yirangmq").options(**options).load()


@pytest.fixture(scope="module")
def trades(served: Served) -> Served:
    """Two topics: r.a has 0 to 99, r.b two records with keys and headers."""
    served.append("r.a", *range(100))
    served.append("r.b", BYTES, key="k", headers={"v": "1"})
    served.append("r.b", b"", key="")
    return served


def numbers(found: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in found.select("value").collect())


def test_spark_source_topic_gives_the_same_rows_from_files_and_from_the_server(
    spark: SparkSession, trades: Served
) -> None:
    ways: list[list[dict[str, Any]]] = []
    for way in ({"path": trades.data}, {"broker": trades.url}):
        found = read(spark, subscribePattern="r.*", **way)
        assert dict(found.dtypes) == {
            "key": "string", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint",
            "global_seq": "bigint", "timestamp": "timestamp", "headers": "map<string,string>",
        }  # fmt: skip
        ways.append([row.asDict() for row in found.orderBy("global_seq").collect()])
    assert ways[0] == ways[1]
    plain, last, empty = ways[0][:100], ways[0][100], ways[0][101]
    assert [int(row["value"]) for row in plain] == list(range(100))
    assert [row["offset"] for row in plain] == list(range(1, 101))
    assert {(row["key"], row["topic"], row["partition"], str(row["headers"])) for row in plain} == {
        (None, "r.a", 0, "{}")
    }
    assert (last["key"], bytes(last["value"]), last["headers"], last["offset"]) == ("k", BYTES, {"v": "1"}, 1)
    assert (empty["key"], bytes(empty["value"]), empty["headers"]) == ("", b"", {})
    assert abs(last["timestamp"].replace(tzinfo=UTC).timestamp() - datetime.now(UTC).timestamp()) < 3600


def test_spark_source_reads_the_range_of_the_given_offsets_or_timestamps(spark: SparkSession, trades: Served) -> None:
    first = read(spark, path=trades.data, subscribe="r.a").agg(F.min("global_seq")).first()
    assert first is not None
    begin = first[0]
    asked: list[tuple[dict[str, str], list[int]]] = [
        ({"startingOffsets": json.dumps({"r.a": 98})}, [97, 98, 99]),
        ({"startingOffsets": json.dumps({"r.a": 5}), "endingOffsets": json.dumps({"r.a": 6})}, [4, 5]),
        ({"startingOffsets": json.dumps({"global_seq": begin + 97})}, [97, 98, 99]),
        ({"endingOffsets": json.dumps({"global_seq": begin + 1})}, [0, 1]),
        ({"startingOffsets": "latest"}, []),
        ({"startingTimestamp": "2020-01-01T00:00:00Z", "endingTimestamp": "2020-01-02T00:00:00Z"}, []),
        ({"startingTimestamp": "1000", "minPartitions": "7"}, list(range(100))),
    ]
    for options, wanted in asked:
        for way in ({"path": trades.data}, {"broker": trades.url}):
            assert numbers(read(spark, subscribe="r.a", **way, **options)) == wanted, (options, way)
    split = read(spark, path=trades.data, subscribe="r.a", minPartitions="7")
    assert split.rdd.getNumPartitions() >= 7


def test_spark_source_makes_only_the_requested_columns(spark: SparkSession, trades: Served) -> None:
    found = read(spark, path=trades.data, subscribe="r.b", columns="offset,key")
    assert [tuple(row) for row in found.orderBy("offset").collect()] == [(1, "k"), (2, "")]
    assert "headers" not in read(spark, path=trades.data, subscribe="r.b", includeHeaders="false").columns


def test_filter_pushdown_changes_no_result(spark: SparkSession, trades: Served) -> None:
    found = read(spark, subscribePattern="r.*", path=trades.data)
    for condition, wanted in (
        ("topic = 'r.b' and key is not null", 2),
        ("topic in ('r.a', 'nowhere') and offset > 90", 10),
        ("timestamp > current_timestamp() - interval 1 day and offset = 2", 2),
        ("timestamp > current_timestamp() + interval 1 day", 0),
    ):
        assert found.where(condition).count() == wanted, condition
    plain = read(spark, subscribePattern="r.*", pushFilters="false", broker=trades.url)
    assert plain.where("topic = 'r.b' and key is not null").count() == 2


def test_filter_pushdown_on_the_sequence_reads_only_that_range(trades: Served) -> None:
    reader = PushingTopicReader(Options({"path": trades.data, "subscribepattern": "r.*"}, "r"))
    left = list(reader.pushFilters([
        GreaterThan(("global_seq",), 10), LessThanOrEqual(("global_seq",), 15), In(("topic",), ("r.a",)),
        IsNotNull(("topic",)), EqualTo(("offset",), 3),
    ]))  # fmt: skip
    assert left == [EqualTo(("offset",), 3)]
    assert [(part.after, part.last) for part in reader.partitions()] == [(10, 15)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "r.a", "broker": "127.0.0.1:1", "timeoutSec": "1"}, "does not answer"),
        ({"subscribe": "r.a", "maxOffsetsPerTriger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"subscribe": "r.a", "columns": "valu"}, "did you mean value"),
        ({}, "set what to read"),
        ({"subscribe": "r.a", "subscribePattern": "*"}, "not both"),
        ({"subscribe": "r.a", "startingOffsets": '{"global_seq": 99999999}'}, "is past the end"),
        ({"subscribe": "r.a", "startingOffsets": '{"r.c": 1}'}, "not subscribed to"),
    ],
)
def test_spark_source_wrong_options_are_refused_before_any_data_moves(
    spark: SparkSession, trades: Served, options: dict[str, str], words: str
) -> None:
    told = {"path": trades.data} if "broker" not in options else {}
    with pytest.raises(PySparkException, match=words):
        read(spark, **told, **options).collect()


def test_spark_source_topic_without_records_is_empty_and_its_schema_is_fixed(
    spark: SparkSession, trades: Served
) -> None:
    assert read(spark, path=trades.data, subscribe="r.nothing").count() == 0
    with pytest.raises(PySparkException, match="the schema is fixed"):
        spark.read.format("yirangmq").schema("value string").options(path=trades.data, subscribe="r.a").load().count()


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mail(served: Served) -> Served:
    """2 500 ready, 3 dead, 2 done, 1 leased."""
    served.ask("PUT", "/v1/queues/r-mail/policy", {"archive": {"enabled": True}})
    served.publish("r-mail", *range(2506))
    taken = served.ask("POST", "/v1/queues/r-mail/lease", {"max": 6, "leaseSec": 600})["messages"]
    leases = [one["lease"]["leaseId"] for one in taken]
    served.ask("POST", "/v1/queues/r-mail/ack", {"leases": leases[:2]})
    served.ask("POST", "/v1/queues/r-mail/nack", {"leases": leases[2:5], "reason": "REJECTED", "text": "no amount"})
    return served


def test_spark_source_reads_a_queue_in_every_state_and_leases_nothing(spark: SparkSession, mail: Served) -> None:
    before = mail.ask("GET", "/v1/queues/r-mail")["counts"]
    found = read(spark, broker=mail.url, queue="r-mail")
    assert numbers(found) == list(range(6, 2506))
    kinds = found.groupBy("status", "type", "queue", "attempt").count().collect()
    assert [tuple(row) for row in kinds] == [("ready", "made", "r-mail", 0, 2500)]
    every = read(spark, broker=mail.url, queue="r-mail", state="all").groupBy("status").count().collect()
    assert {row.status: row["count"] for row in every} == {"ready": 2500, "dead": 3, "leased": 1, "done": 2}
    assert mail.ask("GET", "/v1/queues/r-mail")["counts"] == before
    assert read(spark, broker=mail.url, queue="r-nobody").count() == 0


def test_spark_source_reads_dead_letters_with_their_reasons_and_the_archive(spark: SparkSession, mail: Served) -> None:
    dead = read(spark, broker=mail.url, source="dlq", queue="r-mail")
    assert numbers(dead) == [2, 3, 4]
    rows = dead.select("failure_reason", "failure_message", "attempt", "status").distinct().collect()
    assert [tuple(row) for row in rows] == [("REJECTED", "no amount", 1, "dead")]
    assert dead.where("failure_reason = 'REJECTED'").count() == 3
    assert dead.where("failure_reason = 'TIMEOUT'").count() == 0
    assert numbers(read(spark, broker=mail.url, source="archive", queue="r-mail")) == [0, 1]
    assert read(spark, broker=mail.url, source="dlq", queue="r-mail", filter="attempt>1").count() == 0


def test_filter_pushdown_on_messages_is_sent_to_the_server(mail: Served) -> None:
    reader = PushingQueueReader(Options({"broker": mail.url, "source": "dlq"}, "r"))
    given = [EqualTo(("queue",), "r-mail"), EqualTo(("failure_reason",), "REJECTED"), GreaterThan(("attempt",), 0)]
    assert list(reader.pushFilters(given)) == given
    assert reader.partitions() == [QueuePartition("r-mail", "dead")]
    assert reader.condition() == 'reasonCode="REJECTED" and attempt>0'
    [batch] = list(reader.read(QueuePartition("r-mail", "dead")))
    assert batch.num_rows == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "/tmp", "queue": "q"}, "is for topics"),
        ({"queue": "q", "state": "dead,gone"}, "no state 'gone'"),
        ({"source": "dlq", "state": "ready"}, "does not apply to the source dlq"),
        ({"queue": "r-mail", "filter": "colour ="}, "refuses"),
        ({"queue": "q", "token": "wrong", "startingOffsets": "latest"}, "is for topics"),
    ],
)
def test_spark_source_wrong_options_of_queues_are_refused(
    spark: SparkSession, mail: Served, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        read(spark, broker=mail.url, **options).collect()
