"""One Spark session for all tests of the pipeline, and one server; each stream has its own checkpoint."""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline_server import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""A few rows a query: half of the time went into a second compilation of what runs only a few times."""


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from yirangmq.pipeline.session import session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark and pandas warn of each other while they are loaded
        made = session("tests", "local[2]", QUICK)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For all: each test has topics and queues of its own names."""
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.stop()


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the test's own."""
    made = Served(tmp_path_factory.mktemp("own"))
    yield made
    made.stop()
