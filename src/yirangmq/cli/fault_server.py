"""A whole server in a thread of this process, for ``torture --faults``: every protocol open, on a store that the caller
has opened over calls that can be made to fail."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

from yirangmq.config.config import load
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Store
from yirangmq.crashtest.faults.protocols import Addresses
from yirangmq.server.server import Daemon, Secrets

PATIENCE = 30.0
SETTINGS: dict[str, Any] = {
    "http": "127.0.0.1:0",
    "stomp": "127.0.0.1:0",
    "stop_seconds": 1,
    "disk_low_bytes": 0,
}


class FaultServer:
    """Runs from the moment it is made until ``stop``. Raises what the start raised. ``errors``: what reached the event
    loop's exception handler, which nothing should."""

    def __init__(self, store: Store, data: Path) -> None:
        settings = {**SETTINGS, "data": str(data), "socket": str(data / "y.sock"), "store": f"sqlite:{data / 'store'}"}
        self._config = load({}, {}, settings)
        self._store = store
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._addresses: Addresses | None = None
        self._daemon: Daemon | None = None
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._main, name="fault-server", daemon=True)
        self._thread.start()
        if not self._up.wait(PATIENCE):
            raise QueueError(f"the server did not start within {PATIENCE:g} s")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._thread.join(PATIENCE)
            raise self._failure

    @property
    def addresses(self) -> Addresses:
        if self._addresses is None:
            raise RuntimeError("not started")
        return self._addresses

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._failure = error
        finally:
            self._up.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._heard)
        self._daemon = Daemon(self._config, self._store, Secrets())
        await self._daemon.run(self._ready)

    def _heard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _ready(self, addresses: list[str]) -> None:
        ports = {one.partition(":")[0]: int(one.rpartition(":")[2]) for one in addresses if not one.startswith("unix")}
        socket = next(one for one in addresses if one.startswith("unix"))
        self._addresses = Addresses(socket, ("127.0.0.1", ports["http"]), ("127.0.0.1", ports["stomp"]))
        self._up.set()

    def stop(self) -> None:
        daemon = self._daemon
        if daemon is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(daemon.stop)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise QueueError(f"the server did not stop within {PATIENCE:g} s")
        self._raise_failure()
