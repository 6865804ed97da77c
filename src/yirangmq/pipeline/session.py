"""Spark session with the project's settings: for small machines, quiet, in UTC, with the data source.

Also the ways by which code reaches executors: the data source by value or as a zip, and the user's modules of a folder.
A cluster's master that does not answer is reported within ``LOOK_SECONDS``; Spark itself would try for a minute."""

import logging
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

from yirangmq.core.errors import BadInput, MissingExtra, Unavailable
from yirangmq.pipeline.environment import cache, find_java, quick_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOOK_SECONDS = 10.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:NewRatio=7 -XX:NewSize=128m",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine starts a Python slowly
}
ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",  # between Java and Python, a seventh faster than TCP
}


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
    prepare(master)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(f"Spark is not installed ({error}); pip install 'yirangmq[spark]'") from None
    told = {**SETTINGS, **(ON_THIS_MACHINE if is_here(master) else {}), **(settings or {})}
    if ui:
        told["spark.ui.enabled"] = "true"
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in told.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark, ship=not is_local(master) if ship is None else ship)
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


def send_modules_of(folder: Path) -> None:
    """The user's own modules that were found in this folder travel with the functions Spark is given: the Python of the
    tasks would look for them in vain."""
    from pyspark import cloudpickle

    for name, module in [*sys.modules.items()]:
        origin = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
        if origin is None or name == "__main__":
            continue
        path = Path(origin)
        if folder == (path.parents[1] if path.name == "__init__.py" else path.parent):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


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


def prepare(master: str) -> None:
    """The environment of the Java process that PySpark starts, and of the Python it starts in turn."""
    _look_for(master)
    _hush()
    os.environ["JAVA_HOME"] = str(find_java().home)
    quick = quick_python(cache())
    if os.environ.get("PYSPARK_PYTHON", quick) in (quick, sys.executable):  # else somebody wants another one
        os.environ["PYSPARK_PYTHON"] = quick if is_here(master) else sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _hush() -> None:
    """PySpark prints each error besides raising it. Made here, these loggers are as all others are; its own would
    change the form of any handler they are given, and a handler may be everybody's."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _look_for(master: str) -> None:
    """Spark itself looks for a cluster's master for a minute, and then says so in a page of Java."""
    addresses = master.removeprefix("spark://").split(",")
    if not master.startswith("spark://"):
        return
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise BadInput(f"{master!r} is not spark://HOST:PORT", field="master")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS):
            return
    raise Unavailable(f"there is no Spark master at {master}")


def is_local(master: str) -> bool:
    """All of Spark in the process that asks."""
    return master.startswith("local")


def is_here(master: str) -> bool:
    """On this machine, as a cluster on loopback is too: nobody from outside must find the driver."""
    return is_local(master) or master.startswith(("spark://127.0.0.1:", "spark://localhost:"))
