"""Runs that are under way while something happens: retention passes them, a second one comes, they are told to go.

Few processes, each asked several things: a session of Spark's takes its time to start."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import commands
from tests.pipeline.under_way import PATIENCE, UnderWay, call, status_of
from tests.support.pipeline_server import Served
from tests.support.server_process import until
from yirangmq.core.topics import NewRecord
from yirangmq.stores.log.log import LogSettings, SegmentLog

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
COUNT, PER_BATCH = 300, 50
GATED = '''
import time
from pathlib import Path

from pyspark.sql import functions as F

HERE = Path({folder!r})


def slow(frame):
    """The first row waits until the test has done what it does."""
    def wait(value):
        (HERE / "began").touch()
        while not (HERE / "go").exists():
            time.sleep(0.02)
        return value

    return frame.withColumn("value", F.udf(wait, "binary")("value"))
'''
SPEC = """name: held
storage: storage
libraries:
  - glob:
      include: transformations/**
"""
DEFINITIONS = """
import os
import time
from pathlib import Path

from numbers_here import number
from pyspark import pipelines as dp
from pyspark.sql import functions as F

BROKER = os.environ["YIRANGMQ_BROKER"]
HERE = Path({folder!r})


@dp.table
def held():
    def wait(value):
        (HERE / "began").touch()
        while not (HERE / "go").exists():
            time.sleep(0.02)
        return number(value)

    found = spark.readStream.format("yirangmq").options(broker=BROKER, subscribe="h.in", startingOffsets="earliest")
    return found.load().select(F.udf(wait)("value").alias("n"))


@dp.table
def tens():
    return spark.readStream.table("held").where("n % 10 = 0")


dp.create_sink("out", "yirangmq", {{"broker": BROKER, "queue": "h.out"}})


@dp.append_flow(target="out", name="to_out")
def to_out():
    return spark.readStream.table("held").selectExpr("n AS value")
"""


@pytest.fixture
def small_segments(tmp_path: Path) -> Any:
    """A server whose log has many small files, so that some can go."""
    folder = tmp_path / "server"
    (folder / "d").mkdir(parents=True)
    settings = LogSettings(segment_bytes=8192, durability="os", ahead=False)
    with SegmentLog(folder / "d" / "topics", settings) as log:
        for begin in range(0, COUNT, 10):
            log.append([NewRecord("u.in", b"%0200d" % n) for n in range(begin + 1, begin + 11)])
    made = Served(folder)
    yield made
    made.stop()


def test_retention_passing_a_slow_query_fails_it_and_a_query_that_skips_runs_until_sigterm(
    spark: SparkSession, small_segments: Served, capfdbinary: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    served, module = small_segments, f"gated_{tmp_path.name}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YIRANGMQ_BROKER", served.url)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{module}.py").write_text(GATED.format(folder=str(tmp_path)))
    command = commands.made(capfdbinary)
    line = f"pipeline process --from topic:u.in --to queue:u.out --name slow --most {PER_BATCH} --steps {module}:slow"
    trimmed: list[dict[str, Any]] = []

    def pass_it() -> None:
        """While its first micro-batch is at work."""
        try:
            until((tmp_path / "began").exists, PATIENCE)
            address = ("--store", served.daemon.address, "--json")
            done = call(served, tmp_path, "topic", "trim", "--before-seq", "200", *address)
            trimmed.append(json.loads(done.stdout))
        finally:
            (tmp_path / "go").touch()

    thread = threading.Thread(target=pass_it)
    thread.start()
    complaint = command(f"{line} --start earliest --once --json", code=3).complaint
    thread.join()
    first = trimmed[0]["first"]
    lost = f"{first - PER_BATCH - 1} records were removed: the next one is {PER_BATCH + 1}, the log begins at {first}"
    assert complaint["code"] == "retired"
    assert lost in complaint["error"]
    assert lost in command("pipeline status slow --json").json["error"]
    before = [b"%0200d" % n for n in range(1, PER_BATCH + 1)]
    assert served.payloads("u.out") == before

    whole = before + [b"%0200d" % n for n in range(first, COUNT + 1)]
    words = (*line.split(), "--lost-records", "skip", "--ui", "--master", "local[1]")
    with UnderWay(served, tmp_path, *words) as running:
        assert "Spark Jobs" in running.page()
        running.wait_for(lambda: len(served.payloads("u.out")) >= len(whole))
        refused = command(f"{line} --json", code=5).complaint
        assert (refused["code"], refused["field"]) == ("store_busy", "checkpoint")
        assert status_of(tmp_path, "slow")["pid"] == running.process.pid
        assert running.told_to_go() == 0, running.err
        assert f"slow: resuming from checkpoint at {PER_BATCH}" in running.err
        assert f"{lost}; continuing without them" in running.err
        assert f"slow: stopped; {COUNT + 1 - first} rows" in running.out
    assert served.payloads("u.out") == whole
    assert status_of(tmp_path, "slow")["state"] == "stopped"


def held_project(folder: Path) -> None:
    (folder / "held" / "transformations").mkdir(parents=True)
    (folder / "held" / "spark-pipeline.yml").write_text(SPEC)
    (folder / "held" / "numbers_here.py").write_text("def number(value):\n    return value.decode()\n")
    (folder / "held" / "transformations" / "held.py").write_text(DEFINITIONS.format(folder=str(folder)))


def test_pipeline_run_of_a_project_refuses_a_second_run_and_can_be_asked_to_stop(
    served: Served, tmp_path: Path
) -> None:
    held_project(tmp_path)
    served.append("h.in", *range(30))
    with UnderWay(served, tmp_path, "pipeline", "run", "held", "--ui", "--master", "local[1]") as running:
        assert "Spark Jobs" in running.page()
        running.wait_for((tmp_path / "began").exists)
        second = call(served, tmp_path, "pipeline", "run", "held", "--json")
        assert second.returncode == 5, second
        assert json.loads(second.stderr)["error"].endswith("another run of held is in progress")
        status = status_of(tmp_path, "held")
        assert (status["state"], status["pid"]) == ("running", running.process.pid)
        asked = call(served, tmp_path, "pipeline", "stop", "held")
        assert asked.returncode == 0, asked
        assert running.ended() == 0, running.err
        assert "held: stopped; the next run goes on from here" in running.out
    assert status_of(tmp_path, "held")["state"] == "stopped"
    card = next(one for one in served.ask("GET", "/v1/pipelines")["pipelines"] if one["pipeline"] == "held")
    assert card["state"] == "stopped"
    assert served.payloads("h.out") == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_pipeline_run_ended_by_sigterm_is_finished_by_the_next_and_tables_are_refreshed_by_name(
    own: Served, tmp_path: Path
) -> None:
    held_project(tmp_path)
    own.append("h.in", *range(30))
    with UnderWay(own, tmp_path, "pipeline", "run", "held", "--master", "local[2]") as running:
        running.wait_for((tmp_path / "began").exists)
        assert running.told_to_go() == 0, running.err
    (tmp_path / "go").touch()

    def rows(*more: str) -> dict[str, int]:
        """Of the flows that had any."""
        done = call(own, tmp_path, "pipeline", "run", "held", "--json", *more)
        assert done.returncode == 0, done.stderr
        return {flow["flow"]: flow["rows"] for flow in json.loads(done.stdout)["flows"] if flow["rows"]}

    assert rows() == {"held": 30, "tens": 30, "to_out": 30}
    assert sorted(map(int, own.payloads("h.out"))) == [*range(30)]
    own.append("h.in", *range(30, 40))
    assert rows("--refresh", "held") == {"held": 10}
    assert rows("--afresh", "tens") == {"tens": 40}
    assert rows() == {"to_out": 10}
    assert rows("--afresh", "*")["held"] == 40
