"""Time-outs fire when they are due: in a queue where nothing happens, and for the time the server was away."""

from pathlib import Path

import pytest

from tests.protocols.http.mq.parts import MqServer, Play
from tests.support.stores import KINDS, Place
from tests.support.wait import soon
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Transaction
from yirangmq.testing import ManualClock

TIMES = [("drafting", 60), ("ordered", 60), ("active", 300)]


async def reach(stage: MqServer, state: str) -> str:
    if state == "drafting":
        return await stage.draft()
    id = await stage.put()
    if state != "waiting":
        await (stage.order() if state == "ordered" else stage.take())
    if state == "failed":
        await stage.say(id, "fail")
    return id


@pytest.mark.parametrize(("state", "seconds"), TIMES)
def test_sweeper_applies_timeouts_to_an_idle_queue_without_a_request(play: Play, state: str, seconds: float) -> None:
    async def scene(stage: MqServer) -> None:
        await reach(stage, state)

        def counted(transaction: Transaction) -> tuple[int, int]:
            counts = transaction.counts("q")
            return counts.draft + counts.claimed + counts.leased, counts.ready

        stage.pass_time(seconds - 0.001)
        await soon(lambda: stage.desk.is_idle)
        assert stage.desk.read(counted) == (1, 0)
        stage.pass_time(0.001)
        await soon(lambda: stage.desk.is_idle)
        assert stage.desk.read(counted) == (0, 0 if state == "drafting" else 1)

    play(scene)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("state", "seconds"), TIMES)
def test_timeout_counts_the_time_while_the_server_was_down(
    play: Play, kind: str, state: str, seconds: int, tmp_path: Path
) -> None:
    place, clock = Place(kind, tmp_path), ManualClock()

    async def before(stage: MqServer) -> None:
        await reach(stage, state)
        stage.pass_time(1)

    async def shortly_after(stage: MqServer) -> None:
        assert await stage.stats() == {state: 1}

    async def later(stage: MqServer) -> None:
        assert await stage.stats() == ({} if state == "drafting" else {"waiting": 1})

    play(before, store=place.open(), clock=clock)
    clock.advance((seconds - 1) * 1000 - 1)
    play(shortly_after, store=place.reopen(), clock=clock)
    clock.advance(1)
    play(later, store=place.reopen(), clock=clock)
    place.close()


@pytest.mark.parametrize("kind", KINDS)
def test_restart_preserves_every_message_state_and_the_queue_config(play: Play, kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), ManualClock()
    ids: dict[str, str] = {}
    states = ("failed", "active", "ordered", "drafting", "waiting")

    async def before(stage: MqServer) -> None:
        for state in states:
            ids[state] = await reach(stage, state)
        await stage.admin("PUT", "mq/q/config/unique", b"true")
        await stage.admin("PUT", "mq/q/config/concurrency", b"9")

    async def after(stage: MqServer) -> None:
        assert await stage.stats() == dict.fromkeys(states, 1)
        await stage.set(ids["drafting"], b"set after the restart")
        assert (await stage.get(ids["ordered"])).body == b"content"
        await stage.say(ids["ordered"], "complete")
        await stage.say(ids["active"], "fail")
        await stage.say(ids["failed"], "renew")
        order = [await stage.order() for _ in range(3)]
        assert order == [ids["waiting"], ids["drafting"], ids["failed"]]
        again = await stage.draft()
        assert (await stage.ask("PUT", f"/mq/q/messages/{again}", b"content")).status == 409

    play(before, store=place.open(), clock=clock)
    play(after, store=place.reopen(), clock=clock)
    assert list(place.reopen().check(repair=False)) == []
    place.close()


def test_timeout_returns_a_message_behind_those_of_its_priority(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        first = await stage.put(b"1", priority="5")
        await stage.take()
        second, third = await stage.put(b"2", priority="5"), await stage.put(b"3", priority="6")
        stage.pass_time(300)
        assert [await stage.order() for _ in range(3)] == [second, first, third]

    play(scene)


def test_timeout_beyond_the_retry_limit_fails_the_message_with_reason_timeout(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        stage.queues.set_policy("q", {"retry": {"limit": 2}})
        id = await stage.put()
        for state in ("ordered", "active", "ordered"):
            assert await (stage.order() if state == "ordered" else stage.take()) == id
            stage.pass_time(300)
        assert await stage.stats() == {"failed": 1}
        assert (await stage.get(id)).headers["x-mq-state"] == "failed"
        failure = stage.queues.show("q", id).failure
        assert failure is not None
        assert (failure.reason_code, failure.attempt) == ("TIMEOUT", 3)
        await stage.say(id, "renew")
        assert await stage.order() == id

    play(scene)


def test_timeout_defaults_come_from_the_server_settings(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.draft()
        await stage.put()
        await stage.put()
        await stage.take()
        await stage.order()
        for seconds, left in (
            (0.5, {"ordered": 1, "active": 1}),
            (1, {"waiting": 1, "active": 1}),
            (1, {"waiting": 2}),
        ):
            stage.pass_time(seconds)
            assert await stage.stats() == left

    play(scene, defaults=Defaults(draft_ms=500, claim_ms=1500, active_ms=2500))


def test_repeated_complete_or_delete_succeeds_for_600_seconds_then_answers_404(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        done = await stage.put()
        await stage.take()
        await stage.say(done, "complete")
        gone = await stage.put()
        assert (await stage.ask("DELETE", f"/mq/q/messages/{gone}")).status == 204
        for seconds, status in ((599.999, 204), (0.001, 404)):
            stage.pass_time(seconds)
            assert (await stage.ask("PATCH", f"/mq/q/messages/{done}/complete")).status == status
            assert (await stage.ask("DELETE", f"/mq/q/messages/{gone}")).status == status

    play(scene)
