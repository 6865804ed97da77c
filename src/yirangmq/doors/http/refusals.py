"""Answers that say no, where the protocol itself says it: in the shape of the API that was asked, or in plain words."""

from math import ceil

from yirangmq.core.errors import PackedBody, QueueError, QuotaExceeded, StoreBusy, TooLarge
from yirangmq.doors.http.exchange import Headers, Response, Route
from yirangmq.doors.http.head import Head
from yirangmq.observe.logs import log

PLAIN: Headers = (("content-type", "text/plain; charset=utf-8"),)
PLAINLY = ("accept-encoding", "identity")
"""Said with each 415 of a packed body: what would have been read."""
INTERNAL = Response(500, b"internal error\n", PLAIN)


def plain(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), PLAIN)


def refusal(route: Route | None, error: QueueError) -> Response:
    """As the API says it. Who asks too often is told when to come again, and who packs a body how to send it, even if
    the API did not think of it."""
    if route is None:
        return INTERNAL
    try:
        response = route.refuse(error)
    except Exception:
        log.exception("an error could not be told")
        return INTERNAL
    if isinstance(error, PackedBody):
        response = response._replace(headers=(*response.headers, PLAINLY))
    after = error.retry_after if isinstance(error, QuotaExceeded | StoreBusy) else None
    if after is not None and not any(name.lower() == "retry-after" for name, _ in response.headers):
        response = response._replace(headers=(*response.headers, ("retry-after", str(ceil(after)))))
    return response


def packed(head: Head) -> PackedBody | None:
    """What there is to say against the coding of a body. It would be stored as it came, and handed out without a word
    that it is packed."""
    coding = head.headers.get("content-encoding", "")
    if head.length == 0 or coding.lower() in ("", "identity"):
        return None
    return PackedBody(f"bodies are read as they come, so unpack it first; not {coding!r}", field="content-encoding")


def too_large(route: Route) -> TooLarge:
    return TooLarge(f"must not have more than {route.max_body} bytes", field="body")
