"""A real standalone cluster on loopback: executors that have no yirangmq, kill -9 of one of them, the same result."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.killing import ROOT, Driver, Producer, judge, tell, wait_for_batches
from tests.pipeline.served import Served
from yirangmq.pipeline.cluster import LocalCluster
from yirangmq.pipeline.session import source_archive

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]
HIDE = "import sys\nsys.path[:] = [path for path in sys.path if path.rstrip('/') not in {hidden!r}]\n"


def test_the_demo_ends_well(tmp_path: Path) -> None:
    """The data source travels by value."""
    command = [sys.executable, str(ROOT / "tools" / "spark_cluster_demo.py"), "--rows", "30000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "is killed with -9" in done.stdout
    assert "0 lost, 0 duplicated" in done.stdout


def test_an_executor_killed_under_a_live_producer_changes_nothing(tmp_path: Path) -> None:
    """The data source is a zip that Spark hands to the executors."""
    hidden = tmp_path / "executors"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE.format(hidden=[str(ROOT / "src"), str(ROOT)]))
    served = Served(tmp_path / "server")
    began = time.monotonic()
    with LocalCluster(tmp_path / "cluster", environment={"PYTHONPATH": str(hidden)}) as cluster:
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
