"""Event-loop watchdog, and busy polling of the loop between quick requests.

While the server works, a timer of the loop beats every ``BEAT_SECONDS``, and a thread checks at the same interval. Each
beat's delay goes to a histogram. If the loop is blocked for ``WARN_SECONDS``, the thread immediately logs
``loop_stalled`` with the stack of the loop's thread. When the loop runs again it logs ``loop_resumed`` with the total
time. One second after the last commit the beats stop and the thread sleeps: an idle server has no wakeups from it.

The thread measures time only while it is itself scheduled on time. A stopped process (SIGSTOP, a suspended machine) and
a machine without processor time therefore do not count as a blocked loop; they do count in the histogram.

Busy polling: after it has sent replies, the loop reschedules itself for up to 0.15 ms instead of blocking. A client
that sends one request at a time has sent its next one by then. ``core.adaptive_spin`` decides the time. Loop thread
only."""

import sys
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from yirangmq.core.adaptive_spin import AdaptiveSpin
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.observe.logs import log, values
from yirangmq.observe.metrics import Histogram

# -- watchdog ----------------------------------------------------------------------------------------------------------

BEAT_SECONDS = 0.1
WARN_SECONDS = 0.2
LINGER_BEATS = 10
"""Beats without a commit after which the watchdog becomes idle."""
LOG_SECONDS = 1.0
"""Minimum seconds between two warnings. Further delays are counted but not logged."""
FRAMES = 12
"""Number of innermost stack frames in the log."""
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DEGRADED_SECONDS = 5.0
"""A loop blocked for at least this time makes health degraded ..."""
DEGRADED_FOR_SECONDS = 60.0
"""... for this many seconds after it resumed."""


class Timers(Protocol):
    """The part of an event loop that the watchdog uses."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Any: ...


class LoopWatchdog:
    """Watchdog of the event loop. Created on the loop's thread; all public methods are called there.

    ``is_always_on`` disables the idle state, for tests."""

    def __init__(self, loop: Timers, *, is_always_on: bool = False) -> None:
        self._loop = loop
        self._is_always_on = is_always_on
        self._loop_thread = threading.get_ident()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._is_on = False
        self._is_active = False
        self._idle_beats = 0
        self._due = 0.0
        """Monotonic time at which the next beat is due."""
        self._overdue_beat: tuple[float, float] = (0.0, 0.0)
        """Due time of the latest overdue beat, and the seconds it was overdue. Written by the watchdog thread."""
        self._logged_at = float("-inf")
        self._latest: tuple[float, float] | None = None
        self.delays = Histogram(BOUNDS)
        self.longest = 0.0
        """Longest time for which the loop was blocked, in seconds."""

    # -- on the loop's thread -------------------------------------------------------------------------------------

    def note_activity(self) -> None:
        """Note activity of the server and start the beats. Called before each commit."""
        self._is_active = True
        if not self._is_on:
            self._start_beats()

    def observe_delay(self, seconds: float) -> None:
        """Add the delay of another timer of the loop, which also runs while the watchdog is idle."""
        self.delays.observe(max(0.0, seconds))
        if seconds > WARN_SECONDS and not self._is_on:
            self._warn_stalled(seconds, None)

    def _start_beats(self) -> None:
        if self._stopped.is_set():
            return
        self._is_on, self._idle_beats = True, 0
        self._schedule_beat()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="yirangmq-watchdog", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the beats still measure delays
                log.warning("watchdog_not_started", extra=values(error=str(error)))
        self._wake.set()

    def _schedule_beat(self) -> None:
        self._due = time.monotonic() + BEAT_SECONDS
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        delay, blocked = time.monotonic() - self._due, self._blocked()
        self.delays.observe(max(0.0, delay))
        if blocked > WARN_SECONDS:
            self._latest = blocked, time.monotonic()
            self._logged_at = time.monotonic()
            log.warning("loop_resumed", extra=values(seconds=round(delay, 3), blocked=round(blocked, 3)))
        elif delay > WARN_SECONDS:
            self._warn_stalled(delay, None)
        self._idle_beats = 0 if self._is_active else self._idle_beats + 1
        self._is_active = False
        if self._stopped.is_set() or (self._idle_beats >= LINGER_BEATS and not self._is_always_on):
            self._is_on = False
        else:
            self._schedule_beat()

    def _blocked(self) -> float:
        """Return the seconds for which the thread saw the current beat overdue; 0 if it did not."""
        due, seconds = self._overdue_beat
        return seconds if due == self._due else 0.0

    def reasons(self) -> list[HealthReason]:
        """Return the reasons for degraded health."""
        if self._latest is None:
            return []
        seconds, ago = self._latest[0], time.monotonic() - self._latest[1]
        if seconds < DEGRADED_SECONDS or ago > DEGRADED_FOR_SECONDS:
            return []
        return [health_reason("loop_stalled", f"{ago:.0f} s ago the event loop was blocked for {seconds:.1f} s")]

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    # -- on the watchdog's thread ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        on_time_since = time.monotonic()
        while not self._stopped.is_set():
            if not self._is_on:
                self._wake.clear()
                if not self._is_on:  # the loop may have set it in between
                    self._wake.wait()
                on_time_since = time.monotonic()
                continue
            slept_at = time.monotonic()
            self._stopped.wait(BEAT_SECONDS)
            now, due = time.monotonic(), self._due
            if now - slept_at > 2 * BEAT_SECONDS:
                on_time_since = now
            overdue = now - max(due, on_time_since)
            if overdue > WARN_SECONDS and self._is_on:
                is_new = self._overdue_beat[0] != due
                self._overdue_beat = due, overdue
                self.longest = max(self.longest, overdue)
                if is_new:
                    self._warn_stalled(overdue, self._stack())

    def _stack(self) -> str:
        import traceback  # loaded only when a loop stalls

        frame = sys._current_frames().get(self._loop_thread)
        return "" if frame is None else "".join(traceback.format_stack(frame)[-FRAMES:])

    def _warn_stalled(self, seconds: float, stack: str | None) -> None:
        """Log a stall, at most once per ``LOG_SECONDS``; ``loop_resumed`` is always logged, because it ends a stall."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.warning("loop_stalled", extra=values(seconds=round(seconds, 3), stack=stack))


# -- busy polling ------------------------------------------------------------------------------------------------------

MAX_POLL_SECONDS = 0.00015
"""Maximum seconds of polling after a reply. It covers clients that send the next request immediately."""


class BusyPoll:
    """Busy poll of the event loop after replies. Used from the loop's thread only."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], Any],
        yield_processor: Callable[[], None],
        seconds: Callable[[], float] = perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._yield_processor = yield_processor
        self._seconds = seconds
        self._spin = AdaptiveSpin(MAX_POLL_SECONDS)
        self._since = 0.0
        """Time of the latest replies; 0 if a request has arrived since."""
        self._until = 0.0
        self._is_polling = False

    def on_request(self) -> None:
        """Note that requests have arrived."""
        if self._since:
            self._spin.add_wait(self._seconds() - self._since)
            self._since = 0.0

    def on_reply(self) -> None:
        """Note that replies were sent, and start polling if the adaptive spin allows it."""
        self._since = self._seconds()
        spin_seconds = self._spin.seconds
        self._until = self._since + spin_seconds
        if spin_seconds and not self._is_polling:
            self._is_polling = True
            self._call_soon(self._poll)

    def _poll(self) -> None:
        """Yield the processor and reschedule. The loop polls its sockets between two calls."""
        if self._since and (now := self._seconds()) < self._until:
            self._yield_processor()
            if self._seconds() - now > self._spin.preemption_seconds:
                self._spin.note_preemption()
            self._call_soon(self._poll)
        else:
            self._is_polling = False
