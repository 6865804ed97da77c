"""Registry of the pipelines on this machine, and the places that jobs read from.

A place is ``topic:orders``, ``queue:mail``, ``dlq:mail``, ``done:mail``, ``archive:FOLDER``, or ``files:FOLDER`` for
files by date. It is an abbreviation for options of the data source, and is read as a frame.

The registry has a folder per pipeline. The process that runs it writes ``status.json``; a file ``stop`` requests its
end. A pipeline is ``lost`` if its status says ``running`` and its process is gone."""

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.core.errors import BadInput, NotFound, WrongState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- places that jobs read from ----------------------------------------------------------------------------------------

KINDS = ("topic", "queue", "dlq", "done", "archive", "files")
SOURCES = {"queue": "queue", "dlq": "dlq", "done": "archive"}
ALL = "*"


@dataclass(frozen=True, slots=True)
class JobSource:
    """Source of a job. ``name`` may be a list split by commas, or a pattern; for an archive or files by date it is a
    folder."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class DataAccess:
    """Access to the data: a server's HTTP address, or for topics the server's data folder on this machine."""

    broker: str | None = None
    path: str | None = None
    token: str | None = None

    def options(self, *, topics: bool) -> dict[str, str]:
        if topics and self.path:
            return {"path": self.path}
        if not self.broker:
            also = ", or for topics --path FOLDER" if topics else ""
            raise BadInput(f"the address of the server is missing: --broker http://HOST:PORT{also}", field="broker")
        return {"broker": self.broker, **({"token": self.token} if self.token else {})}


def parse_source(text: str, field: str = "from", kinds: tuple[str, ...] = KINDS) -> JobSource:
    kind, _, name = text.partition(":")
    if kind not in kinds or not name:
        raise BadInput(f"{text!r} is not one of {', '.join(f'{kind}:NAME' for kind in kinds)}", field=field)
    return JobSource(kind, name)


def source_options(job_source: JobSource, access: DataAccess) -> dict[str, str]:
    """Return the options of ``format("yirangmq")`` for a place."""
    if job_source.kind == "topic":
        is_pattern = any(sign in job_source.name for sign in "*?[")
        which = {"subscribePattern" if is_pattern else "subscribe": job_source.name}
        return {**access.options(topics=True), **which}
    which = {} if job_source.name == ALL else {"queue": job_source.name}
    return {**access.options(topics=False), "source": SOURCES[job_source.kind], **which}


def read(spark: "SparkSession", job_source: JobSource, access: DataAccess, **more: str) -> "DataFrame":
    """Read a place as a batch. ``more``: further options of the data source."""
    if job_source.kind == "archive":
        from yirangmq.pipeline.jobs.archive import read_archive

        return read_archive(spark, Path(job_source.name).absolute())
    if job_source.kind == "files":
        from yirangmq.pipeline.jobs.analysis import messages

        return messages(read_day_files(spark, job_source, **more))
    return spark.read.format("yirangmq").options(**source_options(job_source, access), **more).load()


def read_day_files(spark: "SparkSession", job_source: JobSource, **more: str) -> "DataFrame":
    """Read files by date, with a row per record."""
    path = str(Path(job_source.name).absolute())
    return spark.read.format("yirangmq").options(source="files", path=path, **more).load()


def read_states(spark: "SparkSession", job_source: JobSource, access: DataAccess) -> "DataFrame":
    """Read the messages of queues in all these states: ready, delayed, leased, done and dead."""
    if job_source.kind != "queue":
        return read(spark, job_source, access)
    parts = [read(spark, job_source, access, state=state) for state in ("ready", "delayed", "leased")]
    parts += [read(spark, JobSource(kind, job_source.name), access) for kind in ("done", "dlq")]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


# -- registry ----------------------------------------------------------------------------------------------------------

STATUS, STOP, PROGRESS = "status.json", "stop", "progress.jsonl"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FOLDER = "yirang-pipelines"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of a pipeline run: running, done, stopped or failed, or ``lost`` if its process is gone."""

    name: str
    kind: str
    state: str
    pid: int
    started_at: str
    command: str
    error: str | None = None
    rows: int = 0


def new_status(name: str, kind: str, command: str, pid: int) -> RunStatus:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return RunStatus(name, kind, "starting", pid, at, command)


def document(status: RunStatus) -> dict[str, Any]:
    return asdict(status)


def home(given: str | None) -> Path:
    return Path(given or os.environ.get("YIRANGMQ_PIPELINES") or FOLDER)


def folder_of(home: Path, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} must be letters, digits and ._-, at most 100", field="name")
    return home / name


def save(folder: Path, status: RunStatus) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{STATUS}.new"
    fresh.write_text(json.dumps(asdict(status)))
    fresh.replace(folder / STATUS)


def load(folder: Path) -> RunStatus:
    try:
        found = RunStatus(**json.loads((folder / STATUS).read_text()))
    except FileNotFoundError:
        raise NotFound(f"there is no pipeline {folder.name!r} in {folder.parent}", field="name") from None
    if found.state == "running" and not _is_alive(found.pid):
        return RunStatus(**{**asdict(found), "state": "lost"})
    return found


def list_runs(home: Path) -> list[RunStatus]:
    return [load(path.parent) for path in sorted(home.glob(f"*/{STATUS}"))]


def last_progress(folder: Path) -> dict[str, Any] | None:
    """Return the latest micro-batch, or None if there is none."""
    try:
        lines = (folder / PROGRESS).read_text().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        value: dict[str, Any] = json.loads(line)
        if value["event"] == "progress":
            return value
    return None


def request_stop(folder: Path) -> RunStatus:
    found = load(folder)
    if found.state != "running":
        raise WrongState(f"{found.name} is not running: {found.state}", field="name")
    (folder / STOP).touch()
    return found


def is_stop_requested(folder: Path) -> bool:
    return (folder / STOP).exists()


def clear_stop(folder: Path) -> None:
    (folder / STOP).unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
