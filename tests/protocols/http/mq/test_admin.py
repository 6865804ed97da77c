"""The administrator's routes: who may use them, what can be set, and what it does."""

import json

import pytest

from tests.protocols.http.mq.parts import PASSWORD, MqServer, Play
from yirangmq.core.policy import Defaults
from yirangmq.protocols.http.mq import api
from yirangmq.protocols.http.mq.api import MqSettings

NOTHING = {
    "unique": None,
    "draftingTimeout": None,
    "orderedTimeout": None,
    "activeTimeout": None,
    "concurrency": None,
}
MEMBERS = {
    "unique": "unique",
    "drafting-timeout": "draftingTimeout",
    "ordered-timeout": "orderedTimeout",
    "active-timeout": "activeTimeout",
    "concurrency": "concurrency",
}
ROUTES = [
    ("GET", "/admin/mq-with-config"),
    ("GET", "/admin/mq/q/config"),
    *((method, f"/admin/mq/q/config/{name}") for name in MEMBERS for method in ("PUT", "DELETE")),
]


async def config(stage: MqServer, queue: str = "q") -> dict[str, object]:
    answer = await stage.admin("GET", f"mq/{queue}/config")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json; charset=utf-8")
    found: dict[str, object] = json.loads(answer.body)
    assert list(found) == list(NOTHING)
    return found


MISSING, INVALID = b'{"error":"missing authorization header"}', b'{"error":"invalid authorization header"}'
AUTHORIZATIONS = [
    (None, PASSWORD, MISSING),
    ("", PASSWORD, INVALID),
    ("Bearer", PASSWORD, INVALID),
    ("Bearer wrong", PASSWORD, INVALID),
    (f"Bearer {PASSWORD}x", PASSWORD, INVALID),
    (f"Basic {PASSWORD}", PASSWORD, INVALID),
    (PASSWORD, PASSWORD, INVALID),
    (None, "", MISSING),
    ("Bearer ", "", INVALID),
    ("Bearer", "", INVALID),
    (f"Bearer {PASSWORD}", "", INVALID),
]


@pytest.mark.parametrize(("said", "password", "body"), AUTHORIZATIONS)
def test_admin_password_missing_or_wrong_is_answered_401_on_every_admin_route(
    play: Play, said: str | None, password: str, body: bytes
) -> None:
    async def scene(stage: MqServer) -> None:
        for method, path in ROUTES:
            headers = {} if said is None else {"authorization": said}
            answer = await stage.ask(method, path, b"1" if method == "PUT" else None, headers)
            assert (answer.status, answer.body) == (401, body)
        assert stage.queues.queues() == []

    play(scene, terms=MqSettings(admin_password=password))


@pytest.mark.parametrize("password", ["simple", "with spaces in it", "pässwörd"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_admin_password_with_bearer_in_either_case_is_accepted(play: Play, password: str, scheme: str) -> None:
    async def scene(stage: MqServer) -> None:
        sent = f"{scheme}  {password} ".encode().decode("latin-1")
        answer = await stage.ask("GET", "/admin/mq/q/config", headers={"authorization": sent})
        assert answer.status == 200

    play(scene, terms=MqSettings(admin_password=password))


def test_admin_routes_that_do_not_exist_answer_404_without_a_password(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        for path in ("/admin", "/admin/", "/admin/mq", "/admin/mq/q", "/admin/mq/q/config/colour"):
            answer = await stage.ask("GET", path)
            assert answer.status == 404
            assert json.loads(answer.body)["statusCode"] == 404
        assert (await stage.ask("POST", "/admin/mq/q/config/unique", b"1")).status == 404

    play(scene)


VALUES = [
    ("unique", b"true", True),
    ("unique", b"false", False),
    ("drafting-timeout", b"5", 5),
    ("drafting-timeout", b"0.25", 0.25),
    ("ordered-timeout", b"3600", 3600),
    ("active-timeout", b" 1 ", 1),
    ("concurrency", b"1", 1),
    ("concurrency", b"0", 0),
    ("concurrency", b"3.0", 3),
]


@pytest.mark.parametrize(("name", "body", "value"), VALUES)
def test_queue_config_setting_is_set_and_deleted(play: Play, name: str, body: bytes, value: object) -> None:
    """H-35: each setting takes the JSON value of its own type, and PUT and DELETE answer 204."""

    async def scene(stage: MqServer) -> None:
        assert await config(stage) == NOTHING
        answer = await stage.admin("PUT", f"mq/q/config/{name}", body)
        assert (answer.status, answer.body) == (204, b"")
        assert await config(stage) == NOTHING | {MEMBERS[name]: value}
        assert (await stage.admin("GET", "mq-with-config")).body == b'["q"]'
        for _ in range(2):
            assert (await stage.admin("DELETE", f"mq/q/config/{name}")).status == 204
            assert await config(stage) == NOTHING
        assert (await stage.admin("GET", "mq-with-config")).body == b"[]"
        assert (await stage.ask("GET", "/mq")).body == b"[]", "configuration alone makes no statistics"

    play(scene)


REFUSED = [
    *((name, b"null") for name in MEMBERS),
    *((name, b"") for name in MEMBERS),
    *((name, b"{}") for name in MEMBERS),
    *((name, b"[1]") for name in MEMBERS),
    *((name, b'"many"') for name in MEMBERS),
    ("unique", b"2"),
    ("unique", b"0"),
    ("unique", b"1"),
    ("unique", b'"true"'),
    ("drafting-timeout", b'"30"'),
    ("ordered-timeout", b"true"),
    ("active-timeout", b"false"),
    ("concurrency", b'"1"'),
    ("concurrency", b"true"),
    ("drafting-timeout", b"0"),
    ("drafting-timeout", b"-1"),
    ("ordered-timeout", b"0"),
    ("active-timeout", b"-0.5"),
    ("active-timeout", b"1e300"),
    ("active-timeout", b"0.0001"),
    ("concurrency", b"-1"),
    ("concurrency", b"1.5"),
    ("concurrency", b"1e300"),
]


@pytest.mark.parametrize(("name", "body"), REFUSED)
def test_queue_config_rejects_invalid_values_and_stays_unchanged(play: Play, name: str, body: bytes) -> None:
    """H-35: null, and a value of another type than the setting's, is refused with 400."""

    async def scene(stage: MqServer) -> None:
        first = b"true" if name == "unique" else b"1"
        assert (await stage.admin("PUT", f"mq/q/config/{name}", first)).status == 204
        before = await config(stage)
        answer = await stage.admin("PUT", f"mq/q/config/{name}", body)
        assert answer.status == 400
        assert json.loads(answer.body)["statusCode"] == 400
        assert await config(stage) == before

    play(scene)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("application/json", 204),
        ("application/json; charset=utf-8", 204),
        ("text/plain", 204),
        ("application/x-www-form-urlencoded", 204),
        ("application/xml", 415),
        (None, 415),
    ],
)
def test_queue_config_content_type_xml_or_missing_is_rejected_with_415(
    play: Play, said: str | None, status: int
) -> None:
    async def scene(stage: MqServer) -> None:
        headers = {"authorization": f"Bearer {PASSWORD}"} | ({} if said is None else {"content-type": said})
        assert (await stage.ask("PUT", "/admin/mq/q/config/concurrency", b"7", headers)).status == status
        assert (await config(stage))["concurrency"] == (7 if status == 204 else None)

    play(scene)


def test_queue_config_survives_clearing_the_queue(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.admin("PUT", "mq/q/config/active-timeout", b"9")
        await stage.put()
        assert (await stage.ask("DELETE", "/mq/q")).status == 204
        assert (await config(stage))["activeTimeout"] == 9
        assert (await stage.ask("GET", "/mq")).body == b"[]"

    play(scene)


def test_queue_config_defaults_to_the_server_settings_and_overrides_them(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.put(b"same")
        again = await stage.draft()
        assert (await stage.ask("PUT", f"/mq/q/messages/{again}", b"same")).status == 409
        await stage.admin("PUT", "mq/q/config/unique", b"false")
        assert (await stage.ask("PUT", f"/mq/q/messages/{again}", b"same")).status == 204
        await stage.order()
        await stage.waiting(1)
        assert await stage.stats() == {"waiting": 1, "ordered": 1}
        await stage.admin("PUT", "mq/q/config/concurrency", b"2")
        assert await stage.stats() == {"ordered": 2}

    play(scene, defaults=Defaults(unique=True, concurrency=1))


def test_unique_payload_is_rejected_while_an_equal_message_is_unfinished(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        first = await stage.put(b"same")
        second = await stage.put(b"same")
        assert (await stage.admin("PUT", "mq/q/config/unique", b"true")).status == 204
        third = await stage.draft()
        for body, status in ((b"same", 409), (b"other", 204), (b"same", 409)):
            answer = await stage.ask("PUT", f"/mq/q/messages/{third}", body)
            assert (answer.status, answer.body) == (status, b"")
        for id in (first, second):
            assert (await stage.ask("PUT", f"/mq/q/messages/{third}", b"same")).status == 409
            await stage.take()
            await stage.say(id, "complete")
        assert (await stage.ask("PUT", f"/mq/q/messages/{third}", b"same")).status == 204

    play(scene)


@pytest.mark.parametrize(
    ("name", "seconds", "state"),
    [("drafting-timeout", 60, "drafting"), ("ordered-timeout", 60, "ordered"), ("active-timeout", 300, "active")],
)
def test_timeout_change_applies_to_messages_already_drafted_claimed_or_leased(
    play: Play, name: str, seconds: int, state: str
) -> None:
    async def scene(stage: MqServer) -> None:
        if state == "drafting":
            await stage.draft()
        else:
            await stage.put()
            await (stage.order() if state == "ordered" else stage.take())
        stage.pass_time(5)
        await stage.admin("PUT", f"mq/q/config/{name}", b"10")
        stage.pass_time(4.999)
        assert await stage.stats() == {state: 1}
        await stage.admin("PUT", f"mq/q/config/{name}", b"20")
        stage.pass_time(10)
        assert await stage.stats() == {state: 1}
        await stage.admin("DELETE", f"mq/q/config/{name}")
        stage.pass_time(seconds - 20)
        assert await stage.stats() == {state: 1}
        stage.pass_time(0.001)
        assert await stage.stats() == ({} if state == "drafting" else {"waiting": 1})

    play(scene)


def test_timeout_shortened_below_the_elapsed_time_returns_the_message_at_once(play: Play) -> None:
    async def scene(stage: MqServer) -> None:
        await stage.admin("PUT", "mq/q/config/active-timeout", b"10")
        await stage.put()
        id = await stage.take()
        stage.pass_time(5)
        await stage.admin("PUT", "mq/q/config/active-timeout", b"1")
        assert await stage.stats() == {"waiting": 1}
        assert await stage.order() == id

    play(scene)


def test_queue_config_list_spans_pages_and_names_only_queues_with_mq_settings(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(api, "QUEUES_PER_PAGE", 3)

    async def scene(stage: MqServer) -> None:
        for number in range(10):
            stage.queues.set_policy(f"n{number}", {"concurrency": 1} if number % 2 else {"ttlSec": 5})
        answer = await stage.admin("GET", "mq-with-config")
        assert (answer.headers["content-type"], json.loads(answer.body)) == (
            "application/json",
            ["n1", "n3", "n5", "n7", "n9"],
        )

    play(scene)


def test_queue_config_of_a_dead_letter_queue_makes_a_queue_that_takes_messages(play: Play) -> None:
    """H-35: a configuration is explicit, so it makes the queue; from then on the name is a queue and no mere view."""

    async def scene(stage: MqServer) -> None:
        await stage.put(queue="mail")
        assert (await stage.admin("PUT", "mq/mail-dlq/config/concurrency", b"1")).status == 204
        await stage.put(queue="mail-dlq")
        assert await stage.stats("mail-dlq") == {"waiting": 1}

    play(scene)
