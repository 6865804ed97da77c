"""A consumer as a process of its own: ``python -m tests.support.etcd_consumer ENDPOINTS QUEUE NAME FILE``. What it has
worked on stands in its file, a line each, before it is acked."""

import asyncio
import os
import sys
from pathlib import Path

from yirangmq.cli.commands.cluster_status import loop_factory
from yirangmq.cluster.clients import EtcdConsumer
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.core.errors import Unavailable

AT_ONCE = int(os.environ.get("YIRANGMQ_WORKER_BATCH", "20"))
LEASE = 6
"""Seconds; whoever only got little of the machine for a while keeps what it has."""


async def consume(endpoints: str, queue: str, name: str, file: str) -> None:
    address = EtcdAddress(endpoints=tuple(endpoints.split(",")))
    with Path(file).open("ab", buffering=0) as done:  # noqa: ASYNC230
        async with Etcd(address) as etcd, EtcdConsumer(etcd, queue, name, seconds=LEASE) as consumer:
            done.write(b"")
            async for batch in consumer.batches(AT_ONCE):
                done.write(b"".join(b"%d %s\n" % (one.number, one.value) for one in batch))
                while True:
                    try:
                        await consumer.ack(batch)
                        break
                    except Unavailable:
                        await asyncio.sleep(0.1)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(consume(*sys.argv[1:]))
