"""What every server answers, whichever APIs it has: is it there, its metrics, and that robots should stay away."""

from collections.abc import Callable
from typing import Any

from yirangmq.core.access import LOOK
from yirangmq.core.errors import QueueError
from yirangmq.doors.house import House
from yirangmq.doors.http.exchange import Exchange, Headers, Request, Response
from yirangmq.doors.http.guard import CHALLENGE, UNKNOWN, Guard
from yirangmq.doors.http.router import Api, Params
from yirangmq.observe.prometheus import CONTENT_TYPE

TEXT: Headers = (("content-type", "text/plain; charset=utf-8"), ("cache-control", "private, no-cache"))
METRICS: Headers = (("content-type", CONTENT_TYPE), ("cache-control", "private, no-cache"))
ROBOTS = b"User-agent: *\nDisallow: /\n"
STATUS = {
    "bad_input": 400, "too_large": 413, "packed_body": 415, "not_found": 404, "not_allowed": 403,
    "misdirected": 421,
    "quota_exceeded": 429, "unavailable": 503,
}  # fmt: skip


def refuse(error: QueueError) -> Response:
    """In plain words."""
    headers = TEXT
    status = STATUS.get(error.code, 500)
    if error.code == "not_allowed" and error.field == UNKNOWN:
        status, headers = 401, (*TEXT, CHALLENGE)
    return Response(status, f"{error}\n".encode(), headers)


VERBS = {"/health": None, "/robots.txt": None, "/metrics": LOOK}
"""By path, all of them GET: the verb in the table of ``core.access``, in the server as a whole. None: for everybody,
without a token."""


class Pages:
    def __init__(self, house: House, guard: Guard) -> None:
        self._house = house
        self._guard = guard

    def routes(self) -> Api:
        api = Api(refuse)
        api.add("GET", "/health", self._health)
        api.add("GET", "/robots.txt", self._robots)
        api.add("GET", "/metrics", self._metrics)
        return api

    def _health(self, request: Request, exchange: Exchange, params: Params) -> None:
        """Short, and for everybody: OK as long as the server can do its work."""

        def told(found: dict[str, Any]) -> Response:
            return Response(503, b"fail", TEXT) if found["status"] == "fail" else Response(200, b"OK", TEXT)

        self._call("health", exchange, told)

    def _robots(self, request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(200, ROBOTS, TEXT))

    def _metrics(self, request: Request, exchange: Exchange, params: Params) -> None:
        self._guard.check(request, LOOK, None)
        self._call("metrics", exchange, lambda page: Response(200, page.encode(), METRICS))

    def _call(self, method: str, exchange: Exchange, told: Callable[[Any], Response]) -> None:
        def done(value: Any, error: QueueError | None) -> None:
            exchange.answer(told(value) if error is None else refuse(error))

        self._house.methods.find(method)(self._house.desk, {}, done)
