"""HTTP router: a trie from a method and a path to a ``HttpRoute``, and several APIs side by side.

``Router`` is the trie that every API uses. ``HandlerRoutes`` is an API of handlers by template; ``MountedRoutes`` puts
several APIs side by side, each with its own templates and error format::

    api = Api(refuse=problem, nowhere=not_here)
    api.add("GET", "/mq/{namespace}/stats", stats)                  # stats(request, exchange, (namespace,))
    api.add("PUT", "/mq/{namespace}/messages/{id}", set_message, max_body=MIB)
    mounts = Mounts(fallback=pages)
    mounts.mount("/mq", api)                                        # templates are whole paths, prefix and all

Paths are compared exactly: letter case and a slash at the end count, ``.`` and ``..`` are names like any other. An
``HandlerRoutes`` decodes each segment before it compares it. Values may be empty (``/mq//stats``) and may hold a slash
(``%2F`` stays within its segment); a path that is not UTF-8 or holds a NUL is refused with ``BadInput``.

``HEAD`` on a path with a ``GET`` calls ``head``, or the same handler, with ``request.method`` "HEAD"; the body of
the answer is measured and not sent. A ``GET`` that changes something must give a ``head`` that does not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from yirangmq.core.errors import BadInput, NotAllowed, QueueError
from yirangmq.protocols.http.types import (
    METHODS,
    Exchange,
    HttpRoute,
    PathTemplate,
    Request,
    Response,
    Routes,
    new_route,
)

Params = tuple[str, ...]
Handler = Callable[[Request, Exchange, Params], None]
NotFoundResponse = Callable[[str, str, tuple[str, ...]], Response]
"""(method, path, allowed methods) → the response: 404, or 405 with ``allow`` if there are allowed methods."""
Refuse = Callable[[QueueError], Response]
Entry = TypeVar("Entry")
HEX = frozenset("0123456789abcdefABCDEF")
MAX_CACHED_ROUTES = 1000
MAX_CACHED_PATH = 100
"""Limits of a router's cache: number of routes, and characters of a path."""


@dataclass(slots=True)
class TrieNode(Generic[Entry]):
    """A node of the trie: the children by name, the child for any other segment, and an entry for each method."""

    names: dict[str, "TrieNode[Entry]"] = field(default_factory=dict)
    value: "TrieNode[Entry] | None" = None
    by_method: dict[str, Entry] = field(default_factory=dict)


class Router(Generic[Entry]):
    """Router: a trie of templates, and a cache of routes by method and path. Loop thread only."""

    def __init__(self, make: Callable[[str, str], HttpRoute]) -> None:
        """``make``: build the route of a method and a path that are not cached. Its result is cached if
        ``is_lasting``."""
        self._make = make
        self.root: TrieNode[Entry] = TrieNode()
        self._cache: dict[tuple[str, str], HttpRoute] = {}

    def add(self, method: str, template: str, entry: Entry) -> None:
        node = self.root
        for part in template.split("/")[1:]:
            if part.startswith("{"):
                node.value = node.value or TrieNode()
                node = node.value
            else:
                node = node.names.setdefault(part, TrieNode())
        assert method not in node.by_method, (method, template)
        node.by_method[method] = entry

    def find(self, method: str, path: str) -> HttpRoute:
        route = self._cache.get((method, path))
        if route is None:
            route = self._make(method, path)
            if route.is_lasting:
                if len(self._cache) >= MAX_CACHED_ROUTES:
                    self._cache.clear()
                self._cache[method, path] = route
        return route

    def match(self, parts: list[str]) -> tuple[TrieNode[Entry], Params]:
        """Return the node of these segments and the values among them; a node without entries if none matches.

        A name takes precedence over a value, without backtracking: below a name, values of its siblings are not
        tried."""
        node, params = self.root, []
        for part in parts:
            after = node.names.get(part)
            if after is None:
                after = node.value
                if after is None:
                    return TrieNode(), ()
                params.append(part)
            node = after
        return node, tuple(params)


def is_cacheable(path: str, params: Params) -> bool:
    """True if a route is worth caching: paths that contain an id rarely recur."""
    return len(params) < 2 and len(path) <= MAX_CACHED_PATH


class HandlerEntry(NamedTuple):
    handler: Handler
    max_body: int


class HandlerRoutes:
    """HTTP API: handlers by method and path template.

    ``refuse`` formats errors. ``not_found`` answers if there is no route. ``options`` answers every OPTIONS request;
    without it the answer is 204 with ``allow``."""

    def __init__(
        self, refuse: Refuse, not_found: NotFoundResponse | None = None, *, options: Handler | None = None
    ) -> None:
        self._refuse = refuse
        self._not_found = not_found or plain_not_found
        self._options = options
        self.router: Router[HandlerEntry] = Router(self._make)
        self.find = self.router.find

    def add(
        self, method: str, template: str, handler: Handler, *, max_body: int = 0, head: Handler | None = None
    ) -> None:
        self.router.add(method, template, HandlerEntry(handler, max_body))
        if method == "GET":
            self.router.add("HEAD", template, HandlerEntry(head or handler, max_body))

    def _make(self, method: str, path: str) -> HttpRoute:
        try:
            parts = segments(path)
        except BadInput as error:
            return self._fixed_route(self._refuse(error))
        node, params = self.router.match(parts)
        if method == "OPTIONS" and self._options is not None:
            return new_route((partial(_handle, self._options, params), 0, self._refuse, None, False, None))
        entry = node.by_method.get(method)
        if entry is None:
            allow = tuple(sorted({*node.by_method, "OPTIONS"})) if node.by_method else ()
            if method == "OPTIONS" and allow:
                return self._fixed_route(Response(204, None, (("allow", ", ".join(allow)),)))
            return self._fixed_route(self._not_found(method, path, allow))
        if len(params) > 1 and len(path) <= MAX_CACHED_PATH:
            return self._route(entry, params, path_template=self._path_template(path, entry, params))
        return self._route(entry, params, is_lasting=is_cacheable(path, params))

    def _route(
        self,
        entry: HandlerEntry,
        params: Params,
        *,
        is_lasting: bool = False,
        path_template: PathTemplate | None = None,
    ) -> HttpRoute:
        handle = partial(_handle, entry.handler, params)
        return new_route((handle, entry.max_body, self._refuse, None, is_lasting, path_template))

    def _path_template(self, path: str, entry: HandlerEntry, params: Params) -> PathTemplate | None:
        """Return the path around the last value, if it is the last or the second last segment and only values can stand
        at its position; otherwise None."""
        whole = path.split("/")
        at = len(whole) - 1 if whole[-1] == params[-1] else len(whole) - 2
        above, values = self.router.match(whole[1:at])
        if "%" in path or whole[at] != params[-1] or above.names or values != params[:-1]:
            return None
        before, after = "/".join([*whole[:at], ""]), "/".join(["", *whole[at + 1 :]]) if whole[at + 1 :] else ""
        return PathTemplate(before, after, lambda value: self._route(entry, (*params[:-1], value)))

    def _fixed_route(self, response: Response) -> HttpRoute:
        """Return a route with a fixed response, independent of the body. Clients without access get the refusal."""

        def refuse(error: QueueError) -> Response:
            return self._refuse(error) if isinstance(error, NotAllowed) else response

        return fixed_route(response, 0, refuse)


def fixed_route(response: Response, max_body: int, refuse: Refuse) -> HttpRoute:
    """Return a route with a fixed response."""
    return HttpRoute(lambda request, exchange: exchange.answer(response), max_body, refuse)


def _handle(handler: Handler, params: Params, request: Request, exchange: Exchange) -> None:
    handler(request, exchange, params)


def segments(path: str) -> list[str]:
    """Split a path as sent and decode its segments."""
    parts = path.split("/")[1:]
    return [decoded(part) for part in parts] if "%" in path else parts


def decoded(part: str) -> str:
    """Percent-decode one segment; raise ``BadInput`` if it is malformed, not UTF-8, or holds a NUL."""
    if "%" not in part:
        return part
    pieces = part.split("%")
    if not all(len(piece) >= 2 and HEX.issuperset(piece[:2]) for piece in pieces[1:]):
        raise BadInput("a percent sign must be followed by two hexadecimal digits", field="path")
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise BadInput("percent-encoded text must be UTF-8", field="path") from None
    if "\0" in text:
        raise BadInput("must not contain a NUL", field="path")
    return text


def plain_not_found(method: str, path: str, allow: tuple[str, ...]) -> Response:
    plain = (("content-type", "text/plain; charset=utf-8"),)
    if allow:
        return Response(405, f"{method} is not for this path\n".encode(), (*plain, ("allow", ", ".join(allow))))
    return Response(404, b"there is nothing here\n", plain)


class MountedRoutes:
    """Several APIs by path prefix; the longest matching prefix wins. ``fallback`` serves all other paths."""

    def __init__(self, fallback: Routes) -> None:
        self._fallback = fallback
        self._mounts: dict[str, Routes] = {}
        self._deepest = 0

    def mount(self, prefix: str, routes: Routes) -> None:
        """Add an API. ``prefix`` consists of whole segments: "/mq" matches "/mq" and "/mq/…", not "/mqtt"."""
        assert prefix.startswith("/")
        assert not prefix.endswith("/")
        assert prefix not in self._mounts, prefix
        self._mounts[prefix] = routes
        self._deepest = max(self._deepest, prefix.count("/"))

    def find(self, method: str, path: str) -> HttpRoute:
        if path == "*":
            allow = (("allow", ", ".join(sorted(METHODS))),)
            return fixed_route(Response(204, None, allow), 0, _plain_refusal)
        end, found = 0, self._fallback
        for _ in range(self._deepest):
            end = path.find("/", end + 1)
            found = self._mounts.get(path if end < 0 else path[:end], found)
            if end < 0:
                break
        return found.find(method, path)


def _plain_refusal(error: QueueError) -> Response:
    status = {"too_large": 413, "packed_body": 415, "not_allowed": 403, "misdirected": 421}.get(error.code, 400)
    return Response(status, f"{error}\n".encode(), (("content-type", "text/plain; charset=utf-8"),))
