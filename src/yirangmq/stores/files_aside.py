"""Sets a file aside that is no message, or no longer one: into the queue's ``quarantine``, with a note that says why.

Knows: names that are taken, names that are too long. Does not know: what was wrong."""

import os
from datetime import UTC, datetime

from yirangmq.format.json_codec import dumps
from yirangmq.fsio.disk import exists
from yirangmq.stores.files_deeds import Deeds

MOST = 240
"""Letters of a name that a suffix can be put to."""


def quarantine(root: str, deeds: Deeds, queue: str, path: str, reason: str) -> None:
    """Set a file aside with a note that says why."""
    folder = f"{root}/{queue}/quarantine"
    deeds.folder(folder)
    name = os.path.basename(path)
    while exists(f"{folder}/{name}"):
        name = f"again-{name[-MOST:]}"
    note = {
        "file": name,
        "from": os.path.relpath(path, f"{root}/{queue}"),
        "reason": reason,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    target = f"{folder}/{name[:MOST]}.reason.json"
    while exists(target):
        target = f"{target[:-12]}-.reason.json"
    deeds.write_files([(target, dumps(note) + b"\n")])
    deeds.rename(path, f"{folder}/{name}")
