"""Bridges of a whole server: killed again and again while it is fed, steered by HTTP and by the command line."""

import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import Daemon, daemon, run_command, until
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.stores.log.readonly import SegmentView

pytestmark = pytest.mark.process
KILLS = 6
LONGEST_LIFE = 0.4


def publish_until(server: Daemon, stop: threading.Event, told: list[str]) -> None:
    """Batches of all sizes; a server that is away is tried again."""
    chance, number = random.Random(7), 0
    while not stop.is_set():
        records = [{"payload": number + n, "key": f"k{n % 3}"} for n in range(chance.randrange(1, 30))]
        try:
            topic = chance.choice(["orders.a", "orders.b", "trades"])
            server.request("POST", f"/v1/topics/{topic}/records", records)
            number += len(records)
            told.append(topic)
        except (OSError, http.client.HTTPException, ValueError):
            stop.wait(0.01)


def test_bridge_delivers_every_record_once_though_the_server_is_killed_repeatedly(tmp_path: Path) -> None:
    chance, stop = random.Random(20260113), threading.Event()
    told: list[str] = []
    with daemon(tmp_path, "--http", "127.0.0.1:0") as server:
        new = {"name": "b", "queue": "mail", "topics": ["orders.*"], "groups": False}
        assert server.request("POST", "/v1/bridges", new)[0] == 200
        feeding = threading.Thread(target=publish_until, args=(server, stop, told))
        feeding.start()
        try:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.05, LONGEST_LIFE))  # the moment of the kill is the point of the test
                server.kill()
                server.start()
            until(lambda: told.count("orders.a") > 10)
        finally:
            stop.set()
            feeding.join(PATIENCE)
        until(lambda: server.request("GET", "/v1/bridges/b")[1]["lag"] == 0)
        with connect(server.address) as client:
            found = []
            while got := client.lease("mail", 1000):
                found += [(one.envelope.payload, one.envelope.id) for one in got]
                client.ack([one.lease_id for one in got])
    view = SegmentView(tmp_path / "d" / "topics")
    wanted = [
        (record.payload, f"{view.epoch}-{record.sequence}")
        for record in view.reader().records(1)
        if record.topic.startswith("orders.")
    ]
    assert len(wanted) > 10
    assert found == wanted


def test_bridge_is_controlled_over_http_and_by_the_command_line(tmp_path: Path) -> None:
    with daemon(tmp_path, "--http", "127.0.0.1:0", "--events-topic", "happenings") as server:

        def bridge(*words: str) -> dict[str, Any]:
            done = run_command(tmp_path, "bridge", *words, "--store", server.address, "--json")
            assert done.returncode == 0, done.stderr
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer

        made = bridge("add", "b", "--queue", "mail", "--topic", "orders.*")["bridge"]
        assert (made["state"], made["topics"], made["lag"]) == ("running", ["orders.*"], 0)
        status, refused = server.request("POST", "/v1/bridges", {"name": "c", "queue": "mail", "start": "late"})
        assert (status, refused["error"]["field"]) == (400, "start")
        assert server.request("POST", "/v1/bridges/b/pause")[1]["state"] == "paused"
        server.request("POST", "/v1/topics/orders.new/records", [1, 2, 3])
        assert server.request("GET", "/v1/status")[1]["bridges"][0]["lag"] == 3
        assert bridge("list")["bridges"][0]["lag"] == 3
        assert bridge("resume", "b")["bridge"]["state"] == "running"
        until(lambda: server.request("GET", "/v1/queues/mail")[1]["ready"] == 3)
        until(lambda: any(row["topic"] == "happenings" for row in server.request("GET", "/v1/topics")[1]["topics"]))
        status, page = server.request("GET", "/v1/topics/happenings/records")
        assert [one["payload"]["event"] for one in page["records"]] == ["published"]
        text = run_command(tmp_path, "bridge", "show", "b", "--store", server.address)
        assert "orders.*" in text.stdout
        assert bridge("remove", "b")["bridge"]["name"] == "b"
        assert server.request("GET", "/v1/bridges/b")[0] == 404
        assert run_command(tmp_path, "bridge", "show", "b", "--store", server.address).returncode == 3
