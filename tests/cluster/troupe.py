"""Nodes and consumers as processes, a producer in this one, and the count of what became of every message."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.support.etcd import EtcdCluster, at
from tests.support.etcd_consumer import AT_ONCE
from tests.support.wait import PATIENCE, soon
from yirangmq.clock import TimeOrderedIds
from yirangmq.cluster.clients import Producer
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.keys import Keys

ROOT = Path(__file__).parents[2]
LEASE = "4"
"""Seconds of a node that a busy machine holds up, and that still leads."""
Evil = Callable[["Troupe"], Awaitable[None]]


class Troupe:
    """``with Troupe(…) as troupe: troupe.play(messages, evil)``."""

    def __init__(self, etcds: EtcdCluster, folder: Path, queue: str, nodes: int = 2, consumers: int = 2) -> None:
        self.etcds = etcds
        self.queue = queue
        self.keys = Keys(queue)
        self._folder = folder
        self._names = [f"node-{number}" for number in range(nodes)]
        self._workers = [f"worker-{number}" for number in range(consumers)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Troupe":
        for name in self._names:
            self.start_node(name)
        for name in self._workers:
            self.start_worker(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    def start_node(self, name: str) -> None:
        store = f"etcd://{','.join(self.etcds.endpoints)}"
        words = ["-m", "yirangmq", "cluster", "serve", "--store", store, "--node", name, "--lease", LEASE]
        self._start(name, [*words, "--log-format", "text"])

    def start_worker(self, name: str) -> None:
        words = ["-m", "tests.support.etcd_consumer", ",".join(self.etcds.endpoints), self.queue, name]
        self._start(name, [*words, str(self._folder / f"{name}.done")])

    def _start(self, name: str, words: list[str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.log").open("ab") as log:
            path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            environment = {**os.environ, "PYTHONPATH": path}
            self.processes[name] = subprocess.Popen(
                [sys.executable, *words], stdout=log, stderr=log, cwd=ROOT, env=environment
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(PATIENCE)

    def stop(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    async def leader(self, client: Etcd, other_than: str = "") -> str:
        """The node that leads the queue."""
        found: list[str] = []

        async def is_there() -> bool:
            kv = await client.get(self.keys.leader)
            found[:] = [kv.value.decode()] if kv is not None else []
            return bool(found) and found[0] != other_than

        await soon(is_there, what="a leader")
        return found[0]

    def seen(self) -> Counter[bytes]:
        """How often each message was worked on."""
        found: Counter[bytes] = Counter()
        for path in self._folder.glob("*.done"):
            lines = path.read_bytes().splitlines()
            found.update(line.split(b" ", 1)[1] for line in lines)
        return found

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self._folder.glob("*.log")))

    async def perform(self, messages: int, evil: Evil) -> Counter[bytes]:
        """Send, do evil when a third is sent, and wait until all were worked on and nothing is left in etcd."""
        async with at(*self.etcds.endpoints) as client:
            producer = Producer(client, self.queue, "me", TimeOrderedIds())
            await producer.publish(b"first")
            await soon(lambda: self.seen()[b"first"] > 0, what=f"the first message\n{self.logs()}")
            doing: asyncio.Future[None] | None = None
            for number in range(0, messages, 5):
                if doing is None and number >= messages // 3:
                    doing = asyncio.ensure_future(evil(self))
                await producer.publish_many([b"%d" % one for one in range(number, number + 5)])
                await asyncio.sleep(0.005)
            assert doing is not None
            await doing
            wanted = {b"%d" % number for number in range(messages)} | {b"first"}
            await soon(lambda: wanted <= set(self.seen()), what=f"all of them\n{self.logs()}")

            async def is_drained() -> bool:
                ordered = await client.range(self.keys.base + b"0", self.keys.ordered_end, count_only=True)
                inbox = await client.range(self.keys.base + b"p/", self.keys.base + b"p0", count_only=True)
                return bool(ordered.count == 0 and inbox.count == 0)

            await soon(is_drained, what=f"nothing left\n{self.logs()}")
            assert set(self.seen()) == wanted
            return self.seen()


def doubled(seen: Counter[bytes]) -> int:
    return sum(count - 1 for count in seen.values())


__all__ = ["AT_ONCE", "Troupe", "doubled"]
