"""One run of a consumer, from the first lease to the last ack: starts the parts, hears what happens, drains, ends.

Everything that may end the run comes through one inbox: signals, the program, the operator, a fatal error."""

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from yirangmq.consumer.gate import Gate
from yirangmq.consumer.heartbeat import Heartbeat
from yirangmq.consumer.holdings import Holdings, Stage
from yirangmq.consumer.journal import log
from yirangmq.consumer.kit import Budget, Kit
from yirangmq.consumer.outcomes import too_slow
from yirangmq.consumer.poison import Poison
from yirangmq.consumer.ports import Queues
from yirangmq.consumer.route import Route
from yirangmq.consumer.settler import Ending, Settler
from yirangmq.consumer.station import Station
from yirangmq.consumer.tally import Summary, Tally
from yirangmq.core.consumer_registry import ConsumerState

LAST_WORDS_SECONDS = 5.0
"""For the last results after everything else has ended."""
LOOK_SECONDS = 0.02
NO_PATIENCE = 0.2
"""The same when a second signal asks to end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    name: str
    lease_seconds: float | None
    drain_seconds: float
    poison_after: int
    until_empty: bool
    limit: int | None


class Stop(Exception):
    """A reason to drain: ``signal`` is its number, 0 for none. The second signal ends the run at once."""

    def __init__(self, signal: int = 0) -> None:
        super().__init__(f"signal {signal}" if signal else "asked to stop")
        self.signal = signal


class Interrupted(Exception):
    """A second signal came: nothing more was waited for."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped at once by signal {signal}")
        self.signal = signal


class Shift:
    def __init__(self, queues: Queues, routes: Sequence[Route], settings: Settings, inbox: Any) -> None:
        self._settings = settings
        self._inbox: SimpleQueue[BaseException | None] = inbox
        self._started_ms = time.time_ns() // 1_000_000
        self._is_heard = True
        hurried = threading.Event()
        self.gate = Gate()
        self._tally = Tally()
        self._holdings = Holdings(hurried.set, self._wake)
        self._settler = Settler(queues, self._holdings, self._tally, inbox.put)
        self._kit = Kit(
            queues=queues,
            name=settings.name,
            lease_seconds=settings.lease_seconds,
            gate=self.gate,
            holdings=self._holdings,
            settler=self._settler,
            tally=self._tally,
            poison=Poison(settings.poison_after),
            budget=Budget(settings.limit),
            until_empty=settings.until_empty,
            fail=inbox.put,
        )
        self._stations = [Station(route, self._kit, self._wake) for route in routes]
        self._heartbeat = Heartbeat(self._kit, hurried, self._report)
        self.gate.listen(self._heartbeat.report_soon)
        self.gate.listen(self._wake)

    def run(self) -> Summary:
        """Until drained; raises what made going on senseless, after draining."""
        queues = ", ".join(station.route.queue for station in self._stations)
        log.info("consumer %s is at work on %s", self._settings.name, queues)
        self._settler.start()
        self._heartbeat.start()
        for station in self._stations:
            station.start()
        patience = NO_PATIENCE
        try:
            cause = self._until_stopped()
            self._drain(first_signal=isinstance(cause, Stop) and cause.signal != 0)
            patience = LAST_WORDS_SECONDS
            if cause is not None and not isinstance(cause, Stop):
                raise cause
            return self._tally.summary
        finally:
            self._end(patience)

    def _wake(self) -> None:
        self._inbox.put(None)

    # -- while it runs --------------------------------------------------------------------------------------------

    def _until_stopped(self) -> BaseException | None:
        while True:
            event = self._inbox.get()
            if event is not None or self.gate.is_shut or self._is_finished():
                return event

    def _is_finished(self) -> bool:
        """Nothing is in hand, and no more will be taken, or there is no more and ``until_empty`` was asked for."""
        if self._holdings:
            return False
        if not any(station.is_fetching for station in self._stations):
            return True
        if not self._settings.until_empty:
            return False
        total = self._tally.summary.total
        return all(station.empty_at == total for station in self._stations)

    def _report(self) -> None:
        """Tell of ourselves, do as wished. Where nobody listens, work goes on."""
        for station in self._stations:
            station.relieve()
        try:
            wish = self._kit.queues.consumer_beat(self._card(self.gate.state))
        except Exception as error:
            if self._is_heard:
                log.warning("an operator cannot see or steer this consumer: %s", error)
            self._is_heard = False
            return
        self._is_heard = True
        if wish and self.gate.follow(wish):
            log.info("%s, as an operator wished", self.gate.state.value)

    def _card(self, state: ConsumerState) -> dict[str, Any]:
        summary = self._tally.summary
        return {
            "consumerId": self._settings.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": [station.route.queue for station in self._stations],
            "startedAt": self._started_ms,
            "state": state.value,
            "inWork": self._holdings.count(Stage.WORKING),
            "done": summary.done,
            "failed": summary.failed + summary.rejected + summary.retried,
            "lost": summary.lost,
            "stuck": sum(station.stuck for station in self._stations),
        }

    # -- the end --------------------------------------------------------------------------------------------------

    def _drain(self, *, first_signal: bool) -> None:
        """Take no more, give back what was not begun, finish what was, as far as the time allows."""
        if self.gate.move(ConsumerState.DRAINING):
            log.info("draining: %d messages in hand", len(self._holdings))
        deadline = time.monotonic() + self._settings.drain_seconds
        if self._wait_done(deadline, first_signal):
            return
        cut = self._holdings.cut()
        text = f"the consumer stopped, and {self._settings.drain_seconds:g} s were not enough for the handler to end"
        log.warning("%d messages are given back unfinished", len(cut))
        self._settler.settle([Ending(holding, too_slow(text)) for holding in cut])
        self._cancel(now=False)
        if self._settler.is_alive:
            self._wait_done(time.monotonic() + LAST_WORDS_SECONDS, first_signal)
        self._wait_cancelled(time.monotonic() + LAST_WORDS_SECONDS)

    def _wait_done(self, deadline: float, signalled: bool) -> bool:
        while self._holdings or any(station.is_fetching for station in self._stations):
            try:
                event = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return False
            if isinstance(event, Stop) and event.signal:
                if signalled:
                    raise Interrupted(event.signal)
                signalled = True
        return True

    def _cancel(self, *, now: bool) -> None:
        for station in self._stations:
            if station.route.cancel is not None:
                station.route.cancel(now)

    def _wait_cancelled(self, deadline: float) -> None:
        """Programs that were asked to end get some time for it."""
        asked = [station for station in self._stations if station.route.cancel is not None]
        while any(station.busy for station in asked) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def _end(self, patience: float) -> None:
        self.gate.move(ConsumerState.STOPPED)
        for station in self._stations:
            station.stop()
        self._cancel(now=True)
        self._heartbeat.stop(patience)
        self._settler.close(patience)
        if self._is_heard:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        try:
            self._kit.queues.consumer_beat(self._card(ConsumerState.STOPPED))
        except Exception as error:
            log.debug("the last word was not heard: %s", error)
