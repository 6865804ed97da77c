"""A whole server with STOMP in a thread of the test's process, and the client ``stomp.py``, which is not ours."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stomp
import uvloop

from tests.support.wait import PATIENCE, until
from yirangmq.cli.daemon import Daemon, Secrets
from yirangmq.config.load import load
from yirangmq.core.access import Grant
from yirangmq.stores.open import open_store

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
    """The real daemon, in a thread."""

    def __init__(
        self, folder: Path, grants: tuple[Grant, ...] = (), tls: ssl.SSLContext | None = None, **settings: Any
    ) -> None:
        usual = {"data": str(folder), "http": "off", "stomp": "127.0.0.1:0", "stop_seconds": 1}
        self._config = load({}, {}, usual | settings)
        self._secrets = Secrets("", tls, grants)
        self._up = threading.Event()
        self._clients: list[LiveClient] = []
        self.unix = f"unix:{folder / 'yirangmq.sock'}"
        self.port = 0

    def start(self) -> "LiveServer":
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE)
        return self

    def _turn(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        store = open_store(self._config.store_url, durability="os")
        try:
            self._loop = asyncio.get_running_loop()
            self.daemon = Daemon(self._config, store, self._secrets)
            await self.daemon.run(self._ready)
        finally:
            store.close()

    def _ready(self, addresses: list[str]) -> None:
        [address] = [one for one in addresses if one.startswith("stomp")]
        self.port = int(address.rpartition(":")[2])
        self._up.set()

    def client(self, version: str = "1.2", **options: Any) -> LiveClient:
        made = LiveClient(self.port, version, **options)
        self._clients.append(made)
        return made

    def connected(self, version: str = "1.2", **options: Any) -> LiveClient:
        return self.client(version).connect(**options)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._loop.call_soon_threadsafe(self.daemon.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def live(
    folder: Path, grants: tuple[Grant, ...] = (), tls: ssl.SSLContext | None = None, **settings: Any
) -> Iterator[LiveServer]:
    folder.mkdir(exist_ok=True)
    server = LiveServer(folder, grants, tls, **settings).start()
    try:
        yield server
    finally:
        server.stop()
