"""Request and reply on etcd: the key of a question names the queue for its answer, and the question itself.

    yirangmq cluster serve --store etcd://127.0.0.1:2379 &
    python examples/cluster_request_reply.py

Needs etcd and `yirangmq[etcd]`."""

import asyncio
import os
import uuid

from yirangmq.clock import TimeOrderedIds
from yirangmq.cluster import Consumer, Etcd, Producer, read_address

ASKED, MINE = "questions", f"answers-{uuid.uuid4().hex[:8]}"


async def answer(etcd: Etcd, count: int) -> None:
    async with Consumer(etcd, ASKED, "teacher") as consumer:
        async for batch in consumer.batches(1):
            [question] = batch
            queue, correlation = question.name.split("~")
            replies = Producer(etcd, queue, "teacher", TimeOrderedIds())
            await replies.publish(b"%d" % len(question.value), correlation)
            await consumer.ack(batch)
            count -= 1
            if not count:
                return


async def ask(etcd: Etcd, questions: list[bytes]) -> dict[bytes, bytes]:
    asked = {uuid.uuid4().hex: question for question in questions}
    names = [f"{MINE}~{correlation}" for correlation in asked]
    await Producer(etcd, ASKED, "pupil", TimeOrderedIds()).publish_many(questions, names)
    found: dict[bytes, bytes] = {}
    async with Consumer(etcd, MINE, "pupil") as consumer:
        async for batch in consumer.batches():
            found |= {asked[one.name]: one.value for one in batch}
            await consumer.ack(batch)
            if len(found) == len(asked):
                break
    return found


async def main() -> None:
    address = read_address(os.environ.get("YIRANGMQ_ETCD", "etcd://127.0.0.1:2379"), os.environ)
    async with Etcd(address) as etcd:
        answering = asyncio.ensure_future(answer(etcd, 2))
        found = await ask(etcd, [b"how long?", b"and this one?"])
        await answering
        for question, length in sorted(found.items()):
            print(question.decode(), length.decode())


asyncio.run(main())
