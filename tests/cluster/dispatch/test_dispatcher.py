"""A queue on a real etcd, with a node in this process: what a plain etcd client sees, and what the rules make of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, at, keys_of, play, running
from tests.support.wait import PATIENCE, soon
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.cluster.clients import EtcdConsumer, Producer, ReceivedMessage
from yirangmq.cluster.dispatch import state
from yirangmq.cluster.dispatch.dispatcher import Dispatcher, DispatcherOptions
from yirangmq.cluster.dispatch.state import InboxArrival
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import Etcd, prefix_end, put
from yirangmq.cluster.etcd.quota import EtcdQuota
from yirangmq.cluster.keys import Keys, set_long_keys, write_policy
from yirangmq.cluster.node import ClusterNode, ClusterNodeSettings
from yirangmq.core.errors import BadPolicy, TooLarge
from yirangmq.core.message import Reason
from yirangmq.testing import ManualClock

pytestmark = pytest.mark.process


class DispatcherHarness:
    """A node, and a client of our own to look at things with."""

    def __init__(self, etcds: EtcdCluster, client: Etcd, queue: str) -> None:
        self.etcds = etcds
        self.client = client
        self.queue = queue
        self.keys = Keys(queue)
        self.producer = Producer(client, queue, "me", TimeOrderedIds())

    async def value(self, key: bytes) -> bytes | None:
        found = await self.client.get(key)
        return None if found is None else bytes(found.value)

    async def has(self, key: bytes) -> bool:
        return await self.value(key) is not None

    async def waits_for(self, key: bytes) -> bytes:
        await soon(lambda: self.has(key), what=key.decode())
        found = await self.value(key)
        assert found is not None
        return found

    async def lost(self, key: bytes) -> None:
        async def is_gone() -> bool:
            return not await self.has(key)

        await soon(is_gone, what=f"the end of {key!r}")

    async def state(self) -> dict[str, Any]:
        return dict(json.loads(await self.value(self.keys.state) or b"{}"))

    async def is_drained(self) -> bool:
        """Nothing in the inbox, nothing in line, nothing with a consumer, no note."""
        ordered = await self.client.range(self.keys.base + b"0", self.keys.ordered_end, keys_only=True)
        notes = await keys_of(self.client, self.keys.base + b"r/")
        inbox = await keys_of(self.client, self.keys.base + b"p/")
        return not ordered.kvs and not notes and not inbox

    async def has_in_line(self, count: int) -> bool:
        found = await self.client.range(self.keys.base + b"0", self.keys.ordered_end, count_only=True)
        return bool(found.count == count)

    async def has_under(self, prefix: bytes, count: int) -> bool:
        return len(await keys_of(self.client, prefix)) == count

    def copy(self, client: str, number: int, name: str) -> bytes:
        return self.keys.home(client) + b"%020d/" % number + name.encode()


@asynccontextmanager
async def staged(etcds: EtcdCluster, queue: str, **settings: Any) -> AsyncIterator[DispatcherHarness]:
    async with running(etcds.endpoints, **settings), at(*etcds.endpoints) as client:
        yield DispatcherHarness(etcds, client, queue)


async def take(consumer: EtcdConsumer, count: int, *, ack: bool = True) -> list[ReceivedMessage]:
    taken: list[ReceivedMessage] = []
    async for batch in consumer.batches():
        taken += batch
        if ack:
            await consumer.ack(batch)
        if len(taken) >= count:
            break
    return taken


def test_dispatcher_serves_etcdctl_alone_as_producer_and_consumer(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            etcd.ctl("put", f"/q/{queue}/p/ann/first", "hello")
            assert await stage.waits_for(stage.keys.ordered(1, b"first")) == b"hello"
            assert not await stage.has(f"/q/{queue}/p/ann/first".encode())
            etcd.ctl("put", f"/q/{queue}/c/bob/", "hosts-of-bob")
            assert await stage.waits_for(stage.copy("bob", 1, "first")) == b"hello"
            assert etcd.ctl("get", "--prefix", f"/q/{queue}/c/bob/0", "--print-value-only") == b"hello\n"
            assert await stage.has(stage.keys.ordered(1, b"first"))
            etcd.ctl("del", f"/q/{queue}/c/bob/{1:020}/first")
            await stage.lost(stage.keys.ordered(1, b"first"))
            assert await stage.value(stage.keys.leader) == b"here"

    play(game())


def test_dispatcher_reads_all_spellings_of_the_keys_as_one_queue(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            spelt = [f"/{root}/{queue}/{box}" for root in ("q", "queue") for box in ("p", "producer", "i", "input")]
            for number, inbox in enumerate(spelt, 1):
                await stage.client.put(f"{inbox}/ann/k{number}".encode(), b"%d" % number)
            await stage.client.put(f"/queue/{queue}/p/short".encode(), b"9")
            await stage.client.put(f"/q/{queue}/p/ann/with/slashes".encode(), b"10")
            await soon(lambda: stage.has_in_line(10), what="all in line")
            long = f"/queue/{queue}/consumer/bob/".encode()
            await stage.client.put(long, b"host")
            await soon(lambda: stage.has_under(long, 11), what="all with the consumer")
            copies = [key.removeprefix(long).split(b"/") for key in await keys_of(stage.client, long + b"0")]
            assert [int(number) for number, _ in copies] == list(range(1, 11))
            wanted = {b"k%d" % number for number in range(1, 9)} | {b"short", b"with%2Fslashes"}
            assert {name for _, name in copies} == wanted
            await stage.client.delete(long + b"0", long + b":")
            await soon(stage.is_drained, what="all acked")

    play(game())


def test_long_keys_of_a_queue_show_its_line_to_clients_of_the_long_spelling(etcd: EtcdCluster, queue: str) -> None:
    """Seed 003: /queue/{q}, its producers, its line and its consumers, with etcdctl alone."""

    async def game() -> None:
        async with staged(etcd, queue) as stage:
            etcd.ctl("put", f"/queue/{queue}", "")
            etcd.ctl("put", f"/queue/{queue}/producer/ann/k1", "hello")
            assert await stage.waits_for(stage.keys.long_ordered(1, b"k1")) == b"hello"
            assert await stage.value(stage.keys.ordered(1, b"k1")) == b"hello"
            etcd.ctl("put", f"/queue/{queue}", "somebody")

            async def names_the_leader() -> bool:
                return await stage.value(stage.keys.long_leader) == b"here"

            await soon(names_the_leader, what="the leader at the long key")
            etcd.ctl("put", f"/queue/{queue}/consumer/me/", "my-host")
            await stage.waits_for(f"/queue/{queue}/consumer/me/{1:020}/k1".encode())
            etcd.ctl("del", f"/queue/{queue}/consumer/me/{1:020}/k1")
            await stage.lost(stage.keys.long_ordered(1, b"k1"))
            await stage.lost(stage.keys.ordered(1, b"k1"))
            await stage.producer.publish_many([b"2", b"3"], ["k2", "k3"])
            await stage.waits_for(stage.keys.long_ordered(3, b"k3"))
            etcd.ctl("del", f"/queue/{queue}")
            await stage.lost(stage.keys.long_ordered(3, b"k3"))
            assert not await stage.has(stage.keys.long_ordered(2, b"k2"))
            assert await stage.has_in_line(2)
            await stage.producer.publish(b"4", "k4")
            await stage.waits_for(stage.keys.ordered(4, b"k4"))
            assert not await stage.has(stage.keys.long_ordered(4, b"k4"))
            await soon(lambda: stage.has_in_line(3))

    play(game())


def test_long_keys_end_with_their_message_after_a_nack_and_among_the_dead(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            await set_long_keys(client, queue, on=True)
        async with staged(etcd, queue) as stage, EtcdConsumer(stage.client, queue, "bob") as consumer:
            await stage.producer.publish(b"1", "k")
            [one] = await take(consumer, 1, ack=False)
            await consumer.nack(one, delay=0)
            [again] = await take(consumer, 1, ack=False)
            assert await stage.value(stage.keys.long_ordered(1, b"k")) == b"1"
            await consumer.nack(again, Reason.REJECTED)
            await stage.waits_for(stage.keys.dead(1, b"k"))
            assert not await stage.has(stage.keys.long_ordered(1, b"k"))
            await stage.producer.publish(
                bytes(700_000), "large"
            )  # the largest: in line twice, and then to the consumer
            [large] = await take(consumer, 1, ack=False)
            assert len(await stage.waits_for(stage.keys.long_ordered(2, b"large"))) == len(large.value) == 700_000

    play(game())


def test_long_keys_without_a_message_in_line_are_removed_by_the_next_leader(etcd: EtcdCluster, queue: str) -> None:
    """A leader of an older version left them behind. Keys of others stay, and so does what was in line before."""

    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            async with running(etcd.endpoints):
                await set_long_keys(client, queue, on=True)
                await stage.producer.publish_many([b"1", b"2"], ["k1", "k2"])
                await stage.waits_for(stage.keys.long_ordered(2, b"k2"))
            foreign = stage.keys.long_leader + b"/00/k"
            for number in (1, 2, *range(5, 300)):
                await client.put(stage.keys.long_ordered(number, b"old"), b"")
            await client.put(foreign, b"mine")
            async with running(etcd.endpoints):
                await stage.lost(stage.keys.long_ordered(299, b"old"))
                left = set(await keys_of(client, stage.keys.long_leader + b"/"))
                assert left == {stage.keys.long_ordered(1, b"k1"), stage.keys.long_ordered(2, b"k2"), foreign}

    play(game())


def test_queue_names_that_a_path_can_have_are_dispatched(etcd: EtcdCluster, queue: str) -> None:
    """Seed 003: a queue is any name that an etcd client puts, a slash in it written %2F."""
    names = [f"{queue}{name}" for name in ("작업", " with spaces", "%2Feu", "%20", "50%", ".", "x" * 300, "*?'$(id)")]

    async def game() -> None:
        async with running(etcd.endpoints), at(*etcd.endpoints) as client:
            for name in names:
                etcd.ctl("put", f"/q/{name}/p/ann/k", name)
                etcd.ctl("put", f"/q/{name}/c/me/", "my-host")
            for name in names:
                stage = DispatcherHarness(etcd, client, name)
                assert await stage.waits_for(stage.copy("me", 1, "k")) == name.encode()
                etcd.ctl("del", f"/q/{name}/c/me/{1:020}/k")
                await soon(stage.is_drained, what=f"the end of the message of {name}")
            await Producer(client, f"{queue}/eu", "ann", TimeOrderedIds()).publish(b"sent")
            await client.delete(Keys(names[2]).home("me"))
            async with EtcdConsumer(client, names[2], "bob") as consumer:
                assert [one.value for one in await take(consumer, 1)] == [b"sent"]
            assert await write_policy(client, names[0], b'{"retry": {"limit": 0}}')
            async with EtcdConsumer(client, names[0], "bob") as consumer:
                await client.delete(Keys(names[0]).home("me"))
                await Producer(client, names[0], "ann", TimeOrderedIds()).publish(b"dies", "k2")
                [one] = await take(consumer, 1, ack=False)
                await consumer.nack(one)
                stage = DispatcherHarness(etcd, client, names[0])
                assert await stage.waits_for(stage.keys.dead(2, b"k2")) == b"dies"

    play(game())


def test_ignored_keys_are_logged_once_by_key_and_reason(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("yirangmq.cluster.discovery.SEARCH_SECONDS", 0.02)
    bad = ["/q//p/k", "/q/" + "x" * 1025 + "/p/k", f"/q/{queue}\n/p/k", f"/q/{queue}/inbox/ann/k", f"/queue/{queue}/s"]

    def logged() -> list[tuple[str, str]]:
        found = [record for record in caplog.records if record.getMessage() == "etcd_key_ignored"]
        return [(record.values["key"], record.values["reason"]) for record in found]  # type: ignore[attr-defined]

    async def game() -> None:
        async with running(etcd.endpoints) as node, at(*etcd.endpoints) as client:
            try:
                for key in bad:
                    await client.put(key.encode(), b"1")
                await client.put(f"/q/{queue}/".encode() + b"\xff", b"1")
                await client.put(f"/q/{queue}/p/ann/good".encode(), b"1")
                await soon(lambda: len(logged()) >= 6, what="all of them logged")
                for _ in range(2):  # two more searches log nothing new
                    before = node.ignored_keys.found
                    await soon(lambda: node.ignored_keys.found is not before, what="another search")  # noqa: B023
                mine = sorted(logged())
                assert len(mine) == 6
                assert [key for key, _ in mine if "no queue uses" in _] == [
                    f"/q/{queue}/\\xff", f"/q/{queue}/inbox/ann/k", f"/queue/{queue}/s",
                ]  # fmt: skip
                reasons = [reason for key, reason in mine if "no queue uses" not in reason]
                assert len([reason for reason in reasons if "1 to 1024 bytes" in reason]) == 2
                assert len([reason for reason in reasons if "control characters" in reason]) == 1
            finally:
                for key in bad:
                    await client.delete(key.encode())

    play(game())


def test_dispatcher_numbers_have_no_gaps_while_producers_rewrite_their_keys(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage, EtcdConsumer(stage.client, queue, "bob") as consumer:

            async def restless(number: int) -> None:
                for turn in range(30):
                    key = stage.keys.inbox("ann", f"hot{number}")
                    await stage.client.put(key, b"%d" % turn)

            async def calm() -> None:
                for turn in range(30):
                    await stage.producer.publish_many([b"calm"] * 5, [f"calm{turn}-{n}" for n in range(5)])

            last = asyncio.ensure_future(take_until(consumer, {b"29", b"done"}))
            await asyncio.gather(restless(1), restless(2), calm())
            await stage.producer.publish(b"done")
            taken = await asyncio.wait_for(last, PATIENCE)
            numbers = sorted(one.number for one in taken)
            assert numbers == list(range(1, len(numbers) + 1))
            assert len({one.name for one in taken if one.value == b"calm"}) == 150

    async def take_until(consumer: EtcdConsumer, wanted: set[bytes]) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        async for batch in consumer.batches():
            taken += batch
            await consumer.ack(batch)
            if wanted <= {one.value for one in taken} and [one.value for one in taken].count(b"29") >= 2:
                break
        return taken

    play(game())


def test_dispatcher_counts_an_ack_that_arrives_before_the_answer_of_its_transaction(
    etcd: EtcdCluster, queue: str
) -> None:
    class Slow(Etcd):
        """A transaction is answered when the dispatcher has heard of an ack of everything that it handed out."""

        node: ClusterNode
        early: set[int]

        async def send(self, *words: Any, **more: Any) -> Any:
            book = self.node.dispatchers[queue].queue_state if queue in self.node.dispatchers else None
            handed_out = set() if book is None else {*book.unacked}
            answer = await super().send(*words, **more)
            if book is not None and answer.succeeded:
                self.early |= handed_out
                await soon(lambda: not book.unacked, what="acks of all that was handed out")
            return answer

    async def game() -> None:
        address = EtcdAddress(endpoints=tuple(etcd.endpoints))
        settings = ClusterNodeSettings(
            name="slow", poll=0.05, compact=0, dispatcher_options=DispatcherOptions(window=3)
        )
        stop = asyncio.Event()
        slow = Slow(address)
        slow.early, slow.node = set(), ClusterNode(slow, address, SystemClock(), TimeOrderedIds(), settings)
        async with slow, at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            task = asyncio.ensure_future(slow.node.run(stop))
            async with EtcdConsumer(client, queue, "bob") as consumer:
                await stage.producer.publish_many([b"%d" % number for number in range(40)])
                taken = await take(consumer, 40)
                assert [one.value for one in taken] == [b"%d" % number for number in range(40)]
                await soon(stage.is_drained, what="all removed: no slot of the window was lost")
                assert slow.early == set(range(1, 41))
            stop.set()
            await task

    play(game())


def test_leader_election_among_three_nodes_gives_each_queue_one_leader(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with (
            running(etcd.endpoints, "a") as a,
            running(etcd.endpoints, "b") as b,
            running(etcd.endpoints, "c") as c,
            at(*etcd.endpoints) as client,
        ):
            queues = [f"{queue}-{number}" for number in range(6)]
            for one in queues:
                await client.put(f"/q/{one}/p/ann/k".encode(), b"1")
            for one in queues:
                stage = DispatcherHarness(etcd, client, one)
                await stage.waits_for(stage.keys.ordered(1, b"k"))
                dispatchers = [node for node in (a, b, c) if one in node.dispatchers]
                assert len(dispatchers) == 1
                assert await stage.value(stage.keys.leader) == dispatchers[0]._settings.name.encode()

    play(game())


def test_leader_election_after_a_leader_stops_hands_over_at_once(etcd: EtcdCluster, queue: str) -> None:
    """Its lease would live ten minutes longer."""

    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            async with running(etcd.endpoints, "first", lease=600) as first:
                await stage.producer.publish(b"1")
                await soon(lambda: queue in first.dispatchers)
                async with running(etcd.endpoints, "second", lease=600) as second:
                    await client.delete(stage.keys.leader)
                    await soon(
                        lambda: queue in second.dispatchers or queue in first.dispatchers, what="one of them leads"
                    )
                    await soon(
                        lambda: not (queue in second.dispatchers and queue in first.dispatchers), what="and one alone"
                    )
                await soon(lambda: queue in first.dispatchers, what="the first leads again when the second stops")
                await stage.producer.publish(b"2")
                await soon(lambda: stage.has_in_line(2))

    play(game())


def test_leader_election_does_not_replace_a_leader_because_of_a_key_that_is_no_message(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key sorts between the inboxes, and no leader ever moves it."""
    polls = 0

    async def counted(self: ClusterNode, keys: Keys) -> Any:
        nonlocal polls
        polls += 1
        return await poll(self, keys)

    poll = ClusterNode._poll
    monkeypatch.setattr(ClusterNode, "_poll", counted)

    async def game() -> None:
        async with (
            running(etcd.endpoints, "first", watchdog=0.05, lease=60) as first,
            at(*etcd.endpoints) as client,
        ):
            stage = DispatcherHarness(etcd, client, queue)
            await client.put(f"/q/{queue}/inbox/ann/k".encode(), b"1")
            await stage.producer.publish(b"1")
            await soon(lambda: stage.has_in_line(1), what="a leader")
            fence = await client.get(stage.keys.leader)
            assert fence is not None
            async with running(etcd.endpoints, "second", watchdog=0.05, lease=60):
                before = polls
                await soon(lambda: polls >= before + 4, what="the standby looks")
                now = await client.get(stage.keys.leader)
                assert now is not None
                assert now.create_revision == fence.create_revision
                assert queue in first.dispatchers

    play(game())


def test_leader_election_replaces_a_sleeping_leader_by_another_node(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            await client.put(stage.keys.leader, b"sleeper")
            await client.put(stage.keys.inbox("ann", "k"), b"1")
            async with running(etcd.endpoints, watchdog=0.3):
                await stage.waits_for(stage.keys.ordered(1, b"k"))
                assert await stage.value(stage.keys.leader) == b"here"

    play(game())


def test_dispatcher_of_an_idle_queue_gives_up_the_lead_and_returns_with_the_next_message(
    etcd: EtcdCluster, queue: str
) -> None:
    async def game() -> None:
        async with staged(etcd, queue, dispatcher_options=DispatcherOptions(idle_ms=200)) as stage:
            for number in (1, 2):
                await stage.client.put(stage.keys.inbox("ann", "k"), b"%d" % number)
                async with EtcdConsumer(stage.client, queue, "bob") as consumer:
                    [one] = await take(consumer, 1)
                    assert one.number == number
                await stage.lost(stage.keys.leader)

    play(game())


def test_leader_key_overwritten_by_a_client_is_restored_on_the_lease_of_its_leader(
    etcd: EtcdCluster, queue: str
) -> None:
    """Once while the leader watches, and once before it began to watch. A plain put also takes the key off the lease,
    so that it would outlive its leader."""

    async def game() -> None:
        async with staged(etcd, queue) as stage:
            await stage.producer.publish(b"1")
            await stage.waits_for(stage.keys.state)
            before = await stage.client.get(stage.keys.leader)
            assert before is not None

            async def is_restored() -> bool:
                found = await stage.client.get(stage.keys.leader)
                return found is not None and (found.value, found.lease) == (b"here", before.lease)

            for value in ("somebody", ""):
                etcd.ctl("put", f"/q/{queue}", value)
                await soon(is_restored, what="the name of the leader")
            found = await stage.client.get(stage.keys.leader)
            assert found is not None
            assert found.create_revision == before.create_revision  # the same leader, without an election
            await stage.producer.publish(b"2")
            await soon(lambda: stage.has_in_line(2), what="it goes on")
        async with at(*etcd.endpoints) as client:
            assert await client.get(stage.keys.leader) is None

    play(game())


def test_leader_key_overwritten_before_the_leader_watches_is_restored(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            keys = Keys(queue)
            lease, _ = await client.grant(60)
            fence = (await client.put(keys.leader, b"here", lease)).header.revision
            await client.put(keys.leader, b"somebody")
            dispatcher = Dispatcher(
                client, queue, "here", SystemClock(), TimeOrderedIds(), EtcdQuota(), DispatcherOptions()
            )
            leading = asyncio.ensure_future(dispatcher.lead(fence, lease))

            async def is_restored() -> bool:
                found = await client.get(keys.leader)
                return found is not None and (found.value, found.lease) == (b"here", lease)

            await soon(is_restored, what="the name of the leader")
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            await client.revoke(lease)

    play(game())


def test_dispatcher_gives_up_the_lead_of_a_queue_after_600_s_without_a_message(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-23, by the default settings."""
    clock, step, steps = ManualClock(), Dispatcher._step, 0

    async def counted(self: Dispatcher, *given: Any) -> None:
        nonlocal steps
        steps += 1
        await step(self, *given)

    monkeypatch.setattr(Dispatcher, "_step", counted)

    async def game() -> None:
        async with running(etcd.endpoints, clock=clock) as node, at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            await stage.producer.publish(b"1")
            async with EtcdConsumer(client, queue, "bob") as consumer:
                await take(consumer, 1)

            def is_idle() -> bool:
                book = node.dispatchers[queue].queue_state
                return book is not None and book.is_idle()

            await soon(is_idle, what="an empty queue without consumers")
            clock.advance(599_000)
            before = steps
            await write_policy(client, queue, b"{}")  # wakes it; nothing is written by it
            await soon(lambda: steps >= before + 3, what="it looks")
            assert queue in node.dispatchers
            clock.advance(1_000)
            await stage.lost(stage.keys.leader)

    play(game())


def test_etcd_lease_of_a_consumer_that_is_killed_ends_after_5_s(etcd: EtcdCluster, queue: str) -> None:
    """E-23: by the default settings of our consumer, its registration is on a lease of 5 s; when the lease ends, the
    registration is gone and its messages are given to the next consumer."""

    async def game() -> None:
        async with staged(etcd, queue) as stage:
            dead = EtcdConsumer(stage.client, queue, "dead")
            await dead.__aenter__()
            registration = await stage.client.get(stage.keys.home("dead"))
            assert registration is not None
            told = json.loads(etcd.ctl("lease", "timetolive", f"{registration.lease:x}", "--write-out", "json"))
            assert told["granted-ttl"] == 5
            await stage.producer.publish(b"1", "k")
            await stage.waits_for(stage.copy("dead", 1, "k"))
            assert dead._lease is not None
            await dead._lease.stop()  # as if it had been killed: no renewal, no revocation
            await dead._stop_watch()
            async with EtcdConsumer(stage.client, queue, "bob") as consumer:
                assert [one.number for one in await take(consumer, 1)] == [1]
            assert not await stage.has(stage.keys.home("dead"))

    play(game())


def test_etcd_lease_of_a_consumers_key_is_kept_when_the_dispatcher_corrects_its_value(
    etcd: EtcdCluster, queue: str
) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            lease, _ = await stage.client.grant(60)
            home = stage.keys.home("bob")
            await stage.client.put(home, b"host-1", lease)
            await stage.client.put(stage.keys.inbox("ann", "k"), b"1")
            await stage.waits_for(stage.copy("bob", 1, "k"))
            for other in (b"elsewhere", b""):
                await stage.client.put(home, other, lease)

                async def is_right() -> bool:
                    return await stage.value(home) == b"host-1"

                await soon(is_right, what="the host")
            found = await stage.client.get(home)
            assert found is not None
            assert found.lease == lease
            await stage.client.revoke(lease)
            await stage.lost(home)

    play(game())


def test_ack_in_any_order_removes_exactly_its_own_message(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            await stage.client.put(stage.keys.home("bob"), b"host")
            await stage.producer.publish_many([b"%d" % n for n in range(1, 6)], [f"k{n}" for n in range(1, 6)])
            await stage.waits_for(stage.copy("bob", 5, "k5"))
            left = {1, 2, 3, 4, 5}
            for number in (2, 3, 1, 5):
                await stage.client.delete(stage.copy("bob", number, f"k{number}"))
                left.discard(number)
                await stage.lost(stage.keys.ordered(number, b"k%d" % number))
                found = await stage.client.range(stage.keys.base + b"0", stage.keys.ordered_end, keys_only=True)
                assert {int(kv.key.split(b"/")[3]) for kv in found.kvs} == left

    play(game())


def test_etcd_lease_end_of_a_consumer_gives_its_messages_to_another(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            lease, _ = await stage.client.grant(60)
            await stage.client.put(stage.keys.home("ann"), b"host", lease)
            await stage.producer.publish_many([b"1", b"2", b"3"], ["k1", "k2", "k3"])
            await stage.waits_for(stage.copy("ann", 3, "k3"))
            await stage.client.delete(stage.copy("ann", 2, "k2"))
            await stage.lost(stage.keys.ordered(2, b"k2"))
            async with EtcdConsumer(stage.client, queue, "bob") as consumer:
                await stage.client.revoke(lease)
                taken = await take(consumer, 2)
                assert [(one.number, one.value) for one in taken] == [(1, b"1"), (3, b"3")]
                await soon(stage.is_drained, what="all acked")
            assert await keys_of(stage.client, stage.keys.home("ann")) == []

    play(game())


def test_visibility_timeout_retries_an_unacked_message_and_then_buries_it(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            await write_policy(stage.client, queue, b'{"visibilityTimeoutSec": 0.2, "retry": {"limit": 2}}')
            lease, _ = await stage.client.grant(60)
            await stage.client.put(stage.keys.home("bob"), b"host", lease)
            await stage.client.put(stage.keys.inbox("ann", "k"), b"poor")
            assert await stage.waits_for(stage.keys.dead(1, b"k")) == b"poor"
            why = json.loads(await stage.waits_for(stage.keys.why(1)))
            assert (why["reasonCode"], why["attempt"], why["state"]) == ("TIMEOUT", 3, "dead")
            assert await stage.is_drained()

            async def is_counted() -> bool:
                return bool((await stage.state())["dead"] == 1)

            await soon(is_counted)
            assert await stage.has(stage.keys.home("bob"))

    play(game())


def test_visibility_timeout_removes_a_silent_consumer_without_an_etcd_lease(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            await write_policy(stage.client, queue, b'{"visibilityTimeoutSec": 0.3}')
            await stage.client.put(stage.keys.home("bob"), b"host")
            await stage.client.put(stage.keys.inbox("ann", "k"), b"1")
            await stage.waits_for(stage.copy("bob", 1, "k"))
            await stage.lost(stage.keys.home("bob"))
            async with EtcdConsumer(stage.client, queue, "cid") as consumer:
                assert [one.number for one in await take(consumer, 1)] == [1]

    play(game())


def test_nack_waits_for_its_backoff_and_a_final_reason_buries(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage, EtcdConsumer(stage.client, queue, "bob") as consumer:
            await stage.producer.publish(b"1", "k")
            [one] = await take(consumer, 1, ack=False)
            await consumer.nack(one, text="no luck", delay=0.3)
            note = json.loads(await stage.waits_for(stage.keys.retry(1)))
            assert (note["state"], note["attempt"], note["out"]) == ("delayed", 1, False)
            assert not await stage.has(one.key)
            [again] = await take(consumer, 1, ack=False)
            assert (again.number, again.value) == (1, b"1")
            await consumer.nack(again, Reason.REJECTED, "never")
            why = json.loads(await stage.waits_for(stage.keys.why(1)))
            assert (why["reasonCode"], why["reasonMessage"], why["attempt"]) == ("REJECTED", "never", 2)
            assert await stage.is_drained()
            left = await keys_of(stage.client, stage.keys.home("bob"))
            assert left == [stage.keys.home("bob")]

    play(game())


def test_nack_puts_the_message_behind_those_that_wait(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with (
            staged(etcd, queue, dispatcher_options=DispatcherOptions(window=1)) as stage,
            EtcdConsumer(stage.client, queue, "bob") as bob,
        ):
            await stage.producer.publish_many([b"1", b"2", b"3"])
            [one] = await take(bob, 1, ack=False)
            await bob.nack(one, delay=0)
            assert [given.value for given in await take(bob, 3)] == [b"2", b"3", b"1"]

    play(game())


def test_dispatcher_holds_messages_during_a_pause_and_gives_a_late_consumer_all_of_them(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.cluster.dispatch.planner.MAX_READ_AHEAD", 10)  # the rest is read back from etcd

    async def game() -> None:
        async with running(etcd.endpoints) as node, at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            home = stage.keys.home("bob")
            await write_policy(client, queue, b'{"paused": true}')
            values = [b"%03d" % number for number in range(301)]
            await stage.producer.publish_many(values[:300])

            async def is_in_line(count: int) -> bool:
                return (await stage.state()).get("next") == count + 1

            def knows_the_pause_and_the_consumer() -> bool:
                book = node.dispatchers[queue].queue_state if queue in node.dispatchers else None
                return book is not None and book.policy.paused and home in book.consumers

            await soon(lambda: is_in_line(300), what="all in line")
            async with EtcdConsumer(client, queue, "bob") as consumer:
                await soon(knows_the_pause_and_the_consumer, what="the dispatcher has seen both")
                # The transaction that moves one more message is planned after that. It would also hand out the others.
                await stage.producer.publish(values[300])
                await soon(lambda: is_in_line(301), what="one more in line")
                assert await keys_of(client, home) == [home]
                assert not await write_policy(client, queue, b"{}")
                assert [one.value for one in await take(consumer, 301)] == values
                await soon(stage.is_drained, what="all acked")

    play(game())


def test_dispatcher_ignores_a_copy_that_it_did_not_write(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage, EtcdConsumer(stage.client, queue, "bob"):
            await stage.client.put(stage.keys.inbox("ann", "k"), b"1")
            await stage.waits_for(stage.copy("bob", 1, "k"))
            forged = stage.copy("eve", 1, "k")
            await stage.client.put(forged, b"mine")
            await stage.client.delete(forged)
            await stage.client.put(stage.keys.inbox("ann", "k2"), b"2")
            await stage.waits_for(stage.copy("bob", 2, "k2"))
            assert await stage.has(stage.keys.ordered(1, b"k"))
            assert await stage.has(stage.copy("bob", 1, "k"))

    play(game())


def test_dedup_makes_one_message_of_a_key_sent_again_unless_its_content_changed(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage, EtcdConsumer(stage.client, queue, "bob") as consumer:
            key = stage.keys.inbox("ann", "k")
            for value in (b"1", b"1", b"2"):
                await stage.client.put(key, value)
                await stage.lost(key)
            await stage.client.put(stage.keys.inbox("joe", "k"), b"1")
            assert sorted(one.value for one in await take(consumer, 3)) == [b"1", b"1", b"2"]
            await soon(stage.is_drained)
            assert (await stage.state())["moved"] == 3

    play(game())


def test_dispatcher_leaves_a_message_too_large_to_move_and_continues_with_the_others(
    etcd: EtcdCluster, queue: str
) -> None:
    async def game() -> None:
        async with (
            running(etcd.endpoints) as node,
            at(*etcd.endpoints) as client,
            EtcdConsumer(client, queue, "bob") as consumer,
        ):
            stage = DispatcherHarness(etcd, client, queue)
            with pytest.raises(TooLarge, match="700000 bytes"):
                await stage.producer.publish(bytes(700_001))
            stuck = stage.keys.inbox("ann", "huge")
            await stage.client.put(stuck, bytes(1_572_700))
            await stage.producer.publish_many([b"1", bytes(700_000), b"3"])
            large = stage.keys.inbox("ann", "large")
            await stage.client.put(large, bytes(1_400_000))
            taken = await take(consumer, 4)
            assert [len(one.value) for one in taken] == [1, 700_000, 1, 1_400_000]
            assert await stage.has(stuck)
            await stage.client.delete(stuck)
            await soon(lambda: is_empty(node), what="the leader sees that its producer took it back")

    def is_empty(node: ClusterNode) -> bool:
        book = node.dispatchers[queue].queue_state
        return book is not None and len(book.inbox) == 0

    play(game())


def test_dispatcher_loses_nothing_when_its_state_key_is_deleted_by_hand(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            async with running(etcd.endpoints), EtcdConsumer(client, queue, "bob") as consumer:
                await stage.producer.publish_many([b"1", b"2"])
                assert len(await take(consumer, 2, ack=False)) == 2
            await client.delete(stage.keys.state)
            async with running(etcd.endpoints), EtcdConsumer(client, queue, "cid") as consumer:
                await stage.producer.publish(b"3")
                taken = await take(consumer, 3)
                assert {one.value: one.number for one in taken} == {b"1": 1, b"2": 2, b"3": 3}
                await soon(stage.is_drained)

    play(game())


def test_policy_with_members_that_a_cluster_does_not_support_is_refused(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            for text in (b'{"ttlSec": 5}', b'{"dlq": {"queue": "other"}}', b'{"retry": {"limit": -1}}'):
                with pytest.raises(BadPolicy):
                    await write_policy(client, queue, text)
            assert await client.get(Keys(queue).policy) is None
            assert await write_policy(client, queue, b'{"retry": {"limit": 1}}')

    play(game())


def test_etcd_compaction_of_the_history_loses_no_message(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue, compact=0.05) as stage, EtcdConsumer(stage.client, queue, "bob") as consumer:
            sent: Sequence[bytes] = [b"%d" % number for number in range(500)]
            taking = asyncio.ensure_future(take(consumer, 500))
            for start in range(0, 500, 25):
                published = (await stage.client.range(stage.keys.state)).header.revision + 1
                await stage.producer.publish_many(sent[start : start + 25])

                async def is_thrown_away(revision: int = published) -> bool:
                    try:
                        await stage.client.range(stage.keys.state, revision=revision)
                    except RevisionCompacted:
                        return True
                    return False

                await soon(is_thrown_away, what="the history of what was published")
            assert sorted(one.value for one in await taking) == sorted(sent)
            await soon(stage.is_drained)

    play(game())


def test_dispatcher_processes_every_ack_while_consumers_come_and_go(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are watched apart, the others not; one comes again under its name."""
    monkeypatch.setattr("yirangmq.cluster.dispatch.dispatcher.MAX_SEPARATE_WATCHES", 2)

    async def game() -> None:
        async with staged(etcd, queue, dispatcher_options=DispatcherOptions(window=3)) as stage:
            for name in ("bob", "ann", "bob", "cid", "ann", "dan"):
                async with EtcdConsumer(stage.client, queue, name, seconds=60) as consumer:
                    await stage.producer.publish_many([b"%d" % number for number in range(20)])
                    assert len(await take(consumer, 20)) == 20
                    await soon(stage.is_drained, what=f"all acks of {name} were heard")
                await stage.lost(stage.keys.home(name))
            assert (await stage.state())["acked"] == 120

    play(game())


def test_dispatcher_reads_messages_that_exceed_its_memory_later_in_order(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.cluster.dispatch.state.MAX_INBOX_BYTES", 5)

    async def game() -> None:
        async with staged(etcd, queue) as stage, EtcdConsumer(stage.client, queue, "bob") as consumer:
            await stage.producer.publish_many([b"%03d" % number for number in range(300)])
            taken = [one.value for one in await take(consumer, 300)]
            assert taken == [b"%03d" % number for number in range(300)]

    play(game())


def test_dedup_memory_of_moved_keys_is_bounded_in_number_and_time() -> None:
    from yirangmq.core.policy import read_policy

    book = state.EtcdQueueState("q", "n", read_policy({}, "q"))
    for number in range(state.MAX_REMEMBERED + 10):
        book.remember(InboxArrival(b"", b"", b"%d" % number, 1, b""), 1_000)
    assert len(book.moved) == state.MAX_REMEMBERED
    last = InboxArrival(b"", b"", b"%d" % (state.MAX_REMEMBERED + 9), 2, b"")
    assert book.is_repeat(last, 1_000 + book.policy.dedup_ms - 1)
    assert not book.is_repeat(last, 1_000 + book.policy.dedup_ms)
    assert not book.is_repeat(last._replace(value=b"other"), 1_000)
    assert not book.is_repeat(last._replace(name=b"0"), 1_000)


def test_retention_deletes_old_dead_letters_of_a_dispatched_queue(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with staged(etcd, queue) as stage:
            await write_policy(stage.client, queue, b'{"dlq": {"retentionDays": 0}, "retry": {"limit": 0}}')
            async with EtcdConsumer(stage.client, queue, "bob") as consumer:
                await stage.producer.publish(b"1", "k")
                [one] = await take(consumer, 1, ack=False)
                await consumer.nack(one)
                await stage.waits_for(stage.keys.why(1))
        async with running(etcd.endpoints), at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            await client.put(stage.keys.home("bob"), b"host")
            await stage.lost(stage.keys.why(1))
            await stage.lost(stage.keys.dead(1, b"k"))
            assert await keys_of(client, prefix_end(stage.keys.base + b"dead")) == []
            await client.txn([], [put(stage.keys.base + b"why/x", b"no json")])

    play(game())


def test_dispatcher_ignores_foreign_keys_and_unreadable_values_in_its_queue(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            stage = DispatcherHarness(etcd, client, queue)
            for key in (
                b"0abc/k",
                b"7",
                b"00000000000000000001x/k",
                b"r/x",
                b"c/bob/n/x",
                b"c/bob/12/k",
                b"c//",
                b"p/",
            ):
                await client.put(stage.keys.base + key, b"what is this?")
            await client.put(stage.keys.state, b"not json")
            await client.put(stage.keys.policy, b"nor this")
            async with running(etcd.endpoints), EtcdConsumer(client, queue, "cid") as consumer:
                await stage.producer.publish_many([b"1", b"2"])
                taken = [one.value for one in await take(consumer, 3)]
                assert sorted(taken) == [b"1", b"2", b"what is this?"]  # "p/" is a message without a name

    play(game())


def test_dispatcher_is_restarted_after_a_fault_and_serves_its_queue(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from yirangmq.cluster.dispatch.recovery import DispatchRecovery

    read, faults = DispatchRecovery.read, iter([RuntimeError("planted")])

    async def read_or_fail(self: DispatchRecovery, *given: Any) -> Any:
        if (fault := next(faults, None)) is not None:
            raise fault
        return await read(self, *given)

    monkeypatch.setattr(DispatchRecovery, "read", read_or_fail)

    async def game() -> None:
        async with staged(etcd, queue) as stage, EtcdConsumer(stage.client, queue, "bob") as consumer:
            await stage.producer.publish(b"1")
            assert [one.value for one in await take(consumer, 1)] == [b"1"]

    play(game())
