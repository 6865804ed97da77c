"""A real server and real consumers: strategies switched under load, consumers killed under each, programs turned away,
outcomes told to an endpoint that fails at first."""

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.queues import unsettled
from tests.support.server_process import Daemon, daemon, run_command, until
from yirangmq import NewMessage
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.core.dispatch import Strategy
from yirangmq.core.errors import NotAllowed, QueueError

pytestmark = pytest.mark.process
MESSAGES = 600
"""To be published while strategies change."""


class Worker:
    """Takes what it is given, and acks it, until it is stopped. What it could not ack in time comes again."""

    def __init__(self, address: str, queue: str, name: str) -> None:
        self.got: list[Any] = []
        self.acked: list[Any] = []
        self._client = connect(address, consumer=name)
        self._queue = queue
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with self._client.subscribe(self._queue, 10) as pushed:
            while not self._stopping.is_set():
                delivery = pushed.next(0.2)
                if delivery is None:
                    continue
                self.got.append(delivery.value())
                try:
                    self._client.ack(delivery.lease_id)
                    self.acked.append(delivery.value())
                except QueueError:
                    pass

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._client.close()


@contextmanager
def workers(address: str, queue: str, *names: str) -> Iterator[list[Worker]]:
    made = [Worker(address, queue, name) for name in names]
    try:
        yield made
    finally:
        for one in made:
            one.stop()


def test_dispatch_strategy_changes_under_load_and_every_message_is_acked_once(tmp_path: Path) -> None:
    plan = [one.value for one in Strategy if one is not Strategy.BROADCAST]
    with daemon(tmp_path) as server, connect(server.address) as client:
        client.set_policy("mail", {"visibilityTimeoutSec": 600})
        with workers(server.address, "mail", "a", "b", "c") as crew:
            for n in range(0, MESSAGES, 20):
                client.set_dispatch("mail", {"strategy": plan[n // 20 % len(plan)], "weights": {"a": 3}})
                client.publish_many("mail", [NewMessage(payload=n + k, group=f"g{k}") for k in range(20)])
            until(lambda: client.counts("mail").done == MESSAGES)
            until(lambda: sum(len(one.acked) for one in crew) == MESSAGES)
        assert Counter(n for one in crew for n in one.acked) == Counter(range(MESSAGES))
        assert client.dispatch("mail")["deliveries"] == {"DELIVERED": MESSAGES, "FAILED": 0, "TIMEOUT": 0}


def test_dispatch_strategy_to_broadcast_and_back_under_load_delivers_to_one_or_to_all(tmp_path: Path) -> None:
    """What was in line when the strategy changed goes by the new one; copies stay with those they were made for."""
    names = ("a", "b", "c")
    plan = ("round_robin", "broadcast", "load_balance", "broadcast", "ordered", "broadcast")
    with daemon(tmp_path) as server, connect(server.address) as client:
        client.set_policy("mail", {"visibilityTimeoutSec": 600, "dispatch": {"strategy": "round_robin"}})
        with workers(server.address, "mail", *names) as crew:
            for name in names:
                client.call("dispatch_register", queue="mail", consumer=name)
            for n in range(0, MESSAGES, 20):
                client.set_dispatch("mail", {"strategy": plan[n // 20 % len(plan)]})
                client.publish_many("mail", list(range(n, n + 20)))
            until(lambda: unsettled(client, "mail") == 0)
            until(lambda: {n for one in crew for n in one.acked} == set(range(MESSAGES)))
        by_number = Counter(n for one in crew for n in set(one.acked))
        assert all(len(one.acked) == len(set(one.acked)) for one in crew), "nobody gets the same one twice"
        assert set(by_number) == set(range(MESSAGES))
        assert set(by_number.values()) <= {1, len(names)}
        assert all(by_number[n] == len(names) for n in range(MESSAGES - 20, MESSAGES)), "the last ones were for all"
        assert client.counts("mail").dead == 0


def test_dispatch_strategy_of_each_kind_loses_nothing_when_a_consumer_is_killed(tmp_path: Path) -> None:
    queues = [one.value for one in Strategy]
    with daemon(tmp_path) as server, connect(server.address) as client:
        for queue in queues:
            client.set_policy(
                queue,
                {"visibilityTimeoutSec": 3, "retry": {"limit": None}, "dispatch": {"strategy": queue, "graceSec": 2}},
            )
        command = [sys.executable, "-m", "tests.scenarios.dispatched", server.address, *queues]
        doomed = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        try:
            assert doomed.stdout is not None
            for queue in queues:
                until(lambda queue=queue: _publish_until_taken(client, queue))
                assert doomed.stdout.readline().split()[0] == queue
            for queue in queues:
                client.publish_many(queue, [NewMessage(payload=n, group=f"g{n}") for n in range(20)])
        finally:
            doomed.kill()
            doomed.communicate()
        for queue in queues:
            with workers(server.address, queue, "survivor"):
                until(lambda queue=queue: unsettled(client, queue) == 0)
        for queue in queues:
            counts = client.counts(queue)
            copies = 1 if queue == "broadcast" else 0
            assert (counts.dead > 0) == bool(copies), (queue, counts)
            assert counts.done + counts.dead == counts.published, (queue, counts)
        ended = client.deliveries("ordered", consumer="doomed")
        assert {row["status"] for row in ended} == {"TIMEOUT"}


def _publish_until_taken(client: Client, queue: str) -> bool:
    """It has come, and has what it alone can have."""
    if not client.counts(queue).published:
        client.publish(queue, "first")
    return client.counts(queue).leased > 0


# -- programs ---------------------------------------------------------------------------------------------------------

SETTINGS = {
    "programs": [
        {"name": "ATMH", "addresses": ["127.0.0.0/8"], "token": "token-of-program-atmh"},
        {"name": "JETCO", "addresses": ["127.0.0.1"], "token": "token-of-program-jetco"},
        {"name": "AWAY", "addresses": ["10.9.9.9"], "token": "token-of-program-away"},
    ],
    "routes": [{"source": "ATMH", "target": "JETCO"}],
}


def _stomp(server: Daemon, token: str, queue: str) -> list[str]:
    """Connects, sends one message, and says which frames came back."""
    host, _, port = server.address_of("stomp").removeprefix("stomp://").rpartition(":")
    connect = f"CONNECT\naccept-version:1.2\nhost:x\npasscode:{token}\n\n\0"
    send = f"SEND\ndestination:/queue/{queue}\nreceipt:r\n\nhello\0DISCONNECT\n\n\0"
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(f"{connect}{send}".encode())
        said = b"".join(iter(lambda: line.recv(4096), b""))
    return [frame.strip().split(b"\n")[0].decode() for frame in said.split(b"\0") if frame.strip()]


def test_programs_not_listed_or_not_permitted_are_refused_and_counted_on_every_protocol(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
    here = "127.0.0.1:0"
    options = ("--config", str(tmp_path / "settings.json"), "--tcp", here, "--http", here, "--stomp", here)
    with daemon(tmp_path, *options) as server:
        tcp = server.address_of("tcp")
        with connect(tcp, token="token-of-program-atmh") as atmh, connect(tcp, token="token-of-program-jetco") as jetco:
            atmh.publish("JETCO", {"pay": 1})
            [delivery] = jetco.lease("JETCO", wait=60)
            for settle in (atmh.ack, atmh.nack, atmh.extend, atmh.release):  # a lease that somebody guessed
                with pytest.raises(NotAllowed, match="may not consume in 'JETCO'"):
                    settle(delivery.lease_id)
            jetco.extend(delivery.lease_id, 600)
            jetco.ack(delivery.lease_id)
        deeds: tuple[tuple[str, Callable[[Client], object]], ...] = (
            ("token-of-program-jetco", lambda client: client.publish("ATMH", 1)),
            ("token-of-program-jetco", lambda client: client.lease("ATMH")),
            ("token-of-program-atmh", lambda client: client.lease("JETCO")),
            ("token-of-program-away", lambda client: client.publish("JETCO", 1)),
            ("token-of-nobody", lambda client: client.publish("JETCO", 1)),
        )
        for token, deed in deeds:
            with pytest.raises(NotAllowed), connect(tcp, token=token, retries=0) as client:
                deed(client)
        publish = "/v1/queues/JETCO/messages"
        assert server.request("POST", publish, {"pay": 2}, token="token-of-program-atmh")[0] == 200
        assert server.request("POST", publish, {"pay": 2}, token="token-of-program-jetco")[0] == 403
        assert server.request("POST", publish, {"pay": 2}, token="token-of-program-away")[0] == 401
        assert server.request("POST", publish, {"pay": 2}, token="")[0] == 401
        assert _stomp(server, "token-of-program-atmh", "JETCO") == ["CONNECTED", "RECEIPT"]
        assert _stomp(server, "token-of-program-jetco", "ATMH") == ["CONNECTED", "ERROR"]
        assert _stomp(server, "token-of-program-away", "JETCO") == ["ERROR"]
        found = json.loads(run_command(tmp_path, "programs", "--store", server.address, "--json").stdout)
        assert [row["sendsTo"] for row in found["programs"]] == [["JETCO"], [], []]
        counts = {(row["door"], row["reason"]): row["count"] for row in found["refused"]["counts"]}
        assert (counts["http", "forbidden"], counts["http", "unknown"]) == (1, 2)
        assert (counts["socket", "forbidden"], counts["socket", "unknown"]) == (7, 2)
        assert (counts["stomp", "forbidden"], counts["stomp", "unknown"]) == (1, 1)
        assert "JETCO" in {row["program"] for row in found["refused"]["latest"]}
        metrics = run_command(tmp_path, "metrics", "--store", server.address).stdout
        assert 'yirangmq_clients_refused_total{door="socket",reason="unknown"} 2' in metrics
        assert [one for one in server.events() if one["event"] == "client_refused" and one["door"] == "socket"]


# -- outcomes ---------------------------------------------------------------------------------------------------------


class Endpoint(ThreadingHTTPServer):
    """Fails the first time it is told something."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.refused = 0
        super().__init__(("127.0.0.1", 0), Hearing)


class Hearing(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_first = not self.server.refused
        self.server.refused += is_first
        if not is_first:
            self.server.told.append(json.loads(body))
        self.send_response(503 if is_first else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def test_delivery_callback_reports_outcomes_at_least_once_to_an_endpoint_that_fails_at_first(tmp_path: Path) -> None:
    endpoint = Endpoint()
    hearing = threading.Thread(target=endpoint.serve_forever)
    hearing.start()
    try:
        with daemon(tmp_path) as server, connect(server.address) as client:
            url = f"http://127.0.0.1:{endpoint.server_port}/outcomes"
            client.publish_many("mail", [1, 2])
            done = run_command(tmp_path, "dispatch", "callback", "mail", "--url", url, "--store", server.address)
            assert done.returncode == 0, done.stderr
            for delivery in client.lease("mail", 2, lease_seconds=600):
                client.ack(delivery.lease_id) if delivery.value() == 1 else client.nack(delivery.lease_id, "REJECTED")
            until(lambda: {one["status"] for one in endpoint.told} == {"DELIVERED", "FAILED"})
        assert endpoint.refused == 1
        assert all(one["queue"] == "mail" and one["final"] for one in endpoint.told)
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        hearing.join(60)
