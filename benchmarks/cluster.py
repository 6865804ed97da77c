"""How fast queues on etcd are, beside what etcd's own yardstick (``etcdctl check perf --load=l``) reaches on the same
cluster in the same run. ``make bench-cluster``. Messages of 2000 bytes; etcd's members, two nodes and two consumers are
processes of their own, the producer is this one; it sends batches of 100 and waits for each; etcd syncs.

``--bytes`` counts instead, in one process: requests and bytes of a message on each hop, which do not depend on the
machine.

Beside each rate stands what one message costs each kind of process, in microseconds of a processor: that says
something also where others work on the same cores. Each target line at the end has: name | figure | wanted | reached
or short. etcd, nodes and clients share the machine's cores: run it when nothing else does. ``--quick`` leaves the
yardstick out (it takes a minute a cluster) and sends a tenth."""

import argparse
import asyncio
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import cpu  # noqa: E402
from tests.support.etcd import (  # noqa: E402
    EtcdCluster,
    at,
    program,
)
from tests.support.etcd_counts import CountingEtcd  # noqa: E402
from yirangmq.cli.commands.cluster_status import loop_factory  # noqa: E402
from yirangmq.clock import SystemClock, TimeOrderedIds  # noqa: E402
from yirangmq.cluster.clients import EtcdConsumer, Producer  # noqa: E402
from yirangmq.cluster.etcd.address import EtcdAddress  # noqa: E402
from yirangmq.cluster.etcd.client import Etcd, list_and_watch  # noqa: E402
from yirangmq.cluster.etcd.maintenance import Maintenance  # noqa: E402
from yirangmq.cluster.keys import BODY as BODY_COPIES  # noqa: E402
from yirangmq.cluster.keys import REFERENCE, Keys, set_long_keys  # noqa: E402
from yirangmq.cluster.node import ClusterNode, ClusterNodeSettings  # noqa: E402
from yirangmq.core.errors import Unavailable  # noqa: E402
from yirangmq.format.json_codec import loads  # noqa: E402

BODY = os.urandom(2000)
BATCH = 100
CONSUMERS = 2
LEASE = 5
PATIENCE = 60
REPEATS = 5
STEPS_DOWN = 5
FLAGS = ["--quota-backend-bytes", str(8 * 1024**3)]
TRIES = 3
TARGETS: list[str] = []
RUNNER = asyncio.Runner(loop_factory=loop_factory())
"""One loop for all of it: gRPC does not like to see one end."""


def target(name: str, figure: str, wanted: str, reached: bool) -> None:
    TARGETS.append(f"target: {name} | {figure} | {wanted} | {'reached' if reached else 'short'}")


def start(*words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "YIRANGMQ_WORKER_BATCH": str(BATCH)}
    return subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    started = start(*words)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def node(etcds: EtcdCluster, name: str) -> tuple[str, ...]:
    store = f"etcd://{','.join(etcds.endpoints)}"
    words = ("-m", "yirangmq", "cluster", "serve", "--store", store, "--node", name, "--lease", str(LEASE))
    return (*words, "--compact", "5", "--log-level", "error")


def yardstick(etcds: EtcdCluster) -> float:
    """Writes per second that etcd's own check reaches; it gives up where a single one takes too long."""
    command = [program("etcdctl"), "--endpoints", ",".join(etcds.endpoints), "check", "perf", "--load=l"]
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True, env={**os.environ, "ETCDCTL_API": "3"})
        text = (done.stdout + done.stderr).decode()
        found = re.search(r"Throughput (?:is )?(?:too low: )?(\d+) writes/s", text)
        if found is not None:
            return float(found[1])
    raise SystemExit(f"etcdctl check perf said: {text[-500:]}")


async def acked(client: Etcd, queue: str, count: int) -> None:
    """So many are acked and removed."""
    state = Keys(queue).state
    async for changes in list_and_watch(client, state, b"", deletes=False):
        for one in changes.events:
            if loads((one if changes.is_listing else one.kv).value)["acked"] >= count:
                return


class Round(NamedTuple):
    """Messages per second from the first publish to the last ack removed, and what a message cost each kind of process,
    in microseconds."""

    rate: float
    costs: dict[str, float]


async def end_to_end(etcds: EtcdCluster, queue: str, count: int, crew: dict[str, list[int]]) -> Round:
    async with at(*etcds.endpoints) as client, at(*etcds.endpoints) as eyes:
        producer = Producer(client, queue, "bench", TimeOrderedIds())
        await producer.publish(BODY)
        before = await _acked_so_far(client, queue)
        await acked(eyes, queue, before + 1)
        reading, begun = cpu.read(), time.perf_counter()
        for _ in range(0, count, BATCH):
            await producer.publish_many([BODY] * BATCH)
        await acked(eyes, queue, before + 1 + count)
        seconds, after = time.perf_counter() - begun, cpu.read()
    costs = {}
    for kind, pids in crew.items():
        ticks = sum(after.ticks[pid] - reading.ticks[pid] for pid in pids)
        costs[kind] = ticks / cpu.TICK / count * 1e6
    return Round(count / seconds, costs)


async def _acked_so_far(client: Etcd, queue: str) -> int:
    """Before the message that was sent last; nothing else is under way."""
    state = await client.get(Keys(queue).state)
    return int(loads(state.value)["moved"]) - 1 if state is not None else 0


def rounds(etcds: EtcdCluster, queue: str, count: int, nodes: dict[str, int]) -> list[Round]:
    words = ("-m", "tests.support.etcd_consumer", ",".join(etcds.endpoints), queue)
    with process(*words, "one", os.devnull) as one, process(*words, "two", os.devnull) as two:
        play(end_to_end(etcds, queue, BATCH, {}))  # all have found each other
        leads = play(leader(etcds, queue))
        crew = {f"etcd {number}": [member.pid] for number, member in enumerate(etcds.members, 1)}
        crew |= {"leading node": [nodes[leads]], "other node": [pid for name, pid in nodes.items() if name != leads]}
        crew |= {"both consumers": [one.pid, two.pid], "producer": [os.getpid()]}
        return [play(end_to_end(etcds, queue, count, crew)) for _ in range(REPEATS)]


async def leader(etcds: EtcdCluster, queue: str) -> str:
    async with at(*etcds.endpoints) as client:
        held = await client.get(Keys(queue).leader)
        if held is None:
            raise Unavailable("nobody leads")
        return str(held.value.decode())


def play(game: Any) -> Any:
    return RUNNER.run(game)


async def latency(etcds: EtcdCluster, queue: str, seconds: float) -> list[float]:
    """Milliseconds from publish to receipt at a hundred messages a second."""
    taken: list[float] = []
    async with at(*etcds.endpoints) as client, at(*etcds.endpoints) as other:
        producer = Producer(client, queue, "bench", TimeOrderedIds())

        async def consume() -> None:
            async with EtcdConsumer(other, queue, "bench") as consumer:
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


async def step_down(etcds: EtcdCluster, queue: str, stop: Any) -> float:
    """Milliseconds from the moment the leading node is told to stop until another leads."""
    async with at(*etcds.endpoints) as client, at(*etcds.endpoints) as eyes:
        await Producer(client, queue, "bench", TimeOrderedIds()).publish(BODY)
        led = ""
        async for changes in list_and_watch(eyes, Keys(queue).leader, b"", deletes=False):
            for kv in (one if changes.is_listing else one.kv for one in changes.events):
                name = kv.value.decode()
                if not led:
                    led = name
                    await asyncio.sleep(0.5)  # the other has seen who leads
                    begun = time.perf_counter()
                    stop(name)
                elif name != led:
                    return (time.perf_counter() - begun) * 1000
    raise AssertionError("a watch does not end")


def steps_down(etcds: EtcdCluster) -> list[float]:
    """Of nodes of their own, one after the other: who stopped is started again and stands by."""
    taken: list[float] = []
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for _ in range(STEPS_DOWN):
            for name in ("c", "d"):
                if name not in nodes:
                    nodes[name] = start(*node(etcds, name))
            time.sleep(2)
            stopped: list[subprocess.Popen[bytes]] = []

            def stop(name: str, stopped: list[subprocess.Popen[bytes]] = stopped) -> None:
                stopped.append(nodes.pop(name))
                stopped[0].send_signal(signal.SIGTERM)

            taken.append(play(asyncio.wait_for(step_down(etcds, "step", stop), PATIENCE)))
            stopped[0].wait(PATIENCE)
    finally:
        for one in nodes.values():
            one.kill()
            one.wait()
    return taken


async def takeover(etcds: EtcdCluster, queue: str, nodes: dict[str, subprocess.Popen[bytes]]) -> float:
    """The longest time without a delivery while the leading node is killed."""
    moments: list[float] = []
    async with at(*etcds.endpoints) as client, at(*etcds.endpoints) as other:
        producer = Producer(client, queue, "bench", TimeOrderedIds())

        async def consume() -> None:
            async with EtcdConsumer(other, queue, "bench") as consumer:
                async for batch in consumer.batches():
                    moments.append(time.perf_counter())
                    await consumer.ack(batch)

        consuming = asyncio.ensure_future(consume())
        for number in range(int((LEASE + 5) * 50)):
            await producer.publish(BODY)
            await asyncio.sleep(0.02)
            if number == 100:
                nodes[await leader(etcds, queue)].kill()
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    return max(after - before for before, after in itertools.pairwise(moments))


class Crew(NamedTuple):
    """Counting clients of a producer, a node and a consumer, all in this process."""

    producer: CountingEtcd
    node: CountingEtcd
    consumer: CountingEtcd

    def totals(self) -> dict[str, dict[str, int]]:
        return {kind: one.totals() for kind, one in self._asdict().items()}


async def count_bytes(
    etcds: EtcdCluster, queue: str, count: int, batch: int, *, copies: str, long_keys: bool
) -> dict[str, float]:
    """Requests and bytes of one message on each hop, in batches of ``batch``."""
    address = EtcdAddress(endpoints=tuple(etcds.endpoints))
    stop = asyncio.Event()
    async with CountingEtcd(address) as one, CountingEtcd(address) as two, CountingEtcd(address) as three:
        crew = Crew(one, two, three)
        settings = ClusterNodeSettings(name="here", poll=600, lease=600, compact=0, near=600)
        producer = Producer(crew.producer, queue, "bench", TimeOrderedIds())
        async with at(*etcds.endpoints) as eyes, EtcdConsumer(crew.consumer, queue, "bench", copies=copies) as consumer:
            await set_long_keys(eyes, queue, on=long_keys)
            node = ClusterNode(crew.node, address, SystemClock(), TimeOrderedIds(), settings)
            serving = asyncio.ensure_future(node.run(stop))
            batches = consumer.batches(batch)

            async def pass_on(number: int) -> None:
                for _ in range(0, number, batch):
                    await producer.publish_many([BODY] * batch)
                    taken = 0
                    while taken < batch:
                        got = await anext(batches)
                        await consumer.ack(got)
                        taken += len(got)

            await pass_on(batch)
            await acked(eyes, queue, batch)
            before, peers, size = crew.totals(), peer_bytes(etcds), await database_bytes(etcds)
            await pass_on(count)
            await acked(eyes, queue, batch + count)
            found = {
                f"{kind} {what}": (number - before[kind][what]) / count
                for kind, totals in crew.totals().items()
                for what, number in totals.items()
            }
            found["between members"] = (peer_bytes(etcds) - peers) / count
            found["database"] = (await database_bytes(etcds) - size) / count
            stop.set()
            await serving
    return found


def peer_bytes(etcds: EtcdCluster) -> float:
    """Bytes that the members have sent to each other."""
    pages = [urllib.request.urlopen(f"http://{endpoint}/metrics").read().decode() for endpoint in etcds.endpoints]
    return sum(
        float(n) for page in pages for n in re.findall(r"^etcd_network_peer_sent_bytes_total\S* (\S+)", page, re.M)
    )


async def database_bytes(etcds: EtcdCluster) -> float:
    """The file of the first member in use, without compaction in between."""
    async with at(*etcds.endpoints) as client:
        address = EtcdAddress(endpoints=tuple(etcds.endpoints))
        await client.range(b"/q/", limit=1)
        return (await Maintenance(address, client.connection).health(etcds.endpoints[0])).in_use


def show_bytes(label: str, found: dict[str, float]) -> None:
    print(f"{label}: one message of {len(BODY)} bytes")
    for kind in Crew._fields:
        calls, sent, answered, watched = (found[f"{kind} {what}"] for what in ("calls", "sent", "answered", "watched"))
        print(
            f"  {kind}: {calls:.3f} requests, {sent:,.0f} bytes sent, {answered:,.0f} answered, {watched:,.0f} watched"
        )
    print(f"  between members {found['between members']:,.0f} bytes; database of each {found['database']:,.0f} bytes")


def measure_bytes(members: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, EtcdCluster(Path(folder) / "etcd", members, FLAGS) as etcds:
        kinds = ((BODY_COPIES, False), (REFERENCE, False), (BODY_COPIES, True))
        for batch, (copies, long_keys) in itertools.product((BATCH, 1), kinds):
            number, name = max(batch, count * batch // BATCH), f"{copies}{' and long keys' if long_keys else ''}"
            counted = count_bytes(etcds, f"{name}-{batch}", number, batch, copies=copies, long_keys=long_keys)
            show_bytes(f"{members} members, batches of {batch}, copies of a {name}", play(counted))


def measure(members: int, quick: bool) -> None:
    label = f"{members} member{'s' if members > 1 else ''}"
    with tempfile.TemporaryDirectory() as folder, EtcdCluster(Path(folder) / "etcd", members, FLAGS) as etcds:
        wanted = 0.0 if quick else yardstick(etcds)
        with process(*node(etcds, "a")) as a, process(*node(etcds, "b")) as b:
            played = rounds(etcds, "fast", 3_000 if quick else 30_000, {"a": a.pid, "b": b.pid})
            times = play(latency(etcds, "slow", 3 if quick else 20))
            gap = play(takeover(etcds, "gap", {"a": a, "b": b}))
        downs = steps_down(etcds)
    middle, worst = statistics.median(times), times[int(len(times) * 0.99)]
    rate, down = show(label, played), statistics.median(downs)
    print(f"  p50 {middle:.1f} ms, p99 {worst:.1f} ms, takeover {gap:.1f} s; check perf {wanted:,.0f} writes/s")
    print(f"  a leader that stops: another after {down:.0f} ms (spread {min(downs):.0f}-{max(downs):.0f})")
    if not quick:
        share = rate / wanted
        target(f"end to end beside etcdctl check perf, {label}", f"{share:.2f} x", ">= 1.0 x", share >= 1)
    target(f"p50 at 100 msg/s, {label}", f"{middle:.1f} ms", "<= 5 ms", middle <= 5)
    target(f"takeover, {label}", f"{gap:.1f} s", f"<= {LEASE + 1} s", gap <= LEASE + 1)
    target(f"step-down, {label}", f"{down:.0f} ms", "< 100 ms", down < 100)


def show(label: str, played: list[Round]) -> float:
    rates = [one.rate for one in played]
    rate = statistics.median(rates)
    print(f"{label}: {rate:,.0f} msg/s (spread {min(rates):,.0f}-{max(rates):,.0f}, {len(rates)} rounds)")
    costs = {kind: statistics.median(one.costs[kind] for one in played) for kind in played[0].costs}
    told = ", ".join(f"{kind} {cost:.0f}" for kind, cost in costs.items())
    print(f"  processor time of a message, in us: {told}; together {sum(costs.values()):.0f}")
    return rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth, without the yardstick")
    parser.add_argument("--bytes", action="store_true", help="only requests and bytes of a message on each hop")
    chosen = parser.parse_args()
    for size in (1, 3):
        if chosen.bytes:
            measure_bytes(size, 10_000)
        else:
            measure(size, chosen.quick)
    RUNNER.close()
    print("\n".join(TARGETS))
