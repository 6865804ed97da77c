"""The real daemon in a thread, with every door open, and one producer and consumer for each of them."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.broker.admission.hooks import MODULE
from tests.support.daemon_thread import DaemonThread
from tests.support.stomp_server import LiveClient
from tests.support.wait import until
from yirangmq.client.connect import connect

PATIENCE = 60.0


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[DaemonThread]:
    folder.mkdir(exist_ok=True)
    doors = {"http": "127.0.0.1:0", "stomp": "127.0.0.1:0", "topics": "off"}
    server = DaemonThread(folder, **{"hooks": MODULE, **doors, **settings})
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Refusal(Exception):
    """What a door said: its code, and the words."""


class SocketDoor:
    def __init__(self, server: DaemonThread) -> None:
        self._client = connect(server.unix, consumer="tester")

    def send(self, queue: str, payload: bytes) -> None:
        try:
            self._client.publish(queue, payload)
        except Exception as error:
            raise Refusal(f"{getattr(error, 'code', '')} {error}") from None

    def take(self, queue: str) -> bytes | None:
        found = self._client.lease(queue)
        if not found:
            return None
        self._client.ack(found[0].lease_id)
        return found[0].payload

    def close(self) -> None:
        self._client.close()


class HttpDoor:
    """``/v1``: the payload is the body."""

    def __init__(self, server: DaemonThread) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=PATIENCE)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        self._line.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = self._line.getresponse()
        return answer.status, answer.read()

    def send(self, queue: str, payload: bytes) -> None:
        given = {"Content_Type": "application/octet-stream"}
        status, said = self.ask("POST", f"/v1/queues/{queue}/messages", payload, **given)
        if status != 200:
            error = json.loads(said)["error"]
            raise Refusal(f"{status} {error['code']} {error.get('field')}: {error['message']}")

    def take(self, queue: str) -> bytes | None:
        _, said = self.ask("POST", f"/v1/queues/{queue}/lease", b'{"max": 1}', Content_Type="application/json")
        found = json.loads(said)["messages"]
        if not found:
            return None
        lease = found[0]["lease"]["leaseId"]
        _, whole = self.ask("GET", f"/v1/queues/{queue}/messages/{found[0]['message']['messageId']}/payload")
        body = json.dumps({"leases": [lease]}).encode()
        assert self.ask("POST", f"/v1/queues/{queue}/ack", body, Content_Type="application/json")[0] == 200
        return whole

    def close(self) -> None:
        self._line.close()


class MqDoor(HttpDoor):
    """The HTTP queue's: draft and set, order and get."""

    def send(self, queue: str, payload: bytes) -> None:
        status, id = self.ask("POST", f"/mq/{queue}/messages", b'{"priority": null}', Content_Type="application/json")
        assert status == 200, id
        path = f"/mq/{queue}/messages/{id.decode()}"
        status, said = self.ask("PUT", path, payload, Content_Type="application/octet-stream")
        if status != 204:
            raise Refusal(f"{status} {said.decode()}")

    def take(self, queue: str) -> bytes | None:
        if json.loads(self.ask("GET", f"/mq/{queue}/stats")[1])["waiting"] == 0:
            return None
        status, id = self.ask("GET", f"/mq/{queue}/messages")
        assert status == 200
        path = f"/mq/{queue}/messages/{id.decode()}"
        status, payload = self.ask("GET", path)
        assert status == 200
        assert self.ask("PATCH", f"{path}/complete")[0] == 204
        return payload


class StompDoor:
    def __init__(self, server: DaemonThread) -> None:
        self._port = server.ports["stomp"]
        self._clients: list[LiveClient] = []
        self._follows: dict[str, LiveClient] = {}

    def _client(self) -> LiveClient:
        self._clients.append(LiveClient(self._port).connect())
        return self._clients[-1]

    def send(self, queue: str, payload: bytes) -> None:
        client = self._client()
        client.line.send(f"/queue/{queue}", payload, headers={"receipt": "r"})
        until(lambda: client.heard.receipts or client.heard.errors)
        if client.heard.errors:
            raise Refusal(f"{client.heard.errors[0].headers.get('message')} {client.heard.errors[0].body!r}")

    def take(self, queue: str) -> bytes | None:
        client = self._client()
        client.line.subscribe(f"/queue/{queue}", id="1", ack="auto")
        [message] = client.messages(1)
        client.confirm(client.line.unsubscribe, "1")
        body = message.body
        return body if isinstance(body, bytes) else str(body).encode()

    def close(self) -> None:
        for client in self._clients:
            client.close()


DOORS: dict[str, Any] = {"socket": SocketDoor, "v1": HttpDoor, "mq": MqDoor, "stomp": StompDoor}
