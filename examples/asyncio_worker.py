"""An asyncio consumer: messages are pushed to it, and at most ten are processed at the same time.

    python examples/asyncio_worker.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import asyncio
import sys

import yirangmq

AT_ONCE = 10
active = peak = 0


async def fetch(queues, delivery):
    global active, peak
    active += 1
    peak = max(peak, active)
    await asyncio.sleep(0.01)  # a real one would wait for the network here
    active -= 1
    await queues.ack(delivery.lease_id)


async def main(address):
    async with yirangmq.connect_async(address) as queues:
        await queues.publish_many("urls", range(100))
        # credit: the number of messages that are pushed before one of them must be acked.
        async with queues.subscribe("urls", credit=AT_ONCE) as messages, asyncio.TaskGroup() as tasks:
            for _ in range(100):  # without an end: async for delivery in messages
                tasks.create_task(fetch(queues, await anext(messages)))
        counts = await queues.counts("urls")
        print(f"{counts.ready} left; {'never more than ten' if peak <= AT_ONCE else 'too many'} at the same time")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
