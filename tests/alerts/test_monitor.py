"""Looks, the file and the sinks together: what is told, what is kept, what survives."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.parts import AlertMonitorHarness, play
from tests.support.wait import soon
from tests.support.webhook_endpoint import Endpoint, endpoint
from yirangmq.clock import SteadyClock
from yirangmq.core.errors import StoreError

FILE = "alerts/alerts.json"


def notices(there: Endpoint) -> list[tuple[str, str]]:
    told = [json.loads(sent.body) for sent in there.sent]
    return [(one["notice"], one["alert"]["id"]) for one in told]


def hooked(tmp_path: Path, act: Callable[[AlertMonitorHarness, Endpoint], Any], **settings: Any) -> None:
    async def whole() -> None:
        async with endpoint() as there:
            stage = AlertMonitorHarness(tmp_path, {"kind": "webhook", "url": there.url, "timeoutSec": 60}, **settings)
            stage.watch.start()
            try:
                await act(stage, there)
            finally:
                stage.watch.stop()

    asyncio.run(whole())


def test_alert_reaches_log_and_sink_once_and_so_does_its_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(stage: AlertMonitorHarness, there: Endpoint) -> None:
        stage.breaks()
        await soon(lambda: notices(there) == [("opened", "1")])
        looks = stage.looks
        await soon(lambda: stage.looks > looks + 3)
        stage.mends()
        await soon(lambda: notices(there) == [("opened", "1"), ("recovered", "1")])

    with caplog.at_level(logging.INFO, "yirangmq"):
        hooked(tmp_path, act)
    lines = [record.values for record in caplog.records if record.getMessage() == "alert_notified"]  # type: ignore[attr-defined]
    assert [(line["notice"], line["rule"]) for line in lines] == [
        ("opened", "store_refuses"),
        ("recovered", "store_refuses"),
    ]


def test_alert_and_its_ack_survive_a_restart(tmp_path: Path) -> None:
    async def first(stage: AlertMonitorHarness) -> None:
        stage.breaks()
        await soon(lambda: bool(stage.watch.alert_state.open))
        found = await stage.ack("1")
        assert found["acknowledgedBy"] == "ann"
        kept = json.loads((tmp_path / FILE).read_text())
        assert kept["open"][0]["acked_by"] == "ann", "an answer means: on disk"

    async def second(stage: AlertMonitorHarness) -> None:
        [alert] = stage.watch.alert_state.open.values()
        assert (alert.id, alert.acked_by) == ("1", "ann")
        stage.breaks("still")
        looks = stage.looks
        await soon(lambda: stage.looks > looks + 2)
        assert stage.watch.counts["opened"] == 1
        stage.mends()
        await soon(lambda: not stage.watch.alert_state.open)
        stage.breaks("again")
        await soon(lambda: [one.id for one in stage.watch.alert_state.open.values()] == ["2"])

    slow = {"settleSec": 0.5}
    play(lambda: AlertMonitorHarness(tmp_path, **slow), first)
    play(lambda: AlertMonitorHarness(tmp_path, **slow), second)


def test_alert_notice_that_was_not_sent_is_sent_after_a_restart(tmp_path: Path) -> None:
    nobody = {"kind": "webhook", "name": "chat", "url": "http://127.0.0.1:1/"}

    async def first(stage: AlertMonitorHarness) -> None:
        stage.breaks()
        await soon(lambda: stage.box("chat").failed > 0)

    async def second() -> None:
        async with endpoint() as there:
            stage = AlertMonitorHarness(tmp_path, nobody | {"url": there.url, "timeoutSec": 60}, settleSec=60)
            stage.watch.start()
            try:
                await soon(lambda: notices(there) == [("opened", "1")])
                await soon(lambda: json.loads((tmp_path / FILE).read_text())["pending"] == [])
            finally:
                stage.watch.stop()

    play(lambda: AlertMonitorHarness(tmp_path, nobody, settleSec=60), first)
    assert len(json.loads((tmp_path / FILE).read_text())["pending"]) == 1
    asyncio.run(second())


def test_alert_sink_that_hangs_blocks_neither_evaluation_nor_acks(tmp_path: Path) -> None:
    async def act(stage: AlertMonitorHarness, there: Endpoint) -> None:
        async def never(sent: object) -> bytes:
            await asyncio.Event().wait()
            return b""

        there.answer = never
        stage.breaks()
        await soon(lambda: len(there.sent) == 1)
        looks = stage.looks
        await soon(lambda: stage.looks > looks + 5)
        assert (await stage.ack("1"))["id"] == "1"

    hooked(tmp_path, act)


def test_alert_file_that_is_unreadable_is_set_aside_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "alerts").mkdir()
    (tmp_path / FILE).write_text('{"version": 1, "open": 5}')

    async def act(stage: AlertMonitorHarness) -> None:
        stage.breaks()
        await soon(lambda: (tmp_path / FILE).exists())

    play(lambda: AlertMonitorHarness(tmp_path), act)
    assert (tmp_path / "alerts/alerts.broken.json").read_text() == '{"version": 1, "open": 5}'
    assert "alerts_load_failed" in caplog.messages


def test_alert_is_sent_although_its_file_cannot_be_written_and_its_ack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "alerts").write_text("a file where the folder should be")

    async def act(stage: AlertMonitorHarness, there: Endpoint) -> None:
        stage.breaks()
        await soon(lambda: notices(there) == [("opened", "1")])
        with pytest.raises(StoreError, match="cannot be kept"):
            await stage.ack("1")

    hooked(tmp_path, act)


def test_alert_file_is_not_written_while_there_is_no_fault(tmp_path: Path) -> None:
    async def act(stage: AlertMonitorHarness) -> None:
        await soon(lambda: stage.looks > 3)

    play(lambda: AlertMonitorHarness(tmp_path), act)
    assert list(tmp_path.iterdir()) == []


def test_steady_clock_continues_whatever_the_wall_clock_does() -> None:
    wall, boot = [1_000_000], [500]
    clock = SteadyClock(lambda: wall[0], lambda: boot[0])
    assert (clock.now_ms(), clock.ahead_ms()) == (1_000_000, 0)
    wall[0] -= 60_000
    boot[0] += 1000
    assert (clock.now_ms(), clock.ahead_ms()) == (1_001_000, -61_000)
