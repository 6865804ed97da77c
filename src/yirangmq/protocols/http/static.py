"""Dashboard files, and the routes of every server: ``/health``, ``/metrics`` and ``/robots.txt``.

The dashboard's page is ``/``, all other files are below ``/dashboard/``. Each file has a separate route; the routes are
created once from a listing of the package's folder, so no path of a client reaches the disk. ``/dashboard/pages.js``
imports every file in ``pages``, so a new page needs only a new file. Browsers revalidate each file by its ETag."""

import gzip
from collections.abc import Callable, Iterator
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from yirangmq.core.access import LOOK
from yirangmq.core.errors import QueueError
from yirangmq.observe.prometheus import CONTENT_TYPE
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.auth import CHALLENGE, UNKNOWN, HttpAccess
from yirangmq.protocols.http.router import HandlerRoutes, Params
from yirangmq.protocols.http.types import Exchange, Headers, Request, Response

# -- dashboard files ---------------------------------------------------------------------------------------------------

PREFIX = "/dashboard"
PAGE = "index.html"
ICON = "icon.svg"
PAGES_MODULE = "pages.js"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SECURITY_HEADERS: Headers = (
    ("content-security-policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
)
"""Security headers: no foreign script, resource or frame, because the page can change every queue."""
CACHE_HEADERS: Headers = (("cache-control", "no-cache"), ("vary", "accept-encoding"))
"""The browser caches the file and revalidates it each time, because a new version of the server has new pages."""


class Asset(NamedTuple):
    """Content of one file, plain and gzipped, in memory."""

    kind: str
    plain: bytes
    packed: bytes
    mark: str
    """Prefix of the ETags: a hash of the content."""


def add_dashboard(api: HandlerRoutes) -> None:
    """Add the dashboard's routes. They need no token: the pages contain no data, and prompt for a token if one is
    needed."""
    for name in names():
        api.add("GET", f"{PREFIX}/{name}", partial(_send, name))
    api.add("GET", "/", partial(_send, PAGE))
    api.add("GET", "/favicon.ico", partial(_send, ICON))  # requested by browsers that show another page of this server


def names() -> list[str]:
    """Return the paths of all files below ``PREFIX``."""
    return sorted([*_walk(_folder(), ""), PAGES_MODULE])


def _folder() -> Traversable:
    return files("yirangmq").joinpath("dashboard")


def _walk(folder: Traversable, above: str) -> Iterator[str]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _walk(one, f"{above}{one.name}/")
        elif _ending(one.name) in TYPES:
            yield above + one.name


def _ending(name: str) -> str:
    return name[name.rfind(".") :]


def _send(name: str, request: Request, exchange: Exchange, params: Params) -> None:
    asset = load(name)
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    tag = f'"{asset.mark}-{"z" if is_packed else "p"}"'
    headers = (("etag", tag), *CACHE_HEADERS, *SECURITY_HEADERS)
    if tag in request.headers.get("if-none-match", ""):
        exchange.answer(Response(304, None, headers))
        return
    packing: Headers = (("content-encoding", "gzip"),) if is_packed else ()
    body = asset.packed if is_packed else asset.plain
    exchange.answer(Response(200, body, (("content-type", asset.kind), *packing, *headers)))


@cache
def load(name: str) -> Asset:
    """Read a file at its first request, and cache it."""
    plain = _listing() if name == PAGES_MODULE else _folder().joinpath(*name.split("/")).read_bytes()
    return Asset(TYPES[_ending(name)], plain, gzip.compress(plain, 9, mtime=0), sha256(plain).hexdigest()[:20])


def _listing() -> bytes:
    """Generate the JavaScript module that imports every page."""
    pages = [name for name in names() if name.startswith("pages/")]
    lines = [f'import page{number} from "./{name}";\n' for number, name in enumerate(pages)]
    every = ", ".join(f"page{number}" for number in range(len(pages)))
    return f"{''.join(lines)}export default [{every}];\n".encode()


# -- health, metrics and robots.txt ------------------------------------------------------------------------------------

TEXT: Headers = (("content-type", "text/plain; charset=utf-8"),)
METRICS: Headers = (("content-type", CONTENT_TYPE),)
ROBOTS = b"User-agent: *\nDisallow: /\n"
STATUS = {
    "bad_input": 400, "too_large": 413, "packed_body": 415, "not_found": 404, "not_allowed": 403,
    "misdirected": 421,
    "quota_exceeded": 429, "unavailable": 503,
}  # fmt: skip


def refuse(error: QueueError) -> Response:
    """Return the response for an error, as plain text."""
    headers = TEXT
    status = STATUS.get(error.code, 500)
    if error.code == "not_allowed" and error.field == UNKNOWN:
        status, headers = 401, (*TEXT, CHALLENGE)
    return Response(status, f"{error}\n".encode(), headers)


VERBS = {"/health": None, "/robots.txt": None, "/metrics": LOOK}
"""By path (GET only): the verb in the table of ``core.access``, for the server as a whole. None: no token is needed."""


class ServerRoutes:
    """Routes of every server: ``/health``, ``/robots.txt`` and ``/metrics``."""

    def __init__(self, context: ServerContext, guard: HttpAccess) -> None:
        self._context = context
        self._guard = guard

    def routes(self) -> HandlerRoutes:
        api = HandlerRoutes(refuse)
        api.add("GET", "/health", self._health)
        api.add("GET", "/robots.txt", self._robots)
        api.add("GET", "/metrics", self._metrics)
        return api

    def _health(self, request: Request, exchange: Exchange, params: Params) -> None:
        """Answer 200 ``OK``, or 503 ``fail`` if the status is "fail". No token is needed."""

        def render(found: dict[str, Any]) -> Response:
            return Response(503, b"fail", TEXT) if found["status"] == "fail" else Response(200, b"OK", TEXT)

        self._call("health", exchange, render)

    def _robots(self, request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(200, ROBOTS, TEXT))

    def _metrics(self, request: Request, exchange: Exchange, params: Params) -> None:
        self._guard.check(request, LOOK, None)
        self._call("metrics", exchange, lambda page: Response(200, page.encode(), METRICS))

    def _call(self, method: str, exchange: Exchange, render: Callable[[Any], Response]) -> None:
        def done(value: Any, error: QueueError | None) -> None:
            exchange.answer(render(value) if error is None else refuse(error))

        self._context.methods.find(method)(self._context.committer, {}, done)
