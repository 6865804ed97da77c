"""``pipeline process``: every kind of bad row has a named end, a restart goes on and says so, mistakes come first."""

import json
import logging
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import commands
from tests.pipeline.commands import Command
from tests.support.pipeline_server import Served
from tests.support.server_process import until
from tests.support.wait import PATIENCE
from yirangmq.pipeline import query_monitor, run_registry, steps, stream_job
from yirangmq.pipeline.source.errors import NOT_JSON

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
MODULE = """
from pyspark.sql import functions as F
from yirangmq.pipeline import steps

def sort(frame):
    parsed = steps.parse_envelope(frame, "id bigint, amount double")
    checked = steps.validate(parsed, {"type": "object", "required": ["id"]})
    return steps.route(checked, {"queue:p.large": "payload.amount > 100"}, "queue:p.small")

def once_each(frame):
    parsed = steps.guard_time(steps.parse_envelope(frame), time="sent_at")
    return steps.route(steps.deduplicate(parsed, within="10 minutes", time="sent_at"), {}, "queue:p.clocked")

def per_minute(frame):
    counted = steps.aggregate(steps.parse_envelope(frame), "1 minute", time="sent_at")
    return counted.select(F.to_json(F.struct("start", "rows", "failed")).alias("value"))

def empty(frame):
    return frame.withColumn("value", F.when(F.col("value").cast("string") != "2", F.col("value")))

def misspelt(frame):
    return frame.where("amuont > 1")

def no_column(frame):
    return frame.where(F.col("amuont") > 1)

def no_sql(frame):
    return steps.route(frame, {"queue:a": "value >"}, "queue:b")

def no_value(frame):
    return frame.select("topic")

def breaks(frame):
    return frame.withColumn("value", F.udf(lambda value: str(1 // 0))("value"))
"""


@pytest.fixture
def command(spark: SparkSession, served: Served, capfdbinary: Any, tmp_path: Path, monkeypatch: Any) -> Command:
    """In a folder with steps of its own, under a name that no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YIRANGMQ_BROKER", served.url)
    (tmp_path / f"steps_{tmp_path.name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return commands.made(capfdbinary)


def module(tmp_path: Path) -> str:
    return f"steps_{tmp_path.name}"


def envelope(id: str, ago: timedelta) -> str:
    at = (datetime.now(UTC) - ago).isoformat(timespec="milliseconds")
    return json.dumps({"messageId": id, "timestamp": at, "type": "t", "payload": {"id": id}})


def test_pipeline_process_dead_letters_bad_rows_with_a_reason_and_a_restart_resumes(
    command: Command, served: Served, tmp_path: Path
) -> None:
    good = [json.dumps({"id": n, "amount": amount}) for n, amount in ((1, 500), (2, 5))]
    bad = ["{broken", "", json.dumps({"id": "x"}), json.dumps({"amount": 7}), b"\xff"]
    served.append("p.in", *good, *bad)
    line = f"pipeline process --from topic:p.in --to queue:p.else --steps {module(tmp_path)}:sort --once --name p1"
    first = command(f"{line} --start earliest --json")
    told = first.json
    assert (told["state"], told["rows"], told["dead"], told["lag"]) == ("done", 7, 5, 0)
    assert served.payloads("p.large") == [good[0].encode()]
    assert served.payloads("p.small") == [good[1].encode()]
    letters = served.ask("GET", "/v1/queues/p.small/dead-letters")["messages"]
    reasons = [letter["failure"]["reasonMessage"] for letter in letters]
    assert reasons[:2] == [NOT_JSON, NOT_JSON]
    assert steps.UNFIT in reasons[2]
    assert "required" in reasons[3]
    assert NOT_JSON in reasons[4]

    served.append("p.in", json.dumps({"id": 3, "amount": 1}))
    again = command(line)
    assert f"p1: resuming from checkpoint at {told['position']:,}" in again.err
    assert "p1: done; 1 rows in 1 batches" in again.out
    assert len(served.payloads("p.small")) == 2


def test_pipeline_process_reports_progress_on_screen_in_status_and_at_the_broker(
    command: Command, served: Served, tmp_path: Path
) -> None:
    served.append("p.seen", *range(5))
    shown = command("pipeline process --from topic:p.seen --to topic:p.out --start earliest --once --name seen").out
    assert "batch 0  5 rows" in shown
    status = command("pipeline status seen --json").json
    assert (status["state"], status["rows"], status["lag"], status["error"]) == ("done", 5, 0, None)
    assert [one["name"] for one in command("pipeline list --json").lines] == ["seen"]
    card = next(one for one in served.ask("GET", "/v1/pipelines")["pipelines"] if one["pipeline"] == "seen")
    assert (card["state"], card["rows"], card["source"], card["target"]) == ("done", 5, "topic:p.seen", "topic:p.out")
    lines = [json.loads(line) for line in Path("yirang-pipelines/seen/progress.jsonl").read_text().splitlines()]
    assert lines[0]["event"] == "started"
    quality = next(line["observed"]["quality"] for line in lines if line["event"] == "progress" and line["rows"])
    assert quality == {"rows": 5, "dead": 0, "empty": 0}
    assert served.values("p.out") == [b"0", b"1", b"2", b"3", b"4"]


def test_pipeline_process_dead_letters_a_value_that_a_step_made_null_or_fails(
    command: Command, served: Served, tmp_path: Path
) -> None:
    served.append("p.null", 1, 2, 3)
    line = "pipeline process --from topic:p.null --to queue:p.nulls --start earliest --once "
    line += f"--steps {module(tmp_path)}:empty"
    refused = command(f"{line} --name n1 --bad-rows fail --json", code=2).complaint
    assert "nothing of it was stored" in refused["error"] or "null" in refused["error"]
    assert served.payloads("p.nulls") == []
    assert command("pipeline status n1 --json").json["state"] == "failed"
    command(f"{line} --name n2")
    assert served.payloads("p.nulls") == [b"1", b"3"]
    [letter] = served.ask("GET", "/v1/queues/p.nulls/dead-letters")["messages"]
    assert "null" in letter["failure"]["reasonMessage"]


def test_watermark_ignores_a_time_far_ahead_and_late_rows_are_counted(
    command: Command, served: Served, tmp_path: Path
) -> None:
    line = "pipeline process --from topic:p.clock --to queue:p.clocked --start earliest --once --name clock --json "
    line += f"--steps {module(tmp_path)}:once_each"
    minute = timedelta(minutes=1)
    served.append("p.clock", envelope("a", minute), envelope("ahead", -1000 * 1440 * minute))
    assert command(line).json["dead"] == 1
    [letter] = served.ask("GET", "/v1/queues/p.clocked/dead-letters")["messages"]
    assert letter["failure"]["reasonMessage"] == steps.AHEAD

    served.append("p.clock", envelope("a", minute), envelope("b", 2 * minute), envelope("late", 60 * minute))
    told = command(line).json
    assert [json.loads(value)["messageId"] for value in served.payloads("p.clocked")] == ["a", "b"]
    assert (told["rows"], told["late"]) == (3, 1)


def test_pipeline_process_writes_windows_when_they_are_over(command: Command, served: Served, tmp_path: Path) -> None:
    hour = timedelta(hours=1)
    served.append("p.windows", envelope("a", hour), *[envelope("b", hour / 2)] * 2)
    served.append("p.windows", envelope("c", 0 * hour))
    line = "pipeline process --from topic:p.windows --to topic:p.counts --start earliest --once --name windows"
    command(f"{line} --steps {module(tmp_path)}:per_minute")
    counts = [json.loads(value) for value in served.values("p.counts")]
    assert sorted((one["rows"], one["failed"]) for one in counts) == [(1, 0), (2, 0)]  # the last one is open


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ("--steps {module}:misspelt", "steps", "amuont"),
        ("--steps {module}:no_column", "steps", "amuont"),
        ("--steps {module}:no_sql", "queue:a", "Syntax error"),
        ("--steps {module}:no_value", "column", "no column 'value'"),
        ("--steps {module}:absent", "steps", "has no function 'absent'"),
        ("--steps nowhere:f", "steps", "nowhere cannot be imported"),
        ("--steps word", "steps", "is not module:function"),
        ("--start soon", "from", "startingOffsets"),
        ("--trigger often --name t1", "trigger", "is not a duration"),
        ("--most 0", "most", ""),
        ("--conf x", "conf", ""),
    ],
    ids=lambda value: None if isinstance(value, str) and not value.startswith("--") else str(value).split()[-1],
)
def test_pipeline_process_refuses_a_mistake_before_any_data_moves(
    command: Command, served: Served, tmp_path: Path, more: str, field: str, words: str
) -> None:
    line = "pipeline process --from topic:p.none --to queue:p.never --json "
    complaint = command(line + more.replace("{module}", module(tmp_path)), code=2).complaint
    assert complaint["field"] == field
    assert words in complaint["error"]
    assert not any(row["exists"] for row in served.ask("GET", "/v1/status?queue=p.never")["queues"])


def test_spark_errors_are_printed_once_and_other_log_handlers_stay_unchanged(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = f"pipeline explain --from topic:p.none --to queue:p.q --steps {module(tmp_path)}:no_column --json"
    assert command(line, code=2).err.count("amuont") == 1
    formatter = caplog.handler.formatter
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).addHandler(caplog.handler)  # as pytest does with those that keep their lines
        logging.getLogger(name).removeHandler(caplog.handler)
    assert caplog.handler.formatter is formatter


def test_pipeline_process_failure_is_reported_on_screen_in_status_and_at_the_broker(
    command: Command, served: Served, tmp_path: Path
) -> None:
    served.append("p.breaks", 1)
    line = "pipeline process --from topic:p.breaks --to queue:p.x --start earliest --once "
    line += f"--steps {module(tmp_path)}:breaks"
    refused = command(f"{line} --name broken --json", code=1).complaint
    assert "ZeroDivisionError" in refused["error"]
    assert "ZeroDivisionError" in command("pipeline status broken --json").json["error"]
    card = next(one for one in served.ask("GET", "/v1/pipelines")["pipelines"] if one["pipeline"] == "broken")
    assert (card["state"], "ZeroDivisionError" in card["error"]) == ("failed", True)


def test_pipeline_process_runs_until_it_is_asked_to_stop(command: Command, served: Served, tmp_path: Path) -> None:
    served.append("p.on", 0)

    def watch() -> None:
        try:
            until(lambda: served.payloads("p.on") == [b"0"])
            served.append("p.on", 1)
            until(lambda: served.payloads("p.on") == [b"0", b"1"])
        finally:
            run_registry.request_stop(tmp_path / "yirang-pipelines" / "on")

    thread = threading.Thread(target=watch)
    thread.start()
    line = "pipeline process --from topic:p.on --to queue:p.on --start earliest --name on --trigger '100 milliseconds'"
    ended = command(f"{line} --json").json
    thread.join(PATIENCE)
    assert (ended["state"], ended["rows"]) == ("stopped", 2)
    assert served.payloads("p.on") == [b"0", b"1"]
    assert command("pipeline status on --json").json["state"] == "stopped"
    assert command("pipeline stop on --json", code=4).complaint["code"] == "wrong_state"


def test_pipeline_process_restarts_a_query_that_a_busy_machine_could_not_start(
    command: Command, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark tells it, when a Python process takes more than ten seconds to start."""
    real, starts = stream_job.start_query, []

    class Ended:
        def awaitTermination(self, timeout: float) -> None:
            raise RuntimeError("[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back.")

    def start_query(*given: Any) -> Any:
        starts.append(given)
        return Ended() if len(starts) < 3 else real(*given)

    monkeypatch.setattr(query_monitor, "RESTART_SECONDS", 0)
    monkeypatch.setattr(stream_job, "start_query", start_query)
    served.append("p.busy", 1)
    line = "pipeline process --from topic:p.busy --to queue:p.busy --start earliest --once --json"
    assert command(f"{line} --name busy").json["rows"] == len(served.payloads("p.busy")) == 1
    monkeypatch.setattr(query_monitor, "END_SECONDS", 0)
    monkeypatch.setattr(query_monitor, "MAX_STARTS", 1)
    starts.clear()
    assert "too busy" in command(f"{line} --name busier", code=10).complaint["error"]


def test_pipeline_explain_shows_the_starting_position_and_the_columns(command: Command, tmp_path: Path) -> None:
    line = f"pipeline explain --from topic:p.none --to queue:p.q --steps {module(tmp_path)}:sort"
    shown = command(line).out
    assert "no checkpoint yet: starting at latest" in shown
    assert "target string" in shown
    assert [one["name"] for one in command(f"{line} --json").json["columns"]][:1] == ["value"]


def test_checkpoint_in_use_refuses_a_second_query_at_once(command: Command, tmp_path: Path) -> None:
    with stream_job.checkpoint_lock(tmp_path / "yirang-pipelines" / "two" / "checkpoint"):
        complaint = command("pipeline process --from topic:p.a --to queue:p.b --name two --json", code=5).complaint
    assert (complaint["code"], complaint["field"]) == ("store_busy", "checkpoint")
