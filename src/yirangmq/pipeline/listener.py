"""What a query does, as it does it: a JSON line for each micro-batch, and a line for people.

Knows: Spark's progress and our offsets. Does not know: what the query is for."""

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

PROGRESS = "progress.jsonl"
MOST_BYTES = 4 << 20
"""A longer file of progress makes room: the one before it is kept, as ``progress.jsonl.1``."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one micro-batch. ``position``: everything up to this sequence is in; ``lag``: how many follow it in the log.
    Both are None where the source has no sequences."""

    batch: int
    at: str
    rows: int
    rows_per_second: float
    batch_ms: int
    position: int | None
    lag: int | None
    observed: Mapping[str, Any]

    def line(self) -> str:
        where = "" if self.position is None else f"  at {self.position:,}  lag {self.lag:,}"
        return f"batch {self.batch}  {self.rows:,} rows  {self.rows_per_second:,.0f}/s  {self.batch_ms:,} ms{where}"


def seen_of(progress: Mapping[str, Any]) -> Seen:
    """From the document that Spark makes of a progress."""
    sources = progress.get("sources") or [{}]
    end, latest = _sequence(sources[0].get("endOffset")), _sequence(sources[0].get("latestOffset"))
    rows = int(progress.get("numInputRows") or 0)
    spent = int((progress.get("durationMs") or {}).get("triggerExecution") or progress.get("batchDuration") or 0)
    return Seen(
        batch=int(progress.get("batchId", -1)),
        at=str(progress.get("timestamp", "")),
        rows=rows,
        rows_per_second=rows * 1000 / spent if spent else 0.0,
        batch_ms=spent,
        position=end,
        lag=None if end is None else max(0, (latest if latest is not None else end) - end),
        observed=progress.get("observedMetrics") or {},
    )


def _sequence(offset: object) -> int | None:
    """Spark gives an offset as a document, or as its text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    found = offset.get("global_seq") if isinstance(offset, dict) else None
    return found if isinstance(found, int) else None


class ProgressListener(StreamingQueryListener):
    """Called on a thread of Spark's. ``show`` is for people; what it raises is swallowed by Spark."""

    def __init__(self, folder: Path, show: Callable[[Seen], None] | None = None) -> None:
        self._path = folder / PROGRESS
        self._show = show
        self._lock = threading.Lock()
        self.rows = 0
        self.batches = 0
        self.last: Seen | None = None
        self.error: str | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._write({"event": "started", "query": str(event.id), "run": str(event.runId), "at": event.timestamp})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.note(json.loads(event.progress.json))

    def note(self, progress: Mapping[str, Any]) -> None:
        seen = seen_of(progress)
        with self._lock:
            self.rows += seen.rows
            self.batches += seen.rows > 0
            self.last = seen
        self._write({"event": "progress", **asdict(seen)})
        if self._show is not None:
            self._show(seen)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing came; nothing is written."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.error = event.exception
        self._write({"event": "ended", "query": str(event.id), "error": event.exception})

    def _write(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self._path.replace(self._path.with_name(f"{PROGRESS}.1"))
            with self._path.open("a") as file:
                file.write(json.dumps(value, separators=(",", ":")) + os.linesep)
