"""How fast the HTTP door is on this machine: a whole server, full durability, load from another process.

make bench-http
make bench-http BENCH_FLAGS=--quick

Beside each figure stands what it cost: processor time of server and client for one of what is counted, and how busy
everybody was. Each target line at the end has: name | figure | wanted | reached or short. The targets are for an idle
machine of two cores."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import cpu
from peers_process import PATIENCE, Server, free_port

import yirangmq

SIZE = 2000
DEEP = 1_000_000
DEEP_SIZE = 200
"""Bytes of those that only wait: a million of 2000 would be two gigabytes, and an order reads none of them."""
BATCH = 100
MOST_OTHER = 0.4
QUIET_PATIENCE = 10
CLIENT = Path(__file__).with_name("http_client.py")
TARGETS: list[str] = []


def target(name: str, figure: str, wanted: str, reached: bool) -> None:
    TARGETS.append(f"target: {name} | {figure} | {wanted} | {'reached' if reached else 'short'}")


class HttpServer(Server):
    """As anybody would start it, on a free port; only the log is short."""

    name = "ours"

    def open(self) -> None:
        self.port = free_port()
        self.path = str(self.folder / "yirangmq.sock")
        words = ["--data", str(self.folder), "--http", f"127.0.0.1:{self.port}", "--log-level", "warning"]
        self.launch([sys.executable, "-m", "yirangmq", "serve", *words], {})

    @property
    def url(self) -> str:
        return f"unix:{self.path}"

    def first_message(self) -> bool:
        try:
            with yirangmq.connect(self.url, retries=0) as queues:
                return bool(queues.publish("first", b"x"))
        except yirangmq.Unreachable:
            return False


@dataclass(frozen=True, slots=True)
class Found:
    """What one load found, and what it cost: seconds of the processors, and cores kept busy by others."""

    done: int
    seconds: float
    spans: list[float]
    broker: float
    client: float
    other: float

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    @property
    def broker_us(self) -> float:
        return self.broker / max(1, self.done) * 1e6

    def __str__(self) -> str:
        client_us = self.client / max(1, self.done) * 1e6
        busy = f"{self.broker / self.seconds:.2f} and {self.client / self.seconds:.2f} cores, others {self.other:.2f}"
        return f"server {self.broker_us:5.0f} µs, client {client_us:4.0f} µs ({busy})"


@dataclass(frozen=True, slots=True)
class Bench:
    """A running server, and how long to load it."""

    server: HttpServer
    seconds: float
    depth: int

    @property
    def is_quick(self) -> bool:
        return self.depth < DEEP

    def load(self, job: str, **orders: Any) -> Found:
        given = {"job": job, "port": self.server.port, "size": SIZE, "seconds": self.seconds, **orders}
        if not self.is_quick:
            cpu.wait_for_quiet(MOST_OTHER, QUIET_PATIENCE)
        before, begin = cpu.read(), time.monotonic()
        done = subprocess.run(
            [sys.executable, str(CLIENT), json.dumps(given)], stdout=subprocess.PIPE, check=True, timeout=PATIENCE * 5
        )
        after, seconds = cpu.read(), time.monotonic() - begin
        found: dict[str, Any] = json.loads(done.stdout)
        share = cpu.shares(before, after, seconds, [], self.server.pids)
        client = found["client_seconds"]
        other = max(0.0, share.other - client / seconds)
        spent = found.get("seconds", seconds)
        return Found(found["done"], spent, found.get("spans", []), share.broker * seconds, client, other)

    def fill(self, queue: str, count: int, size: int = DEEP_SIZE) -> None:
        with yirangmq.connect(self.server.url) as queues:
            for begin in range(0, count, 10_000):
                queues.publish_many(queue, repeat(b"x" * size, min(10_000, count - begin)))


# -- what is measured -------------------------------------------------------------------------------------------------


def full_cycles(bench: Bench) -> None:
    print(f"draft, set, order, get, complete with {SIZE} bytes: full cycles, of five calls each")
    for connections in (1, 8, 64):
        found = bench.load("cycles", queue=f"cycle-{connections}", connections=connections)
        print(f"  {connections:3} connections  {found.rate:8,.0f}/s   {found}")
        if connections == 64:
            target("full cycles, 64 connections", f"{found.rate:,.0f}/s", ">= 4,000/s", found.rate >= 4_000)


def publish(bench: Bench) -> None:
    print(f"publish over /v1, one message of {SIZE} bytes a call")
    for connections in (1, 8, 64):
        found = bench.load("publishing", queue=f"single-{connections}", connections=connections, batch=1)
        print(f"  {connections:3} connections  {found.rate:8,.0f}/s   {found}")
        if connections == 64:
            target("publish, 64 connections", f"{found.rate:,.0f}/s", ">= 20,000/s", found.rate >= 20_000)


def lease_and_ack(bench: Bench) -> None:
    print("lease and ack over /v1, messages (two calls each, or two for a batch)")
    for batch, connections in ((1, 1), (1, 8), (1, 64), (BATCH, 1), (BATCH, 8)):
        queue = f"taken-{batch}-{connections}"
        count = (2_000 if bench.is_quick else 20_000) * (1 if batch == 1 else 5)
        bench.fill(queue, count, SIZE)
        found = bench.load("consuming", queue=queue, connections=connections, batch=batch, count=count)
        print(f"  {connections:3} connections, batches of {batch:3}  {found.rate:8,.0f}/s   {found}")


def batch_publish(bench: Bench) -> None:
    """In turns, in short spells, so that whatever else the machine does falls on both alike."""
    print(f"publish in batches of {BATCH}, 8 connections: over /v1 beside frames of as many by the unix socket")
    shares = []
    for number in range(3 if bench.is_quick else 5):
        orders = {"connections": 8, "batch": BATCH, "seconds": bench.seconds / 2}
        http = bench.load("publishing", queue=f"batch-{number}", **orders)
        frames = bench.load("framing", queue=f"frames-{number}", socket=bench.server.path, **orders)
        shares.append(http.rate / frames.rate)
        print(f"  http   {http.rate:8,.0f}/s   {http}")
        print(f"  frames {frames.rate:8,.0f}/s   {frames}   share {shares[-1]:.2f}")
    share = statistics.median(shares)
    target(f"publish in batches of {BATCH} beside the socket door", f"{share:.2f}", ">= 0.7", share >= 0.7)


def order_at_depth(bench: Bench) -> None:
    """On 64 connections, so that it is the work that is seen and not the wait for the disk; in turns, by processor
    time of the server, which others cannot make longer."""
    print(f"order with {bench.depth:,} waiting, and with none but those ordered, 64 connections")
    count = 4_000 if bench.is_quick else 20_000
    bench.fill("deep", bench.depth)
    shares = []
    for number in range(3):
        bench.fill(f"shallow-{number}", count)
        shallow = bench.load("ordering", queue=f"shallow-{number}", count=count, connections=64)
        deep = bench.load("ordering", queue="deep", count=count, connections=64)
        shares.append(deep.broker_us / shallow.broker_us)
        print(f"  empty {shallow.rate:8,.0f}/s   {shallow}")
        print(f"  deep  {deep.rate:8,.0f}/s   {deep}   share {shares[-1]:.2f}")
    share = statistics.median(shares)
    target(f"order with {bench.depth:,} waiting beside empty", f"{share:.2f}", "<= 1.25", share <= 1.25)


def wake_up(bench: Bench) -> None:
    found = bench.load("wake", queue="wake", count=200 if bench.is_quick else 2000, pause=0.002)
    spans = sorted(found.spans)
    p50, p99 = spans[len(spans) // 2], spans[len(spans) * 99 // 100]
    print(f"an order that waits is answered after set: p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {spans[-1]:.2f} ms")
    print(f"  {found}, a draft, set, order and abandon each")
    target("p99 of order wake-up after set", f"{p99:.2f} ms", "<= 20 ms", p99 <= 20)


LINES: tuple[Callable[[Bench], None], ...] = (
    full_cycles,
    publish,
    lease_and_ack,
    batch_publish,
    wake_up,
    order_at_depth,
)


@contextmanager
def serving(folder: Path) -> Iterator[HttpServer]:
    server = HttpServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute instead of ten; the figures say less")
    parser.add_argument("--only", metavar="WORD", default="", help="lines whose name has this word")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="yirangmq-http-") as folder, serving(Path(folder) / "data") as server:
        bench = Bench(server, 2 if given.quick else 8, DEEP // 20 if given.quick else DEEP)
        for line in LINES:
            if given.only in line.__name__:
                line(bench)
    print("\n".join(TARGETS))


if __name__ == "__main__":
    main()
