"""Alerts as they run, with facts in the test's hands and real sinks."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from yirangmq.alerts.monitor import AlertFile, AlertMonitor
from yirangmq.alerts.outbox import Outbox, create_channel
from yirangmq.clock import SteadyClock, SystemClock
from yirangmq.core.alert_rules import ServerFacts
from yirangmq.core.alert_settings import AlertSettings, read_settings
from yirangmq.core.errors import QueueError
from yirangmq.core.webhook import OutgoingNetworks
from yirangmq.webhooks.webhooks import read_secret

PATIENCE = 60.0
NOTICE: dict[str, Any] = {
    "notice": "opened",
    "at": "2026-01-13T09:21:00.000Z",
    "node": "gateway-1",
    "alert": {"id": "17", "rule": "disk_low", "level": "CRITICAL", "text": "nothing\nleft: é", "subject": None},
}


class AlertMonitorHarness:
    """One life of the alerts of a server."""

    def __init__(self, folder: Path, *sinks: dict[str, Any], **settings: Any) -> None:
        document = {"everySec": 0.05, "settleSec": 0, "sinks": list(sinks)} | settings
        self.settings: AlertSettings = read_settings(document)
        self.facts = ServerFacts()
        self.looks = 0
        self.file = AlertFile(folder / "alerts")
        self.watch = AlertMonitor(self.settings, self.file, "gateway-1", self._facts, SteadyClock())
        for sink in self.settings.sinks:
            way = create_channel(sink, lambda name: read_secret(folder, name), OutgoingNetworks())
            box = Outbox(sink, way, self.settings.give_up, self.watch.sent, SystemClock().now_ms)
            self.watch.add(box)

    def _facts(self, now: int) -> ServerFacts:
        self.looks += 1
        return self.facts

    def breaks(self, text: str = "read-only") -> None:
        self.facts = replace(self.facts, trouble=text)

    def mends(self) -> None:
        self.facts = replace(self.facts, trouble="")

    def box(self, name: str) -> Outbox:
        return self.watch.outboxes[name]

    async def ack(self, id: str) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def told(value: Any, error: QueueError | None) -> None:
            done.set_exception(error) if error is not None else done.set_result(value)

        self.watch.acknowledge(id, "ann", "", told)
        return await done


def play(stage: Callable[[], AlertMonitorHarness], act: Callable[[AlertMonitorHarness], Awaitable[None]]) -> None:
    """One life, from start to stop."""

    async def whole() -> None:
        made = stage()
        made.watch.start()
        try:
            await act(made)
        finally:
            made.watch.stop()

    asyncio.run(whole())
