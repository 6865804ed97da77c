"""What is said of pipelines, from the texts that Spark makes; nothing here starts Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from yirangmq.core.errors import BadInput, NotFound, QueueError, Retired, Unavailable, WrongState
from yirangmq.pipeline import project_template, run_registry, spark_errors
from yirangmq.pipeline.declarative import Element, SqlDefinitionError, location_of, recording_registry
from yirangmq.pipeline.declarative_events import FlowStates, UnresolvedFlow, parse_batch_progress, unresolved_of
from yirangmq.pipeline.spark_errors import SparkLog

PROGRESS: dict[str, Any] = {
    "name": "spark_catalog.default.orders",
    "timestamp": "2026-03-01T12:00:00.000Z",
    "batchId": 3,
    "durationMs": {"triggerExecution": 500},
    "stateOperators": [{"numRowsDroppedByWatermark": 2}],
    "sources": [{"numInputRows": 100, "endOffset": '{"global_seq": 40}', "latestOffset": {"global_seq": 1040}}],
    "observedMetrics": {"quality": {"rows": 100, "dead": 4}},
}


def test_progress_of_a_batch_is_shown_in_one_line() -> None:
    seen = parse_batch_progress(PROGRESS)
    assert seen.line() == "batch 3  100 rows  200/s  500 ms  at 40  lag 1,000  dead 4  late 2"
    assert parse_batch_progress({"sources": [{"endOffset": "5"}]}).line() == "batch -1  0 rows  0/s  0 ms"


def test_flow_progress_comes_from_events_and_from_the_log_of_spark(tmp_path: Path) -> None:
    flows = FlowStates(tmp_path)
    for text in ("Flow spark_catalog.default.orders is QUEUED.", "Flow spark_catalog.default.orders is RUNNING."):
        assert flows.on_event(text) is not None
    assert flows.on_event("Run is COMPLETED.") is None
    event = {"Event": "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent", "progress": PROGRESS}
    (tmp_path / "log").write_text(json.dumps({"Event": "other"}) + "\n" + json.dumps(event) + "\n" + '{"Event":')
    [flow] = flows.read()
    assert flow.line() == "orders  running  100 rows in 1 batches  200/s  at 40  lag 1,000"
    assert flows.read() == []
    failed = flows.on_event("Flow 'spark_catalog.default.orders' has FAILED.\nError: no room")
    assert failed is not None
    assert (failed.state, failed.is_over, failed.document()["error"]) == ("FAILED", True, "Error: no room")


def test_flow_that_cannot_be_resolved_is_named_with_its_reason_and_place(tmp_path: Path) -> None:
    told = "Failed to resolve flow: 'spark_catalog.default.totals'."
    text = f"{told}\nError: [UNRESOLVED_COLUMN.WITH] `amuont` is no column\nx"
    assert unresolved_of(text) == UnresolvedFlow("totals", "`amuont` is no column")
    assert unresolved_of("Failed to resolve flow due to upstream failure: 'a.b'.\nError: [X] y") is None
    (tmp_path / "t.sql").write_text("-- totals\n\nCREATE MATERIALIZED VIEW totals AS SELECT 1;\n")
    elements = [Element("sql", "t", "t.sql"), Element("flow", "orders → orders", "t.py:7")]
    assert location_of("totals", elements, tmp_path) == "t.sql:3"
    assert location_of("orders", elements, tmp_path) == "t.py:7"
    assert location_of("other", elements, tmp_path) is None


def test_sql_error_names_its_file_and_line(tmp_path: Path) -> None:
    class Registry:
        """As Spark's: it says the line, and not of which file."""

        def register_sql(self, text: str, path: Path) -> None:
            raise ValueError("[PARSE_SYNTAX_ERROR] Syntax error at or near 'AS'. (line 3, pos 53)\n== SQL ==")

    elements: list[Element] = []
    with pytest.raises(SqlDefinitionError, match="Syntax error") as caught:
        recording_registry(Registry, elements, tmp_path)().register_sql("", Path("a/t.sql"))
    assert (caught.value.location, [one.location for one in elements]) == ("a/t.sql:3", ["a/t.sql"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x\nyirangmq.pipeline.source.errors.SourceError: there is no option 'a'\n at y", BadInput),
        ("SourceError: the broker at http://h does not answer: no", Unavailable),
        ("Retired: sequence 5 is no longer kept; the log begins at 9", Retired),
    ],
    ids=["option", "silent", "retired"],
)
def test_spark_error_text_is_searched_for_the_error_of_the_source(text: str, kind: type[QueueError]) -> None:
    made = spark_errors.as_queue_error(RuntimeError(text))
    assert type(made) is kind
    assert "\n" not in str(made)


def test_spark_error_of_a_failed_stream_is_no_bad_input_and_is_cut_to_its_cause() -> None:
    text = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Python worker failed. SQLSTATE: XXKST"
    assert spark_errors.one_line(text) == "Python worker failed. SQLSTATE: XXKST"
    assert not spark_errors.is_input_error(text)
    assert spark_errors.one_line(f"{text}\n[DIVIDE_BY_ZERO] Division by zero.") == "Division by zero."
    worker = "[UDF_ERROR] An exception was thrown from the Python worker: Traceback (most recent call last):"
    assert spark_errors.one_line(f"{worker}\n  File x\nModuleNotFoundError: No module named 'y'") == (
        "ModuleNotFoundError: No module named 'y'"
    )
    assert spark_errors.is_input_error("[PARSE_SYNTAX_ERROR] Syntax error at or near end of input.")


def test_spark_error_conversion_leaves_other_errors_unchanged() -> None:
    assert spark_errors.as_queue_error(ValueError("x")) is None
    with pytest.raises(ValueError, match="x"), spark_errors.translated_errors():
        raise ValueError("x")


def test_spark_log_takes_the_output_of_java_and_returns_the_lines_of_yirangmq(tmp_path: Path, capfd: Any) -> None:
    log = SparkLog(tmp_path / "a" / "spark.log")
    with log.capture():
        subprocess.run(["sh", "-c", "echo noise; echo 'yirangmq: 7 records are gone' >&2"], check=True)
        print("still here", file=sys.stderr)
    assert log.notes() == ["7 records are gone"]
    assert log.notes() == []
    assert "noise" in log.tail()
    assert "noise" not in capfd.readouterr().out


def test_run_registry_lists_the_pipelines_of_a_folder_and_marks_a_dead_pipeline_lost(tmp_path: Path) -> None:
    folder = run_registry.folder_of(tmp_path, "a")
    with pytest.raises(NotFound, match="no pipeline 'a'"):
        run_registry.load(folder)
    run_registry.save(folder, run_registry.new_status("a", "process", "process", os.getpid()))
    assert [one.state for one in run_registry.list_runs(tmp_path)] == ["starting"]
    with pytest.raises(WrongState, match="is not running"):
        run_registry.request_stop(folder)
    gone = subprocess.Popen(["true"])
    gone.wait()
    status = run_registry.new_status("b", "process", "process", gone.pid)
    run_registry.save(
        run_registry.folder_of(tmp_path, "b"),
        run_registry.RunStatus(**{**run_registry.document(status), "state": "running"}),
    )
    assert run_registry.load(tmp_path / "b").state == "lost"
    with pytest.raises(BadInput, match="name"):
        run_registry.folder_of(tmp_path, "../x")


def test_project_template_is_laid_out_once_with_valid_programs(tmp_path: Path) -> None:
    made = project_template.init("shop", tmp_path)
    assert all(path.exists() for path in made)
    for path in made:
        if path.suffix == ".py":
            compile(path.read_text(), str(path), "exec")
    lines = (tmp_path / "shop" / "sample" / "orders.jsonl").read_text().splitlines()
    assert (len(lines), lines.count("{broken")) == (project_template.SAMPLES, 5)
    with pytest.raises(WrongState, match="is there already"):
        project_template.init("shop", tmp_path)
    with pytest.raises(BadInput, match="name"):
        project_template.init("a/b", tmp_path)


COLD = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
from yirangmq.cli.main import run
code = run(sys.argv[1:])
loaded = [name for name in sys.modules if name.startswith(("pyspark.", "py4j", "pandas", "pyarrow"))]
assert not loaded, loaded
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("status", 0),
        ("pipeline list", 0),
        ("pipeline --help", 0),
        ("pipeline init shop", 0),
        ("pipeline run .", 3),
        ("pipeline report", 8),
        ("pipeline process --from topic:a --to queue:b", 8),
        ("pipeline load --table a --to queue:b --name n", 8),
        ("spark warmup", 8),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else None,
)
def test_spark_extra_missing_leaves_other_commands_working_and_names_the_package_to_install(
    tmp_path: Path, line: str, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLD, *line.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    if code == 8:
        assert "pip install 'yirangmq[spark]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1
