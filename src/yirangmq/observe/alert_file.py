"""The file of open alerts: replaced as a whole, on disk when ``save`` returns. One that cannot be read is set aside.

Knows: one file. Does not know: what an alert is."""

import os
from pathlib import Path
from typing import Any

from yirangmq.format.jsontext import dumps, loads

NAME = "alerts.json"
ASIDE = "alerts.broken.json"


class AlertFile:
    """The folder is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def load(self) -> Any | None:
        """None where there is none yet. ``BadInput`` or ``OSError`` if it cannot be read."""
        try:
            return loads(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def set_aside(self) -> Path:
        """Out of the way, for somebody to look at."""
        aside = self.path.with_name(ASIDE)
        self.path.replace(aside)
        return aside

    def save(self, document: dict[str, Any]) -> None:
        """Temp, sync, rename, sync the folder. Called from a thread of its own."""
        folder = self.path.parent
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(dumps(document) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        _sync(folder)
        if is_new:
            _sync(folder.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
