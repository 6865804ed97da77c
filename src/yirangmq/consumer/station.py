"""One queue's place in a consumer: a thread that fetches as many messages as there is room for, and the threads that
work on them. Knows: its route, the kit. Does not know: other queues, signals, the operator."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from yirangmq.consumer.delivery import Delivery
from yirangmq.consumer.holdings import Holding
from yirangmq.consumer.journal import about, log
from yirangmq.consumer.kit import Kit
from yirangmq.consumer.outcomes import Outcome, Reject, Retry, invalid, of_error, of_value
from yirangmq.consumer.ports import Taken
from yirangmq.consumer.route import Route
from yirangmq.consumer.settler import Ending
from yirangmq.consumer.threads import thread
from yirangmq.consumer.tracing import handling
from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import BadInput, MissingExtra, NotAllowed, QueueError

WAIT_SECONDS = 0.5
"""One wait for messages; a pause or a drain is noticed after that at the latest."""
SHORT_REST = 0.02
BACKOFF = Backoff(first=0.1, limit=5.0)
"""Seconds between two attempts while the server cannot be reached."""
MOST_UNSETTLED = 1_000
"""Results on their way to the broker; more, and fetching waits for them."""
HOPELESS = (BadInput, NotAllowed, MissingExtra)


class Station:
    """``changed`` is called when the fetching has ended or found nothing."""

    def __init__(self, route: Route, kit: Kit, changed: Callable[[], None]) -> None:
        self.route = route
        self._kit = kit
        self._changed = changed
        lock = threading.Lock()
        self._room_made = threading.Condition(lock)
        self._work_come = threading.Condition(lock)
        self._line: deque[Holding] = deque()
        self._active: set[Holding] = set()
        """In the hands of a thread, whether its result still counts or not."""
        self._stopped = False
        self._schemas: Mapping[str, Any] = {}
        self.is_fetching = True
        self.empty_at = -1
        """How many messages this consumer had ended when this queue was found empty; -1: it was not, or is looked
        at just now."""

    def start(self) -> None:
        kit, name = self._kit, self.route.queue
        kit.gate.listen(self._gate_moved)
        for number in range(self.route.concurrency):
            thread(self._work, f"{name}-{number}", kit.fail).start()
        thread(self._fetch, f"fetch-{name}", kit.fail).start()

    def stop(self) -> None:
        """Threads that have nothing in work end now, the others when they have."""
        with self._work_come:
            self._stopped = True
            self._work_come.notify_all()

    @property
    def busy(self) -> int:
        """Threads inside a handler."""
        return len(self._active)

    @property
    def stuck(self) -> int:
        """Of those, the ones whose result no longer counts."""
        with self._room_made:
            return self._stuck()

    def _stuck(self) -> int:
        return sum(holding.is_forsaken for holding in self._active)

    def relieve(self) -> None:
        """If no thread is left that could begin them, what was leased in advance is for other consumers."""
        if self.stuck == self.route.concurrency:
            self._give_back()

    # -- taking ---------------------------------------------------------------------------------------------------

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
                        log.warning("nothing can be taken from %s, trying again: %s", self.route.queue, error)
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
        """How many to ask for, once there is room and the gate is open; 0: never again."""
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
        """What no handler has seen is for other consumers, at once."""
        withdrawn = set(self._kit.holdings.withdraw(self.route.queue))
        with self._room_made:
            self._line = deque(holding for holding in self._line if holding not in withdrawn)
        self._kit.settler.settle([Ending(holding, None) for holding in withdrawn])

    # -- working --------------------------------------------------------------------------------------------------

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
        outcome = self._outcome(holding.taken, Delivery(holding))
        if kit.holdings.finish(holding):
            kit.settler.settle([Ending(holding, kit.poison.judge(self.route.queue, holding.taken.id, outcome))])
        else:
            taken = holding.taken
            log.warning("message %s: its handler has ended, too late to count", taken.id, extra=about(taken))

    def _outcome(self, taken: Taken, delivery: Delivery) -> Outcome:
        complaint = self.route.validation.complaint(delivery, self._schemas)
        if complaint:
            log.warning("message %s is not fit: %s", taken.id, complaint, extra=about(taken))
            return invalid(complaint)
        try:
            with handling(taken, self.route.queue):
                outcome = of_value(self.route.handle(delivery))
            if outcome.kind:
                log.warning("message %s: %s", taken.id, outcome.text, extra=about(taken))
            return outcome
        except (Retry, Reject) as asked:
            return of_error(asked)
        except BaseException as error:  # also SystemExit: one message must not end the thread
            _tell(taken, error)
            return of_error(error)


def _tell(taken: Taken, error: BaseException) -> None:
    """Whatever the handler raised, and whoever prints it."""
    try:
        log.warning("message %s: its handler failed", taken.id, exc_info=True, extra=about(taken))
    except Exception:  # an error that cannot be printed, and a log that does not forgive that
        log.warning("message %s: its handler failed: %s", taken.id, type(error).__name__, extra=about(taken))


def _is_hopeless(error: Exception) -> bool:
    """Trying again cannot help: bad input, no permission, or a fault of ours."""
    return isinstance(error, HOPELESS) or not isinstance(error, QueueError | OSError)
