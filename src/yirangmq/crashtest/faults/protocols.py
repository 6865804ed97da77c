"""Clients of a server's protocols for fault injection, each a producer and a consumer behind one interface.

Each client has one connection and reconnects after losing it. An error of the server is ``ServerErrorReply`` with its
code, a missing reply after 10 s is ``NoReply``, a broken connection is ``ConnectionBroken``. ``EmbeddedTestClient`` is
the Python API on a store in this process."""

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from yirangmq.broker.queues import Queues
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.core.errors import QueueError, TimedOut, Unavailable
from yirangmq.core.ports import Store
from yirangmq.crashtest.workload import FixedClock, NumberedIds

DEADLINE = 10.0
"""Time limit of every request, in seconds."""
LEASE_SECONDS = 3600


class ServerErrorReply(Exception):
    """Error reply of the server, with its code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class NoReply(Exception):
    """No reply within the time limit."""


class ConnectionBroken(Exception):
    """The connection broke before the reply."""


class Addresses(NamedTuple):
    """Addresses of a running server."""

    socket: str
    http: tuple[str, int]
    stomp: tuple[str, int]


class ProtocolTestClient(Protocol):
    """Client of one protocol. ``lease`` returns a handle and the payload; None if the queue is empty."""

    name: str

    def publish(self, queue: str, payload: bytes) -> None: ...

    def lease(self, queue: str) -> tuple[Any, bytes] | None: ...

    def ack(self, handle: Any) -> None: ...

    def nack(self, handle: Any) -> None: ...

    def record(self, topic: str, payload: bytes) -> None:
        """Publish a record to a topic."""

    def close(self) -> None: ...


class EmbeddedTestClient:
    """Client that uses the Python API on a store in this process."""

    name = "embedded"

    def __init__(self, store: Store, prefix: str = "e") -> None:
        self.queues = Queues(store, FixedClock(), NumberedIds(prefix), "torture")

    def do(self, work: Callable[[Queues], Any]) -> Any:
        return translated(lambda: work(self.queues))

    def publish(self, queue: str, payload: bytes) -> None:
        translated(lambda: self.queues.publish(queue, payload))

    def lease(self, queue: str) -> tuple[Any, bytes] | None:
        found = translated(lambda: self.queues.lease(queue, lease_seconds=LEASE_SECONDS))
        return (found[0].lease_id, found[0].payload) if found else None

    def ack(self, handle: Any) -> None:
        translated(lambda: self.queues.ack(handle))

    def nack(self, handle: Any) -> None:
        translated(lambda: self.queues.nack(handle, "HANDLER_ERROR", "torture", delay=0))

    def record(self, topic: str, payload: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: the target closes the store."""


class NativeTestClient:
    """Client of the native protocol over the unix socket."""

    name = "socket"

    def __init__(self, addresses: Addresses) -> None:
        self._address = addresses.socket
        self._client: Client | None = None

    @property
    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._address, consumer="torture", timeout=DEADLINE, retries=0)
        return self._client

    def publish(self, queue: str, payload: bytes) -> None:
        self._do(lambda client: client.publish(queue, payload))

    def lease(self, queue: str) -> tuple[Any, bytes] | None:
        found = self._do(lambda client: client.lease(queue, lease_seconds=LEASE_SECONDS))
        return (found[0].lease_id, found[0].payload) if found else None

    def ack(self, handle: Any) -> None:
        self._do(lambda client: client.ack(handle))

    def nack(self, handle: Any) -> None:
        self._do(lambda client: client.nack(handle, "HANDLER_ERROR", "torture", delay=0))

    def record(self, topic: str, payload: bytes) -> None:
        self._do(lambda client: client.topics.publish(topic, payload))

    def _do(self, work: Callable[[Client], Any]) -> Any:
        return translated(lambda: work(self._connected))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class _HttpTestClient:
    def __init__(self, addresses: Addresses) -> None:
        self._connection = http.client.HTTPConnection(*addresses.http, timeout=DEADLINE)

    def send_request(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        try:
            self._connection.request(method, path, body, {} if body is None else {"Content-Type": kind})
            answer = self._connection.getresponse()
            reply = answer.read()
        except TimeoutError as error:
            self._connection.close()
            raise NoReply(f"{method} {path}") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ConnectionBroken(f"{method} {path}: {error!r}") from error
        if answer.status >= 300:
            raise ServerErrorReply(*self._error(answer.status, reply))
        return reply

    def _error(self, status: int, reply: bytes) -> tuple[str, str]:
        document = json.loads(reply) if reply else {}
        found = document.get("error")
        if isinstance(found, dict):
            return found["code"], f"{status} {found['message']}"
        return document.get("code", f"http_{status}"), f"{status} {document.get('message', '')}"

    def close(self) -> None:
        self._connection.close()


class V1TestClient(_HttpTestClient):
    """Client of the HTTP API ``/v1``."""

    name = "http"

    def publish(self, queue: str, payload: bytes) -> None:
        self.send_request("POST", f"/v1/queues/{queue}/messages", payload, "application/octet-stream")

    def lease(self, queue: str) -> tuple[Any, bytes] | None:
        wanted = json.dumps({"max": 1, "leaseSec": LEASE_SECONDS}).encode()
        found = json.loads(self.send_request("POST", f"/v1/queues/{queue}/lease", wanted))["messages"]
        if not found:
            return None
        handle = queue, found[0]["lease"]["leaseId"]
        return handle, self.send_request(
            "GET", f"/v1/queues/{queue}/messages/{found[0]['message']['messageId']}/payload"
        )

    def ack(self, handle: Any) -> None:
        queue, lease = handle
        self.send_request("POST", f"/v1/queues/{queue}/ack", json.dumps({"leases": [lease]}).encode())

    def nack(self, handle: Any) -> None:
        queue, lease = handle
        document = {"leases": [lease], "reason": "HANDLER_ERROR", "text": "torture", "delaySec": 0}
        self.send_request("POST", f"/v1/queues/{queue}/nack", json.dumps(document).encode())

    def record(self, topic: str, payload: bytes) -> None:
        self.send_request("POST", f"/v1/topics/{topic}/records", payload, "application/octet-stream")

    def health(self) -> str:
        """Return ``ok``, ``degraded`` or ``fail``. The HTTP status is ignored: it is an error if health fails."""
        try:
            self._connection.request("GET", "/v1/health")
            answer = self._connection.getresponse()
            return str(json.loads(answer.read())["status"])
        except TimeoutError as error:
            self._connection.close()
            raise NoReply("GET /v1/health") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ConnectionBroken(f"GET /v1/health: {error!r}") from error


class MqTestClient(_HttpTestClient):
    """Client of the HTTP API ``/mq``: draft, set, order, get, complete."""

    name = "mq"

    def publish(self, queue: str, payload: bytes) -> None:
        id = self.send_request("POST", f"/mq/{queue}/messages", b'{"priority": null}').decode()
        self.send_request("PUT", f"/mq/{queue}/messages/{id}", payload, "application/octet-stream")

    def lease(self, queue: str) -> tuple[Any, bytes] | None:
        if not json.loads(self.send_request("GET", f"/mq/{queue}/stats"))["waiting"]:
            return None
        path = f"/mq/{queue}/messages/{self.send_request('GET', f'/mq/{queue}/messages').decode()}"
        return path, self.send_request("GET", path)

    def ack(self, handle: Any) -> None:
        self.send_request("PATCH", f"{handle}/complete")

    def nack(self, handle: Any) -> None:
        self.send_request("PATCH", f"{handle}/fail")

    def record(self, topic: str, payload: bytes) -> None:
        raise NotImplementedError


class StompTestClient:
    """STOMP 1.2 client. A store error ends the connection, as the protocol requires; the next call reconnects."""

    name = "stomp"

    def __init__(self, addresses: Addresses) -> None:
        self._address = addresses.stomp
        self._connection: socket.socket | None = None
        self._data = b""
        self._number = 0
        self._waiting: list[tuple[dict[str, str], bytes]] = []

    def publish(self, queue: str, payload: bytes) -> None:
        self._confirmed("SEND", {"destination": f"/queue/{queue}", "content-length": str(len(payload))}, payload)

    def record(self, topic: str, payload: bytes) -> None:
        self._confirmed("SEND", {"destination": f"/topic/{topic}", "content-length": str(len(payload))}, payload)

    def lease(self, queue: str) -> tuple[Any, bytes] | None:
        """Lease one message with a new subscription. It stays open, because ending it releases the message."""
        self.close()
        about = {"id": "1", "destination": f"/queue/{queue}", "ack": "client-individual", "activemq.prefetchSize": "1"}
        self._confirmed("SUBSCRIBE", about)
        headers, body = self._waiting.pop(0) if self._waiting else self._receive("MESSAGE")
        return headers["ack"], body

    def ack(self, handle: Any) -> None:
        self._confirmed("ACK", {"id": handle})
        self._confirmed("UNSUBSCRIBE", {"id": "1"})

    def nack(self, handle: Any) -> None:
        self._confirmed("NACK", {"id": handle})
        self._confirmed("UNSUBSCRIBE", {"id": "1"})

    def _confirmed(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self._number += 1
        receipt = f"r-{self._number}"
        self._send(command, {**headers, "receipt": receipt}, body)
        while self._receive("RECEIPT")[0]["receipt-id"] != receipt:
            pass

    def _send(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        lines = [command, *(f"{name}:{value}" for name, value in headers.items()), "", ""]
        try:
            self._connect().sendall("\n".join(lines).encode() + body + b"\0")
        except OSError as error:
            self.close()
            raise ConnectionBroken(f"{command}: {error!r}") from error

    def _connect(self) -> socket.socket:
        if self._connection is None:
            self._connection = socket.create_connection(self._address, timeout=DEADLINE)
            self._data = b""
            self._connection.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            self._receive("CONNECTED")
        return self._connection

    def _receive(self, wanted: str) -> tuple[dict[str, str], bytes]:
        while True:
            command, headers, body = self._frame()
            if command == "ERROR":
                self.close()
                code, _, text = headers.get("message", "").replace("\\c", ":").partition(":")
                raise ServerErrorReply(code.strip(), text.strip())
            if command == wanted:
                return headers, body
            if command == "MESSAGE":
                self._waiting.append((headers, body))

    def _frame(self) -> tuple[str, dict[str, str], bytes]:
        """Read one frame. The test payloads have no NUL, so a NUL ends the frame."""
        while b"\0" not in self._data:
            try:
                more = self._connection.recv(65536) if self._connection is not None else b""
            except TimeoutError as error:
                self.close()
                raise NoReply("a frame") from error
            except OSError as error:
                self.close()
                raise ConnectionBroken(repr(error)) from error
            if not more:
                self.close()
                raise ConnectionBroken("closed by the server")
            self._data += more
        frame, self._data = self._data.split(b"\0", 1)
        head, _, body = frame.lstrip(b"\r\n").partition(b"\n\n")
        command, *lines = head.decode().split("\n")
        return command, dict(line.split(":", 1) for line in lines if ":" in line), body

    def close(self) -> None:
        self._waiting.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def translated(work: Callable[[], Any]) -> Any:
    """Translate errors of the Python API to those of this module."""
    try:
        return work()
    except TimedOut as error:
        raise NoReply(str(error)) from error
    except Unavailable as error:
        if error.code in ("unreachable", "timed_out"):
            raise ConnectionBroken(str(error)) from error
        raise ServerErrorReply(error.code, str(error)) from error
    except QueueError as error:
        raise ServerErrorReply(error.code, str(error)) from error


SERVER_CLIENTS: tuple[Callable[[Addresses], ProtocolTestClient], ...] = (
    NativeTestClient,
    V1TestClient,
    MqTestClient,
    StompTestClient,
)
