"""Web pages of other origins that attack a server without tokens, in a real browser; and pages that are allowed."""

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import Api, Page
from tests.support.http_server import HttpServer
from tests.support.server_process import Daemon
from yirangmq.clock import SystemClock
from yirangmq.core.access import AccessGrant
from yirangmq.stores.memory import MemoryStore

pytestmark = pytest.mark.process
TOKEN = "a-token-of-this-server"
HTML = "<title>mine</title><script>document.title = 'ran'; opener?.postMessage('ran', '*')</script>"
BLOCKED = (
    r"40[13] \(|421 \(|ERR_(FAILED|BLOCKED|ABORTED)|CORS policy|Refused to|favicon|MIME type|frame-ancestors|WebSocket"
)
"""What the browser says of requests that it, or the server, refused."""


class Nothing(BaseHTTPRequestHandler):
    """Every path is an empty page."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>elsewhere</title><body></body>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of a web server that is not ours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as made:
        thread = Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made.server_address[1]
        made.shutdown()


def play(browser: Browser, script: str, *values: Any) -> Any:
    """The value of an async function that runs in the page."""
    whole = f"""const done = arguments[arguments.length - 1], values = [...arguments].slice(0, -1);
        (async function (...values) {{ {script} }})(...values).then(done, (error) => done("failed: " + error));"""
    return browser.ask("POST", "/execute/async", {"script": whole, "args": list(values)})


ATTACKS = r"""
const [server, queue, id] = values;
const won = [];
const tried = [];
const attempt = async (name, act) => {
  tried.push(name);
  const waits = new Promise((done) => setTimeout(done, 5000, true));  // the server is doing it
  try { if (await Promise.race([act(), waits])) won.push(name); } catch { /* refused */ }
};
const loads = (node) => new Promise((done) => {
  node.onload = () => done(true);
  node.onerror = () => done(false);
  document.body.append(node);
});
const reads = async (path, options = {}) => {
  const answer = await fetch(server + path, options);
  return answer.type !== "opaque" || "sent";
};
const json = { "content-type": "application/json" };
const publish = `/v1/queues/${queue}/messages`;

// fetch, in the mode in which the page may read the answer: without and with a preflight
for (const path of ["/v1/queues", "/v1/openapi.json", "/metrics", "/health", "/", "/mq", `/mq/${queue}/stats`])
  await attempt(`read ${path}`, () => reads(path));
await attempt("publish", () => reads(publish, { method: "POST", headers: json, body: "1" }));
await attempt("policy", () => reads(`/v1/queues/${queue}/policy`,
  { method: "PUT", headers: json, body: '{"webhook": {"url": "http://203.0.113.1/"}}' }));
await attempt("delete", () => reads(`/v1/queues/${queue}`, { method: "DELETE" }));
await attempt("draft", () => reads(`/mq/${queue}/messages`, { method: "POST", headers: json, body: '{"priority":0}' }));
await attempt("order", () => reads(`/mq/${queue}/messages`));
await attempt("get", () => reads(`/mq/${queue}/messages/${id}`));
await attempt("payload", () => reads(`/v1/queues/${queue}/messages/${id}/payload`));

// simple requests, which a browser sends without asking; whether they did something is seen at the server
const plain = { method: "POST", mode: "no-cors", headers: { "content-type": "text/plain" } };
for (const [path, body] of [[publish, '{"by":"no-cors"}'], [`/v1/queues/${queue}/lease`, '{"max":1}'],
    [`/v1/queues/${queue}/purge`, '{"state":"ready"}'], [`/mq/${queue}/messages`, '{"priority":0}'],
    ["/v1/sweep", "{}"]])
  await attempt(`send ${path}`, () => fetch(server + path, { ...plain, body }).then(() => false));
await attempt("take by no-cors", () => fetch(`${server}/mq/${queue}/messages`, { mode: "no-cors" }).then(() => false));
await attempt("beacon", () => navigator.sendBeacon(server + publish, '{"by":"beacon"}') && false);

// elements
const make = (name, about) => Object.assign(document.createElement(name), about);
await attempt("script", () => loads(make("script", { src: `${server}/mq/${queue}/messages/${id}` })));
await attempt("script of an API", () => loads(make("script", { src: `${server}/v1/queues` })));
await attempt("image", () => loads(make("img", { src: `${server}/mq/${queue}/messages` })));
await attempt("icon", () => loads(make("img", { src: `${server}/favicon.ico` })));
await attempt("style", () => loads(make("link", { rel: "stylesheet", href: `${server}/dashboard/style.css` })));
await attempt("module", () => import(`${server}/dashboard/api.js`));
await attempt("events", () => new Promise((done) => {
  const source = new EventSource(`${server}/v1/events`);
  source.onopen = () => { source.close(); done(true); };
  source.onerror = () => { source.close(); done(false); };
}));
await attempt("WebSocket", () => new Promise((done) => {
  const socket = new WebSocket(server.replace("http", "ws") + "/v1/events");
  socket.onopen = () => done(true);
  socket.onerror = () => done(false);
}));

// forms, of this page and of a sandboxed one without an origin
const target = make("iframe", { name: "target" });
document.body.append(target);
for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
  await attempt(`form ${enctype}`, () => new Promise((done) => {
    const form = make("form", { action: server + publish, method: "post", enctype, target: "target" });
    form.append(make("input", { name: '{"by":"form","x":"', value: '"}' }));
    document.body.append(form);
    target.onload = () => done(false);
    form.submit();
  }));
await attempt("sandboxed page", () => new Promise((done) => {
  const frame = make("iframe", { sandbox: "allow-scripts" });
  frame.srcdoc = `<script>fetch(${JSON.stringify(server + publish)}, {method: "POST", body: '{"by":"sandbox"}'})
    .then(() => parent.postMessage("won", "*"), () => parent.postMessage("lost", "*"))<\/script>`;
  addEventListener("message", (event) => done(event.data === "won"), { once: true });
  document.body.append(frame);
}));
return { won, tried: tried.length };
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.test"])
def test_cors_page_of_another_origin_reads_nothing_and_changes_nothing(
    page: Page, server: Daemon, site: int, host: str
) -> None:
    """Another port of the same address, another name of this machine, and a name of elsewhere."""
    page.forgive(BLOCKED)
    queue = f"attacked-{host}"
    [id] = page.api.publish(queue, {"to": "ann"})
    before = page.api.counts(queue), page.api("GET", f"queues/{queue}/policy"), _names(page.api)
    page.browser.open(f"http://{host}:{site}/")
    result = play(page.browser, ATTACKS, server.address_of("http"), queue, id)
    assert result == {"won": [], "tried": 33}
    assert (page.api.counts(queue), page.api("GET", f"queues/{queue}/policy"), _names(page.api)) == before


def _names(api: Api) -> list[str]:
    return [one["queue"] for one in api("GET", "queues")["queues"]]


def test_framing_of_the_dashboard_by_a_page_of_another_origin_is_blocked(page: Page, site: int) -> None:
    page.forgive(BLOCKED)
    page.browser.open(f"http://localhost:{site}/")
    frame = page.browser.script(
        "return document.body.appendChild(Object.assign(document.createElement('iframe'), {src: arguments[0]}))",
        page.url,
    )
    page.browser.until("return performance.getEntriesByType('resource').length > 0")
    page.browser.ask("POST", "/frame", {"id": {"element-6066-11e4-a52e-4f735466cecf": frame.id}})
    assert page.browser.script("return document.querySelector('main')") is None
    page.browser.ask("POST", "/frame", {"id": None})


def test_link_to_the_dashboard_from_a_page_of_another_origin_works(page: Page, site: int) -> None:
    page.browser.open(f"http://localhost:{site}/")
    page.browser.script("location.href = arguments[0]", f"{page.url}/#/")
    page.live()
    page.forgive(BLOCKED)


def _stored(page: Page, queue: str, media: str) -> str:
    """The address of a payload that a producer has stored, as the HTTP queue has it."""
    [receipt] = play(
        page.browser,
        """const [queue, type, body] = values;
        const sent = await fetch(`/v1/queues/${queue}/messages`,
          { method: "POST", headers: { "content-type": type }, body });
        return (await sent.json()).messages;""",
        queue,
        media,
        HTML,
    )
    return f"{page.url}/mq/{queue}/messages/{receipt['messageId']}"


@pytest.mark.parametrize("media", ["text/html", "image/svg+xml", "text/plain"])
def test_stored_payload_does_not_run_in_the_dashboard_origin(page: Page, queue: str, media: str) -> None:
    """The user opens it: the browser saves an active type, and shows text as text."""
    page.forgive(BLOCKED)
    page.open().live()
    address = _stored(page, queue, media)
    page.browser.script("location.href = arguments[0]", address)
    if media == "text/plain":
        page.browser.until("return document.body.innerText.includes('<script>')")
        assert page.browser.script("return document.title") == ""
    else:
        id = address.rpartition("/")[2]
        page.browser.wait(lambda: any(page.browser.downloads.glob(f"{id}*")))
        assert page.browser.script("return document.title").endswith("Yi-Rang MQ")


def test_stored_payload_cannot_be_opened_by_a_page_of_another_origin(page: Page, queue: str, site: int) -> None:
    page.forgive(BLOCKED)
    page.open().live()
    address = _stored(page, queue, "text/html")
    page.browser.open(f"http://localhost:{site}/")
    page.browser.script("location.href = arguments[0]", address)
    page.browser.until("return document.body.innerText.includes('cors_origins')")
    assert page.api.counts(queue)["ready"] == 1


def test_dns_rebinding_requests_are_refused_with_421_and_change_nothing(page: Page, queue: str) -> None:
    """``evil.test`` leads to this machine: to the browser, page and server have the same origin."""
    page.forgive(BLOCKED)
    page.api.publish(queue, 1)
    port = page.url.rpartition(":")[2]
    page.browser.open(f"http://evil.test:{port}/")
    page.browser.until("return document.body.innerText.includes('http_hosts')")
    script = """const [queue] = values;
        const asked = [["DELETE", `/v1/queues/${queue}`], ["GET", "/v1/queues"], ["GET", `/mq/${queue}/messages`],
                       ["POST", `/v1/queues/${queue}/messages`], ["GET", "/health"]];
        const found = asked.map(([method, path]) => fetch(path, { method }).then((answer) => answer.status));
        return Promise.all(found);"""
    assert play(page.browser, script, queue) == [421] * 5
    assert page.api.counts(queue)["ready"] == 1


# -- pages that are allowed -----------------------------------------------------------------------------------------

EXAMPLE = re.compile(r"```js\n(const mq = .*?)```", re.DOTALL)


@pytest.fixture(scope="module", params=["cors_origins", "token"])
def allowing(request: pytest.FixtureRequest, site: int) -> Iterator[HttpServer]:
    """A server that serves pages of the site: by the setting, or because they send a token."""
    if request.param == "token":
        made = HttpServer(MemoryStore(), SystemClock(), grants=(AccessGrant(TOKEN),))
    else:
        made = HttpServer(MemoryStore(), SystemClock(), origins=(f"http://localhost:{site}",))
    made.start()
    yield made
    made.stop()


def test_cors_allowed_origin_runs_the_fetch_example_of_the_http_queue(
    browser: Browser, site: int, allowing: HttpServer, request: pytest.FixtureRequest
) -> None:
    [example] = EXAMPLE.findall((Path(__file__).parents[2] / "docs" / "http-mq.md").read_text())
    example = example.replace("http://127.0.0.1:8080", allowing.url)
    if "token" in request.node.name:
        example = f"""const fetch = (url, options = {{}}) =>
            window.fetch(url, {{ ...options, headers: {{ ...options.headers, authorization: "Bearer {TOKEN}" }} }});
            {example}"""
    browser.open(f"http://localhost:{site}/")
    browser.log()
    said = play(
        browser, f"const said = []; const console = {{ log: (...all) => said.push(...all) }};{example}return said;"
    )
    assert said == ["<b>to ann</b>", "text/html", "active"]
    script = "const [url] = values; return (await (await fetch(url, { headers: values[1] })).json()).completed"
    shown = {"authorization": f"Bearer {TOKEN}"}
    assert play(browser, script, f"{allowing.url}/mq/mail/stats", shown) >= 1
    assert browser.log() == []
    browser.open("about:blank")


def test_token_of_the_server_is_required_of_a_page_of_any_origin(browser: Browser, site: int) -> None:
    server = HttpServer(MemoryStore(), SystemClock(), grants=(AccessGrant(TOKEN),)).start()
    try:
        browser.open(f"http://evil.test:{site}/")
        script = """const [url, token] = values;
            const answer = await fetch(url, { headers: token ? { authorization: `Bearer ${token}` } : {} });
            return answer.status;"""
        for token, status in ((TOKEN, 200), ("guess", 401), ("", 401)):
            assert play(browser, script, f"{server.url}/v1/queues", token) == status
        assert play(browser, script, f"{server.url}/health", "") == 200
    finally:
        server.stop()
        browser.open("about:blank")
        browser.log()
