"""Work on segments that nobody waits for: sealing, preparing the next file. Knows: one thread.
Does not know: what the work is."""

import logging
import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]
log = logging.getLogger(__name__)


class Errands:
    """Runs errands one after the other, in a thread of its own or, where ``ahead`` is not wanted, at once."""

    def __init__(self, *, ahead: bool) -> None:
        self._ahead = ahead
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Work) -> None:
        if not self._ahead:
            work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="yirangmq-log", daemon=True)
            self._thread.start()
        self._waiting.put(work)

    def _loop(self) -> None:
        while (work := self._waiting.get()) is not None:
            try:
                work()
            except Exception:  # nobody waits for it, and what comes next must not wait for ever
                log.exception("log_upkeep_failed")

    def settle(self) -> None:
        """Wait until everything asked for so far is done."""
        if self._thread is not None:
            done = threading.Event()
            self._waiting.put(done.set)
            done.wait()

    def close(self) -> None:
        """After the errand under way and those that wait."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None
