"""A server whose topic log lost its end while it was down, and durable readers that had confirmed more."""

import json
import urllib.request
from pathlib import Path

import pytest

from tests.support.segment_log import cut_tail
from tests.support.server_process import Daemon, daemon, until
from yirangmq.client.connect import connect
from yirangmq.core.errors import WrongEpoch
from yirangmq.core.topics import NewRecord
from yirangmq.wire.records import encode_batch

pytestmark = pytest.mark.process
ALERTS = json.dumps({"everySec": 0.1})


def add_subscriber(server: Daemon) -> None:
    assert server.request("PUT", "/v1/cursors/ledger", {"sequence": 5})[0] == 200


def add_bridge(server: Daemon) -> None:
    assert server.request("POST", "/v1/bridges", {"name": "b", "queue": "mail", "start": "beginning"})[0] == 200
    until(lambda: server.request("GET", "/v1/bridges/b")[1]["sequence"] == 5)


def add_batch(server: Daemon) -> None:
    data = encode_batch([NewRecord("topic:orders", b"5")], 1, 1, {}, synced=False).data
    stage = f"{server.address_of('http').rstrip('/')}/v1/batches/q/1/stages/0-0/0"
    request = urllib.request.Request(stage, data, {"Content-Type": "application/vnd.yirangmq.records"}, method="PUT")
    with urllib.request.urlopen(request) as answer:
        received = json.load(answer)
    parts = [{"id": "0-0", "pieces": 1, "rows": 1, "checksum": received["checksum"]}]
    assert server.request("POST", "/v1/batches/q/1/commit", {"stages": parts})[0] == 200


@pytest.mark.parametrize(
    ("add", "reader"), [(add_subscriber, "subscriber ledger"), (add_bridge, "bridge b"), (add_batch, "batch q/1")]
)
def test_lost_topic_tail_begins_a_new_epoch_raises_an_alert_and_readers_are_refused(
    tmp_path: Path, add: object, reader: str
) -> None:
    """P-30: the sequence that the reader has confirmed is not assigned again."""
    assert callable(add)
    with daemon(tmp_path, "--http", "127.0.0.1:0", "--alerts", ALERTS) as server:
        server.request("POST", "/v1/topics/orders/records", [1, 2, 3, 4] if add is add_batch else [1, 2, 3, 4, 5])
        add(server)
        server.kill()
        epoch = cut_tail(tmp_path / "d" / "topics")
        server.start()
        status, stored = server.request("POST", "/v1/topics/orders/records", [6])
        assert (status, stored["first"]) == (200, 6)
        assert stored["epoch"] != epoch
        until(lambda: server.request("GET", "/v1/alerts")[1]["alerts"])
        [alert] = [one for one in server.request("GET", "/v1/alerts")[1]["alerts"] if one["rule"].startswith("topic")]
        assert (alert["rule"], alert["level"]) == ("topic_records_lost", "CRITICAL")
        [event] = [one for one in server.events() if one["event"] == "topic_records_lost"]
        for text in (alert["text"], event["why"]):
            assert "records after sequence 4 are lost, at least up to 5" in text
            assert reader in text
        if add is add_bridge:
            until(lambda: server.request("GET", "/v1/bridges/b")[1]["state"] == "stopped")
            assert epoch in server.request("GET", "/v1/bridges/b")[1]["reason"]
        if add is add_subscriber:
            with connect(server.address) as client, pytest.raises(WrongEpoch, match=epoch):
                next(iter(client.topics.subscribe("orders", name="ledger", idle=1)))
