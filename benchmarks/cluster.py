"""How fast queues on etcd are, beside what etcd's own yardstick (``etcdctl check perf --load=l``) reaches on the same
cluster in the same run. ``make bench-cluster``. Messages of 2000 bytes; nodes, producer and consumers are processes
of their own; etcd syncs.

Each target line at the end has: name | figure | wanted | reached or short. etcd, nodes and clients share the
machine's cores: run it when nothing else does. ``--quick`` leaves the yardstick out (it takes a minute a cluster) and
sends a tenth."""

import argparse
import asyncio
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.etcds import Etcds, program  # noqa: E402
from tests.cluster.parts import at  # noqa: E402
from yirangmq.clock import TimeOrderedIds  # noqa: E402
from yirangmq.cluster.consuming import Consumer  # noqa: E402
from yirangmq.cluster.etcd import Etcd  # noqa: E402
from yirangmq.cluster.following import follow  # noqa: E402
from yirangmq.cluster.keys import Keys  # noqa: E402
from yirangmq.cluster.producing import Producer  # noqa: E402
from yirangmq.core.errors import Unavailable  # noqa: E402
from yirangmq.format.jsontext import loads  # noqa: E402

BODY = os.urandom(2000)
BATCH = 100
CONSUMERS = 2
LEASE = 5
FLAGS = ["--quota-backend-bytes", str(8 * 1024**3)]
TARGETS: list[str] = []


def target(name: str, figure: str, wanted: str, reached: bool) -> None:
    TARGETS.append(f"target: {name} | {figure} | {wanted} | {'reached' if reached else 'short'}")


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "YIRANGMQ_WORKER_BATCH": str(BATCH)}
    started = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def node(etcds: Etcds, name: str) -> tuple[str, ...]:
    store = f"etcd://{','.join(etcds.endpoints)}"
    words = ("-m", "yirangmq", "cluster", "serve", "--store", store, "--node", name, "--lease", str(LEASE))
    return (*words, "--compact", "5", "--log-level", "error")


def yardstick(etcds: Etcds) -> float:
    """Writes per second that etcd's own check reaches."""
    command = [program("etcdctl"), "--endpoints", ",".join(etcds.endpoints), "check", "perf", "--load=l"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "ETCDCTL_API": "3"})
    text = (done.stdout + done.stderr).decode()
    found = re.search(r"Throughput (?:is )?(?:too low: )?(\d+) writes/s", text)
    if found is None:
        raise SystemExit(f"etcdctl check perf said: {text[-500:]}")
    return float(found[1])


async def acked(client: Etcd, queue: str, count: int) -> None:
    """So many are acked and removed."""
    state = Keys(queue).state
    async for changes in follow(client, state, b"", deletes=False):
        for one in changes.events:
            if loads((one if changes.anew else one.kv).value)["acked"] >= count:
                return


async def end_to_end(etcds: Etcds, queue: str, count: int) -> float:
    """Messages per second from the first publish to the last ack removed."""
    async with at(*etcds.endpoints) as client, at(*etcds.endpoints) as eyes:
        producer = Producer(client, queue, "bench", TimeOrderedIds())
        await producer.publish(BODY)
        await acked(eyes, queue, 1)
        begun = time.perf_counter()
        for _ in range(0, count, BATCH):
            await producer.publish_many([BODY] * BATCH)
        await acked(eyes, queue, count + 1)
        return count / (time.perf_counter() - begun)


async def latency(etcds: Etcds, queue: str, seconds: float) -> list[float]:
    """Milliseconds from publish to receipt at a hundred messages a second."""
    taken: list[float] = []
    async with at(*etcds.endpoints) as client, at(*etcds.endpoints) as other:
        producer = Producer(client, queue, "bench", TimeOrderedIds())

        async def consume() -> None:
            async with Consumer(other, queue, "bench") as consumer:
                async for batch in consumer.batches():
                    now = time.perf_counter()
                    taken.extend((now - float(one.name)) * 1000 for one in batch)
                    await consumer.ack(batch)

        consuming = asyncio.ensure_future(consume())
        begun = time.perf_counter()
        for number in range(int(seconds * 100)):
            await asyncio.sleep(max(0.0, begun + number / 100 - time.perf_counter()))
            await producer.publish(BODY, f"{time.perf_counter():.9f}")
        await asyncio.sleep(0.5)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    return sorted(taken)[len(taken) // 10 :]  # the first ones found the node


async def takeover(etcds: Etcds, queue: str, nodes: dict[str, subprocess.Popen[bytes]]) -> float:
    """The longest time without a delivery while the leading node is killed."""
    moments: list[float] = []
    async with at(*etcds.endpoints) as client, at(*etcds.endpoints) as other:
        producer = Producer(client, queue, "bench", TimeOrderedIds())

        async def consume() -> None:
            async with Consumer(other, queue, "bench") as consumer:
                async for batch in consumer.batches():
                    moments.append(time.perf_counter())
                    await consumer.ack(batch)

        consuming = asyncio.ensure_future(consume())
        for number in range(int((LEASE + 5) * 50)):
            await producer.publish(BODY)
            await asyncio.sleep(0.02)
            if number == 100:
                held = await client.get(Keys(queue).leader)
                if held is None:
                    raise Unavailable("nobody leads")
                nodes[held.value.decode()].kill()
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    return max(after - before for before, after in itertools.pairwise(moments))


def measure(members: int, quick: bool) -> None:
    count = 3_000 if quick else 30_000
    with tempfile.TemporaryDirectory() as folder, Etcds(Path(folder) / "etcd", members, FLAGS) as etcds:
        wanted = 0.0 if quick else yardstick(etcds)
        endpoints = ",".join(etcds.endpoints)
        with process(*node(etcds, "a")) as a, process(*node(etcds, "b")) as b:
            with (
                process("-m", "tests.cluster.workers", endpoints, "fast", "one", os.devnull),
                process("-m", "tests.cluster.workers", endpoints, "fast", "two", os.devnull),
            ):
                rate = asyncio.run(end_to_end(etcds, "fast", count))
            times = asyncio.run(latency(etcds, "slow", 3 if quick else 20))
            gap = asyncio.run(takeover(etcds, "gap", {"a": a, "b": b}))
    label = f"{members} member{'s' if members > 1 else ''}"
    middle, worst = statistics.median(times), times[int(len(times) * 0.99)]
    found = f"{rate:,.0f} msg/s, p50 {middle:.1f} ms, p99 {worst:.1f} ms, takeover {gap:.1f} s"
    print(f"{label}: {found}; check perf {wanted:,.0f} writes/s")
    if not quick:
        share = rate / wanted
        target(f"end to end beside etcdctl check perf, {label}", f"{share:.2f} x", ">= 1.0 x", share >= 1)
    target(f"p50 at 100 msg/s, {label}", f"{middle:.1f} ms", "<= 5 ms", middle <= 5)
    target(f"takeover, {label}", f"{gap:.1f} s", f"<= {LEASE + 1} s", gap <= LEASE + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth, without the yardstick")
    chosen = parser.parse_args()
    for size in (1, 3):
        measure(size, chosen.quick)
    print("\n".join(TARGETS))
