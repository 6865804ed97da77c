"""One queue, many doors: a message that comes in by one, fails at the next and is settled at a third; and a server that
is killed between them."""

import hashlib
import hmac
import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import yirangmq
from tests.support.http_queues import WebQueues
from tests.support.server_process import Daemon, daemon, run_command, until
from tests.support.stomp_server import LiveClient
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process
HTTP = ("--http", "127.0.0.1:0")


def web(server: Daemon) -> WebQueues:
    return WebQueues(server.port_of("http"))


def test_protocols_share_a_message_through_failure_server_kill_redrive_and_ack(tmp_path: Path) -> None:
    with daemon(tmp_path, *HTTP) as server:
        published = run_command(tmp_path, "publish", "--store", server.address, "-q", "mail", "--json", '{"to": "ann"}')
        id = json.loads(published.stdout)["messageId"]
        with web(server) as http:
            [taken] = http.lease("mail", wait=PATIENCE)
            assert (taken.id, taken.value()) == (id, {"to": "ann"})
            http.nack(taken.lease_id, "REJECTED", "no such street")
            [dead] = http.dead("mail-dlq")
            assert (dead.message.id, dead.failure and dead.failure.reason_message) == (id, "no such street")
        server.kill()
        server.start()
        with web(server) as http:
            assert http.move_dead("redrive", "mail")["ids"] == [id]
        with connect(server.address) as socket:
            [again] = socket.lease("mail", wait=PATIENCE)
            assert (again.id, again.attempt) == (id, 1)
            socket.ack(again.lease_id)
        with web(server) as http:
            assert http.counts("mail").done == 1


def test_dead_letter_queue_takes_no_messages_by_any_protocol(tmp_path: Path) -> None:
    """Native, HTTP /v1 and /mq (H-03), STOMP, the command line, and an opened store."""
    text = "'mail-dlq' shows the dead letters of 'mail'"
    with daemon(tmp_path, *HTTP, "--stomp", "127.0.0.1:0") as server:
        with connect(server.address) as socket:
            socket.publish("mail", 1)
            with pytest.raises(yirangmq.BadInput, match=text):
                socket.publish("mail-dlq", 1)
        for path, body in (("/v1/queues/mail-dlq/messages", {"n": 1}), ("/mq/mail-dlq/messages", {"priority": None})):
            status, answer = server.request("POST", path, body)
            assert status == 400
            assert text in str(answer)
        stomp = LiveClient(server.port_of("stomp")).connect()
        stomp.line.send("/queue/mail-dlq", "1")
        until(lambda: bool(stomp.heard.errors))
        assert text in stomp.heard.errors[0].headers["message"]
        stomp.close()
        refused = run_command(tmp_path, "publish", "--store", server.address, "-q", "mail-dlq", "1")
        assert (refused.returncode, text in refused.stderr) == (2, True)
    with yirangmq.open(server.url) as queues:
        with pytest.raises(yirangmq.BadInput, match=text):
            queues.publish("mail-dlq", 1)
        assert queues.queues() == ["mail"]


class Hook(HTTPServer):
    """An endpoint that answers when ``gate`` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sent: list[tuple[dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), Receiver)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hook.sent.append((dict(self.headers), body))
        hook.gate.wait(PATIENCE)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not to the screen."""


def test_webhook_in_flight_is_finished_before_the_server_stops(tmp_path: Path) -> None:
    (tmp_path / "d" / "secrets").mkdir(parents=True)
    (tmp_path / "d" / "secrets" / "shop").write_text("hush\n")
    hook = Hook()
    with daemon(tmp_path, *HTTP) as server:
        with web(server) as http:
            url = f"http://127.0.0.1:{hook.server_port}/"
            http.set_policy("mail", {"webhook": {"url": url, "secret": "shop", "concurrency": 1}})
            http.publish_many("mail", [{"n": 1}, {"n": 2}])
            until(lambda: len(hook.sent) == 1)
            assert http.get("GET", "/v1/webhooks")["webhooks"][0]["inFlight"] == 1
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        until(lambda: b"server_stopping" in server.log.read_bytes())
        hook.gate.set()
        assert server.process.wait(PATIENCE) == 0
        headers, body = hook.sent[0]
        wanted = hmac.new(b"hush", headers["X-MQ-Timestamp"].encode() + b"." + body, hashlib.sha256).hexdigest()
        assert headers["X-MQ-Signature"] == f"sha256={wanted}"
    hook.shutdown()
    hook.server_close()
    with yirangmq.open(server.url) as queues:
        counts = queues.counts("mail")
    assert (counts.done, counts.ready, len(hook.sent)) == (1, 1, 1)
