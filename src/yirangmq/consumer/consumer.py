"""Public consumer class, and a single run from first lease to last ack.

    consumer = Consumer("sqlite:queue.db", concurrency=4)
    @consumer.handler("mail")
    def send(delivery): ...
    consumer.run()

The handler decides the outcome: returning acks the message, ``Retry`` and ``Reject`` do as their names say, and any
other error nacks it.

Run: starts the parts, waits for events, drains, ends. Everything that may end a run arrives in a single inbox:
signals, calls by the program, the operator's request, a fatal error."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, TypeVar, cast

from yirangmq.consumer.delivery import timed_out
from yirangmq.consumer.heartbeat import Heartbeat
from yirangmq.consumer.lease_table import ConsumerQueues, LeaseStage, LeaseTable
from yirangmq.consumer.routes import Handle, HandlerRoute, Validation, Validator
from yirangmq.consumer.settler import ConsumerCounters, ConsumerSummary, LeaseOutcome, Settler, log
from yirangmq.consumer.worker_pool import Budget, PauseGate, Poison, RunState, WorkerPool
from yirangmq.core import validation
from yirangmq.core.consumer_registry import ConsumerState
from yirangmq.core.errors import BadInput
from yirangmq.core.stop_signals import StopSignals, StopStep

# -- run ---------------------------------------------------------------------------------------------------------------

SIGNAL_CHECK_SECONDS = 0.5
"""Upper bound of one wait of the main thread. Its signal handlers run between two bytecodes. Two signals at the same
time, such as SIGTERM and SIGINT, may arrive without ending a wait in the interpreter's C code."""
FINAL_SETTLE_SECONDS = 5.0
"""Upper bound, in seconds, of the wait for the last results after all other parts have ended."""
POLL_SECONDS = 0.02
FORCED_STOP_SECONDS = 0.2
"""Upper bound of that wait, in seconds, after a second signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunSettings:
    """Options of one run of a consumer."""

    name: str
    lease_seconds: float | None
    drain_seconds: float
    poison_after: int
    until_empty: bool
    limit: int | None


class Stop(Exception):
    """Reason to drain."""


class Interrupted(Exception):
    """A later signal arrived while the run drained, so it ends without waiting."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped at once by signal {signal}")
        self.signal = signal


class ConsumerRun:
    """One run of a consumer: owns the worker pools, heartbeat and settler, from first lease to last ack."""

    def __init__(
        self, queues: ConsumerQueues, routes: Sequence[HandlerRoute], settings: ConsumerRunSettings, inbox: Any
    ) -> None:
        self._settings = settings
        self._inbox: SimpleQueue[BaseException | None] = inbox
        self._started_ms = time.time_ns() // 1_000_000
        self._is_reporting = True
        hurried = threading.Event()
        self.gate = PauseGate()
        self._tally = ConsumerCounters()
        self._leases = LeaseTable(hurried.set, self._wake)
        self._settler = Settler(queues, self._leases, self._tally, inbox.put)
        self._run_state = RunState(
            queues=queues,
            name=settings.name,
            lease_seconds=settings.lease_seconds,
            gate=self.gate,
            leases=self._leases,
            settler=self._settler,
            tally=self._tally,
            poison=Poison(settings.poison_after),
            budget=Budget(settings.limit),
            until_empty=settings.until_empty,
            fail=inbox.put,
        )
        self._pools = [WorkerPool(route, self._run_state, self._wake) for route in routes]
        self._heartbeat = Heartbeat(self._run_state, hurried, self._report)
        self.gate.add_listener(self._heartbeat.report_soon)
        self.gate.add_listener(self._wake)

    def run(self) -> ConsumerSummary:
        """Run until drained. A fatal error is raised after draining."""
        queues = [pool.route.queue for pool in self._pools]
        log.info("consumer_started", extra={"values": {"consumer": self._settings.name, "queues": queues}})
        self._settler.start()
        self._heartbeat.start()
        for pool in self._pools:
            pool.start()
        join_seconds = FORCED_STOP_SECONDS
        try:
            cause = self._until_stopped()
            if isinstance(cause, Interrupted):
                raise cause
            self._drain()
            join_seconds = FINAL_SETTLE_SECONDS
            if cause is not None and not isinstance(cause, Stop):
                raise cause
            return self._tally.summary
        finally:
            self._end(join_seconds)

    def _wake(self) -> None:
        self._inbox.put(None)

    # -- event loop -----------------------------------------------------------------------------------------------

    def _until_stopped(self) -> BaseException | None:
        while True:
            try:
                event = self._inbox.get(timeout=SIGNAL_CHECK_SECONDS)
            except Empty:
                continue
            if event is not None or self.gate.is_closed or self._is_finished():
                return event

    def _is_finished(self) -> bool:
        """Return True if no lease is held and no more will be fetched.

        With ``until_empty`` also if every queue was empty after the last message was settled."""
        if self._leases:
            return False
        if not any(pool.is_fetching for pool in self._pools):
            return True
        if not self._settings.until_empty:
            return False
        total = self._tally.summary.total
        return all(pool.empty_at == total for pool in self._pools)

    def _report(self) -> None:
        """Send the heartbeat and obey the operator's request. If the broker does not answer, work continues."""
        for pool in self._pools:
            pool.release_if_stuck()
        try:
            wish = self._run_state.queues.consumer_beat(self._heartbeat_values(self.gate.state))
        except Exception as error:
            if self._is_reporting:
                log.warning("consumer_report_failed", extra={"values": {"error": str(error)}})
            self._is_reporting = False
            return
        self._is_reporting = True
        if wish and self.gate.apply_request(wish):
            log.info("consumer_state_changed", extra={"values": {"state": self.gate.state.value}})

    def _heartbeat_values(self, state: ConsumerState) -> dict[str, Any]:
        summary = self._tally.summary
        return {
            "consumerId": self._settings.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": [pool.route.queue for pool in self._pools],
            "startedAt": self._started_ms,
            "state": state.value,
            "inWork": self._leases.count(LeaseStage.WORKING),
            "done": summary.done,
            "failed": summary.failed + summary.rejected + summary.retried,
            "lost": summary.lost,
            "stuck": sum(pool.stuck for pool in self._pools),
        }

    # -- drain and close ------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Stop fetching, release messages not yet in a handler, and finish those in a handler, within
        ``drain_seconds``."""
        if self.gate.set_state(ConsumerState.DRAINING):
            log.info("drain_started", extra={"values": {"count": len(self._leases)}})
        deadline = time.monotonic() + self._settings.drain_seconds
        if self._wait_done(deadline):
            return
        cut_off = self._leases.cut_off()
        text = f"the consumer stopped, and {self._settings.drain_seconds:g} s were not enough for the handler to end"
        log.warning("drain_timed_out", extra={"values": {"count": len(cut_off)}})
        self._settler.settle([LeaseOutcome(held, timed_out(text)) for held in cut_off])
        self._cancel(now=False)
        if self._settler.is_alive:
            self._wait_done(time.monotonic() + FINAL_SETTLE_SECONDS)
        self._wait_cancelled(time.monotonic() + FINAL_SETTLE_SECONDS)

    def _wait_done(self, deadline: float) -> bool:
        while self._leases or any(pool.is_fetching for pool in self._pools):
            left = deadline - time.monotonic()
            try:
                event = self._inbox.get(timeout=max(0.0, min(left, SIGNAL_CHECK_SECONDS)))
            except Empty:
                if left > SIGNAL_CHECK_SECONDS:
                    continue
                return False
            if isinstance(event, Interrupted):
                raise event
        return True

    def _cancel(self, *, now: bool) -> None:
        for pool in self._pools:
            if pool.route.cancel is not None:
                pool.route.cancel(now)

    def _wait_cancelled(self, deadline: float) -> None:
        """Give programs that were sent a stop signal some time to end."""
        asked = [pool for pool in self._pools if pool.route.cancel is not None]
        while any(pool.busy for pool in asked) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def _end(self, join_seconds: float) -> None:
        self.gate.set_state(ConsumerState.STOPPED)
        for pool in self._pools:
            pool.stop()
        self._cancel(now=True)
        self._heartbeat.stop(join_seconds)
        self._settler.close(join_seconds)
        if self._is_reporting:
            self._report_stopped()

    def _report_stopped(self) -> None:
        try:
            self._run_state.queues.consumer_beat(self._heartbeat_values(ConsumerState.STOPPED))
        except Exception as error:
            log.debug("consumer_stop_report_failed", extra={"values": {"error": str(error)}})


# -- public class ------------------------------------------------------------------------------------------------------

Function = TypeVar("Function", bound=Handle)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Consumer:
    """Processes messages of one or more queues until it is stopped.

    ``source`` is an address such as ``sqlite:queue.db``, or queues that are open already (embedded or connected);
    those stay open.

    ``concurrency``: messages of each queue processed at the same time, each in a separate thread. ``timeout``:
    seconds after which the consumer no longer waits for a handler. ``lease_seconds``: length of the leases, extended
    while the handler runs (default: each queue's policy). ``drain_seconds``: how long a stop waits for messages in
    progress. ``poison_after``: a message that fails this many times in a row with the same error becomes a dead
    letter (0: only the policy decides). ``name``: the consumer's name for operators and in dead letters; set it if a
    process has two consumers."""

    def __init__(
        self,
        source: "ConsumerQueues | str",
        *,
        concurrency: int = 1,
        timeout: float | None = None,
        lease_seconds: float | None = None,
        drain_seconds: float = 30,
        poison_after: int = 0,
        name: str | None = None,
    ) -> None:
        validation.check_milliseconds(drain_seconds, "drainSeconds")
        if lease_seconds is not None:
            validation.check_milliseconds(lease_seconds, "leaseSeconds", least=0.001)
        self._source = source
        self._concurrency = concurrency
        self._timeout = timeout
        self._lease_seconds = lease_seconds
        self._drain_seconds = drain_seconds
        self._poison_after = validation.check_count(poison_after, "poisonAfter", least=0)
        self._name = None if name is None else validation.check_consumer(name, "name")
        self._routes: dict[str, HandlerRoute] = {}
        self._inbox: SimpleQueue[BaseException | None] = SimpleQueue()
        self._current_run: ConsumerRun | None = None
        self.stop_signals = StopSignals()
        """Signals of the current or the last run, for a program that handles signals before and after it."""

    # -- handlers -------------------------------------------------------------------------------------------------

    def handler(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        timeout: float | None = None,
        prefetch: int = 0,
        schema: Mapping[str, Any] | Validator | None = None,
    ) -> Callable[[Function], Function]:
        """Decorator that registers the handler of a queue.

        ``schema`` is a JSON Schema for the payload, or a function that receives the payload's value and raises an
        error if it is invalid. Invalid messages become dead letters."""

        def register(function: Function) -> Function:
            self.add(
                HandlerRoute(
                    queue=queue,
                    handle=function,
                    concurrency=self._concurrency if concurrency is None else concurrency,
                    timeout=self._timeout if timeout is None else timeout,
                    prefetch=prefetch,
                    validation=Validation(schema),
                )
            )
            return function

        return register

    def add(self, route: HandlerRoute) -> None:
        """Register a route; ``handler`` is the short form."""
        if route.queue in self._routes:
            raise BadInput(f"{route.queue!r} has a handler already", field="queue")
        self._routes[route.queue] = route

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, *, until_empty: bool = False, limit: int | None = None) -> ConsumerSummary:
        """Run until stopped: by ``stop``, an operator, SIGTERM or SIGINT (signals only in the main thread).

        Each of them drains. A signal more than a second after the first ends the run immediately. With ``until_empty``
        the run ends when no message is ready and none is in progress, with ``limit`` after that number of messages."""
        if not self._routes:
            raise BadInput("no queue has a handler", field="handler")
        if self._current_run is not None:
            raise BadInput("runs already", field="consumer")
        if limit is not None:
            validation.check_count(limit, "limit")
        self.stop_signals.clear()
        with _opened(self._source) as queues, self._signals():
            settings = ConsumerRunSettings(
                name=self._name or queues.consumer,
                lease_seconds=self._lease_seconds,
                drain_seconds=self._drain_seconds,
                poison_after=self._poison_after,
                until_empty=until_empty,
                limit=limit,
            )
            self._current_run = ConsumerRun(queues, list(self._routes.values()), settings, self._inbox)
            try:
                return self._current_run.run()
            except Interrupted as stopped:
                if stopped.signal == signal.SIGINT:
                    raise KeyboardInterrupt from None
                raise SystemExit(128 + stopped.signal) from None
            finally:
                self._current_run = None
                self._inbox = SimpleQueue()

    def stop(self) -> None:
        """Drain and end, called from another thread or from a handler. Returns immediately. A stop before ``run``
        ends that run as soon as it starts."""
        self._inbox.put(Stop())

    def pause(self) -> None:
        """Stop fetching messages; messages in progress continue."""
        if self._current_run is not None:
            self._current_run.gate.apply_request("pause")

    def resume(self) -> None:
        if self._current_run is not None:
            self._current_run.gate.apply_request("resume")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Make SIGTERM and SIGINT stop this consumer while it runs in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            step = self.stop_signals.receive(time.monotonic())
            if step is not StopStep.IGNORE:
                self._inbox.put(Stop() if step is StopStep.BEGIN else Interrupted(number))

        before = {number: signal.signal(number, on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old if old is not None else signal.SIG_DFL)


@contextmanager
def _opened(source: "ConsumerQueues | str") -> Iterator[ConsumerQueues]:
    if not isinstance(source, str):
        yield source
        return
    queues = _connect(source)
    try:
        yield queues
    finally:
        queues.close()


def _connect(address: str) -> ConsumerQueues:
    """Open the queues through the package's public function, imported by name: this layer must not depend on stores
    or sockets."""
    front = import_module("yirangmq")
    return cast("ConsumerQueues", getattr(front, "connect", front.open)(address))
