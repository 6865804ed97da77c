"""Query monitor: keeps a stream running, logs its micro-batches, and reports it to the broker.

A query runs until it ends, fails, is stopped by request, or the process gets a signal. Each poll saves its status in
the registry's folder (``pipeline.run_registry``) and reports it to the broker. When it stops, the micro-batch under way
is finished first. If the machine is too busy for Spark to start its Python processes, the query is started again.

The listener writes a JSON line for each micro-batch, on a thread of Spark's. The broker's dashboard shows the report
(``PUT /v1/pipelines/NAME``), which is sent when it changed and at regular intervals. A broker that cannot be reached
stops nothing."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from yirangmq.pipeline import run_registry, spark_errors
from yirangmq.pipeline.declarative_events import BatchProgress, parse_batch_progress
from yirangmq.pipeline.run_registry import RunStatus
from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.http_client import HttpBroker

# -- listener ----------------------------------------------------------------------------------------------------------

PROGRESS = "progress.jsonl"
MAX_PROGRESS_BYTES = 4 << 20
"""Upper bound of ``progress.jsonl``, in bytes. A larger file is renamed to ``progress.jsonl.1``, which replaces the one
before."""


class ProgressListener(StreamingQueryListener):
    """Listener that logs and counts the micro-batches of one query.

    Spark calls it on its own thread. ``query`` is the id of the query, in case there are others. ``show`` prints
    progress; Spark swallows its exceptions."""

    def __init__(self, folder: Path, show: Callable[[BatchProgress], None] | None = None) -> None:
        self._path = folder / PROGRESS
        self._show = show
        self._lock = threading.Lock()
        self.query: str | None = None
        self.rows = 0
        self.batches = 0
        self.dead = 0
        self.late = 0
        self.last: BatchProgress | None = None
        self.error: str | None = None
        self.is_over = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self.query is None:
            self.query = str(event.id)
        if str(event.id) == self.query:
            self._write({"event": "started", "query": self.query, "run": str(event.runId), "at": event.timestamp})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if str(event.progress.id) == self.query:
            self.record(json.loads(event.progress.json))

    def record(self, progress: Mapping[str, Any]) -> None:
        batch_progress = parse_batch_progress(progress)
        with self._lock:
            self.rows += batch_progress.rows
            self.batches += batch_progress.rows > 0
            self.dead += batch_progress.dead
            self.late += batch_progress.late
            self.last = batch_progress
        self._write({"event": "progress", **asdict(batch_progress)})
        if self._show is not None:
            self._show(batch_progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Write nothing: there was no batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.id) == self.query:
            self.error = event.exception
            self._write({"event": "ended", "query": self.query, "error": event.exception})
            self.is_over.set()

    def _write(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            if self._path.exists() and self._path.stat().st_size > MAX_PROGRESS_BYTES:
                self._path.replace(self._path.with_name(f"{PROGRESS}.1"))
            with self._path.open("a") as file:
                file.write(json.dumps(value, separators=(",", ":")) + os.linesep)


# -- report to the broker ----------------------------------------------------------------------------------------------

TIMEOUT_SECONDS = 2.0
HEARTBEAT_SECONDS = 10.0
"""Interval of the report of an idle query."""
MIN_REPORT_SECONDS = 1.0


class StatusReporter:
    """Reporter of a pipeline's state to the broker.

    ``report`` may be called at any rate. A report is sent if it changed, at most once per ``MIN_REPORT_SECONDS``, and
    every ``HEARTBEAT_SECONDS`` in any case."""

    def __init__(self, name: str, broker: str | None, token: str | None) -> None:
        self._path = f"/v1/pipelines/{quote(name)}"
        self._broker = HttpBroker(broker, token, TIMEOUT_SECONDS) if broker else None
        self._last: dict[str, Any] | None = None
        self._sent_at = 0.0
        self.last_error: str | None = None

    def report(self, status_document: dict[str, Any], *, at_once: bool = False) -> None:
        now = time.monotonic()
        waited = now - self._sent_at
        is_due = waited >= HEARTBEAT_SECONDS or (status_document != self._last and waited >= MIN_REPORT_SECONDS)
        if self._broker is None or not (is_due or at_once):
            return
        self._last, self._sent_at = status_document, now
        try:
            self._broker.document(
                "PUT", self._path, {name: value for name, value in status_document.items() if value is not None}
            )
            self.last_error = None
        except (SourceError, OSError, ValueError) as error:
            self.last_error = str(error)
        finally:
            self._broker.close()


# -- monitor -----------------------------------------------------------------------------------------------------------

POLL_SECONDS = 0.25
MAX_STARTS, RESTART_SECONDS = 4, 5.0
END_SECONDS = 30.0
"""Upper bound of the wait for the last progress of a query."""


@dataclass(slots=True)
class QueryMonitor:
    """Monitor of one streaming query.

    ``run`` starts the query and returns its final status. It raises the error of the query, unless the machine was too
    busy for Spark to start it: then the query is started again. ``on_poll`` is called at every poll."""

    folder: Path
    status: RunStatus
    listener: ProgressListener
    reporter: StatusReporter
    on_poll: Callable[[], None]
    source: str
    target: str

    def run(self, start: Callable[[], StreamingQuery]) -> RunStatus:
        with _signals() as stop_requested:
            for tries_left in reversed(range(MAX_STARTS)):
                query = start()
                self._update_status("running", at_once=True)
                try:
                    return self._watch(query, stop_requested)
                except Exception as error:
                    if not (tries_left and spark_errors.is_too_busy(error)):
                        raise self._failed(error) from None
                self.listener.is_over.wait(
                    RESTART_SECONDS
                )  # so that its end is not mistaken for that of the next query
                self.listener.is_over.clear()
        raise AssertionError

    def _watch(self, query: StreamingQuery, stop_requested: threading.Event) -> RunStatus:
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # fractions are accepted
            self._update_status("running")
            self.on_poll()
            if stop_requested.is_set() or run_registry.is_stop_requested(self.folder):
                self._finish_batch(query)
                query.stop()
                return self._finish("stopped")
        return self._finish("done")

    def _finish_batch(self, query: StreamingQuery) -> None:
        """Wait until the running micro-batch ends. If batches follow each other without a pause, wait for the current
        one only."""
        last, end = self.listener.last, time.monotonic() + END_SECONDS
        while query.isActive and query.status["isTriggerActive"] and self.listener.last is last:
            if time.monotonic() > end:
                return
            time.sleep(POLL_SECONDS)

    def _finish(self, state: str) -> RunStatus:
        self.listener.is_over.wait(END_SECONDS)  # the last progress arrives on a thread of Spark's
        self.on_poll()
        self._update_status(state, at_once=True)
        return self.status

    def _failed(self, error: Exception) -> Exception:
        queue_error = spark_errors.as_queue_error(error) or error
        self.status = replace(self.status, error=str(queue_error)[:1000])
        self._finish("failed")
        return queue_error

    def _update_status(self, state: str, *, at_once: bool = False) -> None:
        status = replace(self.status, state=state, rows=self.listener.rows)
        if status != self.status or at_once:
            self.status = status
            run_registry.save(self.folder, status)
        self.reporter.report(self.status_document(), at_once=at_once)

    def status_document(self) -> dict[str, Any]:
        last = self.listener.last
        return {
            "kind": self.status.kind,
            "state": self.status.state,
            "startedAt": self.status.started_at,
            "source": self.source,
            "target": self.target,
            "rows": self.listener.rows,
            "dead": self.listener.dead,
            "late": self.listener.late,
            "batch": None if last is None else last.batch,
            "batchMs": None if last is None else last.batch_ms,
            "rowsPerSecond": None if last is None else round(last.rows_per_second),
            "position": None if last is None else last.position,
            "lag": None if last is None else last.lag,
            "error": self.status.error,
        }


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set. Signals are handled in the main thread only."""
    stop_requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_requested
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop_requested.set()) for number in numbers}
    try:
        yield stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
