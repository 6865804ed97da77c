"""asyncio: a producer and three consumers as tasks of one program, on one connection.

    yirangmq serve &
    python examples/asyncio_client.py unix:yirang-data/yirangmq.sock

What the tasks ask for at the same time goes out together, and is one commit on the server."""

import asyncio
import sys

import yirangmq
from yirangmq import AsyncClient

COUNT = 30


async def consume(queues: AsyncClient, name: str) -> int:
    done = 0
    while batch := await queues.lease("squares", 5, wait=1, consumer=name):
        for delivery in batch:
            number = delivery.value()
            print(f"{name}: {number} squared is {number * number}")
            await queues.ack(delivery.lease_id)
            done += 1
    return done


async def main(address: str) -> None:
    async with yirangmq.connect_async(address) as queues:
        await queues.publish_many("squares", range(COUNT))
        done = await asyncio.gather(*(consume(queues, name) for name in ("ann", "bob", "cyd")))
        print(f"{sum(done)} done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
