"""From a path to the route behind it: several APIs side by side, each with its own templates and shape of errors.

Knows: prefixes, templates, percent-encoding. Does not know: what a route does, bytes on the wire.

An API is an ``Api`` (or any other ``exchange.Routes``), mounted under its prefix::

    api = Api(refuse=problem, nowhere=not_here)
    api.add("GET", "/mq/{namespace}/stats", stats)                  # stats(request, exchange, (namespace,))
    api.add("PUT", "/mq/{namespace}/messages/{id}", set_message, max_body=MIB)
    api.add("GET", "/mq/{namespace}/messages", order, head=nothing)
    mounts = Mounts(fallback=pages)
    mounts.mount("/mq", api)                                        # templates are whole paths, prefix and all

Values of the path come decoded, in the order of the template; they may be empty (``/mq//stats``) and may hold a slash
(``%2F`` stays within its segment). Paths are compared exactly: letter case and a slash at the end count, ``.`` and
``..`` are names like any other, and one that is not UTF-8 or holds a NUL is refused with ``BadInput``.

``HEAD`` on a path with a ``GET`` calls ``head``, or the same handler, with ``request.method`` "HEAD"; whatever body it
answers with is measured and not sent. A ``GET`` that changes something must give a ``head`` that does not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from yirangmq.core.errors import BadInput, NotAllowed, QueueError
from yirangmq.doors.http.exchange import Exchange, Request, Response, Route, Routes, Stem, new_route
from yirangmq.doors.http.head import METHODS

Params = tuple[str, ...]
Handler = Callable[[Request, Exchange, Params], None]
Nowhere = Callable[[str, str, tuple[str, ...]], Response]
"""(method, path, methods that are allowed) → the answer: 404, or 405 with ``allow`` where there are some."""
Refuse = Callable[[QueueError], Response]
HEX = frozenset("0123456789abcdefABCDEF")


MOST_KNOWN = 1000
LONGEST_KNOWN = 100
"""Routes of an API that are kept, and characters of their paths: what is asked for is mostly asked for again."""


class Spot(NamedTuple):
    handler: Handler
    max_body: int


@dataclass(slots=True)
class Node:
    """A step of a path: the names that may follow, a value that may follow, and what may be asked for here."""

    names: dict[str, "Node"] = field(default_factory=dict)
    value: "Node | None" = None
    spots: dict[str, Spot] = field(default_factory=dict)


class Api:
    """Routes by template. ``refuse`` gives errors their shape, ``nowhere`` answers where there is no route, ``admit``
    sees every head; ``options``, where given, answers every OPTIONS (else: 204 with ``allow``)."""

    def __init__(
        self,
        refuse: Refuse,
        nowhere: Nowhere | None = None,
        *,
        admit: Callable[[Request], None] | None = None,
        options: Handler | None = None,
    ) -> None:
        self._refuse = refuse
        self._nowhere = nowhere or plain_nowhere
        self._admit = admit
        self._options = options
        self._root = Node()
        self._known: dict[tuple[str, str], Route] = {}

    def add(
        self, method: str, template: str, handler: Handler, *, max_body: int = 0, head: Handler | None = None
    ) -> None:
        node = self._root
        for part in template.split("/")[1:]:
            if part.startswith("{") and part.endswith("}"):
                node.value = node.value or Node()
                node = node.value
            else:
                node = node.names.setdefault(part, Node())
        node.spots[method] = Spot(handler, max_body)
        if method == "GET":
            node.spots["HEAD"] = Spot(head or handler, max_body)

    def find(self, method: str, path: str) -> Route:
        return self._known.get((method, path)) or self._find(method, path)

    def _find(self, method: str, path: str) -> Route:
        try:
            parts = segments(path)
        except BadInput as error:
            return self._always(self._refuse(error))
        found = _go(self._root, parts)
        if method == "OPTIONS" and (self._options is not None or found is not None):
            return self._preflight(found)
        if found is None:
            return self._always(self._nowhere(method, path, ()))
        node, params = found
        spot = node.spots.get(method)
        if spot is None:
            return self._always(self._nowhere(method, path, allowed(node)))
        if len(path) > LONGEST_KNOWN:
            return self._route(spot, params)
        if len(params) > 1:
            return self._route(spot, params, stem=self._stem(path, spot, params))
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        route = self._known[method, path] = self._route(spot, params, is_lasting=True)
        return route

    def _route(self, spot: Spot, params: Params, *, is_lasting: bool = False, stem: Stem | None = None) -> Route:
        handle = partial(_handle, spot.handler, params)
        return new_route((handle, spot.max_body, self._refuse, self._admit, is_lasting, stem))

    def _stem(self, path: str, spot: Spot, params: Params) -> Stem | None:
        """What stands around the last value of this path, if that is the last of it or the last but one, and nothing
        but values can stand there."""
        whole = path.split("/")
        at = len(whole) - 1 if whole[-1] == params[-1] else len(whole) - 2
        above = _go(self._root, whole[1:at], is_end=False)
        if "%" in path or whole[at] != params[-1] or above is None or above[0].names or above[1] != params[:-1]:
            return None
        before, after = "/".join([*whole[:at], ""]), "/".join(["", *whole[at + 1 :]]) if whole[at + 1 :] else ""
        return Stem(before, after, lambda value: self._route(spot, (*params[:-1], value)))

    def _preflight(self, found: tuple[Node, Params] | None) -> Route:
        node, params = found or (Node(), ())
        if self._options is None:
            return self._always(Response(204, None, (("allow", ", ".join(allowed(node))),)))
        answer = self._options
        return Route(lambda request, exchange: answer(request, exchange, params), 0, self._refuse)

    def _always(self, response: Response) -> Route:
        """The answer, whatever body comes with the question; not for a client that may not ask."""

        def refuse(error: QueueError) -> Response:
            return self._refuse(error) if isinstance(error, NotAllowed) else response

        return Route(lambda request, exchange: exchange.answer(response), 0, refuse)


def _handle(handler: Handler, params: Params, request: Request, exchange: Exchange) -> None:
    handler(request, exchange, params)


def _go(root: Node, parts: list[str], *, is_end: bool = True) -> tuple[Node, Params] | None:
    """The straight way, which is nearly always the right one. ``is_end``: there must be something to ask for."""
    node, params = root, []
    for part in parts:
        after = node.names.get(part)
        if after is None:
            after = node.value
            if after is None:
                return _walk(root, parts, 0, ()) if is_end else None
            params.append(part)
        node = after
    return (node, tuple(params)) if node.spots or not is_end else _walk(root, parts, 0, ())


def _walk(node: Node, parts: list[str], at: int, params: Params) -> tuple[Node, Params] | None:
    """Names go before values; where a name leads nowhere, the value is tried."""
    if at == len(parts):
        return (node, params) if node.spots else None
    part = parts[at]
    after = node.names.get(part)
    if after is not None:
        found = _walk(after, parts, at + 1, params)
        if found is not None:
            return found
    return _walk(node.value, parts, at + 1, (*params, part)) if node.value is not None else None


def segments(path: str) -> list[str]:
    """Of a path as it was sent: what stands between the slashes, decoded."""
    parts = path.split("/")[1:]
    return [decoded(part) for part in parts] if "%" in path else parts


def decoded(part: str) -> str:
    """One segment, or one value of a query, without its percent signs."""
    if "%" not in part:
        return part
    pieces = part.split("%")
    if not all(len(piece) >= 2 and HEX.issuperset(piece[:2]) for piece in pieces[1:]):
        raise BadInput("a percent sign must be followed by two hexadecimal digits", field="path")
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise BadInput("what is percent-encoded must be UTF-8", field="path") from None
    if "\0" in text:
        raise BadInput("must not hold a NUL", field="path")
    return text


def allowed(node: Node) -> tuple[str, ...]:
    return tuple(sorted({*node.spots, "OPTIONS"}))


def plain_nowhere(method: str, path: str, allow: tuple[str, ...]) -> Response:
    plain = (("content-type", "text/plain; charset=utf-8"),)
    if allow:
        return Response(405, f"{method} is not for this path\n".encode(), (*plain, ("allow", ", ".join(allow))))
    return Response(404, b"there is nothing here\n", plain)


class Mounts:
    """APIs by prefix, the longest first; ``fallback`` has what is under none of them."""

    def __init__(self, fallback: Routes) -> None:
        self._fallback = fallback
        self._mounts: dict[str, Routes] = {}
        self._deepest = 0

    def mount(self, prefix: str, routes: Routes) -> None:
        """``prefix`` is whole segments: "/mq" has "/mq" and "/mq/…", not "/mqtt"."""
        assert prefix.startswith("/")
        assert not prefix.endswith("/")
        assert prefix not in self._mounts, prefix
        self._mounts[prefix] = routes
        self._deepest = max(self._deepest, prefix.count("/"))

    def find(self, method: str, path: str) -> Route:
        if path == "*":
            allow = (("allow", ", ".join(sorted(METHODS))),)
            return Route(lambda request, exchange: exchange.answer(Response(204, None, allow)), 0, _plain_refusal)
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
