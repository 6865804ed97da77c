"""A Spark session with our settings: for small machines, quiet, in UTC, and with the data source ready.

Knows: Spark's settings and why each is there. Does not know: jobs."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

from yirangmq.core.errors import MissingExtra
from yirangmq.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine starts a Python slowly
}
ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(
    name: str = "yirangmq",
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
    *,
    ui: bool = False,
    ship: bool | None = None,
) -> "SparkSession":
    """The session of this process, made if there is none. ``ship``: send the data source to executors along with each
    task, for clusters whose machines have no yirangmq installed (default: unless all is on this machine)."""
    _prepare_environment(master)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(f"Spark is not installed ({error}); pip install 'yirangmq[spark]'") from None
    is_local = master.startswith("local")
    told = {**SETTINGS, **(ON_THIS_MACHINE if is_local else {}), **(settings or {})}
    if ui:
        told["spark.ui.enabled"] = "true"
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in told.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # every error comes as an exception anyway
    register(spark, ship=not is_local if ship is None else ship)
    return spark


def register(spark: "SparkSession", *, ship: bool = False) -> None:
    """Make ``format("yirangmq")`` known to a session that was made elsewhere. (An installed yirangmq is found by Spark
    itself; this also lets Spark push filters down, and ships the source if asked to.)"""
    from yirangmq.pipeline import source
    from yirangmq.pipeline.source.source import PushingSource

    if ship:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(source)  # type: ignore[no-untyped-call]
    spark.dataSource.register(PushingSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def source_archive(path: Path | str) -> Path:
    """The data source alone as a zip, for ``spark-submit --py-files`` and the setting ``spark.submit.pyFiles``:
    executors that have no yirangmq find it there. The driver has it installed."""
    from yirangmq.pipeline import source

    made, package = Path(path), "yirangmq/pipeline"
    with ZipFile(made, "w") as archive:
        for name in ("yirangmq", package):
            archive.writestr(f"{name}/__init__.py", "")
        for file in sorted(Path(str(source.__file__)).parent.glob("*.py")):
            archive.write(file, f"{package}/source/{file.name}")
    return made


def _prepare_environment(master: str) -> None:
    """For the Java process that PySpark starts, and the Python it starts in turn."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
