"""Whole servers before one store in etcd."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.server_process import Daemon, until
from yirangmq.cluster.etcd.address import read_address
from yirangmq.cluster.leadership import Leader
from yirangmq.core.errors import QueueError
from yirangmq.stores.etcd.store import find_current_leader

PATIENCE = 60.0
ROOT = Path(__file__).parents[2]


class Served:
    """Nodes by name; ``url`` is their store."""

    def __init__(self, folder: Path, endpoints: Sequence[str], name: str, lease: int) -> None:
        self.program = "yirangmq"
        self.options: Callable[[str], Sequence[str]] = lambda name: ()
        """More that a node of that name is started with."""
        self.url = f"etcd://{','.join(endpoints)}?name={name}&lease={lease}"
        self._folder = folder
        self.nodes: dict[str, Daemon] = {}

    def start(self, name: str) -> Daemon:
        home = self._folder / name
        home.mkdir(parents=True, exist_ok=True)
        here = "127.0.0.1:0"
        doors = ("--tcp", here, "--http", here, "--stomp", here)
        node = Daemon(home, "--store", self.url, "--node", name, *doors, *self.options(name))
        node.program = self.program
        self.nodes[name] = node.start(PYTHONPATH=str(ROOT))
        return node

    def address(self, name: str, scheme: str) -> str:
        return self.nodes[name].address_of(scheme)

    def port(self, name: str, scheme: str) -> int:
        return self.nodes[name].port_of(scheme)

    @property
    def addresses(self) -> str:
        return ",".join(self.address(name, "tcp") for name in self.nodes)

    def leader(self, other_than: str = "") -> str:
        """The node that leads, when there is one."""
        found: list[Leader] = []

        def is_there() -> bool:
            with suppress(QueueError):
                seen = find_current_leader(read_address(self.url, os.environ))
                found[:] = [] if seen is None or seen.node == other_than else [seen]
            return bool(found)

        until(is_there, PATIENCE)
        return found[0].node

    def other(self, name: str) -> str:
        return next(one for one in self.nodes if one != name)

    def kill(self) -> None:
        for node in self.nodes.values():
            with suppress(ProcessLookupError):
                if node.process is not None and node.process.poll() is None:
                    node.process.send_signal(signal.SIGCONT)
            node.kill()


@contextmanager
def served(
    folder: Path, endpoints: Sequence[str], name: str, lease: int, more: str = "", program: str = "yirangmq"
) -> Iterator[Served]:
    """Two nodes, of which one leads. ``more`` is said in the address, ``program`` is what they run."""
    made = Served(folder, endpoints, name, lease)
    made.url += more
    made.program = program
    try:
        made.start("a")
        made.leader()
        made.start("b")
        yield made
    finally:
        made.kill()
