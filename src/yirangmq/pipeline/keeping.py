"""A query that is kept running: until it ends, fails, is asked to stop, or the process is told to go.

Each look: what is new goes to the watcher, the status to the running folder, the card to the broker.
Knows: the running folder, the listener, the query. Does not know: what the query does, the command line."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from yirangmq.pipeline import faults, running
from yirangmq.pipeline.listener import ProgressListener
from yirangmq.pipeline.running import Status
from yirangmq.pipeline.telling import Teller

LOOK_SECONDS = 0.25
STARTS, AGAIN_SECONDS = 4, 5.0
END_SECONDS = 30.0
"""How long the last words of a query may take."""


@dataclass(slots=True)
class Keeper:
    """``each`` is called with every look. ``keep`` starts the query and returns how it ended; what it raised is raised
    on, unless the machine was too busy for Spark to get it going: then it is started again."""

    folder: Path
    status: Status
    listener: ProgressListener
    teller: Teller
    each: Callable[[], None]
    source: str
    target: str

    def keep(self, start: Callable[[], StreamingQuery]) -> Status:
        with _signals() as told:
            for tries_left in reversed(range(STARTS)):
                query = start()
                self._say("running", at_once=True)
                try:
                    return self._watch(query, told)
                except Exception as error:
                    if not (tries_left and faults.is_too_busy(error)):
                        raise self._failed(error) from None
                self.listener.is_over.wait(AGAIN_SECONDS)  # so that its end is not taken for that of the next
                self.listener.is_over.clear()
        raise AssertionError

    def _watch(self, query: StreamingQuery, told: threading.Event) -> Status:
        while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]  # fractions are taken
            self._say("running")
            self.each()
            if told.is_set() or running.is_asked_to_stop(self.folder):
                self._finish_batch(query)
                query.stop()
                return self._over("stopped")
        return self._over("done")

    def _finish_batch(self, query: StreamingQuery) -> None:
        """What is in work is finished; where one micro-batch follows the other, the one in work now."""
        last, end = self.listener.last, time.monotonic() + END_SECONDS
        while query.isActive and query.status["isTriggerActive"] and self.listener.last is last:
            if time.monotonic() > end:
                return
            time.sleep(LOOK_SECONDS)

    def _over(self, state: str) -> Status:
        self.listener.is_over.wait(END_SECONDS)  # the last progress comes on a thread of Spark's
        self.each()
        self._say(state, at_once=True)
        return self.status

    def _failed(self, error: Exception) -> Exception:
        made = faults.as_queue_error(error) or error
        self.status = replace(self.status, error=str(made)[:1000])
        self._over("failed")
        return made

    def _say(self, state: str, *, at_once: bool = False) -> None:
        status = replace(self.status, state=state, rows=self.listener.rows)
        if status != self.status or at_once:
            self.status = status
            running.save(self.folder, status)
        self.teller.tell(self.card(), at_once=at_once)

    def card(self) -> dict[str, Any]:
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
    """SIGTERM and Ctrl-C end a query in good order, where this is the main thread."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: told.set()) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
