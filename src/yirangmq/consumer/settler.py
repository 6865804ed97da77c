"""Settler (outcomes to the broker, in batches), and the consumer's logger, counters and supervised threads.

While a settling call is in flight, further outcomes gather and form the next call. Thus a commit serves many
outcomes, and a single outcome does not wait. There is one call per kind of outcome. A failed call is retried while
its leases are valid; after that its results are counted as lost.

Log lines about a message carry its queue, id, attempt and trace id as fields. Every leased message is counted in
exactly one counter. An error that escapes a supervised thread ends the run."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from yirangmq.consumer.delivery import HandlerOutcome
from yirangmq.consumer.lease_table import ConsumerQueues, HeldLease, LeaseTable, Results
from yirangmq.core.backoff import Backoff
from yirangmq.core.message import Reason
from yirangmq.format.delivery import LeasedMessage

# -- log lines ---------------------------------------------------------------------------------------------------------

log = logging.getLogger("yirangmq.consumer")


def log_fields(taken: LeasedMessage, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the values for ``extra`` of a log line: the message and its trace, and ``more``."""
    named: dict[str, Any] = {"queue": taken.queue, "messageId": taken.id, "attempt": taken.attempt}
    try:
        trace = taken.header.get("traceId")
    except Exception:  # an envelope that cannot be read has no trace
        trace = None
    if trace:
        named["traceId"] = trace
    return {"values": named | more}


# -- counters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerSummary:
    """Counts of a run, by outcome.

    ``failed``: nacked because the handler failed, timed out or the message was invalid. ``lost``: the lease was
    lost, so another consumer may have the message. ``released``: not processed, ready again."""

    done: int = 0
    retried: int = 0
    rejected: int = 0
    failed: int = 0
    lost: int = 0
    released: int = 0

    @property
    def total(self) -> int:
        return self.done + self.retried + self.rejected + self.failed + self.lost + self.released


class ConsumerCounters:
    """Counters of a run. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._summary = ConsumerSummary()

    def add(self, **counts: int) -> None:
        with self._guard:
            now = self._summary
            self._summary = replace(now, **{name: getattr(now, name) + count for name, count in counts.items()})

    @property
    def summary(self) -> ConsumerSummary:
        return self._summary


# -- supervised threads ------------------------------------------------------------------------------------------------

Fail = Callable[[BaseException], None]
"""Callback for a fatal error, which ends the run."""


def thread(work: Callable[[], None], name: str, fail: Fail) -> threading.Thread:
    """Create a supervised daemon thread, not yet started. An error that escapes ``work`` is passed to ``fail``."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            fail(error)

    return threading.Thread(target=run, name=f"yirangmq-{name}", daemon=True)


# -- settler -----------------------------------------------------------------------------------------------------------

BACKOFF = Backoff(first=0.05, limit=1.0)
"""Backoff between two attempts while the server cannot be reached, in seconds."""


class LeaseOutcome(NamedTuple):
    """The end of a lease. ``outcome`` is None if the message was not processed and is released."""

    held: HeldLease
    outcome: HandlerOutcome | None


class Settler:
    """Thread that sends outcomes to the broker in batches."""

    def __init__(self, queues: ConsumerQueues, leases: LeaseTable, tally: ConsumerCounters, fail: Fail) -> None:
        self._queues = queues
        self._leases = leases
        self._tally = tally
        self._news = threading.Condition()
        self._waiting: list[LeaseOutcome] = []
        self._closed = False
        self._given_up = False
        self._thread = thread(self._run, "settler", fail)

    def start(self) -> None:
        self._thread.start()

    def settle(self, endings: Sequence[LeaseOutcome]) -> None:
        """Queue outcomes for the settler's thread. Does not block."""
        with self._news:
            self._waiting.extend(endings)
            self._news.notify()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def backlog(self) -> int:
        return len(self._waiting)

    def close(self, seconds: float) -> None:
        """Send the queued outcomes, for up to ``seconds``. Leases that are not settled by then expire."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(seconds)
        self._given_up = True

    def _run(self) -> None:
        failures = 0
        while not self._given_up:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closed)
                batch, self._waiting = self._waiting, []
            if not batch:
                return
            failed = self._still_good(self._send(batch))
            failures = failures + 1 if failed else 0
            if failed:
                time.sleep(BACKOFF.delay(failures))
                with self._news:
                    self._waiting = failed + self._waiting

    def _still_good(self, endings: list[LeaseOutcome]) -> list[LeaseOutcome]:
        """Return those worth a retry. The leases of the others have expired, so the broker has the messages back."""
        now = time.monotonic()
        over = [ending for ending in endings if ending.held.valid_until <= now]
        if over:
            log.warning("results_expired", extra={"values": {"count": len(over)}})
            self._tally.add(lost=len(over))
            self._leases.drop(ending.held for ending in over)
        return [ending for ending in endings if ending.held.valid_until > now]

    def _send(self, batch: Sequence[LeaseOutcome]) -> list[LeaseOutcome]:
        """Send one call per outcome. Return the entries for which the call failed."""
        groups: dict[HandlerOutcome | None, list[LeaseOutcome]] = {}
        for ending in batch:
            groups.setdefault(ending.outcome, []).append(ending)
        failed: list[LeaseOutcome] = []
        for outcome, endings in groups.items():
            leases = [ending.held.lease for ending in endings]
            try:
                results = self._verb(outcome)(leases)
            except Exception as error:
                log.warning("results_delivery_failed", extra={"values": {"count": len(leases), "error": str(error)}})
                failed += endings
            else:
                self._count(outcome, endings, results)
        return failed

    def _verb(self, outcome: HandlerOutcome | None) -> Callable[[Sequence[str]], Results]:
        if outcome is None:
            return self._queues.release_many
        reason = outcome.reason
        if reason is None:
            return self._queues.ack_many
        return lambda leases: self._queues.nack_many(leases, reason, outcome.text, delay=outcome.delay)

    def _count(self, outcome: HandlerOutcome | None, endings: Sequence[LeaseOutcome], results: Results) -> None:
        lost = 0
        for ending, error in zip(endings, results, strict=True):
            if error is not None:
                lost += 1
                taken = ending.held.taken
                log.warning("result_rejected", extra=log_fields(taken, error=str(error)))
        self._tally.add(**{_column(outcome): len(endings) - lost, "lost": lost})
        self._leases.drop(ending.held for ending in endings)


def _column(outcome: HandlerOutcome | None) -> str:
    if outcome is None:
        return "released"
    if outcome.reason is None:
        return "done"
    if outcome.reason is Reason.REJECTED:
        return "rejected"
    return "retried" if outcome.reason is Reason.HANDLER_ERROR and not outcome.kind else "failed"
