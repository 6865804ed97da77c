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

from yirangmq.consumer.delivery import HandlerDelivery, Outcome, Reject, Retry, invalid, of_error, of_value
from yirangmq.consumer.lease_table import Holding, Holdings, Queues, Taken
from yirangmq.consumer.routes import Route
from yirangmq.consumer.settler import Ending, Fail, Settler, Tally, about, log, thread
from yirangmq.core.backoff import Backoff
from yirangmq.core.consumer_registry import WISHES, ConsumerState
from yirangmq.core.errors import BadInput, MissingExtra, NotAllowed, QueueError
from yirangmq.core.message import MAX_MESSAGE, Reason
from yirangmq.format.trace_context import parent_of, provider

# -- pause gate --------------------------------------------------------------------------------------------------------


class Gate:
    """Pause gate of a run: running, paused, draining or stopped. Thread-safe. After draining it never runs again."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._state = ConsumerState.RUNNING
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Add a listener. It is called after each state change, in the thread that made it."""
        self._listeners.append(listener)

    @property
    def state(self) -> ConsumerState:
        return self._state

    @property
    def is_open(self) -> bool:
        return self._state is ConsumerState.RUNNING

    @property
    def is_shut(self) -> bool:
        """True if no message will be fetched any more."""
        return self._state in (ConsumerState.DRAINING, ConsumerState.STOPPED)

    def follow(self, wish: str) -> bool:
        """Obey an operator's request: ``pause``, ``resume`` or ``drain``. Return False if it changes nothing."""
        return self.move(WISHES[wish])

    def move(self, state: ConsumerState) -> bool:
        with self._moved:
            if state is self._state or (self.is_shut and state is not ConsumerState.STOPPED):
                return False
            self._state = state
            self._moved.notify_all()
        for listener in self._listeners:
            listener()
        return True

    def wait_open(self) -> bool:
        """Wait while paused. Return False if messages will never be fetched again."""
        with self._moved:
            self._moved.wait_for(lambda: self._state is not ConsumerState.PAUSED)
            return self.is_open

    def rest(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until the gate's state changes."""
        with self._moved:
            before = self._state
            self._moved.wait_for(lambda: self._state is not before, seconds)


# -- poison detection --------------------------------------------------------------------------------------------------

MOST = 10_000
"""Upper bound of remembered messages; the ones that failed longest ago are evicted first."""


class Poison:
    """Poison detection: a message with ``after`` equal faults in a row is poison. 0 disables it."""

    def __init__(self, after: int = 0) -> None:
        self._after = after
        self._guard = threading.Lock()
        self._faults: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()

    def judge(self, queue: str, id: str, outcome: Outcome) -> Outcome:
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
                if len(self._faults) > MOST:
                    self._faults.popitem(last=False)
                return outcome
        text = f"{times} times {outcome.kind}, the last time: {outcome.text}"
        return Outcome(Reason.POISON, text[:MAX_MESSAGE], kind=outcome.kind)


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
class Kit:
    """State shared by the parts of a run."""

    queues: Queues
    name: str
    lease_seconds: float | None
    gate: Gate
    holdings: Holdings
    settler: Settler
    tally: Tally
    poison: Poison
    budget: Budget
    until_empty: bool
    fail: Fail


# -- span --------------------------------------------------------------------------------------------------------------


def handling(taken: Taken, queue: str) -> AbstractContextManager[Any]:
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
SHORT_REST = 0.02
BACKOFF = Backoff(first=0.1, limit=5.0)
"""Backoff between two attempts while the server cannot be reached, in seconds."""
MOST_UNSETTLED = 1_000
"""High-water mark of outcomes not yet settled. Above it the fetch thread waits (backpressure)."""
HOPELESS = (BadInput, NotAllowed, MissingExtra)


class Station:
    """Worker pool of one queue: a fetch thread and ``concurrency`` handler threads.

    ``changed`` is called when the fetch thread has ended or found the queue empty."""

    def __init__(self, route: Route, kit: Kit, changed: Callable[[], None]) -> None:
        self.route = route
        self._kit = kit
        self._changed = changed
        lock = threading.Lock()
        self._room_made = threading.Condition(lock)
        self._work_come = threading.Condition(lock)
        self._line: deque[Holding] = deque()
        self._active: set[Holding] = set()
        """Leases that a handler thread works on, even if their results no longer count."""
        self._stopped = False
        self._schemas: Mapping[str, Any] = {}
        self.is_fetching = True
        self.empty_at = -1
        """Number of messages this consumer had finished when it found this queue empty. -1 if it did not, or while a
        fetch is in progress."""

    def start(self) -> None:
        kit, name = self._kit, self.route.queue
        kit.gate.listen(self._gate_moved)
        for number in range(self.route.concurrency):
            thread(self._work, f"{name}-{number}", kit.fail).start()
        thread(self._fetch, f"fetch-{name}", kit.fail).start()

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
        return sum(holding.is_forsaken for holding in self._active)

    def relieve(self) -> None:
        """Release prefetched messages if every handler thread is stuck, so that other consumers get them."""
        if self.stuck == self.route.concurrency:
            self._give_back()

    # -- fetching -------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        failures = 0
        try:
            while allowed := self._allowed():
                try:
                    taken = self._take(allowed)
                except Exception as error:
                    if _is_hopeless(error):
                        self._kit.fail(error)
                        return
                    failures += 1
                    if failures == 1:
                        log.warning(
                            "lease_request_failed", extra={"values": {"queue": self.route.queue, "error": str(error)}}
                        )
                    self._kit.gate.rest(BACKOFF.delay(failures))
                    continue
                failures = 0
                if not taken and self._kit.until_empty:
                    self._changed()
                    self._kit.gate.rest(SHORT_REST)
        finally:
            self.is_fetching = False
            self._changed()

    def _take(self, allowed: int) -> Sequence[Taken]:
        kit = self._kit
        mark = kit.tally.summary.total
        wait = WAIT_SECONDS if not kit.until_empty else SHORT_REST if kit.holdings else 0.0
        taken: Sequence[Taken] = ()
        self.empty_at = -1
        asked_at = time.monotonic()
        try:
            taken = kit.queues.lease(
                self.route.queue, allowed, wait=wait, lease_seconds=kit.lease_seconds, consumer=kit.name
            )
        finally:
            kit.budget.settle(allowed, len(taken))
        if taken:
            self._receive(taken, asked_at)
        else:
            self.empty_at = mark
        return taken

    def _allowed(self) -> int:
        """Wait for capacity and an open gate. Return how many messages to lease; 0: stop fetching."""
        gate = self._kit.gate
        while gate.wait_open() and not self._kit.budget.is_spent:
            with self._room_made:
                self._room_made.wait_for(lambda: self._room() > 0 or not gate.is_open)
                room = self._room()
            if self._kit.settler.backlog >= MOST_UNSETTLED:
                gate.rest(SHORT_REST)
            elif gate.is_open and (allowed := self._kit.budget.take(room)):
                return allowed
            elif gate.is_open:
                gate.rest(SHORT_REST)
        return 0

    def _room(self) -> int:
        if self._stuck() == self.route.concurrency:
            return 0
        return self.route.concurrency + self.route.prefetch - len(self._active) - len(self._line)

    def _receive(self, taken: Sequence[Taken], asked_at: float) -> None:
        policy = taken[0].policy
        self._schemas = policy["schemas"]
        span = self._kit.lease_seconds or policy["visibilityTimeoutSec"]
        holdings = self._kit.holdings.add(taken, span, asked_at)
        if self._kit.gate.is_open:
            with self._work_come:
                self._line.extend(holdings)
                self._work_come.notify(len(holdings))
        if not self._kit.gate.is_open:
            self._give_back()

    def _gate_moved(self) -> None:
        if not self._kit.gate.is_open:
            self._give_back()
        with self._room_made:
            self._room_made.notify()

    def _give_back(self) -> None:
        """Release the messages that no handler has received."""
        withdrawn = set(self._kit.holdings.withdraw(self.route.queue))
        with self._room_made:
            self._line = deque(holding for holding in self._line if holding not in withdrawn)
        self._kit.settler.settle([Ending(holding, None) for holding in withdrawn])

    # -- handling -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (holding := self._next()) is not None:
            try:
                self._handle(holding)
            finally:
                with self._room_made:
                    self._active.discard(holding)
                    self._room_made.notify()

    def _next(self) -> Holding | None:
        with self._work_come:
            self._work_come.wait_for(lambda: self._line or self._stopped)
            if not self._line:
                return None
            holding = self._line.popleft()
            self._active.add(holding)
            return holding

    def _handle(self, holding: Holding) -> None:
        kit, timeout = self._kit, self.route.timeout
        if not kit.holdings.start(holding, None if timeout is None else time.monotonic() + timeout):
            return
        outcome = self._outcome(holding.taken, HandlerDelivery(holding))
        if kit.holdings.finish(holding):
            kit.settler.settle([Ending(holding, kit.poison.judge(self.route.queue, holding.taken.id, outcome))])
        else:
            taken = holding.taken
            log.warning("handler_finished_late", extra=about(taken))

    def _outcome(self, taken: Taken, delivery: HandlerDelivery) -> Outcome:
        complaint = self.route.validation.complaint(delivery, self._schemas)
        if complaint:
            log.warning("message_invalid", extra=about(taken, error=complaint))
            return invalid(complaint)
        try:
            with handling(taken, self.route.queue):
                outcome = of_value(self.route.handle(delivery))
            if outcome.kind:
                log.warning("handler_failed", extra=about(taken, error=outcome.text))
            return outcome
        except (Retry, Reject) as asked:
            return of_error(asked)
        except BaseException as error:  # also SystemExit: one message must not end the thread
            _tell(taken, error)
            return of_error(error)


def _tell(taken: Taken, error: BaseException) -> None:
    """Log a handler's error, even if the error cannot be printed."""
    try:
        log.warning("handler_failed", exc_info=True, extra=about(taken))
    except Exception:  # the error cannot be printed, and the log handler raised
        log.warning("handler_failed", extra=about(taken, error=type(error).__name__))


def _is_hopeless(error: Exception) -> bool:
    """Return True if a retry cannot help: invalid input, no permission, or a bug here."""
    return isinstance(error, HOPELESS) or not isinstance(error, QueueError | OSError)
