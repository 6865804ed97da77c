"""The store's own numbers on disk: the counter file, which is ahead of every number given out, so that none is ever
given twice. (Totals of a queue: files_totals.py.)

Knows: how it is written and read back. Does not know: what is counted when."""

from typing import NamedTuple

from yirangmq.core.errors import QueueError, StoreTooNew
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.disk import exists, read_bytes
from yirangmq.stores.files_deeds import Home

COUNTER = ".counter"
FORMAT = 3
"""Of the folder as a whole. 1 has no groups, no messages for one consumer and no sizes: names without their marks are
read as before, so that such a folder opens as it is; from then on an older program leaves it alone. 2 keeps whole
totals where 3 keeps their base (files_totals.py)."""
AHEAD = 10_000
"""Numbers reserved at once in the counter file, so that it need not be written with every batch."""


def write_counter(home: Home, reserved: int) -> None:
    """Temp, sync, rename, sync: by itself, before the numbers are used."""
    root, disk, full = home
    temp = f"{root}/{COUNTER}.tmp"
    if exists(temp):
        disk.unlink(temp)
    fd = disk.open_write(temp)
    try:
        disk.write(fd, dumps({"format": FORMAT, "reserved": reserved}) + b"\n")
        if full:
            disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.rename(temp, f"{root}/{COUNTER}")
    if full:
        disk.fsync_folder(root)


class Counter(NamedTuple):
    format: int
    reserved: int


def read_counter(root: str) -> Counter | None:
    """How far numbers are reserved; None: the file is missing or torn. A store of a later version is refused."""
    try:
        document = loads(read_bytes(f"{root}/{COUNTER}") or b"")
        found = Counter(int(document["format"]), int(document["reserved"]))
    except (QueueError, KeyError, TypeError, ValueError):
        return None
    if found.format > FORMAT:
        raise StoreTooNew(
            f"{root} has format {found.format}, this version knows up to {FORMAT}; upgrade yirangmq to open it"
        )
    return found
