"""A node that was active, stood by and is active again does all of its work again."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.failover.traffic import Program
from tests.support.pair import Pair, pair
from tests.support.server_process import until
from yirangmq import NewMessage
from yirangmq.client.connect import connect

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


class Hooked(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(body)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiver() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hooked)
    server.got = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def switch(two: Pair, to: str) -> None:
    two.switch(to)
    two.wait_for(to)


def test_failover_of_a_node_that_becomes_active_again_resumes_all_its_work(tmp_path: Path) -> None:
    """Bridges, webhooks, delayed messages, waiting consumers, topics and their followers, STOMP."""
    bridges = [{"name": "feed", "topics": ["prices"], "queue": "bridged"}]
    with receiver() as hook, pair(tmp_path, "--bridges", json.dumps(bridges), "--events-topic", "events") as two:
        two.begin()
        with connect(two.nodes["a"].address) as client:
            url = f"http://127.0.0.1:{hook.server_port}/"
            client.set_policy("hooked", {"webhook": {"url": url}})
            client.topics.publish("prices", b"first")
            until(lambda: client.counts("bridged").ready == 1)
            client.publish("hooked", b"first")
            until(lambda: len(hook.got) == 1)
            client.publish("later", NewMessage(payload=b"due", id="due", delay=1.0))
            [one] = client.lease("bridged")
            client.ack(one.lease_id)
        switch(two, "b")
        assert [one["name"] for one in rows(two, "a")] == ["feed"], "a standby knows its bridges"
        switch(two, "a")
        program = Program([two.stomp["a"]]).start()
        try:
            with connect(two.nodes["a"].address) as client, client.topics.subscribe("*", start="beginning") as feed:
                client.topics.publish("prices", b"second")
                until(lambda: client.counts("bridged").ready == 1)
                [one] = client.lease("bridged")
                assert one.payload == b"second", "each record once"
                client.publish("hooked", b"second")
                until(lambda: len(hook.got) == 2)
                [due] = client.lease("later", wait=60)
                assert due.id == "due"
                program.send("by-stomp")
                until(lambda: b"by-stomp" in program.got)
                records = iter(lambda: feed.next(5), None)
                topics = {record.topic for record, _ in zip(records, range(6), strict=False)}
                assert topics == {"prices", "events"}
        finally:
            program.stop()
        with connect(two.nodes["a"].address) as client:
            waiting = client.subscribe("work", 10)
            client.publish("work", NewMessage(payload=b"1", id="1"))
            got = waiting.next(60)
            assert got is not None
            waiting.ack_nowait([got])
            waiting.close()
        assert [row["state"] for row in rows(two, "a")] == ["running"]


def rows(two: Pair, name: str) -> list[dict[str, Any]]:
    with connect(two.nodes[name].address, retries=0) as client:
        found: list[dict[str, Any]] = client.call("bridges")
        return found
