"""A class-data archive: the classes that Spark loads, kept in the form Java wants them in, for a quicker start.

Java passes an archive over that is not of the same Java and the same jars, so an old one does no harm; its name says
what it is for all the same.

Knows: a file in the cache, and how Java is asked to make it. Does not know: sessions in use."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from yirangmq.core.errors import MissingExtra, QueueError, StoreError
from yirangmq.pipeline.java import find_java

PATTERN = "spark-*.jsa"
PATIENCE = 300
PROGRAM = """
import sys
from pyspark import SparkContext
from yirangmq.pipeline.session import SETTINGS, session
java = SETTINGS.get("spark.driver.extraJavaOptions", "") + " -XX:ArchiveClassesAtExit=" + sys.argv[1]
spark = session("warmup", "local[1]", {"spark.driver.extraJavaOptions": java})
spark.range(100).selectExpr("id % 7 as k", "id").groupBy("k").count().collect()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


class Made(NamedTuple):
    path: Path
    size: int


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/tmp")) / ".cache") / "yirangmq"


def archive_path() -> Path | None:
    """None where Spark or Java is missing."""
    try:
        return cache() / f"spark-{version('pyspark')}-java-{find_java().version}.jsa"
    except (PackageNotFoundError, MissingExtra):
        return None


def make() -> Made:
    path = archive_path()
    if path is None:
        find_java()
        raise MissingExtra("Spark is not installed; pip install 'yirangmq[spark]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(fresh)], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if done.returncode or not fresh.exists():
            raise QueueError(f"Java made no archive of its classes: {done.stderr.strip()[-400:]}")
        fresh.replace(path)
    except subprocess.TimeoutExpired:
        raise StoreError(f"it took more than {PATIENCE} s") from None
    finally:
        fresh.unlink(missing_ok=True)
    return Made(path, path.stat().st_size)


def remove() -> int:
    found = [*cache().glob(PATTERN)]
    for path in found:
        path.unlink()
    return len(found)
