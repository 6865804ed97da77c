"""Clients of a server's protocols for fault injection, each a producer and a consumer behind one interface.

Each client has one connection and reconnects after losing it. An error of the server is ``Refused`` with its code, a
missing reply after 10 s is ``Hung``, a broken connection is ``Lost``. ``Embedded`` is the Python API on a store in this
process."""

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
from yirangmq.crashtest.workload import NumberedIds, StillClock

DEADLINE = 10.0
"""Time limit of every request, in seconds."""
LEASE_SECONDS = 3600


class Refused(Exception):
    """Error reply of the server, with its code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Hung(Exception):
    """No reply within the time limit."""


class Lost(Exception):
    """The connection broke before the reply."""


class Addresses(NamedTuple):
    """Addresses of a running server."""

    socket: str
    http: tuple[str, int]
    stomp: tuple[str, int]


class Protocols(Protocol):
    """Client of one protocol. ``lease`` returns a handle and the payload; None if the queue is empty."""

    name: str

    def publish(self, queue: str, payload: bytes) -> None: ...

    def lease(self, queue: str) -> tuple[Any, bytes] | None: ...

    def ack(self, handle: Any) -> None: ...

    def nack(self, handle: Any) -> None: ...

    def record(self, topic: str, payload: bytes) -> None:
        """Publish a record to a topic."""

    def close(self) -> None: ...


class Embedded:
    """Client that uses the Python API on a store in this process."""

    name = "embedded"

    def __init__(self, store: Store, prefix: str = "e") -> None:
        self.queues = Queues(store, StillClock(), NumberedIds(prefix), "torture")

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


class Native:
    """Client of the native protocol over the unix socket."""

    name = "socket"

    def __init__(self, addresses: Addresses) -> None:
        self._address = addresses.socket
        self._client: Client | None = None

    @property
    def _there(self) -> Client:
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
        return translated(lambda: work(self._there))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class _Http:
    def __init__(self, addresses: Addresses) -> None:
        self._line = http.client.HTTPConnection(*addresses.http, timeout=DEADLINE)

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        try:
            self._line.request(method, path, body, {} if body is None else {"Content-Type": kind})
            answer = self._line.getresponse()
            said = answer.read()
        except TimeoutError as error:
            self._line.close()
            raise Hung(f"{method} {path}") from error
        except (OSError, http.client.HTTPException) as error:
            self._line.close()
            raise Lost(f"{method} {path}: {error!r}") from error
        if answer.status >= 300:
            raise Refused(*self._error(answer.status, said))
        return said

    def _error(self, status: int, said: bytes) -> tuple[str, str]:
        document = json.loads(said) if said else {}
        found = document.get("error")
        if isinstance(found, dict):
            return found["code"], f"{status} {found['message']}"
        return document.get("code", f"http_{status}"), f"{status} {document.get('message', '')}"

    def close(self) -> None:
        self._line.close()


class V1(_Http):
    """Client of the HTTP API ``/v1``."""

    name = "http"

    def publish(self, queue: str, payload: bytes) -> None:
        self.ask("POST", f"/v1/queues/{queue}/messages", payload, "application/octet-stream")

    def lease(self, queue: str) -> tuple[Any, bytes] | None:
        wanted = json.dumps({"max": 1, "leaseSec": LEASE_SECONDS}).encode()
        found = json.loads(self.ask("POST", f"/v1/queues/{queue}/lease", wanted))["messages"]
        if not found:
            return None
        handle = queue, found[0]["lease"]["leaseId"]
        return handle, self.ask("GET", f"/v1/queues/{queue}/messages/{found[0]['message']['messageId']}/payload")

    def ack(self, handle: Any) -> None:
        queue, lease = handle
        self.ask("POST", f"/v1/queues/{queue}/ack", json.dumps({"leases": [lease]}).encode())

    def nack(self, handle: Any) -> None:
        queue, lease = handle
        document = {"leases": [lease], "reason": "HANDLER_ERROR", "text": "torture", "delaySec": 0}
        self.ask("POST", f"/v1/queues/{queue}/nack", json.dumps(document).encode())

    def record(self, topic: str, payload: bytes) -> None:
        self.ask("POST", f"/v1/topics/{topic}/records", payload, "application/octet-stream")

    def health(self) -> str:
        """Return ``ok``, ``degraded`` or ``fail``. The HTTP status is ignored: it is an error if health fails."""
        try:
            self._line.request("GET", "/v1/health")
            answer = self._line.getresponse()
            return str(json.loads(answer.read())["status"])
        except TimeoutError as error:
            self._line.close()
            raise Hung("GET /v1/health") from error
        except (OSError, http.client.HTTPException) as error:
            self._line.close()
            raise Lost(f"GET /v1/health: {error!r}") from error


class Mq(_Http):
    """Client of the HTTP API ``/mq``: draft, set, order, get, complete."""

    name = "mq"

    def publish(self, queue: str, payload: bytes) -> None:
        id = self.ask("POST", f"/mq/{queue}/messages", b'{"priority": null}').decode()
        self.ask("PUT", f"/mq/{queue}/messages/{id}", payload, "application/octet-stream")

    def lease(self, queue: str) -> tuple[Any, bytes] | None:
        if not json.loads(self.ask("GET", f"/mq/{queue}/stats"))["waiting"]:
            return None
        path = f"/mq/{queue}/messages/{self.ask('GET', f'/mq/{queue}/messages').decode()}"
        return path, self.ask("GET", path)

    def ack(self, handle: Any) -> None:
        self.ask("PATCH", f"{handle}/complete")

    def nack(self, handle: Any) -> None:
        self.ask("PATCH", f"{handle}/fail")

    def record(self, topic: str, payload: bytes) -> None:
        raise NotImplementedError


class Stomp:
    """STOMP 1.2 client. A store error ends the connection, as the protocol requires; the next call reconnects."""

    name = "stomp"

    def __init__(self, addresses: Addresses) -> None:
        self._address = addresses.stomp
        self._line: socket.socket | None = None
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
        headers, body = self._waiting.pop(0) if self._waiting else self._hear("MESSAGE")
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
        while self._hear("RECEIPT")[0]["receipt-id"] != receipt:
            pass

    def _send(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        lines = [command, *(f"{name}:{value}" for name, value in headers.items()), "", ""]
        try:
            self._dialled().sendall("\n".join(lines).encode() + body + b"\0")
        except OSError as error:
            self.close()
            raise Lost(f"{command}: {error!r}") from error

    def _dialled(self) -> socket.socket:
        if self._line is None:
            self._line = socket.create_connection(self._address, timeout=DEADLINE)
            self._data = b""
            self._line.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            self._hear("CONNECTED")
        return self._line

    def _hear(self, wanted: str) -> tuple[dict[str, str], bytes]:
        while True:
            command, headers, body = self._frame()
            if command == "ERROR":
                self.close()
                code, _, text = headers.get("message", "").replace("\\c", ":").partition(":")
                raise Refused(code.strip(), text.strip())
            if command == wanted:
                return headers, body
            if command == "MESSAGE":
                self._waiting.append((headers, body))

    def _frame(self) -> tuple[str, dict[str, str], bytes]:
        """Read one frame. The test payloads have no NUL, so a NUL ends the frame."""
        while b"\0" not in self._data:
            try:
                more = self._line.recv(65536) if self._line is not None else b""
            except TimeoutError as error:
                self.close()
                raise Hung("a frame") from error
            except OSError as error:
                self.close()
                raise Lost(repr(error)) from error
            if not more:
                self.close()
                raise Lost("closed by the server")
            self._data += more
        frame, self._data = self._data.split(b"\0", 1)
        head, _, body = frame.lstrip(b"\r\n").partition(b"\n\n")
        command, *lines = head.decode().split("\n")
        return command, dict(line.split(":", 1) for line in lines if ":" in line), body

    def close(self) -> None:
        self._waiting.clear()
        if self._line is not None:
            self._line.close()
            self._line = None


def translated(work: Callable[[], Any]) -> Any:
    """Translate errors of the Python API to those of this module."""
    try:
        return work()
    except TimedOut as error:
        raise Hung(str(error)) from error
    except Unavailable as error:
        if error.code in ("unreachable", "timed_out"):
            raise Lost(str(error)) from error
        raise Refused(error.code, str(error)) from error
    except QueueError as error:
        raise Refused(error.code, str(error)) from error


SERVED: tuple[Callable[[Addresses], Protocols], ...] = (Native, V1, Mq, Stomp)
