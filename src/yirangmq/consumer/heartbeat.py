"""Heartbeat thread of a consumer: extends its leases, cuts off overdue handlers, and reports.

It extends the leases in hand, cuts off handlers that exceed their timeout, reports the consumer to the broker and
receives the operator's request. It runs in a separate thread, so that no handler can block it. If the process dies, the
heartbeat stops and the leases expire."""

import threading
import time
from collections.abc import Callable, Sequence

from yirangmq.consumer.delivery import timed_out
from yirangmq.consumer.lease_table import HeldLease
from yirangmq.consumer.settler import LeaseOutcome, log, log_fields, thread
from yirangmq.consumer.worker_pool import RunState

REPORT_SECONDS = 1.0
RETRY_DIVISOR = 10
"""Divisor of the retry interval: a failed extension is retried after a tenth of the lease, at most 1 s later."""


class Heartbeat:
    """Heartbeat thread: extends leases, cuts off overdue handlers, and reports.

    ``report`` runs once per second. Setting ``hurried`` wakes the thread before its planned time."""

    def __init__(self, run_state: RunState, hurried: threading.Event, report: Callable[[], None]) -> None:
        self._queues, self._leases, self._settler, self._tally = (
            run_state.queues,
            run_state.leases,
            run_state.settler,
            run_state.tally,
        )
        self._poison = run_state.poison
        self._hurried = hurried
        self._report = report
        self._report_at = 0.0
        self._stopped = False
        self._is_cut_off = False
        self._thread = thread(self._run, "heartbeat", run_state.fail)

    def start(self) -> None:
        self._thread.start()

    def report_soon(self) -> None:
        """Report now instead of at the end of the second."""
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
            self._hurried.wait(max(0.0, self._leases.next_check_at(self._report_at) - time.monotonic()))
            self._hurried.clear()

    def _end_overdue(self, now: float) -> None:
        overdue = self._leases.cut_off(now)
        for held in overdue:
            taken, outcome = held.taken, timed_out("the handler took longer than allowed")
            log.warning("handler_timed_out", extra=log_fields(taken))
            self._settler.settle([LeaseOutcome(held, self._poison.apply(taken.queue, taken.id, outcome))])

    def _extend(self, now: float) -> None:
        """Extend all due leases, with one call per lease length."""
        due = self._leases.due(now)
        for span in {held.span for held in due}:
            self._extend_by(span, [held for held in due if held.span == span], now)

    def _extend_by(self, span: float, due: Sequence[HeldLease], now: float) -> None:
        try:
            errors = self._queues.extend_many([held.lease for held in due], span)
        except Exception as error:
            self._put_off(due, now, error)
            return
        self._is_cut_off = False
        kept = []
        for held, problem in zip(due, errors, strict=True):
            if problem is None:
                kept.append(held)
            elif self._leases.mark_lost(held):
                self._tally.add(lost=1)
                taken = held.taken
                log.warning("lease_lost", extra=log_fields(taken, error=str(problem)))
        self._leases.extended(kept, now)

    def _put_off(self, due: Sequence[HeldLease], now: float, error: Exception) -> None:
        if not self._is_cut_off:
            log.warning("lease_extension_failed", extra={"values": {"count": len(due), "error": str(error)}})
        self._is_cut_off = True
        self._leases.postpone(due, now + min(1.0, due[0].span / RETRY_DIVISOR))
