"""Spark session with the project's settings: for small machines, quiet, in UTC, with the data source.

Also the ways by which code reaches executors: the data source by value or as a zip, and the user's modules of a folder.
A cluster's master that does not answer is reported after ``MASTER_TIMEOUT_SECONDS`` per address; Spark itself would try
for a minute."""

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
from yirangmq.pipeline.environment import cache, find_java, python_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
MASTER_TIMEOUT_SECONDS = 10.0
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
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine starts Python processes slowly
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
    """Return the session of this process, created if there is none.

    ``ship``: send the data source to executors with each task, for clusters with no yirangmq on their machines. The
    default is False if the master is local, else True."""
    prepare(master)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(f"Spark is not installed ({error}); pip install 'yirangmq[spark]'") from None
    merged_settings = {**SETTINGS, **(ON_THIS_MACHINE if is_here(master) else {}), **(settings or {})}
    if ui:
        merged_settings["spark.ui.enabled"] = "true"
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in merged_settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark, ship=not is_local(master) if ship is None else ship)
    return spark


def register(spark: "SparkSession", *, ship: bool = False) -> None:
    """Register ``format("yirangmq")`` in a session that was created elsewhere.

    Spark finds an installed yirangmq without this. The call also enables filter pushdown, and ships the source if
    ``ship`` is set."""
    from yirangmq.pipeline import source
    from yirangmq.pipeline.source.source import PushingSource

    if ship:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(source)  # type: ignore[no-untyped-call]
    spark.dataSource.register(PushingSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def send_modules_of(folder: Path) -> None:
    """Mark the user's modules in this folder to be pickled by value with the functions Spark gets.

    The Python of the tasks cannot import them."""
    from pyspark import cloudpickle

    for name, module in [*sys.modules.items()]:
        origin = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
        if origin is None or name == "__main__":
            continue
        path = Path(origin)
        if folder == (path.parents[1] if path.name == "__init__.py" else path.parent):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def source_archive(path: Path | str) -> Path:
    """Write the data source alone as a zip, for ``spark-submit --py-files`` and the setting ``spark.submit.pyFiles``.

    Executors without yirangmq find it there. The driver must have yirangmq installed."""
    from yirangmq.pipeline import source

    made, package = Path(path), "yirangmq/pipeline"
    with ZipFile(made, "w") as archive:
        for name in ("yirangmq", package):
            archive.writestr(f"{name}/__init__.py", "")
        for file in sorted(Path(str(source.__file__)).parent.glob("*.py")):
            archive.write(file, f"{package}/source/{file.name}")
    return made


def prepare(master: str) -> None:
    """Set the environment of the Java process that PySpark starts, and of the Python processes that Java starts."""
    _check_master(master)
    _silence_loggers()
    os.environ["JAVA_HOME"] = str(find_java().home)
    quick = python_launcher(cache())
    if os.environ.get("PYSPARK_PYTHON", quick) in (quick, sys.executable):  # else the user has chosen another one
        os.environ["PYSPARK_PYTHON"] = quick if is_here(master) else sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _silence_loggers() -> None:
    """Silence PySpark's loggers that print each error in addition to raising it.

    The loggers are created here as plain ones. PySpark's own set-up would change the format of any handler they get,
    and such a handler may be shared with other loggers."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _check_master(master: str) -> None:
    """Check that the cluster's master accepts connections. Spark itself tries for a minute, and then prints a long Java
    error."""
    addresses = master.removeprefix("spark://").split(",")
    if not master.startswith("spark://"):
        return
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise BadInput(f"{master!r} is not spark://HOST:PORT", field="master")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), MASTER_TIMEOUT_SECONDS):
            return
    raise Unavailable(f"there is no Spark master at {master}")


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in this process."""
    return master.startswith("local")


def is_here(master: str) -> bool:
    """Return whether Spark runs on this machine, also as a cluster on loopback. The driver then listens on loopback
    only, so that no other machine reaches it."""
    return is_local(master) or master.startswith(("spark://127.0.0.1:", "spark://localhost:"))
