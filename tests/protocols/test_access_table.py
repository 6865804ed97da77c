"""The table of verbs and scopes (``core.access``), held against every route, frame, method and command there is.

Each test walks the table of a protocol itself: a new route without a verb, or one that is not checked, fails."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.http_api import Line, Web
from tests.support.http_server import HttpServer
from tests.support.session import Server
from tests.support.stomp import StompServer
from yirangmq.admin.registry import METHODS, NOWHERE, QUEUE
from yirangmq.clock import SystemClock
from yirangmq.core.access import ALLOWED, GREET, SCOPES, VERBS, AccessGrant, read_rules
from yirangmq.core.errors import BadInput, NotAllowed, QueueError
from yirangmq.protocols.http.auth import HttpAccess
from yirangmq.protocols.http.mq.api import MqApi, MqSettings
from yirangmq.protocols.http.router import HandlerEntry, TrieNode
from yirangmq.protocols.http.static import VERBS as PAGES
from yirangmq.protocols.http.static import ServerRoutes, add_dashboard
from yirangmq.protocols.http.types import Request
from yirangmq.protocols.native.session import _HANDLERS, FRAMES, TOPIC_FRAMES
from yirangmq.protocols.stomp.commands import COMMANDS, HANDLERS
from yirangmq.stores.memory import MemoryStore
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

MINE, OTHER = "mine", "other"
PATTERNS = (("*",), (MINE,), (OTHER,))
"""Of a token: all names, the one that is asked for, another one."""
GRANTS = tuple(
    AccessGrant(f"{scope}-{number}-token-0123", frozenset({scope}), patterns)
    for scope in SCOPES
    for number, patterns in enumerate(PATTERNS)
)
DOCS = Path(__file__).parents[2] / "docs" / "security.md"
TOOL = Path(__file__).parents[2] / "tools" / "security_docs.py"


def may(grant: AccessGrant, verb: str, place: str | None) -> bool:
    """What the documentation promises, said once more: by the scope, and by the name."""
    if not grant.scopes & ALLOWED[verb]:
        return False
    return verb == GREET or place == "" or "*" in grant.queues or (place is not None and place in grant.queues)


def asked(method: str, path: str, grant: AccessGrant) -> Request:
    headers = {"authorization": f"Bearer {grant.token}", "content-type": "application/json"}
    return Request(method, path, "", headers, b"", "10.0.0.1:5")


def test_scopes_table_allows_the_expected_verbs_of_each_scope() -> None:
    """Said apart from the table, so that a slip in it is seen."""
    assert list(ALLOWED) == list(VERBS)
    by_scope = {scope: {verb for verb, scopes in ALLOWED.items() if scope in scopes} for scope in SCOPES}
    assert by_scope == {
        "publish": {"greet", "list", "publish"},
        "consume": {"greet", "list", "consume", "follow"},
        "look": {"greet", "list", "follow", "look"},
        "operate": {"greet", "list", "follow", "look", "operate"},
        "admin": set(VERBS),
    }


def test_scopes_in_the_documentation_are_current() -> None:
    """``python tools/security_docs.py`` prints them anew."""
    spec = importlib.util.spec_from_file_location("security_docs", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.page(DOCS.read_text()) == DOCS.read_text()


def test_scopes_of_a_token_may_be_any_of_the_table() -> None:
    [rule] = read_rules([{"token": "0123456789abcdef", "scopes": list(SCOPES)}], "http_tokens")
    assert rule.scopes == set(SCOPES)
    [rule] = read_rules([{"token": "0123456789abcdef"}], "http_tokens")
    assert rule.scopes == {"publish", "consume"}
    with pytest.raises(BadInput, match="must be some of publish, consume, look, operate, admin"):
        read_rules([{"token": "0123456789abcdef", "scopes": ["greet"]}], "http_tokens")


# -- HTTP: /v1 --------------------------------------------------------------------------------------------------------

SAMPLES = {"queue": MINE, "topic": MINE, "id": "m-1", "batch": "1", "stage": "1", "piece": "1"}


def filled(template: str) -> str:
    parts = [SAMPLES.get(part[1:-1], "some") if part.startswith("{") else part for part in template.split("/")]
    return "/".join(parts)


def test_scopes_of_every_v1_route() -> None:
    web = Web(guard=HttpAccess(GRANTS).check)
    endpoints = web.api.table.endpoints
    assert len(endpoints) > 70
    for endpoint in endpoints:
        place = MINE if "{queue}" in endpoint.path or "{topic}" in endpoint.path else None
        path = filled(endpoint.path)
        route = web.api.find(endpoint.method, path)
        assert route.admit is not None, endpoint.path
        for grant in GRANTS:
            refusal: NotAllowed | None = None
            try:
                route.admit(asked(endpoint.method, path, grant))
            except NotAllowed as error:
                refusal = error
            is_let_in = refusal is None
            assert refusal is None or refusal.field == "token", endpoint.path
            wanted = may(grant, endpoint.verb, "" if endpoint.is_filtered else place)
            assert is_let_in is wanted, (endpoint.method, endpoint.path, grant)
        with pytest.raises(NotAllowed):
            route.admit(Request(endpoint.method, path, "", {}, b"", "10.0.0.1:5"))


@pytest.mark.parametrize(
    ("method", "path", "scopes"),
    [
        ("GET", "/v1/queues/mine/messages", {"look", "operate", "admin"}),
        ("GET", "/v1/queues/mine/messages/m-1/payload", {"look", "operate", "admin"}),
        ("POST", "/v1/queues/mine/search", {"look", "operate", "admin"}),
        ("GET", "/v1/queues/mine/records", {"look", "operate", "admin"}),
        ("GET", "/v1/queues/mine/dead-letters", {"look", "operate", "admin"}),
        ("GET", "/v1/queues/mine/events", {"look", "operate", "admin"}),
        ("GET", "/v1/events", {"look", "operate", "admin"}),
        ("GET", "/v1/topics/mine/records", {"consume", "look", "operate", "admin"}),
        ("POST", "/v1/queues/mine/messages", {"publish", "admin"}),
        ("POST", "/v1/queues/mine/lease", {"consume", "admin"}),
        ("POST", "/v1/queues/mine/dead-letters/redrive", {"operate", "admin"}),
        ("POST", "/v1/queues/mine/dead-letters/purge", {"admin"}),
        ("POST", "/v1/queues/mine/policy/check", {"admin"}),
        ("PUT", "/v1/queues/mine/policy", {"admin"}),
        ("DELETE", "/v1/queues/mine", {"admin"}),
    ],
)
def test_scopes_of_the_routes_that_matter_most(method: str, path: str, scopes: set[str]) -> None:
    web = Web(guard=HttpAccess(GRANTS).check)
    admit = web.api.find(method, path).admit
    assert admit is not None
    for grant in GRANTS:
        if "*" in grant.queues:
            if grant.scopes & scopes:
                admit(asked(method, path, grant))
            else:
                with pytest.raises(NotAllowed):
                    admit(asked(method, path, grant))


def test_scopes_narrow_token_sees_its_own_queues_only() -> None:
    web = Web(
        guard=HttpAccess(
            [AccessGrant("narrow-token", frozenset({"publish", "look"}), (MINE,)), AccessGrant("chief-token")]
        ).check
    )
    chief, narrow = "Bearer chief-token", "Bearer narrow-token"
    schedule = {
        "schedules": [{"name": "s", "cron": "* * * * *", "message": {"payload": 1}}],
        "processor": {"integrity": "sha256"},
    }
    for queue in (MINE, OTHER):
        web.good("PUT", f"/v1/queues/{queue}/policy", schedule, authorization=chief)
        web.good("POST", f"/v1/queues/{queue}/messages", 1, authorization=chief)
    paths = ("/v1/queues", "/v1/status", "/v1/status?queue=other", "/v1/trends", "/v1/schedules", "/v1/processors")
    for path in paths:
        seen = web.ask("GET", path, authorization=narrow)
        assert seen.status == 200, seen.body
        assert OTHER.encode() not in seen.body, path
        if "queue=" not in path and "trends" not in path:
            assert MINE.encode() in seen.body, path
            assert OTHER.encode() in web.ask("GET", path, authorization=chief).body
    for path in ("/v1/connections", "/v1/alerts", "/v1/log", f"/v1/queues/{OTHER}", f"/v1/queues/{OTHER}/events"):
        assert web.ask("GET", path, authorization=narrow).status == 403, path
    for consumer, queues in (("one", [MINE, OTHER]), ("two", [OTHER])):
        card = {"queues": queues, "startedAt": 1, "state": "running"}
        web.good("PUT", f"/v1/consumers/{consumer}", card, authorization=chief)
    cards = web.good("GET", "/v1/consumers", authorization=narrow)["consumers"]
    assert [(card["consumerId"], card["queues"]) for card in cards] == [("one", [MINE])]
    assert web.ask("GET", "/v1/consumers/two", authorization=narrow).status == 404
    health = web.ask("GET", "/v1/health", authorization=narrow).document
    assert all(not reason["text"] for reason in health["reasons"])


def test_scopes_narrow_token_gets_events_of_its_own_queues_only() -> None:
    web = Web(
        guard=HttpAccess([AccessGrant("narrow-token", frozenset({"look"}), (MINE,)), AccessGrant("chief-token")]).check
    )
    told = web.ask("GET", "/v1/events", authorization="Bearer narrow-token")
    for queue in (OTHER, MINE):
        web.good("POST", f"/v1/queues/{queue}/messages", 1, authorization="Bearer chief-token")
        web.server.turns.advance(1000)
    told.leave()
    heard = told.outlet.told()
    assert {event.about["queue"] for event in heard if "queue" in event.about} == {MINE}


# -- HTTP: the rest ---------------------------------------------------------------------------------------------------


def spots(node: TrieNode[HandlerEntry], path: str = "") -> Iterator[tuple[str, str]]:
    """Every method and template of a router."""
    for method in node.by_method:
        if method != "HEAD":
            yield method, path or "/"
    for name, after in node.names.items():
        yield from spots(after, f"{path}/{name}")
    if node.value is not None:
        yield from spots(node.value, f"{path}/{{}}")


def plain(template: str) -> str:
    return "/".join("{}" if part.startswith("{") else part for part in template.split("/"))


def test_scopes_of_every_route_of_the_http_queue() -> None:
    server = Server()
    api = MqApi(server.house, HttpAccess(GRANTS), MqSettings(admin_password="0123456789abcdef"))
    assert {(method, plain(path)) for method, path, _ in api.routes} == set(spots(api._api.router.root))
    for method, template, verb in api.routes:
        path = template.replace("{namespace}", MINE).replace("{id}", "m-1")
        for grant in GRANTS:
            line = Line()
            route = api.find(method, path)
            try:
                route.handle(asked(method, path, grant), line)
            except QueueError as error:
                line.answer(route.refuse(error))
            server.turn()
            place = MINE if "{namespace}" in template else ""
            is_let_in = line.response is None or line.response.status not in (401, 403)
            assert is_let_in is (verb is not None and may(grant, verb, place)), (method, template, grant)


def test_scopes_http_queue_lists_the_namespaces_of_the_token_only() -> None:
    server = Server()
    api = MqApi(server.house, HttpAccess([AccessGrant("narrow-token", frozenset({"publish"}), (MINE,))]), MqSettings())
    for queue in (MINE, OTHER):
        server.client().publish(queue, b"1")
    line = Line()
    api.find("GET", "/mq").handle(asked("GET", "/mq", AccessGrant("narrow-token")), line)
    server.turn()
    assert line.outlet.data == b'["mine"]'


def test_scopes_of_every_other_page() -> None:
    server = Server()
    api = ServerRoutes(server.house, HttpAccess(GRANTS)).routes()
    assert set(spots(api.router.root)) == {("GET", path) for path in PAGES}
    for path, verb in PAGES.items():
        for grant in GRANTS:
            line = Line()
            route = api.find("GET", path)
            try:
                route.handle(asked("GET", path, grant), line)
            except QueueError as error:
                line.answer(route.refuse(error))
            server.turn()
            assert (line.status == 200) is (verb is None or may(grant, verb, None)), (path, grant)
    add_dashboard(api)
    files = {path for _, path in spots(api.router.root)} - set(PAGES)
    assert all(path in ("/", "/favicon.ico") or path.startswith("/dashboard/") for path in files)


# -- the native socket ------------------------------------------------------------------------------------------------

BODIES: dict[int, msgspec.Struct] = {
    FrameKind.HELLO: messages.Hello("test"),
    FrameKind.PUBLISH: messages.Publish(MINE, [messages.OutgoingMessageBody(b"1", False)]),
    FrameKind.LEASE: messages.Lease(MINE, 1),
    FrameKind.SUBSCRIBE: messages.Subscribe(MINE, 1),
    FrameKind.CANCEL: messages.Cancel(7),
    FrameKind.ACK: messages.Settle(["x"]),
    FrameKind.NACK: messages.Nack(["x"], "HANDLER_ERROR"),
    FrameKind.EXTEND: messages.Extend(["x"]),
    FrameKind.RELEASE: messages.Settle(["x"]),
    FrameKind.TOPIC_PUBLISH: messages.TopicPublish([messages.RecordBody(MINE, b"1")]),
    FrameKind.TOPIC_SUBSCRIBE: messages.TopicSubscribe([MINE]),
    FrameKind.RECOVERY_REQUEST: messages.TopicRecoveryRequest(0),
    FrameKind.CONFIRM: messages.Confirm(1),
    FrameKind.UNSUBSCRIBE: messages.Unsubscribe(),
    FrameKind.CALL: messages.Call("health"),
    FrameKind.PING: messages.Empty(),
    FrameKind.BYE: messages.Empty(),
}
OF_LEASES = (FrameKind.ACK, FrameKind.NACK, FrameKind.EXTEND, FrameKind.RELEASE)


def is_refused(server: Server, grant: AccessGrant, kind: FrameKind, body: msgspec.Struct) -> bool:
    client = server.client()
    client.session.grant = grant
    number = client.send(kind, body)
    server.turn()
    return any(one.kind is FrameKind.ERROR and one.value.code == "not_allowed" for one in client.heard(number))


def test_scopes_of_every_frame() -> None:
    assert set(FRAMES) == set(_HANDLERS) == set(BODIES)
    server = Server()
    for kind in _HANDLERS:
        if kind == FrameKind.CALL:
            continue
        place: str | None = None if kind in TOPIC_FRAMES else MINE
        if kind in OF_LEASES:
            place = ""  # no such lease: the queue is looked at once there is a message
        for grant in GRANTS:
            wanted = may(grant, FRAMES[kind], place)
            assert is_refused(server, grant, FrameKind(kind), BODIES[kind]) is not wanted, (FrameKind(kind).name, grant)


def test_scopes_settle_what_may_be_leased_only() -> None:
    server = Server()
    server.client().publish(MINE, b"1")
    [message] = server.client().lease(MINE)
    for kind, body in (
        (FrameKind.ACK, messages.Settle([message.lease])),
        (FrameKind.EXTEND, messages.Extend([message.lease])),
    ):
        assert is_refused(server, AccessGrant("t", frozenset({"consume"}), (OTHER,)), kind, body)
        assert not is_refused(
            server, AccessGrant("t", frozenset({"consume"}), (MINE,)), FrameKind.EXTEND, BODIES[FrameKind.EXTEND]
        )


def test_scopes_of_every_named_method(tmp_path: Path) -> None:
    server = Server()
    web = HttpServer(MemoryStore(), SystemClock(), folder=tmp_path).start()
    try:
        names = set(web.api.table._context.methods.names)
    finally:
        web.stop()
    of_whole_servers = {"files_status", "pair_adopt", "pair_handover", "pair_history", "pair_status", "pair_switch"}
    assert names | of_whole_servers == set(METHODS)
    for method, (verb, where) in METHODS.items():
        place = {QUEUE: MINE, NOWHERE: ""}.get(where)
        values: dict[str, Any] = {"queue": MINE} if where == QUEUE else {}
        for grant in GRANTS:
            if not may(grant, verb, place):
                assert is_refused(server, grant, FrameKind.CALL, messages.Call(method, values)), (method, grant)
            else:
                assert not is_refused(server, grant, FrameKind.CALL, messages.Call(method, values)), (method, grant)
            if where == QUEUE and "*" not in grant.queues:
                assert is_refused(server, grant, FrameKind.CALL, messages.Call(method, {})), (method, grant)


def test_scopes_method_that_is_not_known_needs_admin() -> None:
    server = Server()
    assert is_refused(server, AccessGrant("t", frozenset({"operate"})), FrameKind.CALL, messages.Call("brand_new"))
    assert not is_refused(server, AccessGrant("t"), FrameKind.CALL, messages.Call("brand_new"))


# -- STOMP ------------------------------------------------------------------------------------------------------------

HEADERS: dict[str, dict[str, str]] = {
    "CONNECT": {"accept_version": "1.2"},
    "STOMP": {"accept_version": "1.2"},
    "SEND": {"destination": f"/queue/{MINE}"},
    "SUBSCRIBE": {"destination": f"/queue/{MINE}", "id": "1"},
    "UNSUBSCRIBE": {"id": "1"},
    "ACK": {"id": "1"},
    "NACK": {"id": "1"},
    "BEGIN": {"transaction": "t"},
    "COMMIT": {"transaction": "t"},
    "ABORT": {"transaction": "t"},
    "DISCONNECT": {},
}


@pytest.mark.parametrize("kind", ["/queue/", "/topic/"])
def test_scopes_of_every_stomp_command(tmp_path: Path, kind: str) -> None:
    assert set(COMMANDS) == set(HANDLERS) == set(HEADERS)
    server = StompServer(topics=tmp_path, grants=GRANTS)
    for command, verb in COMMANDS.items():
        headers = {name: value.replace("/queue/", kind) for name, value in HEADERS[command].items()}
        place = MINE if "destination" in headers else ""
        for grant in GRANTS:
            if command in ("CONNECT", "STOMP"):
                client = server.dial()
                said = client.do(command, passcode=grant.token, **headers)
            else:
                client = server.connected(passcode=grant.token)
                said = client.do(command, **headers)
            is_refused = any("this token does not allow to" in str(frame) for frame in said)
            assert is_refused is not may(grant, verb, place), (command, grant, said)
    server.close()
