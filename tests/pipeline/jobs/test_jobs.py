"""The jobs as commands, against a server: rows in once, what goes away is shown first, mistakes are named."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from tests.pipeline import commands, made_data
from tests.pipeline.commands import Command, bury
from tests.pipeline.made_data import MESSAGES, RECORDS
from tests.support.pipeline_server import Served
from yirangmq.core.errors import BadInput
from yirangmq.pipeline.jobs import replay

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def command(spark: SparkSession, served: Served, capfdbinary: Any, tmp_path: Path, monkeypatch: Any) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YIRANGMQ_BROKER", served.url)
    return commands.made(capfdbinary)


def test_pipeline_load_writes_a_table_once_under_its_name(command: Command, served: Served, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,name\n1,ann\n2,bo\n3,\n")
    line = (
        "pipeline load --table people.csv --format csv --option header=true --to queue:j.people --id id --name people-1"
    )
    looked = command(f"{line} --dry-run --json").json
    assert (looked["count"], looked["dryRun"]) == (3, True)
    assert served.payloads("j.people") == []
    assert command(f"{line} --json").json["first"] is True
    again = command(line).out
    assert "was loaded already, with 3 rows; nothing was written" in again
    found = [json.loads(value) for value in served.payloads("j.people")]
    assert found == [{"id": "1", "name": "ann"}, {"id": "2", "name": "bo"}, {"id": "3", "name": None}]


def test_pipeline_load_with_wrong_options_is_refused_before_any_row_is_written(
    command: Command, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    line = "pipeline load --table a.jsonl --format json --json"
    assert command(f"{line} --to queue:j.no", code=2).complaint["field"] == "name"
    assert command(f"{line} --to file:x --name n", code=2).complaint["field"] == "target"
    assert command(f"{line} --to queue:j.no --name n --id b", code=2).complaint["field"] == "id"
    assert "Syntax error" in command(f"{line} --to queue:j.no --name n --where 'a >'", code=2).complaint["error"]
    missing = command("pipeline load --table none.parquet --to queue:j.no --name n --json", code=2).complaint
    assert "does not exist" in missing["error"]
    assert command(f"{line} --to queue:j.no --name n --conf a=b", code=2).complaint["field"] == "conf"
    assert served.payloads("j.no") == []


def test_pipeline_replay_by_condition_and_sequence_happens_once(command: Command, served: Served) -> None:
    last = served.append("j.orders", *(json.dumps({"n": n}) for n in range(20)))
    line = f"pipeline replay --from topic:j.orders --to queue:j.again --first {last - 9} --name r-1"
    line += " --where \"get_json_object(cast(value as string), '$.n') % 2 = 0\""
    assert command(f"{line} --dry-run --json").json["count"] == 5
    assert command(f"{line} --json").json["count"] == 5
    assert command(f"{line} --json").json["first"] is False
    assert [json.loads(value)["n"] for value in served.payloads("j.again")] == [10, 12, 14, 16, 18]
    bad = command("pipeline replay --from topic:j.orders --to queue:x --name r-2 --where 'nothing > 1' --json", code=2)
    assert bad.complaint["field"] == "where"
    bad = command("pipeline replay --from topic:j.orders --to queue:x --name r-2 --since never --json", code=2)
    assert bad.complaint["field"] == "since"


def test_pipeline_replay_contains_the_chosen_rows_with_a_header_of_their_origin(spark: SparkSession) -> None:
    rows = made_data.records(40)
    frame = made_data.frame(spark, rows, RECORDS)
    since, until = rows[5]["timestamp"], rows[30]["timestamp"]
    found = replay.select_rows(frame, "key = 'k1'", since.isoformat(), until.isoformat(), 8, 29)
    wanted = [
        row for row in rows
        if row["key"] == "k1" and since <= row["timestamp"] < until and 8 <= row["global_seq"] <= 29
    ]  # fmt: skip
    assert wanted
    expected = [
        (row["value"], row["key"], {**row["headers"], "replayOf": f"{row['topic']}/{row['offset']}"}, "queue:q")
        for row in wanted
    ]
    schema = "value binary, key string, headers map<string,string>, target string"
    assertDataFrameEqual(replay.for_replay(found, "queue:q"), spark.createDataFrame(expected, schema))
    with pytest.raises(BadInput, match="target"):
        replay.for_replay(found, "nowhere")


def test_pipeline_load_turns_each_row_into_an_object_or_its_value(spark: SparkSession) -> None:
    rows = [{"n": n, "name": None if n % 7 == 0 else f"é{n}", "half": n / 2} for n in range(30)]
    table = spark.createDataFrame([tuple(row.values()) for row in rows], "n bigint, name string, half double")
    found = replay.for_load(table, "topic:t", id="n").collect()
    assert [(json.loads(row["value"]), row["message_id"], row["target"]) for row in found] == [
        (row, str(row["n"]), "topic:t") for row in rows
    ]
    texts = spark.createDataFrame([("a", 1)], "value string, n bigint")
    wanted = spark.createDataFrame([("a", "queue:q")], "value string, target string")
    assertDataFrameEqual(replay.for_load(texts, "queue:q"), wanted)
    with pytest.raises(BadInput, match="neither string nor binary"):
        replay.for_load(texts.selectExpr("n as value"), "queue:q")


def test_redrive_takes_the_dead_letters_of_the_condition_oldest_first(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [row for row in made_data.messages() if row["status"] == "dead"]
    select_rows = [row for row in letters if row["failure_reason"] == "TIMEOUT" and row["attempt"] > 1]
    wanted = {
        queue: [row["message_id"] for row in sorted(select_rows, key=lambda row: row["seq"]) if row["queue"] == queue]
        for queue in ("mail", "orders")
    }
    assert all(wanted.values())
    monkeypatch.setattr(replay, "REDRIVE_BATCH", 2)
    moved: list[tuple[str, list[str]]] = []

    def move(queue: str, ids: Sequence[str]) -> int:
        moved.append((queue, [*ids]))
        return len(ids)

    frame = made_data.frame(spark, letters, MESSAGES)
    assert replay.redrive(frame, "failure_reason = 'TIMEOUT' and attempt > 1", move) == len(select_rows)
    assert {queue: [id for name, ids in moved if name == queue for id in ids] for queue in wanted} == wanted
    assert all(len(ids) <= 2 for _, ids in moved)
    with pytest.raises(BadInput, match="where"):
        replay.redrive(frame, "nothing > 1", move)


def test_redrive_by_sql_condition_moves_matching_dead_letters_after_a_dry_run(command: Command, served: Served) -> None:
    bury(served, "j.dead", *({"amount": n} for n in (5, 50, 500)))
    where = "get_json_object(cast(value as string), '$.amount') > 10"
    line = f'pipeline redrive --from dlq:j.dead --where "{where}" --json'
    assert command(f"{line} --dry-run").json == {"ok": True, "count": 2, "from": "dlq:j.dead", "dryRun": True}
    assert len(served.payloads("j.dead", "dead")) == 3
    assert command(line).json["count"] == 2
    assert sorted(json.loads(value)["amount"] for value in served.payloads("j.dead")) == [50, 500]
    assert [json.loads(value)["amount"] for value in served.payloads("j.dead", "dead")] == [5]
    assert command(line).json["count"] == 0


def test_archive_commands_make_and_audit_it_and_dry_run_compaction_and_housekeeping(
    command: Command, served: Served, tmp_path: Path
) -> None:
    served.append("j.kept", *range(30))
    made = command("pipeline archive --from topic:j.kept --to kept --json").json
    assert (made["rows"], made["days"]) == (
        30,
        [path.name.removeprefix("date=") for path in tmp_path.glob("kept/date=*")],
    )
    assert "archived 0 rows of topic:j.kept" in command("pipeline archive --from topic:j.kept --to kept").out
    audited = command("pipeline audit --from archive:kept --json").json
    assert (audited["whole"], audited["topics"][0]["records"], audited["gaps"]) == (True, 30, [])
    assert "nothing is missing, nothing is there twice" in command("pipeline audit --from archive:kept").out
    [day] = made["days"]
    looked = command(f"pipeline compact --archive kept --day {day} --dry-run --json").json
    assert (looked["rows"], looked["dryRun"]) == (30, True)
    assert command(f"pipeline compact --archive kept --day {day} --json", code=2).complaint["field"] == "day"
    kept = command("pipeline housekeep --archive kept --dry-run --json").json
    assert (kept["removed"], kept["kept"]) == ([], [day])
    assert command("pipeline housekeep --archive nothing --json", code=3).complaint["code"] == "not_found"


def test_report_and_poison_commands_give_totals_reasons_payloads_and_shapes(
    command: Command, served: Served, tmp_path: Path
) -> None:
    dead, ready = [{"bad": 1}, {"bad": 1}, {"other": 2}], {"good": 1}
    bury(served, "j.told", *dead)
    served.publish("j.told", ready)
    size = sum(len(json.dumps(value)) for value in (*dead, ready))
    told = command("pipeline report --from queue:j.told --html told.html --json").json
    assert told["totals"] == [
        {"queue": "j.told", "messages": 4, "done": 0, "dead": 3, "retried": 0, "bytes": size, "failure_rate": 1.0}
    ]
    assert [(row["reason"], row["dead"], row["late"]) for row in told["dead_letters"]] == [("REJECTED", 3, 3)]
    assert "<svg" in (tmp_path / "told.html").read_text()
    poison = command("pipeline poison --from dlq:j.told --least 2 --json").json
    assert [(row["messages"], row["failures"]) for row in poison["payloads"]] == [(2, 2)]
    assert [row["messages"] for row in poison["shapes"]] == [2]
    assert (
        "shapes that failed 9 times or more:\n(nothing)" in command("pipeline poison --from dlq:j.told --least 9").out
    )


def test_pipeline_audit_of_a_wrong_source_or_an_absent_server_or_master_is_refused(
    command: Command, monkeypatch: Any
) -> None:
    assert command("pipeline audit --from queue:x --json", code=2).complaint["field"] == "from"
    nowhere = command("pipeline audit --from topic:x --json --master spark://127.0.0.1:9", code=10).complaint
    assert nowhere["error"] == "there is no Spark master at spark://127.0.0.1:9"
    assert command("pipeline audit --from topic:x --json --master spark://x", code=2).complaint["field"] == "master"
    monkeypatch.setenv("YIRANGMQ_BROKER", "http://127.0.0.1:9")
    assert command("pipeline audit --from topic:x --json", code=10).complaint["code"] == "unavailable"
