"""Every step on rows that are well, and on every kind of row that is not."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from yirangmq.core.errors import BadInput
from yirangmq.pipeline import steps
from yirangmq.pipeline.source.errors import NOT_JSON, NULL

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENVELOPE = {
    "messageId": "m-1",
    "timestamp": "2026-03-01T11:59:00Z",
    "type": "order",
    "version": 2,
    "attributes": {"shop": "north"},
    "traceId": "t-1",
    "payload": {"id": 7, "amount": 20.5},
}
SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}


def rows_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [(n, None if value is None else bytearray(value)) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, "n int, value binary")


def errors_of(frame: DataFrame) -> list[list[str]]:
    return [row["errors"] for row in frame.orderBy("n").collect()]


def test_parse_envelope_makes_columns_and_keeps_the_bytes(spark: SparkSession) -> None:
    text = json.dumps(ENVELOPE).encode()
    (row,) = steps.parse_envelope(rows_of(spark, text)).collect()
    assert (row["message_id"], row["type"], row["version"], row["trace_id"]) == ("m-1", "order", 2, "t-1")
    assert row["attributes"] == {"shop": "north"}
    assert row["sent_at"] == datetime(2026, 3, 1, 11, 59, tzinfo=UTC).astimezone().replace(tzinfo=None)
    assert json.loads(row["payload"]) == ENVELOPE["payload"]
    assert (bytes(row["value"]), row["errors"]) == (text, [])


def test_parse_envelope_of_a_bare_payload_makes_all_of_it_payload(spark: SparkSession) -> None:
    texts = ['{"id": 7}', "[1]", '"word"', '{"payload": 1}', '{"type": "order", "payload": {"id": 7}}']
    found = steps.parse_envelope(rows_of(spark, *(text.encode() for text in texts))).orderBy("n")
    assert [row["payload"] for row in found.collect()] == texts
    assert errors_of(found) == [[]] * len(texts)
    assert found.where("type is not null or message_id is not null").count() == 0


def test_parse_envelope_needs_message_id_and_payload(spark: SparkSession) -> None:
    """The rule of docs/envelope.md, also where one of the two is null."""
    texts = (
        b'{"messageId": null, "type": "t", "payload": 1}',
        b'{"messageId": "m", "payload": null}',
        b'{"messageId": "m"}',
    )
    found = steps.parse_envelope(rows_of(spark, *texts)).orderBy("n").collect()
    assert [(row["message_id"], row["type"], row["payload"]) for row in found] == [
        (None, "t", "1"),
        ("m", None, "null"),
        (None, None, '{"messageId": "m"}'),
    ]


def test_parse_envelope_of_invalid_json_or_null_adds_a_named_error(spark: SparkSession) -> None:
    bad = rows_of(spark, None, b"", b"{", b"\xff\xfe", b'{"a": 1} tail', b'{"a": 1}')
    found = steps.parse_envelope(bad)
    assert errors_of(found) == [[NULL], *([[NOT_JSON]] * 4), []]
    assert found.where("size(errors) > 0 and payload is not null").count() == 0


def test_parse_envelope_of_a_payload_whose_schema_changed_adds_an_error_and_no_members(spark: SparkSession) -> None:
    texts = [{"id": 1, "at": "x"}, {"id": "one"}, {"id": 2, "more": True}, {}]
    values = [json.dumps({**ENVELOPE, "payload": payload}).encode() for payload in texts]
    found = steps.parse_envelope(rows_of(spark, *values), "id bigint, at string")
    assert errors_of(found) == [[], [steps.UNFIT], [], []]
    members = [tuple(row["payload"]) for row in found.orderBy("n").collect()]
    assert members == [(1, "x"), (None, None), (2, None), (None, None)]


def test_validate_adds_its_errors_to_those_of_parse_envelope_once(spark: SparkSession) -> None:
    frame = rows_of(spark, b'{"id": 1}', b'{"id": "x"}', b"{}", b"no", None, b"\xff\xfe")
    found = errors_of(steps.validate(steps.parse_envelope(frame), SCHEMA))
    assert found[0] == []
    assert found[1] == ['id: "x" is not of type "integer"']
    assert found[2] == ['value: "id" is a required property']
    assert found[3:] == [[NOT_JSON], [NULL], [NOT_JSON]]


def test_json_schema_or_payload_type_that_is_wrong_is_refused_before_any_row_is_read(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match="schema: is not a JSON Schema"):
        steps.validate(rows_of(spark, b"{}"), {"type": "nothing"})
    with pytest.raises(BadInput, match="payload"):
        steps.parse_envelope(rows_of(spark, b"{}"), "id nosuchtype")


def test_enrich_adds_the_columns_of_a_table_or_nulls(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "n"), (2, "s"), (3, None)], "n int, shop string")
    table = spark.createDataFrame([("n", "north")], "shop string, name string")
    wanted = spark.createDataFrame(
        [("n", 1, "north"), ("s", 2, None), (None, 3, None)], "shop string, n int, name string"
    )
    assertDataFrameEqual(steps.enrich(frame, table, "shop"), wanted)
    with pytest.raises(BadInput, match="both have the column 'n'"):
        steps.enrich(frame, table.withColumnRenamed("name", "n"), "shop")


def test_deduplicate_keeps_one_row_of_each_key(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 1), ("b", 1)], "message_id string, n int")
    wanted = spark.createDataFrame([("a", 1), ("b", 1)], "message_id string, n int")
    assertDataFrameEqual(steps.deduplicate(frame), wanted)


def test_aggregate_counts_rows_and_failures_of_windows_and_refuses_a_wrong_measure(spark: SparkSession) -> None:
    rows = [(NOON + timedelta(seconds=20 * n), ["x"] if n == 2 else [], n) for n in range(5)]
    frame = spark.createDataFrame(rows, "timestamp timestamp, errors array<string>, n int")
    found = steps.aggregate(frame).orderBy("start").collect()
    assert [(row["rows"], row["failed"]) for row in found] == [(3, 1), (2, 0)]
    (most,) = steps.aggregate(frame, "1 hour", measures={"most": "max(n)"}).collect()
    assert most["most"] == 4
    with pytest.raises(BadInput, match=r"most: 'max\('.*Syntax error"):
        steps.aggregate(frame, measures={"most": "max("})
    with pytest.raises(BadInput, match=r"most: 'max\(nothing\)'.*nothing"):
        steps.aggregate(frame, measures={"most": "max(nothing)"})


def test_route_sends_rows_by_the_first_matching_rule_and_bad_rows_to_the_dead_letters(spark: SparkSession) -> None:
    rows: list[Any] = [(1, 5000, []), (2, 10, []), (3, None, []), (4, 5000, ["a", "b"]), (5, 10, ["c"])]
    frame = spark.createDataFrame(rows, "n int, amount int, errors array<string>")
    rules = {"queue:large": "amount > 1000", "topic:known": "amount is not null"}
    found = steps.route(frame, rules, "queue:rest").orderBy("n").collect()
    assert [row["target"] for row in found] == ["queue:large", "topic:known", "queue:rest", "dlq:large", "dlq:known"]
    assert [row["reason"] for row in found] == [None, None, None, "a; b", "c"]
    (one,) = steps.route(frame, rules, "queue:rest", dead="bad").where("n = 5").collect()
    assert one["target"] == "dlq:bad"


@pytest.mark.parametrize("target", ["large", "queue:", "file:x", ""])
def test_route_with_a_wrong_target_is_refused(spark: SparkSession, target: str) -> None:
    with pytest.raises(BadInput, match="target"):
        steps.route(rows_of(spark, b"{}"), {target: "true"}, "queue:rest")


def test_route_with_a_wrong_rule_is_refused_by_its_target(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match=r"queue:a: 'n >'.*Syntax error"):
        steps.route(rows_of(spark, b"{}"), {"queue:a": "n >"}, "queue:rest")
    with pytest.raises(BadInput, match=r"queue:a: .*amuont"):
        steps.route(rows_of(spark, b"{}"), {"queue:a": "amuont > 1"}, "queue:rest")


def test_parse_envelope_of_a_missing_column_is_refused_with_a_similar_name(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match=r"no column 'valeu'.*did you mean 'value'"):
        steps.parse_envelope(rows_of(spark, b"{}"), value="valeu")


def test_sample_by_key_takes_all_rows_of_a_key_or_none_and_always_the_same(spark: SparkSession) -> None:
    frame = spark.range(2000).selectExpr("id", "cast(id % 500 as string) as shop")
    taken = steps.sample(frame, 0.3, by="shop").groupBy("shop").count().collect()
    assert {row["count"] for row in taken} == {4}
    assert 100 < len(taken) < 200
    assertDataFrameEqual(steps.sample(frame, 0.3, by="shop"), steps.sample(frame, 0.3, by="shop"))
    assert steps.sample(frame, 1).count() == 2000
    with pytest.raises(BadInput, match="share"):
        steps.sample(frame, 0)


def test_for_sink_keeps_only_the_columns_the_sink_takes(spark: SparkSession) -> None:
    frame = steps.route(steps.parse_envelope(rows_of(spark, b"{}")), {}, "queue:a")
    kept = steps.for_sink(frame).columns
    assert kept == ["value", "target", "reason", "message_id", "type", "version", "trace_id"]


def test_guard_time_turns_a_time_from_the_future_into_now_and_an_error(spark: SparkSession) -> None:
    now = datetime.now(UTC)
    rows = [(1, now - timedelta(days=1)), (2, now + timedelta(days=400)), (3, None)]
    frame = spark.createDataFrame(rows, "n int, timestamp timestamp")
    found = steps.guard_time(frame).orderBy("n")
    assert errors_of(found) == [[], [steps.AHEAD], []]
    assert found.where("timestamp > current_timestamp() + interval 1 minute").count() == 0
    assert found.where("n = 3 and timestamp is null").count() == 1
    with pytest.raises(BadInput, match="ahead"):
        steps.guard_time(frame, ahead="soon")
