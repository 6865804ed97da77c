"""From a method and a path to the endpoint they mean. ``doors.http.exchange.Routes`` for everything under ``/v1``."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from yirangmq.core.access import ANYWHERE
from yirangmq.core.duty import check
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.doors.house import House
from yirangmq.doors.http.exchange import Exchange, Request, Response, Route
from yirangmq.doors.http.router import decoded
from yirangmq.doors.http.together import Together
from yirangmq.doors.http.v1 import errors
from yirangmq.doors.http.v1.alerts import ID as ALERT
from yirangmq.doors.http.v1.batches import PATH as BATCH_PATH
from yirangmq.doors.http.v1.endpoint import SMALL_BODY, Ask, Endpoint, Guard, let_all
from yirangmq.doors.http.v1.fields import BRIDGE, CONSUMER, ID, QUEUE, SUBSCRIBER, TOPIC, Field
from yirangmq.doors.http.v1.pipelines import NAME as PIPELINE

WORK = ("publish", "consume")
"""Verbs that a standby refuses at once; what an administrator asks for is refused when it comes to change
something."""
NAMED = {"queue": QUEUE, "topic": TOPIC, "name": SUBSCRIBER}


@dataclass(slots=True)
class Node:
    """A step of a path: the names that may follow, a value that may follow, and what may be asked for here."""

    fixed: dict[str, "Node"] = field(default_factory=dict)
    value: "Node | None" = None
    endpoints: dict[str, tuple[Endpoint, tuple[Field, ...]]] = field(default_factory=dict)


MOST_KNOWN = 1000
LONGEST_KNOWN = 100
"""Routes that are kept, and characters of their paths: what a client asks for, it mostly asks for again."""


class Table:
    def __init__(
        self,
        house: House,
        endpoints: Iterable[Endpoint],
        guard: Guard = let_all,
        together: Together | None = None,
    ) -> None:
        self._house = house
        self._guard = guard
        self._together = together
        self._root = Node()
        self._known: dict[tuple[str, str], Route] = {}
        self.endpoints: list[Endpoint] = []
        for endpoint in endpoints:
            self.add(endpoint)

    def add(self, endpoint: Endpoint) -> None:
        node = self._root
        fields = []
        for part in endpoint.path.split("/")[1:]:
            if part.startswith("{"):
                fields.append(path_field(endpoint, part[1:-1]))
                node.value = node.value or Node()
                node = node.value
            else:
                node = node.fixed.setdefault(part, Node())
        assert endpoint.method not in node.endpoints, endpoint
        node.endpoints[endpoint.method] = endpoint, tuple(fields)
        self.endpoints.append(endpoint)

    def find(self, method: str, path: str) -> Route:
        return self._known.get((method, path)) or self._find(method, path)

    def _find(self, method: str, path: str) -> Route:
        node = self._root
        values = []
        for part in path.split("/")[1:]:
            after = node.fixed.get(part)
            if after is None:
                after = node.value
                if after is None or not part:
                    return _answering(lambda: _lost(path))
                values.append(part)
            node = after
        found = node.endpoints.get("GET" if method == "HEAD" else method)
        if found is None:
            return _not_allowed(method, sorted(node.endpoints)) if node.endpoints else _answering(lambda: _lost(path))
        endpoint, fields = found
        way = Way(self._house, endpoint, fields, values, self._guard, self._together)
        is_lasting = len(values) < 2 and len(path) <= LONGEST_KNOWN
        route = Route(way.handle, endpoint.max_body, errors.refuse, way.admit, is_lasting)
        if is_lasting:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[method, path] = route
        return route


class Way:
    """To one endpoint by one path, for any number of requests."""

    __slots__ = ("_endpoint", "_fields", "_guard", "_house", "_path", "_together", "_values")

    def __init__(
        self,
        house: House,
        endpoint: Endpoint,
        fields: tuple[Field, ...],
        values: list[str],
        guard: Guard,
        together: Together | None,
    ) -> None:
        self._house = house
        self._endpoint = endpoint
        self._fields = fields
        self._values = values
        self._guard = guard
        self._together = None if endpoint.joins else together
        self._path: dict[str, str] | None = None

    def admit(self, request: Request) -> None:
        """Before the body is read."""
        if self._guard is not let_all:
            path = self._path or self._checked()
            place = path.get("queue", path.get("topic")) if not self._endpoint.is_filtered else ANYWHERE
            self._guard(request, self._endpoint.verb, place)
        if self._endpoint.verb in WORK and request.method not in ("GET", "HEAD"):
            check(self._house.desk.duty)

    def handle(self, request: Request, exchange: Exchange) -> None:
        if self._together is not None:
            self._together.after(request)
        path = self._path or self._checked()
        self._endpoint.act(Ask(self._house, self._endpoint, path, request, exchange, self._guard))

    def _checked(self) -> dict[str, str]:
        """What stands in the path, by name."""
        pairs = zip(self._fields, self._values, strict=True)
        self._path = {one.name: one.kind.check(decoded(value), one.name) for one, value in pairs}
        return self._path


def path_field(endpoint: Endpoint, name: str) -> Field:
    if endpoint.path.startswith("/v1/bridges/"):
        return BRIDGE
    if name in NAMED:
        return NAMED[name]
    if endpoint.path.startswith("/v1/batches/"):
        return BATCH_PATH[name]
    if endpoint.path.startswith("/v1/pipelines/"):
        return PIPELINE
    if endpoint.path.startswith("/v1/alerts/"):
        return ALERT
    return CONSUMER if "/consumers/" in endpoint.path else ID


def _lost(path: str) -> NoReturn:
    raise NotFound(f"{path[:100]} is not a path of this API; /v1/openapi.json lists them", field="path")


def _answering(act: Callable[[], None]) -> Route:
    return Route(lambda request, exchange: act(), SMALL_BODY, errors.refuse)


def _not_allowed(method: str, known: list[str]) -> Route:
    if method == "OPTIONS":
        told = Response(204, None, (("allow", ", ".join(known)),))
        return Route(lambda request, exchange: exchange.answer(told), SMALL_BODY, errors.refuse)
    error = BadInput(f"{method[:20]} is not for this path; it takes {', '.join(known)}", field="method")
    refused = errors.refuse(error, 405, (("allow", ", ".join(known)),))
    return Route(lambda request, exchange: exchange.answer(refused), SMALL_BODY, errors.refuse)
