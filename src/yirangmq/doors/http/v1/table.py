"""From a method and a path to the endpoint they mean. ``doors.http.exchange.Routes`` for everything under ``/v1``."""

from collections.abc import Iterable

from yirangmq.core.access import ANYWHERE
from yirangmq.core.active_guard import check
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.doors.house import House
from yirangmq.doors.http.exchange import Exchange, Request, Response, Route
from yirangmq.doors.http.router import Params, Router, answering, decoded, is_cacheable
from yirangmq.doors.http.together import Together
from yirangmq.doors.http.v1 import errors
from yirangmq.doors.http.v1.endpoint import SMALL_BODY, Ask, Endpoint, Guard, let_all
from yirangmq.doors.http.v1.fields import Field

WORK = ("publish", "consume")
"""Verbs that a standby refuses at once; what an administrator asks for is refused when it comes to change
something."""


class Table:
    """Names in a path are compared as they were sent, values are decoded and checked when a request is handled; an
    empty value leads nowhere."""

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
        self._router: Router[tuple[Endpoint, tuple[Field, ...]]] = Router(self._make)
        self.find = self._router.find
        self.endpoints: list[Endpoint] = []
        for endpoint in endpoints:
            self.add(endpoint)

    def add(self, endpoint: Endpoint) -> None:
        self._router.add(endpoint.method, endpoint.path, (endpoint, endpoint.path_fields()))
        self.endpoints.append(endpoint)

    def _make(self, method: str, path: str) -> Route:
        node, values = self._router.match(path.split("/")[1:])
        if not node.by_method or "" in values:
            lost = NotFound(f"{path[:100]} is not a path of this API; /v1/openapi.json lists them", field="path")
            return answering(errors.refuse(lost), SMALL_BODY, errors.refuse)
        found = node.by_method.get("GET" if method == "HEAD" else method)
        if found is None:
            return _not_allowed(method, ", ".join(sorted(node.by_method)))
        endpoint, fields = found
        way = Way(self._house, endpoint, fields, values, self._guard, self._together)
        return Route(way.handle, endpoint.max_body, errors.refuse, way.admit, is_cacheable(path, values))


def _not_allowed(method: str, known: str) -> Route:
    allow = (("allow", known),)
    if method == "OPTIONS":
        return answering(Response(204, None, allow), SMALL_BODY, errors.refuse)
    error = BadInput(f"{method[:20]} is not for this path; it takes {known}", field="method")
    return answering(errors.refuse(error, 405, allow), SMALL_BODY, errors.refuse)


class Way:
    """To one endpoint by one path, for any number of requests."""

    __slots__ = ("_endpoint", "_fields", "_guard", "_house", "_path", "_together", "_values")

    def __init__(
        self,
        house: House,
        endpoint: Endpoint,
        fields: tuple[Field, ...],
        values: Params,
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
