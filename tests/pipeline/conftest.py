"""One Spark session for all tests of the pipeline; each stream has its own checkpoint."""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from yirangmq.pipeline.session import session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark and pandas warn of each other while they are loaded
        made = session("tests", "local[2]")
    yield made
    made.stop()
