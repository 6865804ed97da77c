"""What holds for every route: versions, origins, paths, methods, names of queues."""

import json
from urllib.parse import quote

import pytest

from tests.protocols.http.mq.parts import ADMIN, JSON, MqServer, Play
from yirangmq.broker.two_step import note_of
from yirangmq.core.errors import BadInput
from yirangmq.core.validation import check_queue
from yirangmq.protocols.http.mq.request import queue_of, satisfies

SATISFIED = [
    "^0.6.0", "~0.6", "~0.6.1", "0.6.x", "0.6.*", "0.6", "0", "*", "x", "", " ", ">=0.5 <1", ">=0.5<1", "0.5 - 0.6",
    "0.6.2 - 2", "1 || ^0.6.2", "=0.6.2", "v0.6.2", "0.6.2", "<=0.6", ">=0.6.2", "<=0.6.2", "^0", "~0", "~>0.6",
    ">0.5", "<1.0.0", "^0.6.0-beta.1", "0.6.2+build", "^0.6.x", "latest || 0.6",
]  # fmt: skip
UNSATISFIED = [
    "^0.5.0", "^0.7.0", "^1", "1", "0.6.3", "0.6.1", ">0.6.2", ">0.6", "<0.6.2", "<0.6", "0.5 - 0.6.1", "latest",
    "0.6.2.1", "^0.0", "~0.5", "0.6.2 0.6.3", "banana", "^", "|", "0.6.2,", "^0.6.0x y",
    "1" * 300, "^" + "9" * 15,
]  # fmt: skip


@pytest.mark.parametrize("text", SATISFIED)
def test_accept_version_range_that_includes_the_server_version_is_satisfied(text: str) -> None:
    assert satisfies((0, 6, 2), text)


@pytest.mark.parametrize("text", UNSATISFIED)
def test_accept_version_range_that_excludes_the_server_version_is_not_satisfied(text: str) -> None:
    assert not satisfies((0, 6, 2), text)


ROUTES = [
    ("GET", "/mq", 200), ("GET", "/mq/q/stats", 200), ("GET", "/mq/q/failed-messages", 200),
    ("GET", "/mq/q/messages/x", 404), ("DELETE", "/mq/q/messages/x", 404), ("PUT", "/mq/q/messages/x", 404),
    ("PATCH", "/mq/q/messages/x/complete", 404), ("PATCH", "/mq/q/messages/x/fail", 404),
    ("PATCH", "/mq/q/messages/x/renew", 404), ("DELETE", "/mq/q/failed-messages", 204),
    ("PATCH", "/mq/q/failed-messages/renew", 204), ("DELETE", "/mq/q", 204), ("POST", "/mq/q/messages", 200),
    ("GET", "/admin/mq-with-config", 200), ("GET", "/admin/mq/q/config", 200),
    ("PUT", "/admin/mq/q/config/unique", 204), ("DELETE", "/admin/mq/q/config/unique", 204),
]  # fmt: skip


def body_for(method: str, path: str) -> bytes | None:
    if path.endswith("/unique"):
        return b"true" if method == "PUT" else None
    return b'{"priority":null}' if method == "POST" else None


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_accept_version_mismatch_is_rejected_on_every_route_with_an_empty_body(
    play: Play, method: str, path: str, status: int
) -> None:
    async def scene(stage: MqServer) -> None:
        body = body_for(method, path)
        refused = await stage.ask(method, path, body, ADMIN | {"accept-version": "^1.0.0"})
        assert (refused.status, refused.body, refused.headers["content-length"]) == (400, b"", "0")
        assert stage.queues.queues() == []
        answer = await stage.ask(method, path, body, ADMIN | {"accept-version": "^0.6.0"})
        assert answer.status == status

    play(scene)


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_cors_allows_an_origin_of_the_settings_on_every_route(play: Play, method: str, path: str, status: int) -> None:
    origin = "https://example.com:8443"

    async def scene(stage: MqServer) -> None:
        answer = await stage.ask(method, path, body_for(method, path), ADMIN | {"origin": origin})
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-expose-headers"].startswith("X-MQ-Priority, X-MQ-State,")
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["vary"] == "Origin"
        plain = await stage.ask(method, path, body_for(method, path), ADMIN)
        assert "access-control-allow-origin" not in plain.headers
        other = await stage.ask(method, path, body_for(method, path), ADMIN | {"origin": "https://example.com"})
        assert (other.status, "access-control-allow-origin" in other.headers) == (403, False)

    play(scene, origins=(origin,))


def test_cors_errors_can_be_read_by_pages_of_allowed_origins(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        origin = {"origin": "https://a.example"}
        for headers, status in ((JSON | origin, 400), (origin, 415)):
            answer = await stage.ask("POST", "/mq/q/messages", b"{}", headers)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, "https://a.example")
        for path in ("/mq/q/nowhere", "/mq/%zz/stats"):
            answer = await stage.ask("GET", path, headers=origin)
            assert answer.headers["access-control-allow-origin"] == "https://a.example"

    play(scene, origins=("https://a.example",))


@pytest.mark.parametrize("path", ["/mq", "/mq/q/messages/x", "/admin/mq/q/config/unique", "/mq/no/such/path"])
def test_cors_preflights_of_allowed_origins_are_answered(play: Play, path: str) -> None:
    async def scene(stage: MqServer) -> None:
        headers = {
            "origin": "https://a.example",
            "access-control-request-method": "PATCH",
            "access-control-request-headers": "authorization,x-any",
        }
        answer = await stage.ask("OPTIONS", path, headers=headers)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert answer.headers["access-control-allow-methods"] == "GET,HEAD,PUT,PATCH,POST,DELETE"
        assert answer.headers["access-control-allow-headers"] == "authorization,x-any"
        del headers["access-control-request-method"]
        answer = await stage.ask("OPTIONS", path, headers=headers)
        assert (answer.status, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")

    play(scene, origins=("https://a.example",))


NOWHERE = [
    ("GET", "/mq/"), ("GET", "/mq/q"), ("GET", "/mq/q/"), ("GET", "/mq/q/stats/"), ("GET", "/mq/q/Stats"),
    ("GET", "/mq/q/messages/x/complete"), ("POST", "/mq/q/messages/x/complete"), ("POST", "/mq/q/failed-messages"),
    ("PUT", "/mq/q/messages"), ("PATCH", "/mq/q"), ("POST", "/mq"), ("GET", "/mq/q/messages/x/y/z"),
    ("GET", "/mq/q/../stats"), ("GET", f"/mq/{'x' * 601}/stats"), ("GET", f"/mq/q/messages/{'x' * 601}"),
    ("DELETE", "/mq/q/failed-messages/renew"), ("GET", "/mq/q%2Fstats"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), NOWHERE)
def test_unknown_route_is_answered_404_with_a_json_error(play: Play, method: str, path: str) -> None:
    async def scene(stage: MqServer) -> None:
        answer = await stage.ask(method, path)
        assert answer.status == 404
        about = json.loads(answer.body)
        assert list(about) == ["message", "error", "statusCode"]
        assert about["message"] == f"Route {method}:{path} not found"

    play(scene)


BAD = ["a b", "a/b", "ü", "a:b", "a\n", "a*", "x" * 256, "\x7f", "a%b", "~"]


@pytest.mark.parametrize("name", BAD)
def test_queue_name_invalid_is_rejected_with_400_on_every_route(play: Play, name: str) -> None:
    async def scene(stage: MqServer) -> None:
        coded = quote(name, safe="")
        routes = [(method, path.replace("/q", f"/{coded}", 1)) for method, path, _ in ROUTES if "/q" in path]
        routes.append(("GET", f"/mq/q/messages/{coded}"))
        routes.append(("GET", f"/mq/{coded}/messages"))
        for method, path in routes:
            answer = await stage.ask(method, path, body_for(method, path), ADMIN)
            assert (answer.status, json.loads(answer.body)["statusCode"]) == (400, 400), path
        assert stage.queues.queues() == []

    play(scene)


@pytest.mark.parametrize("path", ["/mq/%zz/stats", "/mq/%/stats", "/mq/%ff/stats", "/mq/%00/stats"])
def test_path_that_cannot_be_decoded_is_rejected_with_400(play: Play, path: str) -> None:
    async def scene(stage: MqServer) -> None:
        answer = await stage.ask("GET", path)
        assert (answer.status, json.loads(answer.body)["statusCode"]) == (400, 400)

    play(scene)


NAMES = {
    "": "_.",
    ".": "_..",
    "..": "_...",
    ".hidden": "_..hidden",
    "_.": "_._.",
    "_..": "_._..",
    "_.x": "_._.x",
    "_": "_",
    "_-": "_-",
    "-": "-",
    "a.b": "a.b",
    "x" * 200: "x" * 200,
    "." + "x" * 197: "_.." + "x" * 197,
}
LONG = ["x" * 201, "x" * 255, "." * 199, "." * 255, "_." + "x" * 197, "_.-" + "0" * 64 + "x" * 150]


def test_namespace_maps_to_a_valid_and_distinct_queue_name() -> None:
    assert {name: queue_of(name) for name in NAMES} == NAMES
    made = [queue_of(name) for name in [*NAMES, *LONG, "_.-" + "0" * 64]]
    assert len(set(made)) == len(made)
    assert [check_queue(name) for name in made] == made
    assert all(queue_of(name).startswith("_.-") and len(queue_of(name)) == 67 for name in LONG)
    with pytest.raises(BadInput):
        queue_of("a b")


@pytest.mark.parametrize("name", [*NAMES, *LONG])
def test_namespace_of_any_spelling_works_and_is_listed_unchanged(play: Play, name: str) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.admin("PUT", f"mq/{name}/config/concurrency", b"5")
        id = await stage.put(b"content", name)
        assert await stage.order(name) == id
        assert (await stage.get(id, name)).body == b"content"
        assert await stage.stats(name) == {"active": 1}
        assert json.loads((await stage.ask("GET", "/mq")).body) == [name]
        assert json.loads((await stage.admin("GET", "mq-with-config")).body) == [name]
        assert (await stage.ask("DELETE", f"/mq/{name}")).status == 204
        assert json.loads((await stage.ask("GET", "/mq")).body) == []
        await stage.draft(name)
        assert json.loads((await stage.ask("GET", "/mq")).body) == [name]

    play(scene)


@pytest.mark.parametrize("name", ["", "x" * 255])
def test_namespace_that_is_not_a_queue_name_is_reached_by_other_protocols_under_its_mapped_name(
    play: Play, name: str
) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.draft(name)
        published = stage.queues.publish(queue_of(name), b"from elsewhere").id
        assert await stage.order(name) == published

    play(scene)


def test_namespace_list_omits_reserved_queue_names_made_by_other_protocols(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        for name in ("_.x", "_.-" + "0" * 64, "fine"):
            stage.queues.publish(name, b"")
        assert json.loads((await stage.ask("GET", "/mq")).body) == ["fine"]
        assert stage.queues.read(lambda transaction: transaction.note(note_of("fine"))) is None

    play(scene)


def test_query_string_is_ignored(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        answer = await stage.ask("POST", "/mq/q/messages?token=abc&priority=9", b'{"priority":1}', JSON)
        assert answer.status == 200
        assert (await stage.ask("GET", "/mq/q/stats?%zz")).status == 200

    play(scene)


def test_head_request_changes_nothing_and_does_not_wait(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        id = await stage.put(b"12345", priority="3")
        answer = await stage.ask("HEAD", "/mq/q/messages")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert await stage.stats() == {"waiting": 1}
        await stage.order()
        answer = await stage.ask("HEAD", f"/mq/q/messages/{id}")
        assert (answer.status, answer.headers["content-length"]) == (200, "5")
        assert (answer.headers["x-mq-state"], answer.headers["x-mq-priority"]) == ("ordered", "3")
        assert await stage.stats() == {"ordered": 1}
        for path in ("/mq", "/mq/q/stats", "/mq/q/failed-messages"):
            whole = await stage.ask("GET", path)
            head = await stage.ask("HEAD", path)
            assert (head.status, head.headers["content-type"]) == (200, whole.headers["content-type"])
        assert (await stage.ask("HEAD", "/mq/empty/messages")).status == 200, "and waits for nothing"
        assert (await stage.ask("HEAD", "/admin/mq/q/config")).status == 401
        assert (await stage.ask("HEAD", "/admin/mq/q/config", headers=ADMIN)).status == 200

    play(scene)
