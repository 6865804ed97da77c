"""Which pipelines there are on this machine, and how they do: a folder each, with its state and its progress.

``status.json`` is written by the one who runs it; a file ``stop`` asks it to end.
Knows: files. Does not know: Spark."""

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yirangmq.core.errors import BadInput, NotFound, WrongState

STATUS, STOP, PROGRESS = "status.json", "stop", "progress.jsonl"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FOLDER = "yirang-pipelines"


@dataclass(frozen=True, slots=True)
class Status:
    """``state``: running, done, stopped or failed; of one whose process is gone, ``lost``."""

    name: str
    kind: str
    state: str
    pid: int
    started_at: str
    command: str
    error: str | None = None
    rows: int = 0


def begun(name: str, kind: str, command: str, pid: int) -> Status:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Status(name, kind, "starting", pid, at, command)


def document(status: Status) -> dict[str, Any]:
    return asdict(status)


def home(given: str | None) -> Path:
    return Path(given or os.environ.get("YIRANGMQ_PIPELINES") or FOLDER)


def folder_of(home: Path, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} must be letters, digits and ._-, at most 100", field="name")
    return home / name


def save(folder: Path, status: Status) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{STATUS}.new"
    fresh.write_text(json.dumps(asdict(status)))
    fresh.replace(folder / STATUS)


def load(folder: Path) -> Status:
    try:
        found = Status(**json.loads((folder / STATUS).read_text()))
    except FileNotFoundError:
        raise NotFound(f"there is no pipeline {folder.name!r} in {folder.parent}", field="name") from None
    if found.state == "running" and not _is_alive(found.pid):
        return Status(**{**asdict(found), "state": "lost"})
    return found


def every(home: Path) -> list[Status]:
    return [load(path.parent) for path in sorted(home.glob(f"*/{STATUS}"))]


def last_progress(folder: Path) -> dict[str, Any] | None:
    """The latest micro-batch."""
    try:
        lines = (folder / PROGRESS).read_text().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        value: dict[str, Any] = json.loads(line)
        if value["event"] == "progress":
            return value
    return None


def ask_to_stop(folder: Path) -> Status:
    found = load(folder)
    if found.state != "running":
        raise WrongState(f"{found.name} is not running: {found.state}", field="name")
    (folder / STOP).touch()
    return found


def is_asked_to_stop(folder: Path) -> bool:
    return (folder / STOP).exists()


def forget_stop(folder: Path) -> None:
    (folder / STOP).unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
