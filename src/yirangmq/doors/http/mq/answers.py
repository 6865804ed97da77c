"""What answers look like: the headers that all of them have, and the shape of errors.

What the queue's logic refuses (404, 409) has an empty body; other errors are a JSON object that says why."""

from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import RANK_LAST
from yirangmq.core.states import State
from yirangmq.doors.http.exchange import Headers, Request, Response
from yirangmq.doors.http.guard import CHALLENGE, UNKNOWN
from yirangmq.doors.http.mq.semver import satisfies
from yirangmq.doors.http.reply import PHRASES
from yirangmq.doors.http.v1.errors import STATUS_OF, retry_after
from yirangmq.format.json_codec import dumps

VERSION = (0, 6, 2)
"""Of the document's API, as its clients ask for it with Accept-Version."""
COMMON: Headers = (("cache-control", "private, no-cache"), ("vary", "Origin"))
TEXT = ("content-type", "text/plain; charset=utf-8")
JSON = ("content-type", "application/json; charset=utf-8")
EMPTY_ONES = frozenset({404, 409})

WORDS: dict[State, str] = {
    State.DRAFT: "drafting",
    State.DELAYED: "waiting",
    State.HELD: "waiting",
    State.READY: "waiting",
    State.CLAIMED: "ordered",
    State.LEASED: "active",
    State.DEAD: "failed",
    State.PARKED: "failed",
    State.DONE: "completed",
    State.DROPPED: "abandoned",
}
"""The document's words for our states."""


class WrongMedia(BadInput):
    """A body of a type that this route does not read."""


class WrongVersion(BadInput):
    """The client asks for another version of the API."""


def check_version(request: Request) -> None:
    asked = request.headers.get("accept-version")
    if asked is not None and not satisfies(VERSION, asked):
        raise WrongVersion("this is version 0.6.2", field="accept-version")


def refusal(error: QueueError, headers: Headers = COMMON) -> Response:
    if isinstance(error, WrongVersion):
        return Response(400, b"", headers)
    status = STATUS_OF.get(error.code, 500)
    if isinstance(error, WrongMedia):
        status = 415
    elif error.code == "not_allowed" and error.field == UNKNOWN:
        status, headers = 401, (*headers, CHALLENGE)
    if status in EMPTY_ONES:
        return Response(status, b"", headers)
    after = retry_after(error)
    if after is not None:
        headers = (*headers, ("retry-after", str(max(1, round(after + 0.5)))))
    about = {"statusCode": status, "error": PHRASES.get(status, "Error"), "message": str(error), "code": error.code}
    return Response(status, dumps(about), (*headers, JSON))


def nowhere(method: str, path: str, allowed: tuple[str, ...]) -> Response:
    """No such route. A method that is not for this path is no route either."""
    about = {"message": f"Route {method}:{path} not found", "error": "Not Found", "statusCode": 404}
    return Response(404, dumps(about), (*COMMON, JSON))


def priority(rank: int) -> str:
    return "null" if rank == RANK_LAST else str(rank)


def with_charset(media_type: str) -> str:
    """What says JSON and no charset is in UTF-8."""
    small = media_type.lower()
    return f"{media_type}; charset=utf-8" if "json" in small and "charset" not in small else media_type
