"""Answers that say no, where the protocol itself says it: in the shape of the API that was asked, or in plain words."""

from math import ceil

from yirangmq.core.errors import QueueError, QuotaExceeded, TooLarge
from yirangmq.doors.http.exchange import Headers, Response, Route
from yirangmq.observe.logs import log

PLAIN: Headers = (("content-type", "text/plain; charset=utf-8"),)
INTERNAL = Response(500, b"internal error\n", PLAIN)


def plain(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), PLAIN)


def refusal(route: Route | None, error: QueueError) -> Response:
    """As the API says it. Who asks too often is told when to come again, even if the API did not think of it."""
    if route is None:
        return INTERNAL
    try:
        response = route.refuse(error)
    except Exception:
        log.exception("an error could not be told")
        return INTERNAL
    after = error.retry_after if isinstance(error, QuotaExceeded) else None
    if after is not None and not any(name.lower() == "retry-after" for name, _ in response.headers):
        response = response._replace(headers=(*response.headers, ("retry-after", str(ceil(after)))))
    return response


def too_large(route: Route) -> TooLarge:
    return TooLarge(f"must not have more than {route.max_body} bytes", field="body")
