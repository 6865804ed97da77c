"""Orders that wait: who is served, when, and who is not."""

import asyncio

import pytest

from tests.protocols.http.mq.parts import JSON, MqServer, Play
from tests.support.http import Answer, Peer
from tests.support.wait import soon
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.core.access import AccessGrant
from yirangmq.core.policy import Defaults
from yirangmq.protocols.http.pipelining import Step
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore


async def heard(peer: Peer) -> Answer:
    answer = await peer.hear()
    assert answer is not None
    return answer


async def served(peer: Peer) -> str:
    answer = await heard(peer)
    assert answer.status == 200
    return answer.body.decode()


def test_priority_smallest_is_served_first_and_then_the_oldest_of_a_thousand(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        ids = []
        for number in range(1000):
            priority = (number * 7919) % 13
            id = await stage.draft(priority="null" if priority == 12 else str(priority))
            await stage.set(id)
            ids.append((priority, number, id))
        assert [await stage.order() for _ in ids] == [id for _, _, id in sorted(ids)]

    play(scene)


def test_wait_list_serves_waiters_in_order_of_arrival(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        peers = await stage.waiting(5)
        ids = [await stage.put(b"%d" % number) for number in range(5)]
        assert [await served(peer) for peer in peers] == ids

    play(scene)


def test_wait_list_is_not_overtaken_by_a_later_order_or_an_empty_wakeup(play: Play) -> None:
    """Not even with news that are none, and not in the very turn in which the message comes."""

    async def scene(stage: MqServer) -> None:
        first, second = await stage.waiting(2)
        stage.desk.notify_external_change()
        await stage.put(b"", queue="other")
        id = await stage.draft()
        late = await stage.dial()
        late.send(b"GET /mq/q/messages HTTP/1.1\r\nHost: x\r\n\r\n")
        await stage.set(id)
        assert await served(first) == id
        then = await stage.put()
        assert await served(second) == then
        last = await stage.put()
        assert await served(late) == last

    play(scene)


def test_wait_list_is_woken_by_a_message_of_another_protocol(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        [peer] = await stage.waiting(1)
        stored = stage.queues.publish("q", b"from elsewhere")
        stage.desk.notify_external_change()
        assert await served(peer) == stored.id

    play(scene)


@pytest.mark.parametrize("way", ["close", "half-close", "abort"])
def test_wait_list_skips_a_waiter_that_disconnected(play: Play, way: str) -> None:
    async def scene(stage: MqServer) -> None:
        gone, stays = await stage.waiting(2)
        match way:
            case "close":
                gone.writer.close()
            case "half-close":
                gone.writer.write_eof()
            case "abort":
                gone.writer.transport.abort()
        await soon(lambda: len(stage.desk.waiting("q")) == 1)
        id = await stage.put()
        assert await served(stays) == id
        assert await stage.stats() == {"ordered": 1}

    play(scene)


def test_wait_list_skips_a_waiter_that_disconnects_during_the_commit_that_claims(play: Play) -> None:
    """Its message is claimed in the commit during which it leaves."""

    async def scene(stage: MqServer) -> None:
        gone, stays = await stage.waiting(2)
        first, second = await stage.draft(), await stage.draft()
        [taker, _] = stage.desk.waiting("q")
        taker._call.exchange.take(Step.DROP)  # type: ignore[attr-defined]
        await stage.set(first)
        assert await served(stays) == first
        await stage.set(second)
        assert await stage.order() == second
        assert gone is not stays

    play(scene)


@pytest.mark.parametrize("exists", [True, False])
def test_clear_of_a_queue_answers_all_its_waiters_404_and_leaves_other_queues_waiting(play: Play, exists: bool) -> None:
    async def scene(stage: MqServer) -> None:
        if exists:
            await stage.put()
            await stage.say(await stage.take(), "complete")
        peers = await stage.waiting(3)
        [other] = await stage.waiting(1, "other")
        assert (await stage.ask("DELETE", "/mq/q")).status == 204
        for peer in peers:
            answer = await heard(peer)
            assert (answer.status, answer.body) == (404, b"")
            assert "content-type" not in answer.headers
        assert stage.desk.waiting("q") == []
        id = await stage.put(queue="other")
        assert await served(other) == id
        await stage.begin_order(peers[0])
        again = await stage.put()
        assert await served(peers[0]) == again

    play(scene)


def test_delete_queue_by_another_protocol_answers_its_waiters_404(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        [peer] = await stage.waiting(1)
        stage.house.methods.find("delete_queue")(stage.desk, {"queue": "q"}, lambda value, error: None)
        assert (await heard(peer)).status == 404

    play(scene)


def test_wait_list_entry_creates_no_queue(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.waiting(1)
        assert (await stage.ask("GET", "/mq")).body == b"[]"

    play(scene)


def test_wait_list_has_no_timeout(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        [peer] = await stage.waiting(1)
        stage.pass_time(10**6)
        id = await stage.put()
        assert await served(peer) == id

    play(scene)


@pytest.mark.parametrize("what", ["ordered", "active"])
def test_wait_list_is_woken_by_a_message_whose_timeout_ends(play: Play, what: str) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.put()
        await (stage.order() if what == "ordered" else stage.take())
        [peer] = await stage.waiting(1)
        stage.pass_time(60 if what == "ordered" else 300)
        assert await served(peer) == id

    play(scene)


@pytest.mark.parametrize("way", ["one", "all", "another door"])
def test_wait_list_is_woken_by_a_redriven_message(play: Play, way: str) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.put()
        await stage.take()
        await stage.say(id, "fail")
        [peer] = await stage.waiting(1)
        match way:
            case "one":
                await stage.say(id, "renew")
            case "all":
                assert (await stage.ask("PATCH", "/mq/q/failed-messages/renew")).status == 204
            case "another door":
                DeadLetters(stage.queues).redrive("q", all=True)
                stage.desk.notify_external_change()
        assert await served(peer) == id

    play(scene)


ENDS = ["complete", "fail", "abandon", "timeout", "ack", "nack", "clear config", "raise"]


@pytest.mark.parametrize("end", ENDS)
def test_concurrency_limit_with_a_freed_place_raised_or_removed_wakes_a_waiter(play: Play, end: str) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.admin("PUT", "mq/q/config/concurrency", b"1")
        ids = [await stage.put(b"%d" % number) for number in range(2)]
        lease = ""
        if end in ("ack", "nack"):
            lease = stage.queues.lease("q")[0].lease_id
        else:
            assert await stage.take() == ids[0]
        [peer] = await stage.waiting(1)
        match end:
            case "complete" | "fail":
                await stage.say(ids[0], end)
            case "abandon":
                assert (await stage.ask("DELETE", f"/mq/q/messages/{ids[0]}")).status == 204
            case "timeout":
                stage.pass_time(300)
            case "ack":
                stage.queues.ack(lease)
                stage.desk.notify_external_change()
            case "nack":
                stage.queues.nack(lease)
                stage.desk.notify_external_change()
            case "clear config":
                await stage.admin("DELETE", "mq/q/config/concurrency")
            case "raise":
                await stage.admin("PUT", "mq/q/config/concurrency", b"2")
        assert await served(peer) == ids[1]

    play(scene)


def test_concurrency_limit_makes_the_next_order_wait(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        for number in range(4):
            await stage.put(b"%d" % number)
        await stage.order()
        await stage.take()
        await stage.waiting(1)
        assert await stage.stats() == {"waiting": 2, "ordered": 1, "active": 1}

    play(scene, defaults=Defaults(concurrency=2))


def test_wait_list_serves_40_waiters_from_40_simultaneous_sets(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        peers = await stage.waiting(40)
        ids = [await stage.draft() for _ in range(40)]
        writers = [await stage.dial() for _ in range(8)]
        for number, id in enumerate(ids):
            writers[number % 8].send(
                f"PUT /mq/q/messages/{id} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
            )
        answers = await asyncio.gather(*(served(peer) for peer in peers))
        assert sorted(answers) == sorted(ids)
        assert await stage.stats() == {"ordered": 40}

    play(scene)


def test_wait_list_keeps_its_waiters_while_the_store_fails(play: Play) -> None:
    store = FailingStore(MemoryStore())

    async def scene(stage: MqServer) -> None:
        id = await stage.draft()
        [peer] = await stage.waiting(1)
        await soon(lambda: stage.desk.is_idle)  # what the order looked for is not among the transactions to come
        for _ in range(2):
            store.fail_at(1)
            assert (await stage.ask("PUT", f"/mq/q/messages/{id}", b"x")).status == 507
        await stage.set(id)
        stage.pass_time(1)
        assert await served(peer) == id

    play(scene, store=store)


def test_token_is_required_and_limits_verbs_and_queues(play: Play) -> None:
    grants = (
        AccessGrant("producer1", frozenset({"publish"}), ("q",)),
        AccessGrant("consumer1", frozenset({"consume"}), ("q*",)),
        AccessGrant("everything"),
    )

    async def scene(stage: MqServer) -> None:
        async def status(method: str, path: str, token: str) -> int:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            body = b'{"priority":null}' if method == "POST" else None
            return (await stage.ask(method, path, body, headers | JSON)).status

        assert await status("POST", "/mq/q/messages", "") == 401
        assert await status("POST", "/mq/q/messages", "wrong") == 401
        assert await status("POST", "/mq/q/messages", "consumer1") == 403
        assert await status("POST", "/mq/q/messages", "producer1") == 200
        assert await status("POST", "/mq/other/messages", "producer1") == 403
        assert await status("GET", "/mq/q/messages/x", "producer1") == 403
        assert await status("GET", "/mq/q/messages/x", "consumer1") == 404
        assert await status("GET", "/mq/q/stats", "producer1") == 200
        assert await status("DELETE", "/mq/q", "consumer1") == 403
        assert await status("DELETE", "/mq/q", "everything") == 204
        assert (await stage.admin("GET", "mq-with-config")).status == 200, "the password is enough"

    play(scene, grants=grants)
