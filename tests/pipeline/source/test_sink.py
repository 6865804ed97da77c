"""DataFrames into queues and topics by Spark: all or nothing, once, wherever each row should go."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from tests.support.pipeline_server import Served
from tests.support.wait import PATIENCE
from yirangmq.pipeline.local_cluster import free_port
from yirangmq.pipeline.source import http_client
from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.options import Options
from yirangmq.pipeline.source.sink import Stager

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def write(found: DataFrame, served: Served, **options: str) -> None:
    found.write.format("yirangmq").mode("append").options(broker=served.url, **options).save()


def made(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id as string) value")


def texts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


def test_exactly_once_rows_written_repeatedly_under_one_publish_id_are_stored_once(
    spark: SparkSession, served: Served
) -> None:
    rows = made(spark, 500).repartition(4).sortWithinPartitions("value")
    for _ in range(2):
        write(rows, served, topic="w.once", publishId="w-once")
        write(rows, served, queue="w-once", publishId="w-once-q")
    assert sorted(map(int, served.values("w.once"))) == list(range(500))
    assert sorted(map(int, served.payloads("w-once"))) == list(range(500))
    write(made(spark, 5), served, topic="w.once")
    assert len(served.values("w.once")) == 505
    [entry] = served.batches("w-once")
    assert (entry["step"], entry["topicRows"]) == ("done", 500)


def test_spark_sink_stores_partitions_in_their_order(spark: SparkSession, served: Served) -> None:
    rows = spark.range(0, 3000, 1, 5).selectExpr("cast(id as string) value")
    write(rows, served, topic="w.order")
    assert [int(value) for value in served.values("w.order")] == list(range(3000))
    write(rows, served, queue="w-order")
    assert [int(value) for value in served.payloads("w-order")] == list(range(3000))


def test_spark_sink_sends_each_row_to_its_target_in_one_commit(spark: SparkSession, served: Served) -> None:
    rows = spark.createDataFrame(
        [
            ("queue:w-a", '{"n": 1}', "order", "k1", {"colour": "red"}, None, 2),
            ("topic:w.t", "two", None, "k2", {"colour": "blue"}, None, None),
            ("dlq:w-a", "three", None, None, None, "no amount", None),
            ("queue:w-b", "four", None, None, None, None, None),
        ],
        "target string, value string, type string, key string, headers map<string,string>, reason string, priority int",
    )
    write(rows, served, publishId="w-target")
    [entry] = served.batches("w-target")
    assert (entry["queueRows"], entry["deadRows"], entry["topicRows"]) == (2, 1, 1)
    assert served.values("w.t") == [b"two"]
    assert served.payloads("w-b") == [b"four"]
    [one] = served.ask("GET", "/v1/queues/w-a/messages?state=ready")["messages"]
    message = one["message"]
    assert (message["payload"], message["type"], one["priority"]) == ({"n": 1}, "order", 2)
    assert message["attributes"] == {"colour": "red", "key": "k1", "priority": 2}
    [dead] = served.ask("GET", "/v1/queues/w-a/dead-letters")["messages"]
    assert dead["failure"]["reasonMessage"] == "no amount"
    back = spark.read.format("yirangmq").options(path=served.data, subscribe="w.t").load().collect()
    assert [(row.key, row.headers["colour"]) for row in back] == [("k2", "blue")]


def test_spark_sink_passes_bytes_large_payloads_and_rows_of_a_topic_unchanged(
    spark: SparkSession, served: Served
) -> None:
    large = bytes(range(256)) * 4096
    rows = spark.createDataFrame([(bytearray(large), "k"), (bytearray(b""), None)], "value binary, key string")
    write(rows, served, topic="w.bytes")
    assert served.values("w.bytes") == [large, b""]
    found = spark.read.format("yirangmq").options(path=served.data, subscribe="w.bytes").load()
    write(found.drop("topic"), served, queue="w-bytes")
    assert served.payloads("w-bytes") == [large, b""]


BAD = [("ok", "queue:w-bad"), (None, "queue:w-bad"), ("lost", "nowhere"), ("x" * 1_500_000, "queue:w-bad")]


def test_spark_sink_bad_row_refuses_the_whole_write_or_is_dead_lettered_with_its_reason(
    spark: SparkSession, served: Served
) -> None:
    rows = spark.createDataFrame(BAD, "value string, target string").coalesce(1)
    with pytest.raises(PySparkException, match="the value is null; remove such rows, or set onBadRow=dlq"):
        write(rows, served)
    with pytest.raises(PySparkException, match="batch 0 of w-large was not written, and nothing of it was stored"):
        write(rows.where("length(value) > 9 or value = 'ok'"), served, publishId="w-large")
    assert served.payloads("w-bad") == []
    write(rows, served, onBadRow="dlq", publishId="w-bad")
    assert served.payloads("w-bad") == [b"ok"]
    dead = served.ask("GET", "/v1/queues/w-bad/dead-letters")["messages"]
    lost = served.ask("GET", "/v1/queues/bad-rows/dead-letters")["messages"]
    reasons = sorted(one["failure"]["reasonMessage"] for one in (*dead, *lost))
    assert [reason.split(";")[0][:30] for reason in reasons] == [
        "bad row: value: 1500000 bytes,",
        "the target 'nowhere' is not qu",
        "the value is null",
    ]
    [entry] = served.batches("w-bad")
    assert (entry["queueRows"], entry["deadRows"]) == (1, 3)


@pytest.mark.parametrize(
    ("select", "options", "words"),
    [
        ("id", {"topic": "t"}, "a column value is needed"),
        ("cast(id as string) value, id prioriti", {"topic": "t"}, "did you mean priority"),
        ("cast(id as string) value", {}, "set the target of rows"),
        ("cast(id as string) value", {"topik": "t"}, "did you mean topic"),
        ("cast(id as string) value", {"topic": "t", "broker": "127.0.0.1:1"}, "does not answer"),
    ],
)
def test_spark_sink_wrong_columns_or_options_are_refused_before_any_data_moves(
    spark: SparkSession, served: Served, select: str, options: dict[str, str], words: str
) -> None:
    sink = spark.range(3).selectExpr(*select.split(", ")).write.format("yirangmq").mode("append")
    with pytest.raises(PySparkException, match=words):
        sink.options(**{"broker": served.url, "timeoutSec": "1", **options}).save()


def test_spark_sink_refuses_overwrite_mode(spark: SparkSession, served: Served) -> None:
    with pytest.raises(PySparkException, match=r"cannot be overwritten; use mode\('append'\)"):
        made(spark, 1).write.format("yirangmq").mode("overwrite").options(broker=served.url, topic="t").save()


# -- streams ----------------------------------------------------------------------------------------------------------


def copied(spark: SparkSession, served: Served, begin: int, checkpoint: Path, to: str, **options: str) -> Any:
    found = spark.readStream.format("yirangmq").options(
        path=served.data,
        subscribe="w.from",
        startingOffsets=json.dumps({"global_seq": begin}),  # behind what other tests left in the log
        maxOffsetsPerTrigger="1000",
    )
    values = found.load().select("value", "key").coalesce(1)
    sink = values.writeStream.format("yirangmq").option("checkpointLocation", str(checkpoint))
    return sink.options(broker=served.url, topic=to, **options).trigger(availableNow=True).start()


def test_exactly_once_batch_repeated_by_spark_is_refused_by_the_ledger(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    """A driver that dies between the sink's commit and Spark's own runs the batch again."""
    begin = served.last() + 1
    served.append("w.from", *range(2500))
    query = copied(spark, served, begin, tmp_path, "w.to")
    assert query.awaitTermination(PATIENCE)
    assert [int(value) for value in served.values("w.to")] == list(range(2500))
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    before = served.batches(query.id)
    assert len(before) == len(commits) >= 3
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)

    again = copied(spark, served, begin, tmp_path, "w.to")
    assert again.awaitTermination(PATIENCE)
    assert again.id == query.id
    assert [int(value) for value in served.values("w.to")] == list(range(2500))
    [(name, count)] = [(one["batch"], one["refused"]) for one in served.batches(query.id) if one["refused"]]
    assert (name, count) == (len(commits) - 1, 1)


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_exactly_once_of_several_attempts_of_a_task_only_the_named_attempt_counts(served: Served) -> None:
    """Retries and speculative attempts: each lies apart, and the commit names those that were first."""
    import pyarrow as pa

    schema = StructType([StructField("value", StringType())])
    stager = Stager(Options({"broker": served.url, "topic": "w.tasks"}, "w"), schema)
    rows = [pa.RecordBatch.from_pydict({"value": [str(n) for n in range(10)]})]
    slow, quick = (stager.stage(iter(rows), "w-tasks", 0).staged for _ in range(2))
    half = pa.RecordBatch.from_pydict({"value": ["0", "1"]})
    dead = stager.stage(iter([half]), "w-tasks", 0).staged
    assert len({slow.id, quick.id, dead.id}) == 3
    stager.commit("w-tasks", 0, [quick])
    assert texts(served.values("w.tasks")) == [str(n) for n in range(10)]
    stager.commit("w-tasks", 0, [slow])
    assert len(served.values("w.tasks")) == 10


def test_spark_sink_missing_stage_fails_the_batch_and_stores_nothing_of_it(served: Served) -> None:
    import pyarrow as pa

    schema = StructType([StructField("value", StringType())])
    stager = Stager(Options({"broker": served.url, "topic": "w.gone"}, "w"), schema)
    staged = stager.stage(iter([pa.RecordBatch.from_pydict({"value": ["1"]})]), "w-gone", 0).staged
    [path] = (Path(served.data) / "stages" / "w-gone").rglob(f"{staged.id}.*")
    path.unlink()
    with pytest.raises(SourceError, match="was not written, and nothing of it was stored"):
        stager.commit("w-gone", 0, [staged])
    assert served.values("w.gone") == []
    assert json.loads(json.dumps(served.batches("w-gone"))) == []


def test_spark_sink_commit_waits_for_a_server_that_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes the writer anew to commit: that one has had no answer yet."""
    import pyarrow as pa

    monkeypatch.setattr(http_client, "FIRST_TIMEOUT_SECONDS", 0)
    own = Served(tmp_path / "server", "--http", f"127.0.0.1:{free_port()}")
    schema = StructType([StructField("value", StringType())])
    options = {"broker": own.url, "topic": "w.anew", "timeoutsec": str(PATIENCE)}
    tasks, driver = (Stager(Options(options, "w"), schema) for _ in range(2))
    staged = tasks.stage(iter([pa.RecordBatch.from_pydict({"value": ["1"]})]), "w-anew", 0).staged
    own.daemon.kill()
    starting = threading.Thread(target=own.start)
    starting.start()
    try:
        driver.commit("w-anew", 0, [staged])
        starting.join()
        assert own.values("w.anew") == [b"1"]
    finally:
        starting.join()
        own.stop()
