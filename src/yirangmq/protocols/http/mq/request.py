"""Requests to the HTTP queue: content negotiation, values, version ranges, answers, and namespaces.

- A listing is a JSON array or one line for each item, as the header ``Accept`` prefers.
- Values have the JSON types that the documented API states: text is no number, and 1 is not true. ``BadInput`` names
  the field of a value of another type.
- ``Accept-NameVersion`` is a range as npm writes them: ``^0.6.0``, ``0.6.x``, ``>=0.5 <1 || 2``, ``1.2 - 1.4``. No
  version
  satisfies a range that cannot be read.
- Refusals by the queue's logic (404, 409) have an empty body; other errors are a JSON object.

A namespace may be empty, begin with a dot, and have 255 characters, which a queue name may not. Most namespaces are
valid queue names and are used unchanged. The others, and those that begin with ``_.``, are mapped to ``_.`` and the
namespace, or to ``_.-`` and its SHA-256 if that is too long. In the second case a note in the store keeps the
namespace."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeGuard, TypeVar

from yirangmq.broker.two_step import note_of
from yirangmq.core.access import AccessGrant
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import RANK_LAST
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.core.validation import NAMESPACE, QUEUE
from yirangmq.format.json_codec import dumps, loads
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.auth import CHALLENGE, UNKNOWN
from yirangmq.protocols.http.responses import PHRASES
from yirangmq.protocols.http.types import BodyStream, Exchange, Headers, Request, Response
from yirangmq.protocols.http.v1.rendering import STATUS_OF, retry_after

# -- content negotiation -----------------------------------------------------------------------------------------------

ARRAY, LINES = "application/json", "application/x-ndjson"
MAX_ACCEPT_CHARS = 2048


@lru_cache(maxsize=256)
def preferred(accept: str) -> str:
    """Return the media type of a listing by the header ``Accept``.

    The larger q wins, then the more specific type, then the first one; the default is an array."""
    best, found = (0.0, -1, 0), ARRAY
    for place, item in enumerate(accept[:MAX_ACCEPT_CHARS].split(",")):
        name, *parameters = (part.strip() for part in item.split(";"))
        name = name.lower()
        form = LINES if name == LINES else ARRAY if name in (ARRAY, "application/*", "*/*") else None
        weight = _weight(parameters)
        key = (weight, 2 if name in (ARRAY, LINES) else 1 if name == "application/*" else 0, -place)
        if form is not None and weight > 0 and key > best:
            best, found = key, form
    return found


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


# -- values ------------------------------------------------------------------------------------------------------------

PROTO = re.compile(rb'"__proto__"\s*:')
"""Member that the original server refuses, to protect JavaScript objects; no client sends it by accident."""


def read_json(body: bytes) -> Any:
    if PROTO.search(body):
        raise BadInput("must have no member __proto__", field="body")
    try:
        return loads(body)
    except BadInput as error:
        raise BadInput(str(error), field="body") from None


def rank_of(document: object) -> int:
    """Return the rank from the body of a draft: ``{"priority": number | null}``, the number a whole one."""
    if not isinstance(document, dict):
        raise BadInput("must be an object", field="body")
    if "priority" not in document:
        raise BadInput("must have the member priority", field="body")
    given = document["priority"]
    if given is None:
        return RANK_LAST
    rank = given if _is_number(given) else -1
    if not 0 <= rank < RANK_LAST or rank != int(rank):
        raise BadInput(f"must be null or a whole number from 0 to {RANK_LAST - 1}", field="priority")
    return int(rank)


def _is_number(given: object) -> TypeGuard[int | float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def number(given: object, field: str) -> float:
    if not _is_number(given):
        raise BadInput("must be a number", field=field)
    return given


def flag(given: object, field: str) -> bool:
    if not isinstance(given, bool):
        raise BadInput("must be true or false", field=field)
    return given


def seconds(given: object, field: str) -> float:
    found = number(given, field)
    if not found > 0:
        raise BadInput("must be a number of seconds greater than 0", field=field)
    return found


def whole(given: object, field: str) -> int:
    found = number(given, field)
    if abs(found) > 2**53 or found != int(found) or found < 0:
        raise BadInput("must be a whole number from 0", field=field)
    return int(found)


# -- version ranges ----------------------------------------------------------------------------------------------------

Version = tuple[int, int, int]
PART = r"(\d{1,15}|[xX*])"
PARTIAL = re.compile(rf"[v=\s]*{PART}(?:\.{PART})?(?:\.{PART})?(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")
COMPARATOR = re.compile(rf"\s*(\^|~>?|>=|<=|>|<|=)?\s*({PARTIAL.pattern})\s*")
HYPHEN = re.compile(rf"\s*({PARTIAL.pattern})\s+-\s+({PARTIAL.pattern})\s*")
MAX_VERSION_CHARS = 256
END: Version = (10**16, 0, 0)


class VersionRange(NamedTuple):
    """Half-open range of versions: ``low`` included, ``high`` excluded."""

    low: Version
    high: Version


@lru_cache(maxsize=256)
def satisfies(version: Version, text: str) -> bool:
    if len(text) > MAX_VERSION_CHARS:
        return False
    plain = " ".join(text.split())
    return any(_all_hold(version, part) for part in plain.split("||"))


def _all_hold(version: Version, text: str) -> bool:
    """Check one alternative of a range: a hyphen range, or comparators that must all hold. An empty one accepts every
    version."""
    ends = HYPHEN.fullmatch(text)
    if ends is not None:
        return _covered(_numbers(ends[1])).low <= version < _covered(_numbers(ends[5])).high
    at, rest = 0, text.rstrip()
    while at < len(rest):
        found = COMPARATOR.match(rest, at)
        if found is None or not _holds(version, found[1] or "", _numbers(found[2])):
            return False
        at = found.end()
    return True


def _holds(version: Version, operator: str, stated: list[int]) -> bool:
    span = _covered(stated)
    match operator:
        case ">":
            return version >= span.high
        case ">=":
            return version >= span.low
        case "<":
            return version < span.low
        case "<=":
            return version < span.high
        case "^":
            return span.low <= version < _caret_end(stated)
        case "~" | "~>":
            return (
                span.low <= version < _next(stated[:2])
            )  # up to the next minor version, or major if no minor is given
        case _:
            return span.low <= version < span.high


def _numbers(text: str) -> list[int]:
    """Return the leading numeric parts of a version, up to the first part that is missing or a wildcard."""
    partial = PARTIAL.fullmatch(text)
    stated: list[int] = []
    for part in partial.groups() if partial is not None else ():
        if part is None or not part.isdecimal():
            break
        stated.append(int(part))
    return stated


def _covered(stated: list[int]) -> VersionRange:
    """Return the range of versions that a full or partial version covers."""
    low = [*stated, 0, 0, 0]
    return VersionRange((low[0], low[1], low[2]), _next(stated))


def _next(stated: list[int]) -> Version:
    """Return the first version after all versions that begin with these numbers."""
    if not stated:
        return END
    bumped = [*stated[:-1], stated[-1] + 1, 0, 0]
    return bumped[0], bumped[1], bumped[2]


def _caret_end(stated: list[int]) -> Version:
    """Return the exclusive end of a caret range: the next change of the first number that is not 0."""
    for place, number in enumerate(stated):
        if number:
            return _next(stated[: place + 1])
    return _next(stated)


# -- answers and errors ------------------------------------------------------------------------------------------------

VERSION = (0, 6, 2)
"""Version of the documented API; clients request it with ``Accept-NameVersion``."""
COMMON: Headers = (("vary", "Origin"),)
TEXT = ("content-type", "text/plain; charset=utf-8")
JSON = ("content-type", "application/json; charset=utf-8")
EMPTY_STATUSES = frozenset({404, 409})

STATE_NAMES: dict[State, str] = {
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
"""Names of the states in the documented API."""


class WrongMedia(BadInput):
    """The media type of the body is not supported by this route (415)."""


class WrongVersion(BadInput):
    """The client requires a different version of the API."""


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
    if status in EMPTY_STATUSES:
        return Response(status, b"", headers)
    after = retry_after(error)
    if after is not None:
        headers = (*headers, ("retry-after", str(max(1, round(after + 0.5)))))
    about = {"statusCode": status, "error": PHRASES.get(status, "Error"), "message": str(error), "code": error.code}
    return Response(status, dumps(about), (*headers, JSON))


def route_not_found(method: str, path: str, allowed: tuple[str, ...]) -> Response:
    """Return the 404 of an unknown route. A known path with an unsupported method is answered in the same way."""
    about = {"message": f"Route {method}:{path} not found", "error": "Not Found", "statusCode": 404}
    return Response(404, dumps(about), (*COMMON, JSON))


def priority(rank: int) -> str:
    return "null" if rank == RANK_LAST else str(rank)


def with_charset(media_type: str) -> str:
    """Add ``charset=utf-8`` to a JSON type without a charset."""
    small = media_type.lower()
    return f"{media_type}; charset=utf-8" if "json" in small and "charset" not in small else media_type


# -- requests ----------------------------------------------------------------------------------------------------------

Answer = TypeVar("Answer")
JSON_BODY = "application/json"
NO_CONTENT = Response(204, None, COMMON)
PLAIN_TEXT: Headers = (*COMMON, TEXT)
READABLE_TYPES = (JSON_BODY, "text/plain", "application/x-www-form-urlencoded")


def media_of(stated: str | None) -> str | None:
    """Return a content type without its parameters, in lower case."""
    return None if stated is None else stated.partition(";")[0].strip().lower()


def read_document(stated: str | None, body: bytes, *kinds: str) -> Any:
    """Parse a body as JSON; raise ``WrongMedia`` unless its content type is one of ``kinds``."""
    media = media_of(stated)
    if media is None and not body:
        raise BadInput("is missing", field="body")
    if media not in kinds:
        raise WrongMedia(f"{media or 'no type'} is not read here; use {kinds[0]}", field="content-type")
    return read_json(body)


class MqCall:
    """Request to the HTTP queue, and its answer.

    ``queue``: the queue of the namespace in the path. ``grant``: the client's grant; None if it may do everything."""

    __slots__ = ("context", "exchange", "grant", "namespace", "queue", "request")

    def __init__(
        self,
        context: ServerContext,
        request: Request,
        exchange: Exchange,
        namespace: str,
        queue: str,
        grant: AccessGrant | None = None,
    ) -> None:
        self.context = context
        self.request = request
        self.exchange = exchange
        self.namespace = namespace
        self.queue = queue
        self.grant = grant

    # -- body ----------------------------------------------------------------------------------------------------------

    @property
    def is_head(self) -> bool:
        return self.request.method == "HEAD"

    @property
    def media(self) -> str | None:
        """Content type of the body without its parameters; None if the header is missing."""
        return media_of(self.request.headers.get("content-type"))

    def document(self, *kinds: str) -> Any:
        """Parse the body as JSON; raise ``WrongMedia`` unless its content type is one of ``kinds``."""
        return read_document(self.request.headers.get("content-type"), self.request.body, *kinds)

    def ignore_document(self) -> None:
        """Validate an unexpected body, then ignore it."""
        if self.request.body and self.media is not None:
            if self.media not in READABLE_TYPES:
                raise WrongMedia(f"{self.media} is not read here", field="content-type")
            if self.media == JSON_BODY:
                read_json(self.request.body)

    # -- operations ----------------------------------------------------------------------------------------------------

    def submit(self, work: Callable[[Transaction], Answer], reply: Callable[[Answer], Response]) -> None:
        """Run ``work`` in the next commit; ``reply`` builds the response when the commit is on disk."""

        def done(value: Any, error: QueueError | None) -> None:
            self.refuse(error) if error is not None else self.exchange.answer(reply(value))

        self.context.committer.submit(work, done)

    def answer_changed(self, value: Any, error: QueueError | None) -> None:
        self.refuse(error) if error is not None else self.exchange.answer(self.no_content())

    def method(self, name: str, given: Mapping[str, Any]) -> None:
        """Call a method of ``admin.registry`` whose result is not shown; the answer is 204."""
        self.context.methods.find(name)(self.context.committer, given, self.answer_changed)

    def refuse(self, error: QueueError) -> None:
        self.exchange.answer(refusal(error))

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, response: Response) -> None:
        self.exchange.answer(response)

    def no_content(self) -> Response:
        return NO_CONTENT

    def text(self, body: bytes | None) -> Response:
        return Response(200, body, PLAIN_TEXT)

    def json(self, document: object) -> Response:
        return Response(200, dumps(document), (*COMMON, JSON))

    def stream(self, media_type: str, stream: BodyStream) -> Response:
        """Return a response with a streamed body; without the body for HEAD."""
        headers = (*COMMON, ("content-type", media_type))
        return Response(200, None, headers) if self.is_head else Response(200, b"", headers, stream)


# -- namespaces and queue names ----------------------------------------------------------------------------------------

RESERVED = "_."
HASHED = "_.-"
MAX_QUEUE_NAME_CHARS = 200


@lru_cache(maxsize=4096)
def queue_of(namespace: str) -> str:
    """Return the queue name of a namespace; raise ``BadInput`` if the namespace is not valid."""
    if not NAMESPACE.fullmatch(namespace):
        raise BadInput("must match ^[a-zA-Z0-9.\\-_]{0,255}$", field="namespace")
    if QUEUE.fullmatch(namespace) and not namespace.startswith(RESERVED):
        return namespace
    if len(namespace) <= MAX_QUEUE_NAME_CHARS - len(RESERVED):
        return RESERVED + namespace  # empty, or begins with "." or "_.": cannot be mistaken for a hash
    return HASHED + sha256(namespace.encode()).hexdigest()


def is_hashed(queue: str) -> bool:
    return queue.startswith(HASHED)


def check_id(id: str) -> str:
    """Return a message id if its form is valid, otherwise raise ``BadInput``. The message need not exist."""
    if not NAMESPACE.fullmatch(id):
        raise BadInput("must match ^[a-zA-Z0-9.\\-_]{0,255}$", field="id")
    return id


def namespace_of(transaction: Transaction, queue: str) -> str | None:
    """Return the namespace of a queue, or None if it has none: another protocol created it with a reserved name."""
    if not queue.startswith(RESERVED):
        return queue
    if is_hashed(queue):
        return transaction.note(note_of(queue))
    behind = queue.removeprefix(RESERVED)
    return behind if queue_of(behind) == queue else None
