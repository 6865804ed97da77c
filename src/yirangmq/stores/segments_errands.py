"""Work on segments that nobody waits for: sealing, preparing the next file. Knows: one thread.
Does not know: what the work is."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from yirangmq.core.errors import Unavailable
from yirangmq.fsio.background import BackgroundExecutor

Work = Callable[[], None]
log = logging.getLogger(__name__)


class Errands:
    """Runs errands one after the other, in a thread of its own or, where ``ahead`` is not wanted, at once."""

    def __init__(self, *, ahead: bool) -> None:
        self._executor = BackgroundExecutor(partial(ThreadPoolExecutor, 1, "yirangmq-log")) if ahead else None

    def run(self, work: Work) -> None:
        if self._executor is None:
            work()
            return
        try:
            self._executor.submit(partial(_logged, work))
        except Unavailable:  # no thread can be started: the caller does the work
            _logged(work)

    def settle(self) -> None:
        """Wait until everything asked for so far is done."""
        if self._executor is not None:
            self._executor.drain()

    def close(self) -> None:
        """After the errand under way and those that wait."""
        if self._executor is not None:
            self._executor.stop(cancel=False)


def _logged(work: Work) -> None:
    try:
        work()
    except Exception:  # the caller has gone on, and the next errand must not wait for ever
        log.exception("log_upkeep_failed")
