"""What a draft's body may be, and what is made of it."""

import pytest

from tests.protocols.http.mq.parts import JSON, MqServer, Play, loads
from yirangmq.core.errors import StoreFull
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.mq.api import MqSettings

READ = [
    (b'{"priority":null}', "null"),
    (b'{"priority":0}', "0"),
    (b' { "priority" : 3 } ', "3"),
    (b'{"priority":9007199254740991}', "9007199254740991"),
    (b'{"priority":1.0}', "1"),
    (b'{"priority":1e3}', "1000"),
    (b'{"priority":5,"more":{"ignored":true}}', "5"),
]


@pytest.mark.parametrize(("body", "priority"), READ)
def test_priority_of_a_draft_is_read_from_its_json_body(play: Play, body: bytes, priority: str) -> None:
    """H-03: a number or null, and the answer is the id."""

    async def scene(stage: MqServer) -> None:
        answer = await stage.ask("POST", "/mq/q/messages", body, JSON)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        id = answer.body.decode()
        await stage.set(id)
        assert (await stage.get(id)).headers["x-mq-priority"] == priority

    play(scene)


REFUSED = [
    (b"", JSON, 400),
    (None, {}, 400),
    (None, JSON, 400),
    (b"{", JSON, 400),
    (b"\xff", JSON, 400),
    (b"null", JSON, 400),
    (b"[]", JSON, 400),
    (b"3", JSON, 400),
    (b"{}", JSON, 400),
    (b'{"Priority":1}', JSON, 400),
    (b'{"priority":-1}', JSON, 400),
    (b'{"priority":1.5}', JSON, 400),
    (b'{"priority":"one"}', JSON, 400),
    (b'{"priority":"-1"}', JSON, 400),
    (b'{"priority":"1"}', JSON, 400),
    (b'{"priority":""}', JSON, 400),
    (b'{"priority":true}', JSON, 400),
    (b'{"priority":false}', JSON, 400),
    (b'{"priority":[1]}', JSON, 400),
    (b'{"priority":{}}', JSON, 400),
    (b'{"priority":9007199254740992}', JSON, 400),
    (b'{"priority":1e300}', JSON, 400),
    (b'{"priority":"1e400"}', JSON, 400),
    (b'{"priority":1,"__proto__":{}}', JSON, 400),
    (b'{"priority":1}', {}, 415),
    (b'{"priority":1}', {"content-type": "application/x-www-form-urlencoded"}, 415),
    (b'{"priority":1}', {"content-type": "application/xml"}, 415),
    (b'{"priority":1}', {"content-type": "text/plain"}, 400),
    (b'{"priority":1}' + b" " * 100, JSON, 413),
]


@pytest.mark.parametrize(("body", "headers", "status"), REFUSED)
def test_draft_with_an_invalid_body_or_type_is_rejected_and_creates_nothing(
    play: Play, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    """H-03: no text, no boolean and no fraction is a priority."""

    async def scene(stage: MqServer) -> None:
        peer = await stage.dial()
        answer = await peer.ask("POST", "/mq/q/messages", body, headers)
        assert answer.status == status
        about = loads(answer.body)
        assert about["statusCode"] == status
        assert {"error", "message", "code"} < about.keys()
        assert answer.headers["cache-control"] == "private, no-cache"
        assert (await stage.ask("GET", "/mq")).body == b"[]", "nothing came of it"

    play(scene, terms=MqSettings(payload_limit=50))


@pytest.mark.parametrize("given", [b"1.5", b'"1"', b"true"])
def test_draft_refusal_says_which_numbers_are_priorities(play: Play, given: bytes) -> None:
    """H-03: the text says that a priority is a whole number."""

    async def scene(stage: MqServer) -> None:
        answer = await stage.ask("POST", "/mq/q/messages", b'{"priority":%s}' % given, JSON)
        assert loads(answer.body)["message"] == "priority: must be null or a whole number from 0 to 9007199254740991"

    play(scene)


def test_draft_content_type_json_is_accepted_in_other_spellings(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        for said in ("application/json; charset=utf-8", "APPLICATION/JSON", " application/json ;x=y"):
            answer = await stage.ask("POST", "/mq/q/messages", b'{"priority":1}', {"content-type": said})
            assert answer.status == 200

    play(scene)


def test_draft_ids_are_unique_and_safe_in_a_path(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        ids = [await stage.draft() for _ in range(100)]
        assert len(set(ids)) == 100
        assert all(id.replace("-", "").isalnum() and len(id) <= 100 for id in ids)

    play(scene)


def test_full_disk_rejects_drafts_and_content_with_507_while_consuming_continues(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(house: ServerContext) -> None:
        raise StoreFull("no room")

    async def scene(stage: MqServer) -> None:
        id, draft = await stage.put(), await stage.draft()
        monkeypatch.setattr(ServerContext, "check_capacity", full)
        assert (await stage.ask("POST", "/mq/q/messages", b'{"priority":1}', JSON)).status == 507
        assert (await stage.ask("PUT", f"/mq/q/messages/{draft}", b"x")).status == 507
        assert await stage.take() == id
        await stage.say(id, "complete")

    play(scene)


def test_draft_in_a_dead_letter_queue_is_refused_and_makes_no_queue(play: Play) -> None:
    """H-03: a draft publishes, so the rule of every protocol holds: not into a name that shows dead letters."""

    async def scene(stage: MqServer) -> None:
        await stage.put(queue="mail")
        answer = await stage.ask("POST", "/mq/mail-dlq/messages", b'{"priority":null}', JSON)
        assert answer.status == 400
        assert b"shows the dead letters of 'mail'" in answer.body
        assert (await stage.ask("GET", "/mq")).body.count(b"mail") == 1
        assert stage.queues.queues() == ["mail"]

    play(scene)
