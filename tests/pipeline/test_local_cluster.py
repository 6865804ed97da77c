"""A real standalone cluster on loopback: executors that have no yirangmq, kill -9 of one of them, the same result; and
every command with ``--master``."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.commands import bury
from tests.pipeline.killing import ROOT, Driver, Producer, judge, tell, wait_for_batches
from tests.pipeline.under_way import call
from tests.support.pipeline_server import Served
from yirangmq.pipeline import project_template
from yirangmq.pipeline.local_cluster import LocalCluster
from yirangmq.pipeline.session import source_archive

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(1800),
]
STEPS = """
from helping import twice
from pyspark.sql import functions as F
from yirangmq.pipeline import steps

def doubled(frame):
    checked = steps.validate(frame, {"type": "integer"})
    made = checked.withColumn("value", F.udf(twice, "binary")("value"))
    return steps.route(made, {}, "queue:c.out")
"""
HELPING = """
def twice(value):
    return b"%d" % (2 * int(value)) if value.isdigit() else value
"""
HIDE = "import sys\nsys.path[:] = [path for path in sys.path if path.rstrip('/') not in {hidden!r}]\n"


def without_yirangmq(folder: Path) -> dict[str, str]:
    """An environment for executors in which nothing of ours can be imported."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=[str(ROOT / "src"), str(ROOT)]))
    return {"PYTHONPATH": str(folder)}


def test_spark_cluster_runs_a_stream_by_command_on_executors_without_yirangmq(served: Served, tmp_path: Path) -> None:
    """The data source, the check by schema and the user's own modules are sent to them."""
    (tmp_path / "doubling.py").write_text(STEPS)
    (tmp_path / "helping.py").write_text(HELPING)
    served.append("c.in", 1, 2, "x", 3)
    line = "pipeline process --from topic:c.in --to queue:c.out --start earliest --once --steps doubling:doubled --json"
    with LocalCluster(tmp_path / "cluster", 1, environment=without_yirangmq(tmp_path / "executors")) as cluster:
        done = call(served, tmp_path, *line.split(), "--name", "c", "--master", cluster.master)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["rows"], told["dead"]) == ("done", 4, 1)
    assert served.payloads("c.out") == [b"2", b"4", b"6"]
    assert served.payloads("c.out", "dead") == [b"x"]


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_spark_cluster_runs_every_job_and_a_project_by_command(own: Served, tmp_path: Path) -> None:
    orders = project_template.sample_orders()
    good = [json.loads(line) for line in orders if "amount" in line]
    project_template.init("shop", tmp_path)
    bury(own, "c.dead", *({"n": n} for n in (1, 1, 2)))
    with LocalCluster(tmp_path / "cluster", environment=without_yirangmq(tmp_path / "executors")) as cluster:

        def ask(line: str, *more: str) -> dict[str, object]:
            done = call(own, tmp_path, *line.split(), *more, "--json", "--master", cluster.master)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            found: dict[str, object] = json.loads(done.stdout)
            return found

        load = "pipeline load --table shop/sample/orders.jsonl --format text --to topic:orders --name sample"
        assert ask(load)["count"] == len(orders)
        flows = ask("pipeline run shop")["flows"]
        assert isinstance(flows, list)
        assert {flow["flow"]: flow["state"] for flow in flows} == dict.fromkeys(
            ("good_orders", "to_work", "shop_totals"), "completed"
        )
        large = [order["id"] for order in good if order["amount"] >= 100]
        assert [json.loads(value)["id"] for value in own.payloads("large-orders")] == large
        assert len(own.payloads("small-orders", "dead")) == len(orders) - len(good)

        assert ask("pipeline archive --from topic:orders --to kept")["rows"] == len(orders)
        assert ask("pipeline audit --from archive:kept")["whole"] is True
        replayed = ask("pipeline replay --from archive:kept --to queue:again --name r", "--where", "offset <= 7")
        assert replayed["count"] == 7
        assert own.payloads("again") == [line.encode() for line in orders[:7]]
        assert ask("pipeline housekeep --archive kept")["removed"] == []
        poison = ask("pipeline poison --from dlq:c.dead --least 2")["payloads"]
        assert isinstance(poison, list)
        assert [row["messages"] for row in poison] == [2]
        assert ask("pipeline redrive --from dlq:c.dead", "--where", "value like '%2%'")["count"] == 1
        assert ask("pipeline report --from queue:c.dead --html report.html")["totals"] != []
        assert "<svg" in (tmp_path / "report.html").read_text()
        checks = ask("spark doctor")["checks"]
        assert isinstance(checks, list)
        assert any(cluster.master in check["found"] for check in checks)


@pytest.mark.slow
def test_spark_cluster_demo_stores_the_expected_rows_though_an_executor_is_killed(tmp_path: Path) -> None:
    """The data source travels by value. What the demo left behind is looked at, not what it says."""
    rows, folder = 30_000, tmp_path / "demo"
    folder.mkdir()
    program = "import sys, pathlib, spark_cluster_demo as demo; sys.exit(demo.demo(pathlib.Path(sys.argv[1]), {rows}))"
    path = os.pathsep.join([str(ROOT / "tools"), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", program.format(rows=rows), str(folder)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    logs = "".join(file.read_text(errors="replace") for file in (folder / "cluster").glob("worker-*.log"))
    assert "exitStatus 137" in logs, "no worker saw its executor end by kill -9"
    (folder / "data").rename(folder / "d")
    served = Served(folder)
    try:
        checked = [json.loads(value)["id"] for value in served.values("orders.checked")]
        large = [json.loads(value)["id"] for value in served.payloads("large")]
    finally:
        served.stop()
    assert checked == [n for n in range(rows) if n % 1000 < 900]
    assert large == [n for n in range(rows) if n % 1000 >= 900]


@pytest.mark.slow
def test_executor_kill_under_a_live_producer_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """The data source is a zip that Spark hands to the executors."""
    served = Served(tmp_path / "server")
    began = time.monotonic()
    with LocalCluster(tmp_path / "cluster", environment=without_yirangmq(tmp_path / "executors")) as cluster:
        archive = str(source_archive(tmp_path / "source.zip"))
        driver = Driver(
            tmp_path,
            broker=served.url,
            master=cluster.master,
            settings={**cluster.settings(), "spark.submit.pyFiles": archive},
            ship=False,
        )
        try:
            with Producer(served) as producer:
                query = driver.start()
                for _ in range(2):
                    wait_for_batches(served, query, 2, driver)
                    os.kill(cluster.executors()[0], signal.SIGKILL)
                wait_for_batches(served, query, 2, driver)
            driver.kill()
            driver.finish()
            judge(served, producer.count)
            tell("executor", began, served, query, producer.count, 2)
        finally:
            driver.kill()
            served.stop()
