"""The stores of an adoption and the file of an overlap: opened, locked, written. What happens in them is in
``broker.export_import``."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from yirangmq.broker import export_import
from yirangmq.broker.queues import Queues
from yirangmq.broker.store_time import resume
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.format.json_codec import dumps
from yirangmq.fsio.permissions import open_file
from yirangmq.stores.journal.files import BESIDE, DayFiles
from yirangmq.stores.journal.store import JournaledStore, read_position
from yirangmq.stores.lock import Holder, StoreLock
from yirangmq.stores.open import open_store


def adopt(ours: Queues, url: str, here: str, there: str, *, dry_run: bool) -> dict[str, Any]:
    """From a store that no server holds; its lock is ours meanwhile."""
    scheme, _, place = url.partition(":")
    if scheme not in ("sqlite", "files") or not place:
        raise BadInput(f"{url!r} is not a store that can be adopted; use sqlite:FILE or files:FOLDER", field="store")
    if not Path(place).exists():
        raise NotFound(f"there is no store at {place}", field="store")
    lock = StoreLock(url, Holder(os.getpid(), "", here, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"))
    try:
        with _opened(url, Path(place), dry_run=dry_run) as theirs:
            return export_import.adopt(ours, theirs, here, there, dry_run=dry_run)
    finally:
        lock.close()


def _opened(url: str, place: Path, *, dry_run: bool) -> Queues:
    """With its files by date, where they lie beside it: they are to tell what went away."""
    store = open_store(url)
    files = place.absolute().parent / BESIDE
    with store.transaction(write=False) as transaction:
        has_files = read_position(transaction) is not None and files.is_dir()
    clock = SystemClock()
    if has_files and not dry_run:
        store = JournaledStore(store, DayFiles(files), clock)
    queues = Queues(store, clock, TimeOrderedIds(clock.now_ms))
    resume(queues.verbs.store_time, store)
    return queues


def overlap(queues: Queues, since_ms: int, file: Path) -> int:
    """One JSON document a line; on disk when it returns."""
    with os.fdopen(open_file(file, os.O_WRONLY | os.O_TRUNC), "wb") as out:
        count = export_import.overlap(queues, since_ms, lambda about: _line(out, about))
        out.flush()
        os.fsync(out.fileno())
    return count


def _line(out: Any, about: dict[str, Any]) -> None:
    out.write(dumps(about) + b"\n")
