"""What the tests of the files store are made of: a store in a folder, and eyes for the folder."""

import json
import os
from pathlib import Path
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.stores.files.store import FilesStore
from yirangmq.testing import ManualClock, open_for_test

OLD_NS = 1_700_000_000 * 10**9
"""Long ago: whoever was writing a file then has finished."""


def open_queues(folder: Path, clock: ManualClock | None = None) -> Queues:
    return open_for_test(store=FilesStore(folder, durability="os"), clock=clock)


def tree(folder: Path) -> list[str]:
    """Every file below, hidden ones left out."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if not any(part.startswith(".") for part in path.parts))


def only(folder: Path) -> Path:
    """The one file below a folder."""
    [path] = [path for path in folder.rglob("*") if path.is_file()]
    return path


def drop(inbox: Path, name: str, content: object, *, at_ns: int = OLD_NS) -> Path:
    """Put a file into an inbox as another program would; bytes as they are, other values as JSON."""
    inbox.mkdir(parents=True, exist_ok=True)
    temp = inbox / f".{name}.tmp"
    temp.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    os.utime(temp, ns=(at_ns, at_ns))
    return temp.rename(inbox / name)


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found
