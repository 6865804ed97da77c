"""Content goes in and comes out as it was: any bytes, any type."""

import gzip
from pathlib import Path

import pytest

from tests.protocols.http.mq.parts import MqServer, Play, loads
from tests.support.stores import KINDS, Place
from yirangmq.core.policy import Defaults
from yirangmq.format.envelope import NewMessage
from yirangmq.protocols.http.mq.api import MqSettings

EVERY = bytes(range(256))
TYPES = [
    (None, "application/octet-stream"),
    ("text/plain", "text/plain"),
    ("text/plain;charset=UTF-8", "text/plain;charset=UTF-8"),
    ("nonsense \xe9", "nonsense \xe9"),
    ("application/json", "application/json; charset=utf-8"),
    ("application/json;charset=latin-1", "application/json;charset=latin-1"),
    ("application/x-ndjson", "application/x-ndjson; charset=utf-8"),
    ("application/x-www-form-urlencoded", "application/x-www-form-urlencoded"),
]
BODIES = [b"", EVERY, b'{"a": 1}', b' {"a":1}\n', b"\xff\xfe", b"null", "ü".encode(), b"\x00", b"x" * 100_000]


@pytest.mark.parametrize(("said", "told"), TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_content_of_any_bytes_and_any_type_round_trips(
    play: Play, kind: str, said: str | None, told: str, tmp_path: Path
) -> None:
    place = Place(kind, tmp_path)

    async def scene(stage: MqServer) -> None:
        for body in BODIES:
            id = await stage.draft()
            headers = {} if said is None else {"content-type": said}
            assert (await stage.ask("PUT", f"/mq/q/messages/{id}", body, headers)).status == 204
            answer = await stage.get(id)
            assert (answer.body, answer.headers["content-type"]) == (body, told)
            assert answer.headers["content-length"] == str(len(body))

    play(scene, store=place.open())
    place.close()


def test_chunked_body_is_stored_as_one_body(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.draft()
        peer = await stage.dial()
        peer.send(f"PUT /mq/q/messages/{id} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        peer.send(b"3\r\n\xff\x00\xfe\r\n4\r\nmore\r\n0\r\n\r\n")
        answer = await peer.hear()
        assert answer is not None
        assert answer.status == 204
        assert (await stage.get(id)).body == b"\xff\x00\xfemore"

    play(scene)


def test_content_set_again_replaces_type_and_bytes_and_keeps_the_order_until_claimed(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        first, second = await stage.put(b"1"), await stage.put(b"2")
        answer = await stage.ask("PUT", f"/mq/q/messages/{first}", b"one", {"content-type": "a/b"})
        assert answer.status == 204
        assert [await stage.order(), await stage.order()] == [first, second]
        got = await stage.get(first)
        assert (got.body, got.headers["content-type"]) == (b"one", "a/b")
        assert (await stage.ask("PUT", f"/mq/q/messages/{second}", b"too late")).status == 409

    play(scene)


def test_content_set_on_a_message_of_another_protocol_keeps_its_other_envelope_members(play: Play) -> None:

    async def scene(stage: MqServer) -> None:
        id = stage.queues.publish("q", NewMessage(payload={"n": 1}, priority=4, trace_id="t", type="order")).id
        got = await stage.get(id)
        assert (got.body, got.headers["content-type"]) == (b'{"n":1}', "application/json; charset=utf-8")
        assert got.headers["x-mq-priority"] == "4"
        await stage.set(id, b"changed")
        look = stage.queues.show("q", id)
        assert look.envelope is not None
        assert loads(look.envelope.header.encode()) == {
            "type": "order",
            "attributes": {"priority": 4},
            "traceId": "t",
        }

    play(scene)


def test_json_content_set_over_mq_is_json_for_other_protocols(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.draft(priority="2")
        headers = {"content-type": "application/json"}
        assert (await stage.ask("PUT", f"/mq/q/messages/{id}", b'{"a":[1,2]}', headers)).status == 204
        [delivery] = stage.queues.lease("q")
        assert (delivery.envelope.is_json, delivery.payload) == (True, b'{"a":[1,2]}')
        assert delivery.message.rank == 2

    play(scene)


SIZES = [(50, 100), (100, 50)]


@pytest.mark.parametrize(("general", "of_set"), SIZES)
def test_body_limits_are_inclusive_and_set_has_its_own_limit(play: Play, general: int, of_set: int) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.draft()
        await stage.set(id, b"x" * of_set)
        too_large = await (await stage.dial()).ask("PUT", f"/mq/q/messages/{id}", b"x" * (of_set + 1))
        assert too_large.status == 413
        assert (await stage.get(id)).body == b"x" * of_set
        patch = f"/mq/q/messages/{id}/complete"
        headers = {"content-type": "text/plain"}
        assert (await stage.ask("PATCH", patch, b"x" * general, headers)).status == 409
        assert (await (await stage.dial()).ask("PATCH", patch, b"x" * (general + 1), headers)).status == 413

    play(scene, defaults=Defaults(set_body=of_set), terms=MqSettings(general, of_set))


def test_content_encoding_gzip_is_rejected_with_415_and_the_draft_stays(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.draft()
        answer = await stage.ask("PUT", f"/mq/q/messages/{id}", gzip.compress(EVERY), {"content-encoding": "gzip"})
        assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
        about = loads(answer.body)
        assert (about["statusCode"], about["code"]) == (415, "packed_body")
        assert about["message"].startswith("content-encoding: ")
        assert await stage.stats() == {"drafting": 1}

    play(scene)


def test_chunked_body_over_the_limit_is_rejected_and_the_draft_stays(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.draft()
        peer = await stage.dial()
        peer.send(f"PUT /mq/q/messages/{id} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        peer.send(b"20\r\n" + b"x" * 32 + b"\r\n20\r\n" + b"x" * 32 + b"\r\n0\r\n\r\n")
        answer = await peer.hear()
        assert answer is not None
        assert answer.status == 413
        assert await stage.stats() == {"drafting": 1}

    play(scene, terms=MqSettings(50, 50))


def test_content_type_of_256_characters_is_rejected(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.draft()
        headers = {"content-type": "x" * 256}
        assert (await stage.ask("PUT", f"/mq/q/messages/{id}", b"", headers)).status == 400

    play(scene)


def test_quota_exceeded_is_answered_429_with_retry_after_until_a_message_completes(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        stage.queues.set_policy("q", {"quota": {"maxMessages": 1}})
        await stage.put()
        id = await stage.draft()
        answer = await stage.ask("PUT", f"/mq/q/messages/{id}", b"x")
        assert (answer.status, answer.headers["retry-after"]) == (429, "6")
        await stage.say(await stage.take(), "complete")
        await stage.set(id)

    play(scene)


BODIES_NOBODY_ASKED_FOR = [
    (b"{}", "application/json", 204),
    (b"x", "text/plain", 204),
    (b"a=b", "application/x-www-form-urlencoded", 204),
    (b"", "application/json", 204),
    (b"x", None, 204),
    (b"{", "application/json", 400),
    (b"x", "application/xml", 415),
]


@pytest.mark.parametrize(("body", "said", "status"), BODIES_NOBODY_ASKED_FOR)
def test_body_where_none_is_needed_is_ignored_unless_invalid_json_or_an_unsupported_type(
    play: Play, body: bytes, said: str | None, status: int
) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.put()
        id = await stage.take()
        headers = {} if said is None else {"content-type": said}
        assert (await stage.ask("PATCH", f"/mq/q/messages/{id}/complete", body, headers)).status == status
        assert (await stage.ask("DELETE", "/mq/q/failed-messages", body, headers)).status == status
        assert (await stage.ask("DELETE", "/mq/q", body, headers)).status == status

    play(scene)
