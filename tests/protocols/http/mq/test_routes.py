"""Every route in every state of a message: its status, and that its body is empty where it must be."""

from collections.abc import Awaitable, Callable

import pytest

from tests.protocols.http.mq.parts import MqServer, Play
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.format.envelope import NewMessage

Step = Callable[[MqServer], Awaitable[str]]


async def drafting(stage: MqServer) -> str:
    return await stage.draft()


async def waiting(stage: MqServer) -> str:
    return await stage.put()


async def ordered(stage: MqServer) -> str:
    await stage.put()
    return await stage.order()


async def active(stage: MqServer) -> str:
    await stage.put()
    return await stage.take()


async def failed(stage: MqServer) -> str:
    id = await active(stage)
    await stage.say(id, "fail")
    return id


async def completed(stage: MqServer) -> str:
    id = await active(stage)
    await stage.say(id, "complete")
    return id


async def renewed(stage: MqServer) -> str:
    id = await failed(stage)
    await stage.say(id, "renew")
    return id


async def abandoned(stage: MqServer) -> str:
    id = await stage.put()
    assert (await stage.ask("DELETE", f"/mq/q/messages/{id}")).status == 204
    return id


async def timed_out(stage: MqServer) -> str:
    id = await stage.draft()
    stage.pass_time(60)
    return id


async def late(stage: MqServer) -> str:
    """Active for too long, and back in line."""
    id = await active(stage)
    stage.pass_time(300)
    return id


async def unknown(stage: MqServer) -> str:
    await stage.put()
    return "nobody"


async def elsewhere(stage: MqServer) -> str:
    """A message of another queue."""
    return await stage.put(queue="other")


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        drafting, waiting, ordered, active, failed, completed, renewed, abandoned, timed_out, late, unknown, elsewhere,
    )
}  # fmt: skip
ROUTES = {
    "set": ("PUT", ""),
    "get": ("GET", ""),
    "head": ("HEAD", ""),
    "abandon": ("DELETE", ""),
    "complete": ("PATCH", "/complete"),
    "fail": ("PATCH", "/fail"),
    "renew": ("PATCH", "/renew"),
}
MATRIX = """
            set  get  head  abandon  complete  fail  renew
drafting    204  409  409   204      409       409   409
waiting     204  200  200   204      409       409   409
ordered     409  200  200   204      409       409   409
active      409  200  200   204      204       204   409
failed      409  200  200   204      409       204   204
completed   404  404  404   404      204       404   404
renewed     204  200  200   204      409       409   204
abandoned   404  404  404   204      404       404   404
timed_out   404  404  404   404      404       404   404
late        204  200  200   204      409       409   409
unknown     404  404  404   404      404       404   404
elsewhere   404  404  404   404      404       404   404
"""
ROWS = [line.split() for line in MATRIX.strip().splitlines()[1:]]
CASES = [(state, route, int(status)) for state, *row in ROWS for route, status in zip(ROUTES, row, strict=True)]


@pytest.mark.parametrize(("state", "route", "status"), CASES)
def test_route_status_depends_on_the_message_state_and_a_repeated_success_succeeds(
    play: Play, state: str, route: str, status: int
) -> None:
    async def scene(stage: MqServer) -> None:
        id = await STEPS[state](stage)
        before = await stage.stats()
        method, end = ROUTES[route]
        answer = await stage.ask(method, f"/mq/q/messages/{id}{end}", b"new" if method == "PUT" else None)
        assert answer.status == status
        assert answer.headers["cache-control"] == "private, no-cache"
        assert answer.headers["vary"] == "Origin"
        if status == 204:
            assert "content-length" not in answer.headers
            again = await stage.ask(method, f"/mq/q/messages/{id}{end}", b"new" if method == "PUT" else None)
            assert again.status == 204, "repeating what succeeded succeeds"
        else:
            assert status == 200 or (answer.body, answer.headers["content-length"]) == (b"", "0")
            assert status == 200 or "content-type" not in answer.headers
        if status in (404, 409) or route == "head":
            assert await stage.stats() == before

    play(scene)


AFTER: dict[tuple[str, str], dict[str, int]] = {
    ("drafting", "set"): {"waiting": 1},
    ("drafting", "abandon"): {},
    ("waiting", "set"): {"waiting": 1},
    ("waiting", "get"): {"waiting": 1},
    ("ordered", "get"): {"active": 1},
    ("ordered", "abandon"): {},
    ("active", "get"): {"active": 1},
    ("active", "complete"): {"completed": 1},
    ("active", "fail"): {"failed": 1},
    ("active", "abandon"): {},
    ("failed", "get"): {"failed": 1},
    ("failed", "renew"): {"waiting": 1},
    ("failed", "abandon"): {},
    ("late", "get"): {"waiting": 1},
    ("timed_out", "get"): {},
}
STATES = {
    ("waiting", "get"): "waiting",
    ("ordered", "get"): "active",
    ("active", "get"): "active",
    ("failed", "get"): "failed",
    ("late", "get"): "waiting",
}


@pytest.mark.parametrize(("state", "route"), AFTER)
def test_route_effect_on_stats_and_state_header_in_each_message_state(play: Play, state: str, route: str) -> None:
    async def scene(stage: MqServer) -> None:
        id = await STEPS[state](stage)
        method, end = ROUTES[route]
        answer = await stage.ask(method, f"/mq/q/messages/{id}{end}", b"new" if method == "PUT" else None)
        assert await stage.stats() == AFTER[state, route]
        assert answer.headers.get("x-mq-state") == STATES.get((state, route))

    play(scene)


def test_stats_of_an_unknown_queue_are_zeros_and_create_no_queue(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        answer = await stage.ask("GET", "/mq/nowhere/stats")
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        zeros = b'"drafting":0,"waiting":0,"ordered":0,"active":0,"completed":0,"failed":0'
        assert answer.body == b'{"namespace":"nowhere",%s}' % zeros
        assert (await stage.ask("GET", "/mq")).body == b"[]"

    play(scene)


def test_stats_completed_counter_is_reset_only_by_clear(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        for number in range(3):
            await completed(stage)
            assert (await stage.stats())["completed"] == number + 1
        await abandoned(stage)
        stage.pass_time(10**6)
        assert await stage.stats() == {"completed": 3}
        assert (await stage.ask("DELETE", "/mq/q")).status == 204
        assert await stage.stats() == {}

    play(scene)


def test_states_set_by_other_protocols_are_reported_under_the_mq_names(play: Play) -> None:

    async def scene(stage: MqServer) -> None:
        stage.queues.publish("q", NewMessage(payload={"n": 1}, delay=60, priority=7))
        id = stage.queues.publish("q", NewMessage(payload=b"\x00", content_type="x/y")).id
        held = stage.queues.publish("q", NewMessage(payload=1, group="g")).id
        held = stage.queues.publish("q", NewMessage(payload=1, group="g")).id
        assert await stage.stats() == {"waiting": 4}
        assert (await stage.get(held)).headers["x-mq-state"] == "waiting"
        assert await stage.order() == id
        answer = await stage.get(id)
        assert (answer.body, answer.headers["content-type"]) == (b"\x00", "x/y")
        await stage.say(id, "fail")
        DeadLetters(stage.queues).quarantine("q", ids=[id])
        assert await stage.stats() == {"waiting": 3, "failed": 1}
        assert (await stage.get(id)).headers["x-mq-state"] == "failed"
        assert (await stage.ask("GET", "/mq/q/failed-messages")).body == b'["%s"]' % id.encode()
        await stage.say(id, "renew")
        assert await stage.stats() == {"waiting": 4}
        [delivery] = stage.queues.lease("q")
        assert delivery.id != held
        assert (await stage.stats())["active"] == 1
        stage.queues.ack(delivery.lease_id)
        assert (await stage.stats())["completed"] == 1

    play(scene)
