"""How fast a served store (``yirangmq serve --store etcd://…``) is through the socket door of the node that leads and
of one that passes on to it, beside the same server on SQLite in the same run. ``make bench-cluster``. Messages of 2000
bytes; one client process, batches of 100; etcd and SQLite sync.

Every path is measured in turns, and the middle of them is shown. Each line at the end has: name | figure | told |
reached: nothing is wanted of these, they are told. etcd, servers and the client share the machine's cores: run it when
nothing else does. ``--quick`` sends a tenth, once."""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ["YIRANGMQ_HTTP"] = "off"

from tests.support.etcd import EtcdCluster  # noqa: E402
from tests.support.etcd_servers import Served  # noqa: E402
from tests.support.server_process import daemon  # noqa: E402
from yirangmq.client.connect import connect  # noqa: E402

BODY = os.urandom(2000)
BATCH = 100
WINDOW = 1000
"""Messages that a subscription has in hand at most."""
LEASE_SECONDS = 600
FLAGS = ["--quota-backend-bytes", str(8 * 1024**3)]
KINDS = ("publish", "consume and ack", "end to end", "publish one by one")
PATHS = ("SQLite", "etcd, at the leader", "etcd, at another node")
Rates = dict[tuple[str, str], list[float]]


def publish(address: str, queue: str, count: int) -> None:
    with connect(address) as client:
        for _ in range(0, count, BATCH):
            client.publish_many(queue, [BODY] * BATCH)


def publish_singly(address: str, queue: str, count: int) -> None:
    with connect(address) as client:
        for _ in range(count):
            client.publish(queue, BODY)


def consume(address: str, queue: str, count: int) -> None:
    with connect(address) as client, client.subscribe(queue, WINDOW, lease_seconds=LEASE_SECONDS) as subscription:
        left = count
        for batch in subscription.batches():
            subscription.ack_nowait(batch)
            subscription.settle()
            left -= len(batch)
            if left <= 0:
                return


def together(address: str, queue: str, count: int) -> None:
    """From the first publish to the last ack."""
    taking = threading.Thread(target=consume, args=(address, queue, count))
    taking.start()
    publish(address, queue, count)
    taking.join()


def rate(work: Callable[[str, str, int], None], address: str, queue: str, count: int) -> float:
    begun = time.perf_counter()
    work(address, queue, count)
    return count / (time.perf_counter() - begun)


def measure(addresses: dict[str, str], count: int, rounds: int) -> Rates:
    found: Rates = {}
    for turn in range(rounds):
        for path, address in addresses.items():
            queue = f"turn-{turn}-{PATHS.index(path)}"
            for kind, work, many in (
                ("publish", publish, count),
                ("consume and ack", consume, count),
                ("end to end", together, count),
                ("publish one by one", publish_singly, count // 20),
            ):
                found.setdefault((kind, path), []).append(rate(work, address, queue, many))
            consume(address, queue, count // 20)
    return found


def run(members: int, count: int, rounds: int) -> Rates:
    with tempfile.TemporaryDirectory() as folder, EtcdCluster(Path(folder) / "etcd", members, FLAGS) as etcds:
        home = Path(folder) / "sqlite"
        home.mkdir()
        nodes = Served(Path(folder) / "nodes", etcds.endpoints, "bench", lease=10)
        nodes.url += f"&quota={8 * 1024**3}"
        try:
            nodes.start("a")
            first = nodes.leader()
            nodes.start("b")
            with daemon(home, "--tcp", "127.0.0.1:0", "--log-level", "error") as beside:
                here = beside.address_of("tcp")
                there = [nodes.address(name, "tcp") for name in (first, nodes.other(first))]
                return measure(dict(zip(PATHS, [here, *there], strict=True)), count, rounds)
        finally:
            nodes.kill()


def show(found: Rates, label: str) -> list[str]:
    middle = {place: statistics.median(rates) for place, rates in found.items()}
    print(f"{label}, messages a second:")
    for kind in KINDS:
        print(f"  {kind:<20}" + "  ".join(f"{path} {middle[kind, path]:>9,.0f}" for path in PATHS))
    return [
        f"target: {kind}: {path}, {label} | {middle[kind, path] / middle[kind, PATHS[0]]:.2f} x SQLite | told | reached"
        for kind in KINDS
        for path in PATHS[1:]
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth, once")
    chosen = parser.parse_args()
    lines: list[str] = []
    for size in (1, 3):
        amount, turns = (2_000, 1) if chosen.quick else (20_000, 3)
        lines += show(run(size, amount, turns), f"{size} member{'s' if size > 1 else ''}")
    print("\n".join(lines))
