"""Everything at once, by dice: nodes that come and go and are deposed, consumers that ack, refuse, dawdle and leave,
producers that send again; second copies of the line that begin and end. At the end every message was acked, has had one
number only, and nothing of it is left in etcd."""

import asyncio
import contextlib
import os
import random

import pytest

from tests.support.etcd import EtcdCluster, at, play, running
from tests.support.wait import soon
from yirangmq.clock import TimeOrderedIds
from yirangmq.cluster.clients import EtcdConsumer, Producer, ReceivedMessage
from yirangmq.cluster.dispatch.dispatcher import DispatcherOptions
from yirangmq.cluster.etcd.client import Etcd, prefix_end
from yirangmq.cluster.keys import COPIES, Keys, set_long_keys, write_policy

pytestmark = pytest.mark.process
MESSAGES = 300
POLICY = b'{"visibilityTimeoutSec": 0.5, "retry": {"limit": null, "initialDelaySec": 0.02, "maxDelaySec": 0.1}}'
SEEDS = range(int(os.environ.get("YIRANGMQ_CLUSTER_GAMES", "2")))


class Game:
    def __init__(self, etcds: EtcdCluster, queue: str, seed: int) -> None:
        self.etcds = etcds
        self.queue = queue
        self.keys = Keys(queue)
        self.dice = random.Random(seed)
        self.sent: set[str] = set()
        self.sent_again: set[str] = set()
        self.acked: set[str] = set()
        self.numbers: dict[str, set[int]] = {}
        self.over = asyncio.Event()

    async def produce(self, client: Etcd) -> None:
        producer = Producer(client, self.queue, "me", TimeOrderedIds())
        while len(self.sent) < MESSAGES:
            names = [f"m{len(self.sent) + one}" for one in range(self.dice.randint(1, 10))]
            values = [name.encode() for name in names]
            self.sent.update(await producer.publish_many(values, names))
            if self.dice.random() < 0.3:
                self.sent_again.update(await producer.publish_many(values, names))  # as if the answer had been lost
            await asyncio.sleep(self.dice.random() * 0.03)

    async def consume(self, client: Etcd, name: str) -> None:
        while not self.over.is_set():
            copies = self.dice.choice(COPIES)
            async with EtcdConsumer(client, self.queue, name, copies=copies) as consumer:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3 + self.dice.random()):
                        async for batch in consumer.batches(self.dice.randint(1, 20)):
                            for one in batch:
                                await self.work(consumer, one)

    async def work(self, consumer: EtcdConsumer, one: ReceivedMessage) -> None:
        assert one.value == one.name.encode()
        self.numbers.setdefault(one.name, set()).add(one.number)
        fate = self.dice.random()
        if fate < 0.15:
            await consumer.nack(one, delay=self.dice.choice((None, 0, 0.05)))
        elif fate > 0.1:
            self.acked.add(one.name)  # it may leave while it acks
            await consumer.ack([one])
        # else it dawdles: the time of this one runs out

    async def rule(self, name: str) -> None:
        while not self.over.is_set():
            async with running(
                self.etcds.endpoints, name, dispatcher_options=DispatcherOptions(window=self.dice.choice((1, 7, 256)))
            ):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5 + self.dice.random()):
                        await self.over.wait()

    async def depose(self, client: Etcd) -> None:
        while not self.over.is_set():
            await asyncio.sleep(self.dice.random() * 0.5)
            await client.delete(self.keys.leader)
            await set_long_keys(client, self.queue, on=self.dice.random() < 0.5)

    async def is_finished(self, client: Etcd) -> bool:
        if len(self.sent) < MESSAGES or not self.sent <= self.acked:
            return False
        for start, end in ((b"0", b":"), (b"p/", b"p0"), (b"r/", b"r0"), (b"dead/", b"dead0")):
            if (await client.range(self.keys.base + start, self.keys.base + end, count_only=True)).count:
                return False
        return not (await client.range(*self.keys.long_line, count_only=True)).count

    async def play(self) -> None:
        async with at(*self.etcds.endpoints) as client, at(*self.etcds.endpoints) as other:
            await write_policy(client, self.queue, POLICY)
            players = [self.produce(client), self.depose(other), self.rule("a"), self.rule("b")]
            players += [self.consume(client if n % 2 else other, f"c{n}") for n in range(3)]
            tasks = [asyncio.ensure_future(player) for player in players]
            try:
                await soon(lambda: self.is_finished(client), what="the end")
            finally:
                self.over.set()
                await asyncio.gather(*tasks)
            left = await client.range(self.keys.base + b"c/", prefix_end(self.keys.base + b"c/"), keys_only=True)
            assert [kv.key for kv in left.kvs] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster_under_random_faults_acks_every_message_and_leaves_no_gap_in_the_numbers(
    etcd: EtcdCluster, queue: str, seed: int
) -> None:
    async def whole() -> Game:
        game = Game(etcd, queue, seed)
        await game.play()
        return game

    game = play(whole())
    # A message that was sent again after its first copy was acked, and a new leader had come, is another message.
    assert {name for name, numbers in game.numbers.items() if len(numbers) > 1} <= game.sent_again
    seen = {number for numbers in game.numbers.values() for number in numbers}
    assert seen == set(range(1, max(seen) + 1))
