"""What many queues cost a server: publishing, health, lists and memory, beside a server with one queue.

    python benchmarks/queues.py [--quick] [--queues 100000] [--store sqlite|files]

Two whole servers on the same disk, one with one queue, one with many, a message in each. They take turns: messages
published one at a time and confirmed, to one queue and to all in turn; health, asked for over HTTP while messages are
published; pages of the list; the metrics page. Each figure is the median of the rounds with its spread. The last lines
are ``target: name | figure | wanted | reached or short``."""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import yirangmq
from yirangmq.broker import operations
from yirangmq.broker.context import TransactionContext
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.core.ports import Transaction
from yirangmq.format.envelope import NewMessage, build

PER_COMMIT = 1000
HEALTH_MS = 50
PUBLISH_RATIO = 1.5
TARGETS: list[str] = []


def target(name: str, figure: str, wanted: str, reached: bool) -> None:
    TARGETS.append(f"target: {name} | {figure} | {wanted} | {'reached' if reached else 'short'}")


def name_of(number: int) -> str:
    return f"queue-{number:06}"


def fill(url: str, queues: int) -> float:
    """A message in each queue, written by this process; how long it took."""
    begun = time.perf_counter()
    clock, ids = SystemClock(), TimeOrderedIds()
    context = TransactionContext(clock, ids)

    def work(transaction: Transaction, first: int) -> None:
        for number in range(first, min(queues, first + PER_COMMIT)):
            message = build(name_of(number), NewMessage(payload={"n": number}), ids.new(1)[0], clock.now_ms())
            operations.publish(context, transaction, name_of(number), [message])

    with yirangmq.open(url, durability="os") as store:
        for first in range(0, queues, PER_COMMIT):
            store.run(partial(work, first=first))
    return time.perf_counter() - begun


class Server:
    def __init__(self, folder: Path, url: str, queues: int) -> None:
        self.queues = queues
        self._folder = folder
        command = [sys.executable, "-m", "yirangmq", "serve", "--data", str(folder), "--store", url]
        command += ["--http", "127.0.0.1:0", "--max-queues", "0", "--disk-low-bytes", "0", "--json"]
        begun = time.perf_counter()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        addresses = json.loads(self._process.stdout.readline())["addresses"]
        self.started = time.perf_counter() - begun
        web = next(one for one in addresses if one.startswith("http:"))
        self._host = web.removeprefix("http://")
        self.client = yirangmq.connect(next(one for one in addresses if one.startswith("unix:")))

    def get(self, path: str) -> tuple[float, bytes]:
        """Milliseconds, and the answer; a connection of its own."""
        line = http.client.HTTPConnection(self._host, timeout=120)
        line.connect()
        begun = time.perf_counter()
        line.request("GET", path)
        answer = line.getresponse()
        body = answer.read()
        spent = (time.perf_counter() - begun) * 1000
        line.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:300]!r}")
        return spent, body

    def publish(self, seconds: float, which: Callable[[int], int]) -> float:
        """Messages a second, one at a time."""
        count, until, begun = 0, time.perf_counter() + seconds, time.perf_counter()
        while time.perf_counter() < until:
            self.client.publish(name_of(which(count)), {"n": count})
            count += 1
        return count / (time.perf_counter() - begun)

    def memory(self) -> float:
        """MiB resident."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(60)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """``work`` again and again in a thread."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def told(figures: list[float], unit: str) -> str:
    return f"{statistics.median(figures):,.1f} {unit} ({min(figures):,.1f} to {max(figures):,.1f})"


def measure(kind: str, queues: int, rounds: int, seconds: float, asked: int) -> None:
    label = f"{kind}, {queues:,} queues"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, ExitStack() as stack:
        servers = []
        for number in (1, queues):
            folder = Path(place) / str(number)
            folder.mkdir(mode=0o700)
            url = f"sqlite:{folder}/queue.db" if kind == "sqlite" else f"files:{folder}/queues"
            spent = fill(url, number)
            server = Server(folder, url, number)
            stack.callback(server.close)
            servers.append(server)
            print(f"{kind}, {number:,} queues: filled in {spent:.1f} s, started in {server.started:.2f} s, "
                  f"{server.memory():.0f} MiB", flush=True)  # fmt: skip
        one, many = servers
        rates: dict[str, list[float]] = {"one": [], "first": [], "turn": []}
        health: list[float] = []
        for _ in range(rounds):
            rates["one"].append(one.publish(seconds, lambda n: 0))
            rates["first"].append(many.publish(seconds, lambda n: 0))
            rates["turn"].append(many.publish(seconds, lambda n: n * 7919 % queues))
            with beside(lambda: many.client.publish(name_of(0), {})):
                health += [many.get("/v1/health")[0] for _ in range(asked)]
        for name, about in (
            ("one", "one queue"),
            ("first", f"to one of {queues:,}"),
            ("turn", f"to {queues:,} in turn"),
        ):
            print(f"{kind}, publish, {about}: {told(rates[name], 'messages/s')}", flush=True)
        health.sort()
        print(f"{label}, health: {told(health, 'ms')}, p99 {health[len(health) * 99 // 100]:.1f} ms", flush=True)
        listed(many, kind, label)
        for name, about in (("first", "to one of them"), ("turn", "to all in turn")):
            ratios = [alone / beside_many for alone, beside_many in zip(rates["one"], rates[name], strict=True)]
            ratio = statistics.median(ratios)
            target(f"publish {about}, {label}", f"{ratio:.2f} x of one queue", f"<= {PUBLISH_RATIO} x",
                   ratio <= PUBLISH_RATIO)  # fmt: skip
        middle = statistics.median(health)
        target(f"health, {label}", f"{middle:.1f} ms", f"<= {HEALTH_MS} ms", middle <= HEALTH_MS)
        print(f"{label}, memory: {many.memory():.0f} MiB, with one queue {one.memory():.0f} MiB", flush=True)


def listed(server: Server, kind: str, label: str) -> None:
    """Pages of the list and the metrics, and health meanwhile: lists are made in slices."""
    first, body = server.get("/v1/queues")
    found = json.loads(body)
    print(f"{label}, first page of {len(found['queues']):,}: {first:.0f} ms, {len(body) / 1024:,.0f} KiB", flush=True)
    by_count, _ = server.get("/v1/queues?sort=-ready&limit=100")
    print(f"{label}, the 100 longest of all: {by_count:.0f} ms", flush=True)
    metrics, text = server.get("/metrics")
    print(f"{label}, metrics: {metrics:.0f} ms, {len(text) / 1024:,.0f} KiB", flush=True)
    meanwhile: list[float] = []
    with beside(lambda: server.get("/v1/queues?sort=-ready&limit=100")):
        meanwhile += [server.get("/v1/health")[0] for _ in range(20)]
    print(f"{label}, health while the list is sorted: {told(meanwhile, 'ms')}", flush=True)
    middle = statistics.median(meanwhile)
    target(f"health while lists are made, {label}", f"{middle:.1f} ms", f"<= {HEALTH_MS} ms", middle <= HEALTH_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 queues, one round")
    parser.add_argument("--queues", type=int, help="of the SQLite store (default: 100000); of files a tenth")
    parser.add_argument("--store", choices=("sqlite", "files"), help="this one only")
    args = parser.parse_args()
    queues = args.queues or (2_000 if args.quick else 100_000)
    rounds, seconds, asked = (1, 1.0, 20) if args.quick else (5, 3.0, 40)
    for kind, count in (("sqlite", queues), ("files", max(2, queues // 10))):
        if args.store in (None, kind):
            measure(kind, count, rounds, seconds, asked)
    print("\n".join(TARGETS))


if __name__ == "__main__":
    sys.exit(main())
