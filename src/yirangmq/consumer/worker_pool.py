"""Worker pool of a queue: a fetch thread and handler threads; pause gate, poison detection, run state, spans.

The fetch thread leases as many messages as the pool has capacity for: concurrency plus prefetch, less those in hand.
A handler with a result that no longer counts keeps its thread. If all threads are stuck in this way, prefetched
messages are released.

The gate controls whether messages are fetched: running, paused, draining or stopped. The operator, a signal or the
program moves it; after draining it never runs again.

Poison detection counts equal faults in a row of the same message, within this process. A queue's policy does the
same for all consumers together (``retry.poisonAfter``), but by reason codes, not by faults.

Each handler call is an OpenTelemetry span under the message's trace. Without the extra ``otel`` or a tracer provider
there is none."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from yirangmq.consumer.delivery import HandlerDelivery, HandlerOutcome, Reject, Retry, invalid, of_error, of_value
from yirangmq.consumer.lease_table import ConsumerQueues, HeldLease, LeaseTable
from yirangmq.consumer.routes import HandlerRoute
from yirangmq.consumer.settler import ConsumerCounters, Fail, LeaseOutcome, Settler, log, log_fields, thread
from yirangmq.core.backoff import Backoff
from yirangmq.core.consumer_registry import WISHES, ConsumerState
from yirangmq.core.errors import BadInput, MissingExtra, NotAllowed, QueueError
from yirangmq.core.message import MAX_TRACEBACK, Reason, bounded_failure_text
from yirangmq.format.delivery import LeasedMessage
from yirangmq.format.trace_context import parent_of, provider

# -- pause gate --------------------------------------------------------------------------------------------------------


class PauseGate:
    """Pause gate of a run: running, paused, draining or stopped. Thread-safe. After draining it never runs again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = ConsumerState.RUNNING
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Add a listener. It is called after each state change, in the thread that made it."""
        self._listeners.append(listener)

    @property
    def state(self) -> ConsumerState:
        return self._state

    @property
    def is_open(self) -> bool:
        return self._state is ConsumerState.RUNNING

    @property
    def is_closed(self) -> bool:
        """True if no message will be fetched any more."""
        return self._state in (ConsumerState.DRAINING, ConsumerState.STOPPED)

    def apply_request(self, wish: str) -> bool:
        """Obey an operator's request: ``pause``, ``resume`` or ``drain``. Return False if it changes nothing."""
        return self.set_state(WISHES[wish])

    def set_state(self, state: ConsumerState) -> bool:
        with self._changed:
            if state is self._state or (self.is_closed and state is not ConsumerState.STOPPED):
                return False
            self._state = state
            self._changed.notify_all()
        for listener in self._listeners:
            listener()
        return True

    def wait_open(self) -> bool:
        """Wait while paused. Return False if messages will never be fetched again."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not ConsumerState.PAUSED)
            return self.is_open

    def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until the gate's state changes."""
        with self._changed:
            before = self._state
            self._changed.wait_for(lambda: self._state is not before, seconds)


# -- poison detection --------------------------------------------------------------------------------------------------

MAX_REMEMBERED = 10_000
"""Upper bound of remembered messages; the ones that failed longest ago are evicted first."""


class Poison:
    """Poison detection: a message with ``after`` equal faults in a row is poison. 0 disables it."""

    def __init__(self, after: int = 0) -> None:
        self._after = after
        self._guard = threading.Lock()
        self._faults: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()

    def apply(self, queue: str, id: str, outcome: HandlerOutcome) -> HandlerOutcome:
        """Return the outcome, or one that makes the message a dead letter if the limit is reached."""
        if not self._after:
            return outcome
        with self._guard:
            fault, times = self._faults.pop((queue, id), ("", 0))
            if not outcome.kind:
                return outcome
            times = times + 1 if fault == outcome.kind else 1
            if times < self._after:
                self._faults[queue, id] = (outcome.kind, times)
                if len(self._faults) > MAX_REMEMBERED:
                    self._faults.popitem(last=False)
                return outcome
        text = f"{times} times {outcome.kind}, the last time: {outcome.text}"
        return HandlerOutcome(Reason.POISON, bounded_failure_text(text, MAX_TRACEBACK), kind=outcome.kind)


# -- state that the parts of a run share -------------------------------------------------------------------------------


class Budget:
    """Limit of messages that may still be leased; None: unlimited. Unused reservations are returned."""

    def __init__(self, most: int | None) -> None:
        self._left = most
        self._asked = 0
        self._guard = threading.Lock()

    def take(self, wanted: int) -> int:
        if self._left is None:
            return wanted
        with self._guard:
            given = min(wanted, self._left)
            self._left -= given
            self._asked += given
            return given

    def settle(self, asked: int, got: int) -> None:
        """Return the unused part of a reservation: ``asked`` were reserved and ``got`` were used."""
        if self._left is not None:
            with self._guard:
                self._asked -= asked
                self._left += asked - got

    @property
    def is_spent(self) -> bool:
        with self._guard:
            return self._left == 0 and self._asked == 0


@dataclass(frozen=True, slots=True)
class RunState:
    """State shared by the parts of a run."""

    queues: ConsumerQueues
    name: str
    lease_seconds: float | None
    gate: PauseGate
    leases: LeaseTable
    settler: Settler
    tally: ConsumerCounters
    poison: Poison
    budget: Budget
    until_empty: bool
    fail: Fail


# -- span --------------------------------------------------------------------------------------------------------------


def handler_span(taken: LeasedMessage, queue: str) -> AbstractContextManager[Any]:
    """Return the OpenTelemetry span of one handler call. It records an error of the handler."""
    found = provider()
    if found is None:
        return nullcontext()
    from opentelemetry import trace

    attributes: dict[str, str | int] = {
        "messaging.system": "yirangmq",
        "messaging.destination.name": queue,
        "messaging.message.id": taken.id,
        "messaging.operation.name": "handle",
        "yirangmq.attempt": taken.attempt,
    }
    tracer = found.get_tracer("yirangmq")
    return tracer.start_as_current_span(f"handle {queue}", parent_of(taken.header), trace.SpanKind.CONSUMER, attributes)


# -- worker pool -------------------------------------------------------------------------------------------------------

WAIT_SECONDS = 0.5
"""Upper bound of one waiting lease request, in seconds. A pause or a drain takes effect after that at the latest."""
SHORT_SLEEP_SECONDS = 0.02
BACKOFF = Backoff(first=0.1, limit=5.0)
"""Backoff between two attempts while the server cannot be reached, in seconds."""
MAX_UNSETTLED = 1_000
"""High-water mark of outcomes not yet settled. Above it the fetch thread waits (backpressure)."""
FATAL_ERRORS = (BadInput, NotAllowed, MissingExtra)


class WorkerPool:
    """Worker pool of one queue: a fetch thread and ``concurrency`` handler threads.

    ``changed`` is called when the fetch thread has ended or found the queue empty."""

    def __init__(self, route: HandlerRoute, run_state: RunState, changed: Callable[[], None]) -> None:
        self.route = route
        self._run_state = run_state
        self._changed = changed
        lock = threading.Lock()
        self._room_made = threading.Condition(lock)
        self._work_come = threading.Condition(lock)
        self._queued: deque[HeldLease] = deque()
        self._active: set[HeldLease] = set()
        """Leases that a handler thread works on, even if their results no longer count."""
        self._stopped = False
        self._schemas: Mapping[str, Any] = {}
        self.is_fetching = True
        self.empty_at = -1
        """Number of messages this consumer had finished when it found this queue empty. -1 if it did not, or while a
        fetch is in progress."""

    def start(self) -> None:
        run_state, name = self._run_state, self.route.queue
        run_state.gate.add_listener(self._gate_moved)
        for number in range(self.route.concurrency):
            thread(self._work, f"{name}-{number}", run_state.fail).start()
        thread(self._fetch, f"fetch-{name}", run_state.fail).start()

    def stop(self) -> None:
        """End the threads: idle ones now, the others after their handler."""
        with self._work_come:
            self._stopped = True
            self._work_come.notify_all()

    @property
    def busy(self) -> int:
        """Number of threads inside a handler."""
        return len(self._active)

    @property
    def stuck(self) -> int:
        """Number of threads inside a handler with a result that no longer counts."""
        with self._room_made:
            return self._stuck()

    def _stuck(self) -> int:
        return sum(held.is_abandoned for held in self._active)

    def release_if_stuck(self) -> None:
        """Release prefetched messages if every handler thread is stuck, so that other consumers get them."""
        if self.stuck == self.route.concurrency:
            self._release_waiting()

    # -- fetching -------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        failures = 0
        try:
            while allowed := self._allowed():
                try:
                    taken = self._take(allowed)
                except Exception as error:
                    if _is_fatal(error):
                        self._run_state.fail(error)
                        return
                    failures += 1
                    if failures == 1:
                        log.warning(
                            "lease_request_failed", extra={"values": {"queue": self.route.queue, "error": str(error)}}
                        )
                    self._run_state.gate.sleep(BACKOFF.delay(failures))
                    continue
                failures = 0
                if not taken and self._run_state.until_empty:
                    self._changed()
                    self._run_state.gate.sleep(SHORT_SLEEP_SECONDS)
        finally:
            self.is_fetching = False
            self._changed()

    def _take(self, allowed: int) -> Sequence[LeasedMessage]:
        run_state = self._run_state
        mark = run_state.tally.summary.total
        wait = WAIT_SECONDS if not run_state.until_empty else SHORT_SLEEP_SECONDS if run_state.leases else 0.0
        taken: Sequence[LeasedMessage] = ()
        self.empty_at = -1
        asked_at = time.monotonic()
        try:
            taken = run_state.queues.lease(
                self.route.queue, allowed, wait=wait, lease_seconds=run_state.lease_seconds, consumer=run_state.name
            )
        finally:
            run_state.budget.settle(allowed, len(taken))
        if taken:
            self._receive(taken, asked_at)
        else:
            self.empty_at = mark
        return taken

    def _allowed(self) -> int:
        """Wait for capacity and an open gate. Return how many messages to lease; 0: stop fetching."""
        gate = self._run_state.gate
        while gate.wait_open() and not self._run_state.budget.is_spent:
            with self._room_made:
                self._room_made.wait_for(lambda: self._capacity() > 0 or not gate.is_open)
                capacity = self._capacity()
            if self._run_state.settler.backlog >= MAX_UNSETTLED:
                gate.sleep(SHORT_SLEEP_SECONDS)
            elif gate.is_open and (allowed := self._run_state.budget.take(capacity)):
                return allowed
            elif gate.is_open:
                gate.sleep(SHORT_SLEEP_SECONDS)
        return 0

    def _capacity(self) -> int:
        if self._stuck() == self.route.concurrency:
            return 0
        return self.route.concurrency + self.route.prefetch - len(self._active) - len(self._queued)

    def _receive(self, taken: Sequence[LeasedMessage], asked_at: float) -> None:
        policy = taken[0].policy
        self._schemas = policy["schemas"]
        span = self._run_state.lease_seconds or policy["visibilityTimeoutSec"]
        leases = self._run_state.leases.add(taken, span, asked_at)
        if self._run_state.gate.is_open:
            with self._work_come:
                self._queued.extend(leases)
                self._work_come.notify(len(leases))
        if not self._run_state.gate.is_open:
            self._release_waiting()

    def _gate_moved(self) -> None:
        if not self._run_state.gate.is_open:
            self._release_waiting()
        with self._room_made:
            self._room_made.notify()

    def _release_waiting(self) -> None:
        """Release the messages that no handler has received."""
        withdrawn = set(self._run_state.leases.withdraw(self.route.queue))
        with self._room_made:
            self._queued = deque(held for held in self._queued if held not in withdrawn)
        self._run_state.settler.settle([LeaseOutcome(held, None) for held in withdrawn])

    # -- handling -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (held := self._next()) is not None:
            try:
                self._handle(held)
            finally:
                with self._room_made:
                    self._active.discard(held)
                    self._room_made.notify()

    def _next(self) -> HeldLease | None:
        with self._work_come:
            self._work_come.wait_for(lambda: self._queued or self._stopped)
            if not self._queued:
                return None
            held = self._queued.popleft()
            self._active.add(held)
            return held

    def _handle(self, held: HeldLease) -> None:
        run_state, timeout = self._run_state, self.route.timeout
        if not run_state.leases.start(held, None if timeout is None else time.monotonic() + timeout):
            return
        outcome = self._outcome(held.taken, HandlerDelivery(held))
        if run_state.leases.finish(held):
            run_state.settler.settle(
                [LeaseOutcome(held, run_state.poison.apply(self.route.queue, held.taken.id, outcome))]
            )
        else:
            taken = held.taken
            log.warning("handler_finished_late", extra=log_fields(taken))

    def _outcome(self, taken: LeasedMessage, delivery: HandlerDelivery) -> HandlerOutcome:
        complaint = self.route.validation.complaint(delivery, self._schemas)
        if complaint:
            log.warning("message_invalid", extra=log_fields(taken, error=complaint))
            return invalid(complaint)
        try:
            with handler_span(taken, self.route.queue):
                outcome = of_value(self.route.handle(delivery))
            if outcome.kind:
                log.warning("handler_failed", extra=log_fields(taken, error=outcome.text))
            return outcome
        except (Retry, Reject) as asked:
            return of_error(asked)
        except BaseException as error:  # also SystemExit: one message must not end the thread
            _log_handler_error(taken, error)
            return of_error(error)


def _log_handler_error(taken: LeasedMessage, error: BaseException) -> None:
    """Log a handler's error, even if the error cannot be printed."""
    try:
        log.warning("handler_failed", exc_info=True, extra=log_fields(taken))
    except Exception:  # the error cannot be printed, and the log handler raised
        log.warning("handler_failed", extra=log_fields(taken, error=type(error).__name__))


def _is_fatal(error: Exception) -> bool:
    """Return True if a retry cannot help: invalid input, no permission, or a bug here."""
    return isinstance(error, FATAL_ERRORS) or not isinstance(error, QueueError | OSError)
