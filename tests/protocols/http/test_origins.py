"""Origin policy and Host check on a whole HTTP server: every route against every kind of foreign page."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Answer, dial, serving
from tests.support.http_server import HttpServer
from tests.support.loops import run_loop
from tests.support.wait import PATIENCE
from yirangmq.core.access import ADMIN, AccessGrant
from yirangmq.protocols.context import WrongTokenLimiter
from yirangmq.protocols.http.auth import ACCEPTED, HttpAccess, OriginPolicy, canonical
from yirangmq.protocols.http.router import HandlerEntry, HandlerRoutes, TrieNode
from yirangmq.protocols.http.server import HttpSocketServer, listen_tcp, listen_unix
from yirangmq.protocols.http.static import refuse
from yirangmq.protocols.http.types import Response
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import ManualClock

TOKEN = "a-token-of-this-server"
HERE = "127.0.0.1:{port}"
EVIL = "https://evil.example"
FRIEND = "https://app.example"
PREFLIGHT = {"access-control-request-method": "DELETE", "access-control-request-headers": "authorization"}


class Client:
    """A program that sends exactly the headers it is told, on a connection that it keeps."""

    def __init__(self, server: HttpServer) -> None:
        self._line = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.port = server.port

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        return self.send(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        sent = {"host": HERE, **headers}
        self._line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            self._line.putheader(name, value.format(port=self.port))
        if body is not None:
            self._line.putheader("content-length", str(len(body)))
        self._line.endheaders(body)
        found = self._line.getresponse()
        answer = Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, b"")
        if answer.headers.get("content-type") == "text/event-stream" and "content-length" not in answer.headers:
            self._line.close()
            return answer
        return answer._replace(body=found.read())

    def json(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        answer = self.ask(method, path, data, content_type="application/json")
        assert answer.status == 200, answer
        return json.loads(answer.body)

    def close(self) -> None:
        self._line.close()


def every_route(server: HttpServer) -> list[tuple[str, str]]:
    """Every method and path template of every API."""
    found = {(one.method, one.path) for one in server.api.table.endpoints}
    apis: list[Any] = [server.mounts._fallback, server.mounts._mounts["/mq"]]
    for api in (apis[0], apis[1]._api):
        found |= set(_walk(api.router.root, ""))
    found |= {("HEAD", path) for method, path in found if method == "GET"}
    return sorted(found | {("OPTIONS", path) for _, path in found} | {("GET", "/no/such/path"), ("POST", "/mq/no")})


def _walk(node: TrieNode[HandlerEntry], path: str) -> Iterator[tuple[str, str]]:
    yield from ((method, path) for method in node.by_method)
    for name, after in node.names.items():
        yield from _walk(after, f"{path}/{name}")
    if node.value is not None:
        yield from _walk(node.value, f"{path}/{{id}}")


def filled(path: str, id: str) -> str:
    """With names that exist, so that a request would find something to change."""
    path = re.sub(r"(messages|dead-letters)/\{id\}", rf"\1/{id}", path)
    path = path.replace("{batch}", "1").replace("{piece}", "1")
    return re.sub(r"\{\w+\}", "mail", path) or "/"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """Without tokens; pages of one other origin are allowed."""
    folder = tmp_path_factory.mktemp("open")
    made = HttpServer(MemoryStore(), ManualClock(), folder=folder, origins=(FRIEND,), hosts=("mq.example",)).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def token_server() -> Iterator[HttpServer]:
    made = HttpServer(MemoryStore(), ManualClock(), grants=(AccessGrant(TOKEN),)).start()
    yield made
    made.stop()


@pytest.fixture
def client(open_server: HttpServer) -> Iterator[Client]:
    with closing(Client(open_server)) as made:
        yield made


# -- every route against every kind of foreign page -----------------------------------------------------------------

FOREIGN = {
    "an origin elsewhere": {"origin": EVIL},
    "a sandboxed page or a file": {"origin": "null"},
    "another port of this host": {"origin": "http://127.0.0.1:1"},
    "another name of this host": {"origin": "http://localhost:{port}"},
    "two origins": {"origin": "http://" + HERE + ", " + EVIL},
    "an allowed origin as a prefix": {"origin": FRIEND + ".evil.example"},
    "a WebSocket": {"origin": EVIL, "upgrade": "websocket", "connection": "upgrade"},
    "an image or a script": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
    "a page of another port": {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    "a frame": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    "a token that is none": {"origin": EVIL, "authorization": "Bearer guess"},
}
REBOUND = {
    "a name of the page": {"host": "evil.test:{port}", "origin": "http://evil.test:{port}"},
    "a name without origin": {"host": "evil.test", "sec-fetch-site": "same-origin"},
    "a name and nothing else": {"host": "evil.test:{port}"},
    "a name that begins as ours": {"host": "127.0.0.1.evil.test:{port}"},
    "a name that ends as ours": {"host": "evil-localhost:{port}"},
    "an address of somebody else": {"host": "203.0.113.7:{port}"},
    "no name": {"host": ""},
}
SIMPLE = {"content-type": "text/plain"}
"""What a form or ``fetch`` in no-cors mode may send without a preflight."""
STATE = (
    "/v1/queues", "/v1/queues/mail/messages", "/v1/queues/mail/policy", "/v1/queues/mail/dead-letters", "/v1/topics",
    "/v1/subscribers", "/v1/consumers", "/v1/webhooks", "/v1/bridges", "/v1/schedules", "/mq", "/mq/mail/stats",
)  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "status"),
    [*((one, 403) for one in FOREIGN.values()), *((one, 421) for one in REBOUND.values())],
    ids=[*FOREIGN, *REBOUND],
)
def test_origin_policy_rejects_a_foreign_page_on_every_route_and_changes_nothing(
    client: Client, open_server: HttpServer, headers: dict[str, str], status: int
) -> None:
    [sent] = client.json("POST", "/v1/queues/mail/messages", {"to": "ann"})["messages"]
    before = [client.ask("GET", path).body for path in STATE]
    routes = every_route(open_server)
    assert len(routes) > 200
    for method, path in routes:
        body = None if method in ("GET", "HEAD", "OPTIONS") else b"{}"
        for more in ({}, PREFLIGHT) if method == "OPTIONS" else (SIMPLE,):
            answer = client.send(method, filled(path, sent["messageId"]), body, {**more, **headers})
            is_broken = "upgrade" in headers and body is not None  # refused by the parser
            assert answer.status == (400 if is_broken else status), (method, path, answer)
            assert not [name for name in answer.headers if name.startswith("access-control-")]
            assert answer.headers["x-content-type-options"] == "nosniff"
    assert [client.ask("GET", path).body for path in STATE] == before


@pytest.mark.parametrize("path", ["/v1/queues", "/mq", "/health", "/", "/no/such/path"])
def test_origin_policy_error_names_the_origin_or_the_host_and_the_setting(client: Client, path: str) -> None:
    refused = client.ask("GET", path, origin=EVIL).body.decode()
    assert EVIL in refused
    assert "cors_origins" in refused
    refused = client.ask("GET", path, host="evil.test").body.decode()
    assert "evil.test" in refused
    assert "http_hosts" in refused


def test_origin_policy_error_has_the_documented_codes(client: Client) -> None:
    assert json.loads(client.ask("GET", "/v1/queues", origin=EVIL).body)["error"]["code"] == "not_allowed"
    assert json.loads(client.ask("GET", "/v1/queues", origin=EVIL).body)["error"]["field"] == "origin"
    assert json.loads(client.ask("GET", "/v1/queues", host="evil.test").body)["error"]["code"] == "misdirected"
    assert json.loads(client.ask("GET", "/mq", host="evil.test").body)["code"] == "misdirected"


def test_origin_policy_does_not_read_a_large_body_of_a_foreign_page(open_server: HttpServer) -> None:
    with closing(Client(open_server)) as client:
        answer = client.ask("POST", "/v1/queues/mail/messages", b"x" * 200_000, origin=EVIL)
        assert (answer.status, answer.headers["connection"]) == (403, "close")


# -- what is still served -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"user-agent": "curl/8.5.0"},
        {"user-agent": "node", "sec-fetch-mode": "cors"},
        {"origin": "http://" + HERE},
        {"origin": "http://localhost:{port}", "host": "localhost:{port}"},
        {"origin": "https://mq.example", "host": "MQ.example"},
        {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ],
)
def test_origin_policy_allows_programs_and_pages_of_this_server(client: Client, headers: dict[str, str]) -> None:
    for _ in range(3):  # the second and the third time by what ``quick`` remembers
        assert client.send("POST", "/v1/queues/served/messages", b"1", headers).status == 200
        answer = client.send("GET", "/v1/queues", None, headers)
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers


def test_origin_policy_cache_for_programs_does_not_apply_to_pages(client: Client) -> None:
    """The same request again and again is answered from caches; one header more is another request."""
    for headers, status in (({}, 200), ({"origin": EVIL}, 403), ({"host": "evil.test"}, 421)) * 4:
        assert client.send("GET", "/v1/queues", None, headers).status == status
        assert client.send("GET", "/mq/mail/stats", None, headers).status == status


def test_host_header_is_not_required_of_http_1_0(open_server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", open_server.port), PATIENCE) as line:
        line.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert line.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_origin_policy_lets_a_link_of_another_site_open_only_the_dashboard(client: Client) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.send("GET", "/", None, link).status == 200
    for path in ("/v1/queues", "/mq/mail/messages", "/metrics", "/health", "/dashboard/main.js"):
        assert client.send("GET", path, None, link).status == 403
    assert client.send("POST", "/", b"", link).status == 403


def test_origin_policy_lets_a_browser_without_origin_read_and_not_lease(client: Client) -> None:
    """Over plain HTTP to another machine browsers send neither Origin nor Sec-Fetch-Site with a GET."""
    browser = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)"}
    assert client.send("GET", "/v1/queues", None, browser).status == 200
    for path in ("/mq/mail/messages", "/mq/mail/messages/some-id"):
        assert client.send("GET", path, None, browser).status == 403
    assert client.send("GET", "/mq/none/messages/x", None, {**browser, "sec-fetch-site": "same-origin"}).status == 404


# -- origins that are allowed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/queues", "/mq", "/metrics", "/health", "/", "/v1/nothing", "/v1/events"])
def test_cors_lets_a_page_of_an_allowed_origin_read_every_response(client: Client, path: str) -> None:
    for _ in range(3):
        answer = client.ask("GET", path, origin=FRIEND)
        assert answer.status in (200, 404)
        assert answer.headers["access-control-allow-origin"] == FRIEND
        assert "access-control-allow-credentials" not in answer.headers
        assert "origin" in answer.headers["vary"].lower()


def test_cors_preflight_of_an_allowed_origin_allows_what_it_asks_for(client: Client) -> None:
    asked = {**PREFLIGHT, "origin": FRIEND, "access-control-request-private-network": "true"}
    for path in ("/v1/queues/mail", "/mq/mail/messages", "/no/such/path"):
        answer = client.send("OPTIONS", path, None, asked)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == FRIEND
        assert "DELETE" in answer.headers["access-control-allow-methods"].split(",")
        assert answer.headers["access-control-allow-headers"] == "authorization"
        assert answer.headers["access-control-allow-private-network"] == "true"


def test_cors_star_allows_every_origin_and_no_rebinding() -> None:
    policy = OriginPolicy(HttpAccess(), ["*"])
    for origin in (EVIL, "null"):
        verdict = policy.check("POST", "/v1/sweep", {"host": "localhost", "origin": origin}, "127.0.0.1:1")
        assert verdict.error is None
        assert ("access-control-allow-origin", origin) in verdict.headers
    assert policy.check("GET", "/mq/q/messages", {"host": "x", "sec-fetch-site": "none"}, "127.0.0.1:1").error


# -- tokens ---------------------------------------------------------------------------------------------------------


def test_token_admits_a_page_of_any_origin_and_a_wrong_token_gets_a_readable_401(token_server: HttpServer) -> None:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with closing(Client(token_server)) as client:
        for headers in ({"origin": EVIL}, {"origin": "null"}, {"host": "any.example", "origin": EVIL}):
            for _ in range(3):
                answer = client.send("GET", "/v1/queues", None, headers | bearer)
                assert answer.status == 200
                assert answer.headers["access-control-allow-origin"] == headers["origin"]
            for wrong in ({}, {"authorization": "Bearer guess"}):
                answer = client.send("GET", "/v1/queues", None, headers | wrong)
                assert (answer.status, answer.headers["access-control-allow-origin"]) == (401, headers["origin"])
            answer = client.send("OPTIONS", "/v1/queues/mail", None, headers | PREFLIGHT)
            assert (answer.status, answer.headers["access-control-allow-headers"]) == (204, "authorization")
        assert client.ask("GET", "/health", origin=EVIL).status == 200


def test_tokens_are_needed_on_every_route_by_a_page_of_another_origin(token_server: HttpServer) -> None:
    free = re.compile(r"/|/health|/robots.txt|/favicon.ico|/dashboard/.*|/admin/.*|/no/.*|/mq/no")
    with closing(Client(token_server)) as client:
        for method, path in every_route(token_server):
            if method != "OPTIONS" and not free.fullmatch(path or "/"):
                body = None if method in ("GET", "HEAD") else b"{}"
                answer = client.send(method, filled(path, "some-id"), body, {"origin": EVIL, **SIMPLE})
                assert answer.status == 401, (method, path, answer)


def test_token_free_address_grant_does_not_exempt_a_foreign_page_from_the_origin_policy() -> None:
    """The browser of that machine has its address too."""
    grants = (
        AccessGrant("", frozenset({ADMIN}), name="press", addresses=(ip_network("127.0.0.0/8"),)),
        AccessGrant(TOKEN, frozenset({ADMIN}), name="desk"),
    )
    server = HttpServer(MemoryStore(), ManualClock(), grants=grants).start()
    try:
        with closing(Client(server)) as client:
            assert client.ask("GET", "/v1/queues").status == 200
            for headers, status in (
                ({"origin": EVIL}, 403),
                ({"host": "evil.test", "origin": "http://evil.test"}, 421),
            ):
                assert client.send("GET", "/v1/queues", None, headers).status == status
                assert client.send("GET", "/v1/queues", None, headers | {"authorization": "Bearer no"}).status == status
                bearer = {"authorization": f"Bearer {TOKEN}"}
                assert client.send("GET", "/v1/queues", None, headers | bearer).status == 200
            answer = client.send("OPTIONS", "/v1/queues/mail", None, {"origin": EVIL} | PREFLIGHT)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, EVIL)
    finally:
        server.stop()


def test_token_attempts_of_a_foreign_page_are_rate_limited() -> None:
    """Or a page in the browser of a trusted machine could guess tokens by what the policy refuses."""
    grants = (
        AccessGrant("", addresses=(ip_network("127.0.0.0/8"),)),
        AccessGrant(TOKEN),
        AccessGrant("another-token-of-it"),
    )
    attempts = WrongTokenLimiter(lambda: 0.0, lambda seconds, act: None)
    policy = OriginPolicy(HttpAccess(grants, attempts=attempts))

    def is_served(token: str) -> bool:
        headers = {"host": "localhost", "origin": EVIL, "authorization": f"Bearer {token}"}
        return policy.check("GET", "/v1/queues", headers, "127.0.0.1:1").error is None

    assert is_served(TOKEN)
    assert not any(is_served(f"guess-{number}") for number in range(20))
    assert not is_served("another-token-of-it")
    assert is_served(TOKEN)  # as before: who showed it already is not delayed


# -- unix sockets, and every address --------------------------------------------------------------------------------


def health() -> HandlerRoutes:
    api = HandlerRoutes(refuse)
    api.add("GET", "/health", lambda request, exchange, params: exchange.answer(Response(200, b"OK")))
    return api


def test_unix_socket_checks_the_origin_and_not_the_host(tmp_path: Path) -> None:
    """Browsers reach it through a proxy, which names the host."""

    async def main() -> None:
        guard = HttpAccess([AccessGrant(TOKEN)])
        server = await listen_unix(HttpSocketServer(health(), policy=OriginPolicy(guard, is_unix=True)), tmp_path / "s")
        for headers, status in (("Host: any.example", 200), (f"Host: any.example\r\nOrigin: {EVIL}", 403)):
            with socket.socket(socket.AF_UNIX) as line:
                line.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(line, str(tmp_path / "s"))
                await loop.sock_sendall(line, f"GET /health HTTP/1.1\r\n{headers}\r\n\r\n".encode())
                assert (await loop.sock_recv(line, 100)).startswith(b"HTTP/1.1 %d " % status)
        server.close()

    run_loop(main())


def test_host_may_be_the_address_at_which_a_server_on_all_addresses_was_reached() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(("203.0.113.1", 9))  # sends nothing; tells our address on the way there
            mine = str(line.getsockname()[0])
        except OSError:
            mine = "127.0.0.2"

    async def main() -> None:
        policy = OriginPolicy(HttpAccess(), hosts=["0.0.0.0"])
        server = await listen_tcp(HttpSocketServer(health(), policy=policy), ("0.0.0.0", 0))
        port = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        for host, status in ((mine, 200), ("203.0.113.1", 421), ("evil.test", 421), ("localhost", 200)):
            reader, writer = await asyncio.open_connection(mine, port)
            writer.write(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 %d " % status), host
            writer.close()
        server.close()

    run_loop(main())


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"), ("LOCALHOST.:80", "localhost"), ("[::1]:8080", "::1"), ("[0:0::1]", "::1"),
        ("127.0.0.1:8080", "127.0.0.1"), ("::1", "::1"), ("mq.example:1", "mq.example"), ("", ""), ("[", "["),
        ("localhost%.evil.test", "localhost%.evil.test"), ("127.0.0.1%.evil.test:80", "127.0.0.1%.evil.test:80"),
        ("[::1].evil.test", "[::1].evil.test"), ("localhost:80@evil.test", "localhost:80@evil.test"),
        ("localhost:evil.test", "localhost:evil.test"), ("[::1%25lo]:80", "::1"), ("localhost@x", "localhost@x"),
        ("fe80::1%eth0", "fe80::1"), ("127.1", "127.1"), ("localhost:80:80", "localhost:80:80"),
    ],
)  # fmt: skip
def test_host_is_read_without_its_port(host: str, name: str) -> None:
    assert canonical(host) == name


def test_host_of_an_absolute_target_overrides_the_host_header(client: Client) -> None:
    assert client.ask("GET", "http://evil.test/v1/queues").status == 421
    assert client.ask("GET", "http://mq.example/v1/queues").status == 200
    assert client.ask("GET", "http://localhost/v1/queues", host="evil.test").status == 200


def test_origin_with_the_server_authority_and_another_scheme_is_judged_by_sec_fetch_site(client: Client) -> None:
    """A server at port 80, and a page of another program at port 443 of the same name."""
    headers = {"host": "localhost", "origin": "https://localhost"}
    assert client.send("DELETE", "/v1/queues/none", None, {**headers, "sec-fetch-site": "cross-site"}).status == 403
    assert client.send("DELETE", "/v1/queues/none", None, {**headers, "sec-fetch-site": "same-origin"}).status == 200


def test_host_name_cache_is_bounded() -> None:
    policy = OriginPolicy(HttpAccess(), hosts=["0.0.0.0"])
    for number in range(5000):
        policy.add_address(f"10.0.{number // 250}.{number % 250}")
        assert policy.check("GET", "/", {"host": f"localhost:{number}"}, "127.0.0.1:1") is ACCEPTED
    assert len(policy._hosts) <= 1000
    assert len(policy._names) <= 1000


# -- headers of every response --------------------------------------------------------------------------------------


def test_nosniff_is_on_every_response(open_server: HttpServer) -> None:
    requests = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /mq HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /no HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/sweep HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"GET / HTTP/1.1\r\n\r\n",
        b"nothing that is HTTP\r\n\r\n",
    ]
    for request in requests:
        with socket.create_connection(("127.0.0.1", open_server.port), PATIENCE) as line:
            line.sendall(request)
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(4096)
            assert head.partition(b"\r\n\r\n")[0].lower().count(b"\r\nx-content-type-options: nosniff") == 1, request


INERT = (
    "text/plain", "text/plain; charset=utf-8", "application/json", "image/png", "image/jpeg", "video/mp4", "audio/ogg",
    "application/octet-stream", "application/vnd.x+json", "Text/CSV",
)  # fmt: skip
ACTIVE = (
    "text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "image/svg+xml", "text/xml", "application/xml",
    "application/rss+xml", "text/javascript", "application/javascript", "text/css", "application/pdf", "text/x-unknown",
    "multipart/x-mixed-replace; boundary=a", "text/plain, text/html", "text/plain; a=b, text/html",
    "text/plain text/html", "html", "*/*", "image/*", "message/rfc822", "text/event-stream",
)  # fmt: skip


@pytest.mark.parametrize("media", [*INERT, *ACTIVE])
def test_payload_is_served_sandboxed_and_an_active_type_as_attachment(client: Client, media: str) -> None:
    page = b"<script>alert(document.domain)</script>\xff\x00"
    id = client.ask("POST", "/mq/pages/messages", b'{"priority":null}', content_type="application/json").body.decode()
    assert client.ask("PUT", f"/mq/pages/messages/{id}", page, content_type=media).status == 204
    for path in (f"/mq/pages/messages/{id}", f"/v1/queues/pages/messages/{id}/payload"):
        answer = client.ask("GET", path)
        assert answer.body == page
        assert answer.headers["content-type"].startswith(media)
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        is_attached = answer.headers.get("content-disposition") == "attachment"
        assert is_attached is (media in ACTIVE or path.startswith("/v1"))


def test_origin_policy_reports_a_rejected_page_as_a_rejected_client() -> None:
    told: list[tuple[str, str]] = []
    policy = OriginPolicy(HttpAccess(), report=lambda peer, error, who: told.append((peer, error.code)))

    async def main() -> None:
        async with serving(health(), policy=policy) as (_, port):
            peer = await dial(port)
            for headers in ({"origin": EVIL}, {"Host": "evil.test"}, {}):
                await peer.ask("GET", "/health", None, headers)

    run_loop(main())
    assert [code for _, code in told] == ["not_allowed", "misdirected"]
    assert all(peer.startswith("127.0.0.1:") for peer, _ in told)
