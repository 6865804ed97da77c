"""What a query does, as it does it: a JSON line for each micro-batch, and a line for people.

Knows: Spark's progress. Does not know: what the query is for."""

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from yirangmq.pipeline.seen import Seen, seen_of

PROGRESS = "progress.jsonl"
MOST_BYTES = 4 << 20
"""A longer file of progress makes room: the one before it is kept, as ``progress.jsonl.1``."""


class ProgressListener(StreamingQueryListener):
    """Called on a thread of Spark's. ``query``: the id of the one query meant, where there are others. ``show`` is for
    people; what it raises is swallowed by Spark."""

    def __init__(self, folder: Path, show: Callable[[Seen], None] | None = None) -> None:
        self._path = folder / PROGRESS
        self._show = show
        self._lock = threading.Lock()
        self.query: str | None = None
        self.rows = 0
        self.batches = 0
        self.dead = 0
        self.late = 0
        self.last: Seen | None = None
        self.error: str | None = None
        self.is_over = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self.query is None:
            self.query = str(event.id)
        if str(event.id) == self.query:
            self._write({"event": "started", "query": self.query, "run": str(event.runId), "at": event.timestamp})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if str(event.progress.id) == self.query:
            self.note(json.loads(event.progress.json))

    def note(self, progress: Mapping[str, Any]) -> None:
        seen = seen_of(progress)
        with self._lock:
            self.rows += seen.rows
            self.batches += seen.rows > 0
            self.dead += seen.dead
            self.late += seen.late
            self.last = seen
        self._write({"event": "progress", **asdict(seen)})
        if self._show is not None:
            self._show(seen)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing came; nothing is written."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.id) == self.query:
            self.error = event.exception
            self._write({"event": "ended", "query": self.query, "error": event.exception})
            self.is_over.set()

    def _write(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self._path.replace(self._path.with_name(f"{PROGRESS}.1"))
            with self._path.open("a") as file:
                file.write(json.dumps(value, separators=(",", ":")) + os.linesep)
