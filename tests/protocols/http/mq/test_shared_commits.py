"""Requests that come at the same time are done together, and nobody can tell."""

import asyncio

import pytest

from tests.protocols.http.mq.parts import JSON, MqServer, Play
from tests.support.http import Peer, request
from yirangmq.core.message import Envelope
from yirangmq.format.envelope import type_of
from yirangmq.protocols.http import server
from yirangmq.protocols.http.mq import messages
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore


async def statuses(peer: Peer, count: int) -> list[int]:
    answers = [await peer.hear() for _ in range(count)]
    return [answer.status for answer in answers if answer is not None]


def test_pipelining_runs_requests_of_a_connection_in_order_beside_coalesced_ones(play: Play) -> None:
    """Though others of the same kinds came before them."""

    async def scene(stage: MqServer) -> None:
        mine, others = await stage.draft(), [await stage.put(b"%d" % number) for number in range(3)]
        first, second = await stage.dial(), await stage.dial()
        path = f"/mq/q/messages/{mine}"
        first.send(b"".join(request(method, f"/mq/q/messages/{others[0]}") for method in ("DELETE", "GET", "DELETE")))
        first.send(request("PUT", f"/mq/q/messages/{others[1]}", b"x"))
        steps = [
            request("PUT", path, b"one"), request("GET", path), request("PUT", path, b"two"), request("GET", path),
            request("GET", "/mq/q/stats"), request("DELETE", path), request("GET", path), request("GET", "/mq/q/stats"),
        ]  # fmt: skip
        second.send(b"".join(steps))
        assert await statuses(first, 4) == [204, 404, 204, 204]
        answers = [await second.hear() for _ in steps]
        assert [one.status for one in answers if one is not None] == [204, 200, 204, 200, 200, 204, 404, 200]
        bodies = [one.body for one in answers if one is not None]
        assert (bodies[1], bodies[3]) == (b"one", b"two")
        assert b'"waiting":3' in bodies[4]
        assert b'"waiting":2' in bodies[7]

    play(scene)


@pytest.mark.parametrize("most", [1, 3, 500])
def test_coalescing_works_with_any_batch_limit(play: Play, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BATCH_REQUESTS", most)

    async def scene(stage: MqServer) -> None:
        peers = [await stage.dial() for _ in range(20)]

        async def cycle(peer: Peer, number: int) -> None:
            draft = await peer.ask("POST", "/mq/q/messages", b'{"priority":null}', JSON)
            body = b"%d" % number
            assert (await peer.ask("PUT", f"/mq/q/messages/{draft.body.decode()}", body)).status == 204
            id = (await peer.ask("GET", "/mq/q/messages")).body.decode()
            assert (await peer.ask("GET", f"/mq/q/messages/{id}")).status == 200
            assert (await peer.ask("PATCH", f"/mq/q/messages/{id}/complete")).status == 204

        for _ in range(3):
            await asyncio.gather(*(cycle(peer, number) for number, peer in enumerate(peers)))
        assert await stage.stats() == {"completed": 60}

    play(scene)


def test_coalescing_retries_a_batch_rejected_by_the_store_request_by_request(play: Play) -> None:
    store = FailingStore(MemoryStore())

    async def scene(stage: MqServer) -> None:
        ids = [await stage.draft() for _ in range(3)]
        peers = [await stage.dial() for _ in ids]
        for number in (1, 2, 4):  # all together, the batch alone, then one of the three
            store.fail_at(number)
        for id, peer in zip(ids, peers, strict=True):
            peer.send(request("PUT", f"/mq/q/messages/{id}", b"x"))
        found = [(await statuses(peer, 1))[0] for peer in peers]
        assert 204 in found
        assert set(found) <= {204, 507}
        assert (await stage.stats()).get("waiting") == found.count(204)

    play(scene, store=store)


def test_coalescing_of_a_failing_response_leaves_the_others_unharmed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(envelope: Envelope) -> str:
        if envelope.payload == b"bad":
            raise ZeroDivisionError
        return type_of(envelope)

    async def scene(stage: MqServer) -> None:
        bad, good = await stage.put(b"bad"), await stage.put(b"good")
        monkeypatch.setattr(messages, "type_of", broken)
        peer, other = await stage.dial(), await stage.dial()
        peer.send(request("GET", f"/mq/q/messages/{bad}"))
        other.send(request("GET", f"/mq/q/messages/{good}"))
        assert await statuses(peer, 1) == [500]
        assert await statuses(other, 1) == [200]

    play(scene)


@pytest.mark.parametrize("crowded", [1, 3])
def test_coalescing_after_a_failed_transaction_answers_all_requests_and_the_next_ones(play: Play, crowded: int) -> None:
    store = FailingStore(MemoryStore())

    async def scene(stage: MqServer) -> None:
        ids = [await stage.draft() for _ in range(crowded)]
        peers = [await stage.dial() for _ in ids]
        for number in range(2 + crowded):
            store.fail_at(1 + number, commit=False)
        found: list[int] = []
        for _ in range(4):
            for id, peer in zip(ids, peers, strict=True):
                peer.send(request("PUT", f"/mq/q/messages/{id}", b"x"))
            found = [(await statuses(peer, 1))[0] for peer in peers]
            assert set(found) <= {204, 507}
        assert found == [204] * crowded

    play(scene, store=store)
