"""Real threads, real sockets, chance: clients come, read slowly, ask again, go in the middle, while the feed goes on.
Nobody misses anything, nobody gets anything twice, and nothing is left behind."""

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.loops import LOOPS, run_loop
from tests.support.topic_server import Follower, Live, dial, live
from tests.support.wait import PATIENCE, soon
from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import NewRecord
from yirangmq.topics.ports import TopicSettings
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

SECONDS = float(os.environ.get("YIRANGMQ_RACE_SECONDS", "2"))
SEED = os.environ.get("YIRANGMQ_RACE_SEED", "")
CLIENTS = 8
TOPICS = ("a", "b", "c")
FILTERS: tuple[list[str], ...] = ([], ["b"], ["a", "c*"], ["nothing"])


class Feeding:
    """Publishes until told to stop; remembers the topic of every sequence."""

    def __init__(self, server: Live, chance: random.Random) -> None:
        self._server = server
        self._chance = chance
        self.is_over = False
        server.topics.ensure_open()
        self.topics: list[str] = []

    @property
    def last(self) -> int:
        return self._server.last

    async def run(self) -> None:
        chance = self._chance
        while not self.is_over:
            topics = chance.choices(TOPICS, k=chance.choice((1, 5, 40)))
            self.topics += topics  # before anybody can have them
            await self._server.publish(*(NewRecord(topic, b"x" * chance.choice((0, 10, 1500))) for topic in topics))
            if chance.random() < 0.1:
                await asyncio.sleep(chance.uniform(0, 0.02))


class Visit:
    """One connection, from its first frame to its end."""

    def __init__(self, feeding: Feeding, follower: Follower, chance: random.Random) -> None:
        self._feeding = feeding
        self._follower = follower
        self._chance = chance
        self._wanted = chance.choice(FILTERS)
        self._next = 0

    async def run(self) -> None:
        chance, follower = self._chance, self._follower
        start = chance.choice(("new", "beginning", "sequence"))
        at = max(1, self._feeding.last - chance.randrange(3000))
        said = await follower.follow(*self._wanted, start=start, at=at, progress_ms=chance.choice((0, 250)))
        assert said.kind is FrameKind.TOPIC_SUBSCRIBED, said
        self._next = said.value.next
        for _ in range(chance.randrange(60)):
            await self._do_something()
        if chance.random() < 0.5:
            follower.writer.transport.abort()
            return
        await self._see_all(self._feeding.last)

    async def _do_something(self) -> None:
        chance = self._chance
        with suppress(TimeoutError):
            await asyncio.wait_for(self._follower.read(), chance.choice((0.001, 0.05)))
        if chance.random() < 0.2:
            await asyncio.sleep(chance.uniform(0, 0.05))
        if chance.random() < 0.05:
            await self._ask_again()
        self._check()

    async def _ask_again(self) -> None:
        """What comes before the answer will come again."""
        follower = self._follower
        after = max(self._next - 1, (follower.sequences or [self._next - 1])[-1] - self._chance.randrange(50))
        said = await follower.ask(FrameKind.RECOVERY_REQUEST, messages.TopicRecoveryRequest(after))
        if said.kind is FrameKind.RECOVERY_RESPONSE:
            self._check(follower.sequences[: said.after])
            follower.records = follower.records[said.after :]
            self._next = after + 1
        else:
            assert said.value.code == "wrong_state", said
        follower.said.clear()

    def _check(self, got: list[int] | None = None) -> None:
        got = self._follower.sequences if got is None else got
        wanted = self._expected()
        assert got == wanted[: len(got)]

    def _expected(self) -> list[int]:
        wants = make_filter(self._wanted).wants
        return [n for n, topic in enumerate(self._feeding.topics, 1) if n >= self._next and wants(topic)]

    async def _see_all(self, last: int) -> None:
        """Everything that was there is read to its end."""
        count = len([n for n in self._expected() if n <= last])
        await self._follower.until(lambda: len(self._follower.records) >= count)
        await asyncio.sleep(0)
        self._check()


async def visit_again_and_again(server: Live, feeding: Feeding, chance: random.Random) -> int:
    visits = 0
    while not feeding.is_over:
        receive = chance.choice((0, 2048))
        async with dial(server, tcp=chance.random() < 0.3, receive=receive) as follower:
            await Visit(feeding, follower, chance).run()
        visits += 1
    return visits


@pytest.mark.parametrize("kind", LOOPS)
def test_fan_out_under_random_client_actions_misses_nothing_and_leaves_nothing_behind(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        seed = random.Random(kind + SEED).randrange(1 << 30)
        settings = TopicSettings(buffer_bytes=30_000, commit_bytes=20_000)
        async with live(tmp_path, settings) as server:
            feeding = Feeding(server, random.Random(seed))
            publishing = asyncio.create_task(feeding.run())
            visiting = [
                asyncio.create_task(visit_again_and_again(server, feeding, random.Random(seed + n)))
                for n in range(CLIENTS)
            ]
            await asyncio.sleep(SECONDS)  # how much is tried is a matter of time
            feeding.is_over = True
            await publishing
            visits = await asyncio.wait_for(asyncio.gather(*visiting), PATIENCE)
            assert min(visits) > 0
            states = {state for _, state in server.trace}
            assert states >= {"recovery_needed", "recovering", "catching_up", "offline"}
            await soon(lambda: not server.door.connections)
            parts = server.topics.ensure_open()
            await soon(lambda: parts.lifecycle.is_idle and not parts.lifecycle.subscribers)
            assert parts.feed.tail.first == 0
            assert parts.feed.log.last == len(feeding.topics)

    run_loop(main(), LOOPS[kind])
