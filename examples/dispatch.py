"""Dispatch strategies: which consumer gets the next message. Here the one with the least work, and all of them.

    yirangmq serve &
    python examples/dispatch.py unix:yirang-data/yirangmq.sock

Others: round_robin, random, priority (weights), ordered, key_hash. See docs/dispatch.md."""

import asyncio
import sys

import yirangmq


async def main(address):
    async with yirangmq.connect_async(address) as queues:
        # The consumer with the fewest unacked messages gets the next one.
        await queues.set_dispatch("calls", {"strategy": "load_balance"})
        names = ("ann", "bob", "cyd")
        waiting = [queues.lease("calls", 10, wait=30, consumer=name) for name in names]
        *calls, _ = await asyncio.gather(*waiting, queues.publish_many("calls", range(6)))
        for name, given in zip(names, calls, strict=True):
            print(f"{name} has {len(given)} calls")

        # Each registered consumer gets a copy of each message, also one that is away.
        await queues.set_dispatch("rates", {"strategy": "broadcast"})
        for name in ("shop", "archive"):
            await queues.register("rates", name)
        await queues.publish("rates", {"eur": 1.08})
        for name in ("archive", "shop"):
            [copy] = await queues.lease("rates", wait=30, consumer=name)
            print(f"{name} has {copy.value()}")
            await queues.ack(copy.lease_id, consumer=name)

        for queue in ("calls", "rates"):
            await queues.delete_queue(queue)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
