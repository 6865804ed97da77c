"""Shared parts of the Spark commands: options, session, progress, and rows as tables.

Spark is loaded when a session is made. A session that exists already is used and left running. Progress is Spark's
own count of tasks, polled in a thread."""

import argparse
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.table import TableColumn
from yirangmq.core.errors import BadInput, MissingExtra
from yirangmq.pipeline.run_registry import DataAccess
from yirangmq.pipeline.spark_errors import SparkLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- options and session -----------------------------------------------------------------------------------------------

BROKER, MASTER = "http://127.0.0.1:8080", "local[*]"
NEEDED = ("pyspark", "pandas", "pyarrow", "google.protobuf")
FOR_PIPELINES = ("grpc", "yaml")
POLL_SECONDS = 0.3


def spark_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master", default=os.environ.get("YIRANGMQ_SPARK_MASTER", MASTER), help="local[N], local[*] (default: "
        f"$YIRANGMQ_SPARK_MASTER or {MASTER}) or a cluster, spark://HOST:PORT",
    )  # fmt: skip
    group.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's; may be repeated"
    )
    group.add_argument("--ui", action="store_true", help="Spark's own web page, while it runs")


def access_options(parser: argparse.ArgumentParser, *, path: bool = True) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--broker", metavar="URL", help=f"the server's HTTP address (default: $YIRANGMQ_BROKER or {BROKER})"
    )
    if path:
        group.add_argument("--path", metavar="FOLDER", help="read topics from the server's data folder on this machine")


def access_of(args: argparse.Namespace) -> DataAccess:
    broker = args.broker or os.environ.get("YIRANGMQ_BROKER") or BROKER
    return DataAccess(broker, getattr(args, "path", None), os.environ.get("YIRANGMQ_TOKEN") or None)


def require_packages(*, pipelines: bool = False) -> None:
    """Raise one clear error for a missing package, before an import fails elsewhere."""
    for name in (*NEEDED, *(FOR_PIPELINES if pipelines else ())):
        try:
            is_there = find_spec(name) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise MissingExtra(f"this needs Spark, and {name} is not installed: pip install 'yirangmq[spark]'")


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    found = quick_start()
    for text in args.conf:
        name, sign, value = text.partition("=")
        if not sign or not name.startswith("spark."):
            raise BadInput(f"{text!r} is not spark.NAME=VALUE", field="conf")
        found[name] = value
    return found


def quick_start() -> dict[str, str]:
    """Return the settings that use the class-data archive of ``spark warmup``, if it exists for these versions."""
    from yirangmq.pipeline.environment import archive_path
    from yirangmq.pipeline.session import SETTINGS

    path = archive_path()
    if path is None or not path.exists():
        return {}
    options = SETTINGS.get("spark.driver.extraJavaOptions", "")
    return {"spark.driver.extraJavaOptions": f"{options} -XX:SharedArchiveFile={path} -Xshare:auto -Xlog:disable"}


@contextmanager
def session_of(args: argparse.Namespace, name: str, log: SparkLog | None = None) -> Iterator["SparkSession"]:
    """Open a Spark session. An existing one is reused and left running; a new one is stopped at the end."""
    require_packages()
    from pyspark import SparkContext

    from yirangmq.pipeline.session import session

    settings = settings_of(args)
    is_ours = SparkContext._active_spark_context is None
    with _log(log) as kept, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark and pandas warn of each other while they are loaded
        with kept.capture():
            made = session(f"yirangmq {name}", args.master, settings, ui=args.ui)
        try:
            yield made
        finally:
            if is_ours:
                made.stop()


@contextmanager
def _log(given: SparkLog | None) -> Iterator[SparkLog]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="yirangmq-") as folder:
        yield SparkLog(Path(folder) / "spark.log")


@contextmanager
def job_session(args: argparse.Namespace, screen: Screen, name: str) -> Iterator["SparkSession"]:
    """Open a session for a job: Spark's errors become ours, progress is shown, and notes of the source are printed."""
    with tempfile.TemporaryDirectory(prefix="yirangmq-") as folder:
        log = SparkLog(Path(folder) / "spark.log")
        with session_of(args, name, log) as spark:
            from yirangmq.pipeline import spark_errors

            if args.ui and spark.sparkContext.uiWebUrl:
                screen.note(f"Spark's own page: {spark.sparkContext.uiWebUrl}")
            try:
                with (
                    spark_errors.translated_errors(),
                    ProgressBar(name, shown=screen.shows_progress) as show,
                    _tasks(spark, show),
                ):
                    yield spark
            finally:
                for line in log.notes():
                    screen.note(line)


@contextmanager
def _tasks(spark: "SparkSession", show: ProgressBar) -> Iterator[None]:
    """Show progress from Spark's count of tasks, polled in a thread."""
    is_over = threading.Event()

    def poll() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not is_over.wait(POLL_SECONDS):
            stages = [tracker.getStageInfo(id) for id in tracker.getActiveStageIds()]
            known: list[Any] = [stage for stage in stages if stage is not None]
            if known:
                done, total = sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)
                show.update(f"{len(known)} stages, tasks", done, total)

    watcher = threading.Thread(target=poll, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


# -- places and tables -------------------------------------------------------------------------------------------------

SHOWN = 20


def common(parser: argparse.ArgumentParser, *, broker: bool = True) -> None:
    if broker:
        access_options(parser)
    spark_options(parser)


def source(parser: argparse.ArgumentParser, about: str, *, needed: bool = True, default: str | None = None) -> None:
    parser.add_argument("--from", dest="source", metavar="PLACE", required=needed, default=default, help=about)


def values(frame: "DataFrame") -> list[dict[str, Any]]:
    from yirangmq.pipeline.jobs.report import values

    return values({"": frame})[""]


def table(screen: Screen, rows: list[dict[str, Any]]) -> None:
    if not rows:
        screen.report("(nothing)")
        return
    numeric = {name for name in rows[0] if all(isinstance(row[name], int | float | None) for row in rows)}
    columns = [TableColumn(name, right=name in numeric, shrinks=name not in numeric) for name in rows[0]]
    screen.table(columns, [[_cell(value) for value in row.values()] for row in rows[:SHOWN]])
    if len(rows) > SHOWN:
        screen.report(f"… and {len(rows) - SHOWN:,} more; --json has all")


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return ", ".join(str(one) for one in value) if isinstance(value, list) else value
