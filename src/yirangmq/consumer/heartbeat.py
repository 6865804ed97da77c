"""The consumer's pulse, in a thread of its own so that no handler can stop it: extends every lease in hand, notices
handlers that take too long, tells the broker of this consumer and hears what the operator wishes.

If the process dies, so does the pulse, and the leases end."""

import threading
import time
from collections.abc import Callable, Sequence

from yirangmq.consumer.holdings import Holding
from yirangmq.consumer.journal import about, log
from yirangmq.consumer.kit import Kit
from yirangmq.consumer.outcomes import too_slow
from yirangmq.consumer.settler import Ending
from yirangmq.consumer.threads import thread

REPORT_SECONDS = 1.0
AGAIN = 10
"""An extension that failed is tried again after a tenth of the lease, but not more than a second later."""


class Heartbeat:
    """``report`` is called once a second; ``hurried`` is set when something wants to be looked at before its time."""

    def __init__(self, kit: Kit, hurried: threading.Event, report: Callable[[], None]) -> None:
        self._queues, self._holdings, self._settler, self._tally = kit.queues, kit.holdings, kit.settler, kit.tally
        self._poison = kit.poison
        self._hurried = hurried
        self._report = report
        self._report_at = 0.0
        self._stopped = False
        self._is_cut_off = False
        self._thread = thread(self._run, "heartbeat", kit.fail)

    def start(self) -> None:
        self._thread.start()

    def report_soon(self) -> None:
        """There is news worth telling before the second is over."""
        self._report_at = 0.0
        self._hurried.set()

    def stop(self, seconds: float) -> None:
        self._stopped = True
        self._hurried.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped:
            self._end_overdue(time.monotonic())
            self._extend(time.monotonic())
            if time.monotonic() >= self._report_at:
                self._report_at = time.monotonic() + REPORT_SECONDS
                self._report()
            self._hurried.wait(max(0.0, self._holdings.plan(self._report_at) - time.monotonic()))
            self._hurried.clear()

    def _end_overdue(self, now: float) -> None:
        overdue = self._holdings.cut(now)
        for holding in overdue:
            taken, outcome = holding.taken, too_slow("the handler took longer than allowed")
            log.warning("message %s: its handler takes too long and is not waited for", taken.id, extra=about(taken))
            self._settler.settle([Ending(holding, self._poison.judge(taken.queue, taken.id, outcome))])

    def _extend(self, now: float) -> None:
        """All that are due in one call, if their leases are of one length."""
        due = self._holdings.due(now)
        for span in {holding.span for holding in due}:
            self._extend_by(span, [holding for holding in due if holding.span == span], now)

    def _extend_by(self, span: float, due: Sequence[Holding], now: float) -> None:
        try:
            errors = self._queues.extend_many([holding.lease for holding in due], span)
        except Exception as error:
            self._put_off(due, now, error)
            return
        self._is_cut_off = False
        kept = []
        for holding, problem in zip(due, errors, strict=True):
            if problem is None:
                kept.append(holding)
            elif self._holdings.lose(holding):
                self._tally.add(lost=1)
                taken = holding.taken
                log.warning("message %s: its lease is lost: %s", taken.id, problem, extra=about(taken))
        self._holdings.extended(kept, now)

    def _put_off(self, due: Sequence[Holding], now: float, error: Exception) -> None:
        if not self._is_cut_off:
            log.warning("%d leases could not be extended, trying again: %s", len(due), error)
        self._is_cut_off = True
        self._holdings.put_off(due, now + min(1.0, due[0].span / AGAIN))
