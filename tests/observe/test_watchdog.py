"""Loop watchdog: a blocked loop is measured, logged with its stack, told by health, and fails the test that runs it."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.loop_thread import OnThread
from tests.support.server_process import Daemon
from tests.support.wait import until
from yirangmq.observe import event_loop as module
from yirangmq.observe.event_loop import LINGER_BEATS, WARN_SECONDS, LoopWatchdog


async def serve(up: Callable[[], None], over: asyncio.Event) -> None:
    up()
    await over.wait()


def block_until(released: threading.Event) -> None:
    """As a lock does that another process holds."""
    released.wait()


def stalled(server: OnThread, seconds: float) -> None:
    """The loop is blocked until the watchdog has seen so much of it."""
    released = threading.Event()
    server.do(lambda: block_until(released))
    until(lambda: server.watchdog.longest > seconds)
    released.set()


def test_loop_stall_is_logged_with_its_stack_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    """On a machine without processor time the loop may be late before as well, which is logged without a stack."""
    server = OnThread(serve)

    def told(event: str) -> list[dict[str, Any]]:
        found: list[Any] = [record for record in caplog.records if record.msg == event]
        return [record.values for record in found]

    with caplog.at_level(logging.WARNING, "yirangmq"):
        server.start()
        while not any("block_until" in one["stack"] for one in told("loop_stalled") if one["stack"]):
            stalled(server, server.watchdog.longest + WARN_SECONDS)
        until(lambda: told("loop_resumed"))
    assert told("loop_resumed")[-1]["blocked"] >= WARN_SECONDS
    delays = server.watchdog.delays
    assert delays.counts[-1] - delays.counts[delays.bounds.index(0.1)] >= 1
    server.stop()


def test_loop_stall_above_the_bound_fails_the_test_that_runs_the_server() -> None:
    server = OnThread(serve, stall_seconds=0.3)
    server.start()
    stalled(server, 0.3)
    with pytest.raises(AssertionError, match="the event loop was blocked for 0"):
        server.stop()


def test_loop_stall_in_the_log_of_a_server_process_fails_its_test(tmp_path: Path) -> None:
    server = Daemon(tmp_path)
    events = [
        {"event": "loop_stalled", "seconds": 9.0, "stack": None},
        {"event": "loop_stalled", "seconds": 0.2, "stack": "File ..."},
    ]
    server.log.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    server.check_stalls(limit=1)
    with server.log.open("a") as log:
        log.write(json.dumps({"event": "loop_resumed", "seconds": 31.0, "blocked": 30.0}) + "\n")
    with pytest.raises(AssertionError, match="the event loop was blocked"):
        server.check_stalls(limit=1)


def test_health_loop_stalled_is_degraded_after_a_long_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEGRADED_SECONDS", 0.3)
    server = OnThread(serve)
    server.start()
    assert server.watchdog.reasons() == []
    stalled(server, 0.3)
    until(server.watchdog.reasons)
    [reason] = server.watchdog.reasons()
    assert (reason.code, reason.level) == ("loop_stalled", "degraded")
    monkeypatch.setattr(module, "DEGRADED_FOR_SECONDS", -1)
    assert server.watchdog.reasons() == []
    server.stop()


class Timers:
    """A loop whose timers run when the test says so."""

    def __init__(self) -> None:
        self.planned: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.planned.append(callback)

    def run(self) -> None:
        [callback], self.planned = self.planned, []
        callback()


def test_watchdog_of_an_idle_server_plans_nothing_and_wakes_with_the_next_commit() -> None:
    loop = Timers()
    watchdog = LoopWatchdog(loop)
    assert loop.planned == []
    assert threading.active_count() == len(threading.enumerate())
    watchdog.note_activity()
    for _ in range(LINGER_BEATS):
        loop.run()
    watchdog.note_activity()
    for _ in range(LINGER_BEATS + 1):
        loop.run()
    assert loop.planned == []
    watchdog.note_activity()
    assert len(loop.planned) == 1
    watchdog.stop()
    loop.run()
    assert loop.planned == []
    watchdog.note_activity()
    assert loop.planned == [], "it is over"
