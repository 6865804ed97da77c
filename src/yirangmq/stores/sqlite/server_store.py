"""SQLite store of a server, its only writer: a ``SqliteStore`` with a ``RedoCommitter``."""

from functools import partial
from pathlib import Path

from yirangmq.fsio.disk import Disk
from yirangmq.stores.sqlite.redo_committer import COMMIT_DELAY_SECONDS, RedoCommitter
from yirangmq.stores.sqlite.redo_log import BYTES
from yirangmq.stores.sqlite.store import SqliteStore


def open_served_store(
    path: Path,
    *,
    durability: str = "full",
    busy_seconds: float = 30,
    vfs: str | None = None,
    disk: Disk | None = None,
    redo_bytes: int = BYTES,
    seconds: float | None = COMMIT_DELAY_SECONDS,
    reserve_bytes: int = 0,
) -> SqliteStore:
    """Open the store of a server. ``disk``, ``redo_bytes`` and ``seconds``: of its ``RedoCommitter``."""
    return SqliteStore(
        path,
        durability=durability,
        busy_seconds=busy_seconds,
        vfs=vfs,
        reserve_bytes=reserve_bytes,
        committer=partial(RedoCommitter, disk=disk, redo_bytes=redo_bytes, seconds=seconds),
    )
