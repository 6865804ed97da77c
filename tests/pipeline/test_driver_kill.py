"""kill -9 of the driver, at random and right after a commit, and of the server, under a live producer: output equals
input, in order, nothing lost, nothing twice. ``make soak-spark`` kills twenty times."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.pipeline.killing import Driver, Producer, judge, tell, wait_for_batches
from tests.support.pipeline_server import Served
from yirangmq.pipeline.local_cluster import free_port

KILLS = int(os.environ.get("YIRANGMQ_SPARK_KILLS", "2"))
pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600 + 120 * KILLS),
]


@pytest.mark.slow
def test_driver_kill_at_any_moment_loses_and_repeats_nothing(tmp_path: Path) -> None:
    chance, began = random.Random(11), time.monotonic()
    served = Served(tmp_path / "server", "--http", f"127.0.0.1:{free_port()}")
    driver = Driver(tmp_path, broker=served.url, path=served.data)
    try:
        with Producer(served) as producer:
            query = ""
            for number in range(KILLS):
                query = driver.start()
                wait_for_batches(served, query, 2, driver)
                if number % 2:
                    time.sleep(chance.uniform(0, 1.5))  # else: between the sink's commit and Spark's own
                driver.kill()
        driver.finish()
        judge(served, producer.count)
        tell("driver", began, served, query, producer.count, KILLS)
    finally:
        driver.kill()
        served.stop()


@pytest.mark.slow
def test_server_kill_under_a_query_loses_and_repeats_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path / "server", "--http", f"127.0.0.1:{free_port()}")
    driver = Driver(tmp_path, broker=served.url)
    began = time.monotonic()
    try:
        with Producer(served, pause=0.1) as producer:
            query = driver.start()
            for _ in range(max(1, KILLS // 2)):
                wait_for_batches(served, query, 2, driver)
                served.daemon.kill()
                served.daemon.start()
            wait_for_batches(served, query, 2, driver)
        driver.kill()
        driver.finish()
        judge(served, producer.count)
        tell("server", began, served, query, producer.count, KILLS // 2)
    finally:
        driver.kill()
        served.stop()
