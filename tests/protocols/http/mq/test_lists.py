"""Lists: both forms, of any length, to slow readers, many at once."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.protocols.http.mq.parts import MqServer, Play
from tests.support.http import request
from tests.support.stores import Place
from tests.support.wait import soon
from yirangmq.broker import bulk
from yirangmq.core.errors import StoreError
from yirangmq.core.ports import Transaction
from yirangmq.protocols.http.mq import api
from yirangmq.protocols.http.mq.request import ARRAY, LINES, preferred

FORMS = [
    ("", ARRAY),
    ("*/*", ARRAY),
    ("application/*", ARRAY),
    ("text/html, image/webp", ARRAY),
    ("application/json", ARRAY),
    ("application/x-ndjson", LINES),
    ("APPLICATION/X-NDJSON", LINES),
    ("application/x-ndjson, application/json", LINES),
    ("application/json, application/x-ndjson", ARRAY),
    ("application/json;q=0.5, application/x-ndjson;q=0.8", LINES),
    ("application/json;q=0.9, application/x-ndjson;q=0.8", ARRAY),
    ("application/x-ndjson;q=0", ARRAY),
    ("application/x-ndjson;q=0.1, */*;q=0.2", ARRAY),
    ("*/*, application/x-ndjson", LINES),
    ("application/x-ndjson; charset=utf-8; q=1.0, */*;q=0.1", LINES),
    ("application/x-ndjson;q=bad", ARRAY),
    (",,;q=1,", ARRAY),
]


@pytest.mark.parametrize(("accept", "form"), FORMS)
def test_list_format_follows_the_accept_header(accept: str, form: str) -> None:
    assert preferred(accept) == form


async def fail_some(stage: MqServer, count: int) -> list[str]:
    stored = stage.queues.publish_many("q", [b"%d" % number for number in range(count)])
    stage.queues.nack_many([one.lease_id for one in stage.queues.lease("q", count)], "REJECTED")
    return [one.id for one in stored]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("per_page", [1, 2, 500])
def test_list_of_failed_messages_is_a_json_array_or_ndjson_for_any_page_size(
    play: Play, count: int, per_page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PER_PAGE", per_page)

    async def scene(stage: MqServer) -> None:
        ids = [await stage.put(b"%d" % number) for number in range(count)]
        for id in ids:
            await stage.take()
            stage.pass_time(0.001)
            await stage.say(id, "fail")
        array = await stage.ask("GET", "/mq/q/failed-messages")
        assert (array.status, array.headers["content-type"]) == (200, "application/json")
        assert array.body == json.dumps(ids, separators=(",", ":")).encode()
        lines = await stage.ask("GET", "/mq/q/failed-messages", headers={"accept": LINES})
        assert (lines.status, lines.headers["content-type"]) == (200, "application/x-ndjson")
        assert lines.body == b"\n".join(json.dumps(id).encode() for id in ids)

    play(scene)


def test_namespace_list_gains_a_queue_with_its_first_draft_and_loses_it_when_cleared(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        assert (await stage.ask("GET", "/mq")).body == b"[]"
        assert (await stage.ask("GET", "/mq", headers={"accept": LINES})).body == b""
        await stage.admin("PUT", "mq/configured/config/unique", b"true")
        await stage.draft("b")
        id = await stage.draft("a")
        assert (await stage.ask("GET", "/mq")).body == b'["a","b"]'
        assert (await stage.ask("GET", "/mq", headers={"accept": LINES})).body == b'"a"\n"b"'
        assert (await stage.ask("DELETE", f"/mq/a/messages/{id}")).status == 204
        stage.pass_time(10**6)
        assert await stage.stats("b") == {}
        assert (await stage.ask("GET", "/mq")).body == b'["a","b"]', "they stay, even empty"
        assert (await stage.ask("DELETE", "/mq/a")).status == 204
        assert (await stage.ask("GET", "/mq")).body == b'["b"]'

    play(scene)


def test_namespace_list_spans_many_pages(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "QUEUES_PER_PAGE", 7)

    async def scene(stage: MqServer) -> None:
        names = sorted(f"n{number}" for number in range(50))
        for name in names:
            stage.queues.publish(name, b"")
        assert json.loads((await stage.ask("GET", "/mq")).body) == names

    play(scene)


def test_redrive_of_all_failed_messages_keeps_arrival_order_and_delete_abandons_them(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        ids = [await stage.put(b"%d" % number) for number in range(5)]
        for _ in ids:
            await stage.take()
        for id in (ids[3], ids[0], ids[4], ids[1]):
            await stage.say(id, "fail")
        other = await stage.put(b"other")
        assert (await stage.ask("PATCH", "/mq/q/failed-messages/renew")).status == 204
        assert await stage.stats() == {"waiting": 5, "active": 1}
        assert [await stage.order() for _ in range(5)] == [other, ids[0], ids[1], ids[3], ids[4]]
        await stage.say(ids[2], "fail")
        assert (await stage.ask("DELETE", "/mq/q/failed-messages")).status == 204
        assert await stage.stats() == {"ordered": 5}
        for method, path in (("PATCH", "/mq/none/failed-messages/renew"), ("DELETE", "/mq/none/failed-messages")):
            assert (await stage.ask(method, path)).status == 204
        assert (await stage.ask("GET", "/mq")).body == b'["q"]'

    play(scene)


def test_list_backpressure_stops_reading_the_store_for_a_slow_reader_while_others_are_served(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody reads stays where it is, and costs nobody anything."""
    place = Place("sqlite", tmp_path)
    pages = 0

    def counted(transaction: Transaction, queue: str, cursor: str, limit: int) -> tuple[list[str], str]:
        nonlocal pages
        pages += 1
        return bulk.failed_page(transaction, queue, cursor, 100)

    monkeypatch.setattr(api, "failed_page", counted)

    async def scene(stage: MqServer) -> None:
        ids = await fail_some(stage, 4_000)
        others = [await stage.dial() for _ in range(5)]
        await others[0].ask("GET", "/mq/q/failed-messages")
        per_list = pages
        slow = await stage.dial()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(60):  # more than any buffer holds
            slow.send(request("GET", "/mq/q/failed-messages"))
        served = 1

        async def only_others_go_on() -> bool:
            nonlocal served
            before = pages
            answers = await asyncio.gather(*(peer.ask("GET", "/mq/q/failed-messages") for peer in others))
            assert [sorted(json.loads(one.body)) == sorted(ids) for one in answers] == [True] * 5
            served += 5
            return pages - before == per_list * 5

        await soon(only_others_go_on, what="lists for all but the slow one")
        assert pages - per_list * served < per_list * 60, "the slow one waits"
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(60):
            answer = await slow.hear()
            assert answer is not None
            assert len(json.loads(answer.body)) == 4_000

    play(scene, store=place.open())
    place.close()


def test_list_ends_when_its_client_disconnects_midway(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PER_PAGE", 1)
    over: list[api.PagedListing] = []
    disconnected = api.PagedListing.disconnected

    def watched(listing: api.PagedListing) -> None:
        over.append(listing)
        disconnected(listing)

    monkeypatch.setattr(api.PagedListing, "disconnected", watched)

    async def scene(stage: MqServer) -> None:
        await fail_some(stage, 300)
        peer = await stage.dial()
        peer.send(request("GET", "/mq/q/failed-messages"))
        await peer.read()
        peer.writer.transport.abort()
        await soon(lambda: bool(over))

    play(scene)


def test_list_response_is_cut_off_without_a_final_chunk_when_the_store_fails(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody takes a part for the whole."""

    async def scene(stage: MqServer) -> None:
        await fail_some(stage, 30)
        calls = 0

        def broken(transaction: Transaction, queue: str, cursor: str, limit: int) -> tuple[list[str], str]:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise StoreError("the disk is gone")
            return bulk.failed_page(transaction, queue, cursor, 10)

        monkeypatch.setattr(api, "failed_page", broken)
        peer = await stage.dial()
        peer.send(request("GET", "/mq/q/failed-messages"))
        text = await peer.read_all()
        assert b'["' in text
        assert not text.endswith(b"0\r\n\r\n")

    play(scene)
