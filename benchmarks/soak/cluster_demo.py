"""``make cluster-demo``: three members of etcd and two servers before them. A producer at the one, a consumer at the
other; the server that leads and a member of etcd are killed while messages flow, and every message is counted.
Everything runs on free ports of this machine and ends with the demo."""

import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from tests.support.etcd import EtcdCluster
from tests.support.etcd_servers import Served, served
from yirangmq.client.connect import connect

MESSAGES = 3_000
BATCH = 20
QUEUE = "demo"
PATIENCE = 120.0
BEGUN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGUN:5.1f} s  {text}", flush=True)


class Count:
    """What was confirmed to the producer, and what the consumer worked on and acked."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.seen: Counter[str] = Counter()

    def produce(self, addresses: str) -> None:
        with connect(addresses, consumer="producer", retries=300) as client:
            for start in range(0, MESSAGES, BATCH):
                made = client.publish_many(QUEUE, [{"n": number} for number in range(start, start + BATCH)])
                self.sent.update(receipt.id for receipt in made)

    def consume(self, addresses: str) -> None:
        with connect(addresses, consumer="consumer", retries=300) as client:
            while len(self.seen) < MESSAGES:
                got = client.lease(QUEUE, 100, wait=1)
                errors = client.ack_many([one.lease_id for one in got]) if got else []
                self.seen.update(one.id for one, error in zip(got, errors, strict=True) if error is None)

    def wait_for(self, share: float) -> None:
        end = time.monotonic() + PATIENCE
        while len(self.seen) < share * MESSAGES and time.monotonic() < end:
            time.sleep(0.02)


def kill_some(nodes: Served, etcds: EtcdCluster, count: Count) -> None:
    count.wait_for(0.2)
    leader = nodes.leader()
    say(f"{len(count.seen)} messages were worked on; kills server {leader}, which leads the store")
    nodes.nodes[leader].kill()
    say(f"server {nodes.leader(leader)} leads now; starts {leader} again, which passes on what it is asked")
    nodes.nodes[leader].start()
    count.wait_for(0.6)
    member = etcds.leader()
    say(f"{len(count.seen)} messages were worked on; kills {member.name}, the leader of etcd itself")
    member.kill()
    say(f"{etcds.leader().name} leads etcd now; starts {member.name} again")
    member.start()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        say("starts three members of etcd")
        with EtcdCluster(Path(folder) / "etcd", 3) as etcds:
            say("starts two servers: yirangmq serve --store etcd://" + ",".join(etcds.endpoints))
            with served(Path(folder) / "servers", etcds.endpoints, "demo", lease=4) as nodes:
                return play(nodes, etcds)


def play(nodes: Served, etcds: EtcdCluster) -> int:
    """Both know both addresses, and begin at different ones."""
    count = Count()
    one, other = (nodes.address(name, "tcp") for name in nodes.nodes)
    works = [
        threading.Thread(target=count.produce, args=(f"{one},{other}",), daemon=True),
        threading.Thread(target=count.consume, args=(f"{other},{one}",), daemon=True),
    ]
    say(f"sends {MESSAGES} messages at {one}, works on them at {other}")
    for work in works:
        work.start()
    kill_some(nodes, etcds, count)
    for work in works:
        work.join(PATIENCE)
    lost = count.sent - set(count.seen)
    doubled = sum(times > 1 for times in count.seen.values())
    say(f"{len(count.sent)} were confirmed, {len(lost)} of them are lost, {doubled} were acked twice")
    return 0 if len(count.sent) == MESSAGES and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
