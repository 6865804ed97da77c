"""The file of open alerts: replaced as a whole, on disk when ``save`` returns. One that cannot be read is set aside.

Knows: one file. Does not know: what an alert is."""

from pathlib import Path
from typing import Any

from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.atomic_file import replace_file, sync_folder
from yirangmq.fsio.permissions import make_folders

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
        """Called from a thread of its own."""
        folder = self.path.parent
        is_new = not folder.exists()
        make_folders(folder)
        replace_file(self.path, dumps(document) + b"\n")
        if is_new:
            sync_folder(folder.parent)
