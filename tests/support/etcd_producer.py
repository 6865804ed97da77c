"""A producer as a process of its own: ``python -m tests.support.etcd_producer ENDPOINTS QUEUE LEVEL FLUSHED``.

It publishes one message after the other, named by number, and says ``begin N`` before each and ``done N`` when
``publish`` has returned. After ``FLUSHED`` messages it flushes, says ``flushed``, and goes on when it reads a line."""

import asyncio
import sys

from yirangmq.clock import TimeOrderedIds
from yirangmq.cluster.clients import Producer
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.client import Etcd


async def produce(endpoints: str, queue: str, level: str, flushed: int) -> None:
    async with Etcd(EtcdAddress(endpoints=tuple(endpoints.split(",")))) as etcd:
        producer = Producer(etcd, queue, "me", TimeOrderedIds(), level)
        number = 0
        while True:
            if number == flushed:
                await producer.flush()
                print("flushed", flush=True)
                await asyncio.to_thread(sys.stdin.readline)
            print("begin", number, flush=True)
            await producer.publish(b"%d" % number, f"m{number}")
            print("done", number, flush=True)
            number += 1


if __name__ == "__main__":
    endpoints, queue, level, flushed = sys.argv[1:]
    asyncio.run(produce(endpoints, queue, level, int(flushed)))
