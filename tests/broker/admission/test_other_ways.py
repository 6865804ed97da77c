"""A message that came by no door passes the same chain: from a schedule, over a bridge."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.admission.hooks import MODULE
from tests.broker.admission.live import served
from tests.support.wait import until
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.clock import SystemClock

pytestmark = pytest.mark.process
CHAIN: dict[str, Any] = {
    "integrity": "sha256",
    "checks": [{"check": "length", "max": 100}],
    "hooks": [
        {"hook": f"{MODULE}:says", "timeoutSec": 60},
        {"hook": f"{MODULE}:shout", "timeoutSec": 60, "produces": "loud"},
    ],
}


class Ahead(SystemClock):
    """The server's clock, and by how much somebody has put it on."""

    by = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.by


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("yirangmq.server.server.SystemClock", Ahead)
    monkeypatch.setattr(Ahead, "by", 0)
    with (
        served(tmp_path / "d", topics=str(tmp_path / "topics")) as server,
        connect(server.unix, consumer="looker") as client,
    ):
        yield client


def has_digest(client: Client, queue: str) -> bool:
    [look] = client.peek(queue)
    return look.envelope is not None and "payloadSha256" in json.loads(look.envelope.header)


def test_bridge_records_pass_the_processor_and_refused_records_become_dead_letters(client: Client) -> None:
    client.set_policy("mail", {"processor": CHAIN})
    client.call("bridge_add", name="feed", queue="mail", topics=["news"], groups=False)
    for payload in (b"fine", b"reason", b"x" * 101):
        client.topics.publish("news", payload)
    until(lambda: (client.counts("mail").ready, client.counts("mail").dead) == (1, 2))
    assert has_digest(client, "mail")
    said = str(client.call("dlq_find", queue="mail"))
    assert "because" in said
    assert "hooks:says" in said
    assert "has 101 bytes, not at most 100" in said
    [child] = client.lease("loud", 5)
    assert (child.payload, child.header["causation"]["queue"]) == (b"FINE", "mail")


def test_schedule_messages_pass_the_processor_and_refused_messages_are_not_published(client: Client) -> None:
    def tick(name: str, message: object) -> dict[str, Any]:
        return {"name": name, "cron": "* * * * *", "timezone": "UTC", "message": message}

    ticks = [tick("good", {"payload": "fine"}), tick("long", {"payload": "x" * 101})]
    client.set_policy("mail", {"processor": CHAIN, "schedules": ticks})
    Ahead.by = 60_000
    client.set_policy("other", {"visibilityTimeoutSec": 7})  # whoever changes a policy has schedules looked at
    until(lambda: client.counts("loud").ready)
    assert client.counts("mail").published == client.counts("loud").published
    assert has_digest(client, "mail")
    assert {one.header["causation"]["messageId"][:5] for one in client.lease("loud", 5)} == {"good-"}
