"""The real server in a thread of the test's process, with every protocol that its settings name."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.wait import PATIENCE
from yirangmq.config.config import load
from yirangmq.server.server import Daemon, Secrets
from yirangmq.stores.open import open_store

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class DaemonThread:
    """``unix`` is the address of its socket; ``ports`` are those of its other protocols, by scheme."""

    def __init__(
        self, folder: Path, secrets: Secrets | None = None, new_loop: NewLoop | None = None, **settings: Any
    ) -> None:
        self._config = load({}, {}, {"data": str(folder), "stop_seconds": 1, **settings})
        self._secrets = secrets or Secrets()
        self._new_loop = new_loop
        self._up = threading.Event()
        self.unix = f"unix:{folder / 'yirangmq.sock'}"
        self.ports: dict[str, int] = {}

    def start(self) -> None:
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE)

    def _turn(self) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
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
        self.ports = {
            one.partition(":")[0]: int(one.rpartition(":")[2]) for one in addresses if not one.startswith("unix")
        }
        self._up.set()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self.daemon.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
