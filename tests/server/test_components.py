"""The list of a server's components: the order of its start and of its stop, and what it reports."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon_thread import DaemonThread
from yirangmq.config.config import load
from yirangmq.core.errors import QueueError
from yirangmq.core.health import health_reason
from yirangmq.server.components import Component, Components
from yirangmq.server.lifecycle import MEMBERS
from yirangmq.server.server import Daemon, Secrets
from yirangmq.stores.memory import MemoryStore


class Work:
    is_idle = False


class Steps:
    """Components that note which of their hooks are called."""

    def __init__(self, *names: str) -> None:
        self.noted: list[str] = []
        self.components = Components([self.component(name) for name in names])

    def component(self, name: str) -> Component:
        def hook(verb: str) -> Any:
            return lambda: self.noted.append(f"{verb} {name}")

        async def opened() -> None:
            self.noted.append(f"open {name}")

        verbs = ("start", "pause", "tick", "drain", "close")
        return Component(name, open=opened, **{verb: hook(verb) for verb in verbs})


def test_components_start_in_the_order_of_the_list_and_stop_in_the_reverse_order() -> None:
    steps = Steps("first", "second")

    async def main() -> None:
        await steps.components.open()

    asyncio.run(main())
    for verb in ("start", "pause", "drain", "close"):
        getattr(steps.components, verb)()
    assert steps.noted == [
        "open first", "open second", "start first", "start second", "pause second", "pause first",
        "drain second", "drain first", "close second", "close first",
    ]  # fmt: skip


def test_components_are_all_closed_even_if_one_of_them_fails() -> None:
    closed: list[str] = []

    def fail() -> None:
        closed.append("second")
        raise QueueError("disk")

    components = Components(
        [
            Component("first", close=lambda: closed.append("first")),
            Component("second", close=fail),
            Component("third", close=lambda: closed.append("third")),
        ]
    )
    with pytest.raises(QueueError):
        components.close()
    assert closed == ["third", "second", "first"]


def test_components_that_are_still_busy_are_aborted_after_the_drain() -> None:
    aborted: list[str] = []
    busy, idle = Work(), Work()
    idle.is_idle = True
    components = Components(
        [
            Component("idle", busy=idle, abort=lambda: aborted.append("idle")),
            Component("late", busy=busy, pause=lambda: None, abort=lambda: aborted.append("late")),
            Component("without work"),
        ]
    )
    assert (components.is_idle, components.is_work_idle) == (False, False)
    assert components.abort()
    assert aborted == ["late"]
    busy.is_idle = True
    assert (components.is_idle, components.is_work_idle) == (True, True)
    assert not components.abort()
    assert aborted == ["late"]


def test_components_that_work_on_every_node_do_not_hold_up_a_handover() -> None:
    components = Components([Component("pages", busy=Work())])
    assert (components.is_idle, components.is_work_idle) == (False, True)


def test_component_facts_samples_and_reasons_are_collected() -> None:
    reason = health_reason("topics", "no disk")
    components = Components(
        [
            Component("one", status="topics", facts=lambda: None, reasons=lambda: [reason]),
            Component("two", facts=lambda: {"connections": 2}, samples=lambda: {"yirangmq_connections": [({}, 2)]}),
            Component("three"),
        ]
    )
    assert components.facts() == {"topics": None, "connections": 2}
    assert components.samples() == {"yirangmq_connections": [({}, 2)]}
    assert components.reasons() == [reason]


def test_server_components_stand_in_the_documented_order_of_their_start(tmp_path: Path) -> None:
    async def main() -> list[str]:
        config = load({}, {}, {"data": str(tmp_path), "store": "memory:", "http": "off"})
        daemon = Daemon(config, MemoryStore(), Secrets())
        return [component.name for component in daemon.components]

    assert asyncio.run(main()) == [
        "watchdog", "file access", "store", "monitoring", "topics", "batches", "schedules", "webhooks", "bridges",
        "check workers", "paged methods", "listeners", "alerting", "node",
    ]  # fmt: skip


def test_server_status_has_the_members_of_all_components(tmp_path: Path) -> None:
    server = DaemonThread(tmp_path, http="off", stomp="127.0.0.1:0")
    server.start()
    try:
        facts = server.daemon.components.facts()
    finally:
        server.stop()
    assert set(facts) <= set(MEMBERS)
    assert {"addresses", "connections", "topics", "bridges", "alerts", "stomp"} <= set(facts)
