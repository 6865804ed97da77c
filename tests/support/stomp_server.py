"""A whole server with STOMP in a thread of the test's process, and the client ``stomp.py``, which is not ours."""

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stomp
import uvloop

from tests.support.daemon_thread import DaemonThread
from tests.support.wait import until
from yirangmq.core.access import AccessGrant
from yirangmq.server.server import Secrets

CONNECTIONS: dict[str, Any] = {
    "1.0": stomp.StompConnection10,
    "1.1": stomp.StompConnection11,
    "1.2": stomp.StompConnection12,
}


class Heard(stomp.ConnectionListener):  # type: ignore[misc]
    """All that a client hears."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.receipts: list[str] = []
        self.errors: list[Any] = []
        self.beats = 0
        self.is_over = threading.Event()

    def on_message(self, frame: Any) -> None:
        self.messages.append(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.append(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.append(frame)

    def on_heartbeat(self) -> None:
        self.beats += 1

    def on_disconnected(self) -> None:
        self.is_over.set()


class LiveClient:
    """A connection of ``stomp.py`` and what it hears; ``confirm`` waits for the receipt of what it is given."""

    def __init__(self, port: int, version: str = "1.2", **options: Any) -> None:
        options = {"reconnect_attempts_max": 1, "auto_decode": False, **options}
        self.version = version
        self.line = CONNECTIONS[version]([("127.0.0.1", port)], **options)
        self.heard = Heard()
        self.line.set_listener("heard", self.heard)
        self._number = 0

    def connect(self, **options: Any) -> "LiveClient":
        self.line.connect(wait=True, **options)
        return self

    def confirm(self, act: Callable[..., Any], *values: Any, **headers: Any) -> None:
        self._number += 1
        receipt = f"receipt-{self._number}"
        act(*values, **{**headers, "receipt": receipt})
        until(lambda: receipt in self.heard.receipts or self.heard.errors)
        assert not self.heard.errors, self.heard.errors

    def send(self, destination: str, body: bytes | str, **headers: Any) -> None:
        self.confirm(lambda receipt: self.line.send(destination, body, headers={**headers, "receipt": receipt}))

    def messages(self, count: int) -> list[Any]:
        until(lambda: len(self.heard.messages) >= count or self.heard.errors)
        assert not self.heard.errors, [(error.headers, error.body) for error in self.heard.errors]
        found, self.heard.messages[:] = self.heard.messages[:count], self.heard.messages[count:]
        return found

    def ack(self, message: Any, **headers: Any) -> None:
        self._settle(self.line.ack, message, headers)

    def nack(self, message: Any, **headers: Any) -> None:
        self._settle(self.line.nack, message, headers)

    def _settle(self, act: Callable[..., Any], message: Any, headers: dict[str, Any]) -> None:
        if self.version == "1.2":
            self.confirm(act, message.headers["ack"], **headers)
        elif self.version == "1.1":
            self.confirm(act, message.headers["message-id"], message.headers["subscription"], **headers)
        else:
            self.confirm(act, message.headers["message-id"], **headers)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.line.disconnect()
        with contextlib.suppress(Exception):
            self.line.transport.stop()


class LiveServer:
    """The real daemon, in a thread, and its clients."""

    def __init__(
        self, folder: Path, grants: tuple[AccessGrant, ...] = (), tls: ssl.SSLContext | None = None, **settings: Any
    ) -> None:
        usual = {"http": "off", "stomp": "127.0.0.1:0"}
        self._thread = DaemonThread(folder, Secrets("", tls, grants), uvloop.new_event_loop, **usual | settings)
        self._clients: list[LiveClient] = []
        self.unix = self._thread.unix
        self.port = 0

    def start(self) -> "LiveServer":
        self._thread.start()
        self.port = next(port for scheme, port in self._thread.ports.items() if scheme.startswith("stomp"))
        return self

    def client(self, version: str = "1.2", **options: Any) -> LiveClient:
        made = LiveClient(self.port, version, **options)
        self._clients.append(made)
        return made

    def connected(self, version: str = "1.2", **options: Any) -> LiveClient:
        return self.client(version).connect(**options)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._thread.stop()


@contextmanager
def live(
    folder: Path, grants: tuple[AccessGrant, ...] = (), tls: ssl.SSLContext | None = None, **settings: Any
) -> Iterator[LiveServer]:
    folder.mkdir(exist_ok=True)
    server = LiveServer(folder, grants, tls, **settings).start()
    try:
        yield server
    finally:
        server.stop()
