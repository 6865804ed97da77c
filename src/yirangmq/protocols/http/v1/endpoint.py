"""Endpoint declarations, one request to an endpoint, and the declared fields that check its values.

A value is checked by its declaration, and the OpenAPI document is generated from the same declaration. Each kind of
value defines its form in JSON, in a query and in a schema.

A request is answered once: with a reply, or with the error that was raised. Its work joins the next commit, and its
reply is sent when that is on disk. ``Accept`` decides whether messages are returned as CloudEvents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.core import validation
from yirangmq.core.access import ANYWHERE, LOOK, AccessGrant
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Reason
from yirangmq.core.ports import Transaction
from yirangmq.core.states import STORED_STATES
from yirangmq.core.validation import Fields, kind
from yirangmq.format.json_codec import dumps, loads
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.types import Exchange, Headers, Request, Response
from yirangmq.protocols.http.v1 import rendering

# -- CloudEvents media types -------------------------------------------------------------------------------------------

EVENT_TYPE = "application/cloudevents+json"
BATCH_TYPE = "application/cloudevents-batch+json"


def wants_cloudevents(request: Request) -> bool:
    """Return True if ``Accept`` names CloudEvents explicitly. ``*/*`` selects the native form."""
    return "application/cloudevents" in request.headers.get("accept", "")


# -- fields ------------------------------------------------------------------------------------------------------------

Schema = dict[str, Any]
MAX_TEXT_CHARS = 10_000


class ValueType(NamedTuple):
    """Type of a value: schema, check, and parser of its text form.

    ``check`` returns the value, or raises ``BadInput`` with the field. ``parse`` converts the text of a query to the
    equivalent JSON value."""

    schema: Schema
    check: Callable[[object, str], Any]
    parse: Callable[[str, str], object]


class Field(NamedTuple):
    """Declared parameter of an endpoint. ``key`` is its name in the operation, if that differs from ``name``."""

    name: str
    kind: ValueType
    about: str
    default: Any = None
    key: str = ""
    needed: bool = False

    def schema(self) -> Schema:
        shown: Schema = {**self.kind.schema, "description": self.about}
        return shown if self.default is None else {**shown, "default": self.default}


def read(fields: Sequence[Field], given: object) -> dict[str, Any]:
    """Return the checked values of a JSON object by their keys. A missing value without a default is left out."""
    reader = Fields(given)
    values: dict[str, Any] = {}
    missing = object()
    for wanted in fields:
        value = reader.take(wanted.name, missing)
        if value is not missing:
            values[wanted.key or wanted.name] = wanted.kind.check(value, wanted.name)
        elif wanted.needed:
            raise BadInput("is needed", field=wanted.name)
        elif wanted.default is not None:
            values[wanted.key or wanted.name] = wanted.default
    reader.done()
    return values


def parsed(fields: Sequence[Field], texts: Mapping[str, str]) -> dict[str, object]:
    """Convert the texts of a query to JSON values. Unknown names are kept, so that ``read`` refuses them."""
    kinds = {field.name: field.kind for field in fields}
    return {name: kinds[name].parse(text, name) if name in kinds else text for name, text in texts.items()}


# -- kinds ----------------------------------------------------------------------------------------------------------


def _as_text(text: str, field: str) -> object:
    return text


def _as_number(text: str, field: str) -> object:
    for read_number in (int, float):
        if text.isascii() and "_" not in text and text == text.strip():
            try:
                return read_number(text)
            except ValueError:
                continue
    raise BadInput(f"must be a number, not {text[:60]!r}", field=field)


def _as_flag(text: str, field: str) -> object:
    if text not in ("true", "false"):
        raise BadInput(f"must be true or false, not {text[:60]!r}", field=field)
    return text == "true"


def text(most: int = MAX_TEXT_CHARS, least: int = 0) -> ValueType:
    def check(value: object, field: str) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most:
            raise BadInput(f"must be a text of {least} to {most} characters", field=field)
        return value

    return ValueType({"type": "string", "minLength": least, "maxLength": most}, check, _as_text)


def whole(least: int, most: int) -> ValueType:
    def check(value: object, field: str) -> int:
        if isinstance(value, float) and value.is_integer():  # 1.0 is a whole number in JSON
            value = int(value)
        return validation.check_count(value, field, least=least, most=most)

    return ValueType({"type": "integer", "minimum": least, "maximum": most}, check, _as_number)


def seconds(least: float = 0) -> ValueType:
    def check(value: object, field: str) -> float:
        validation.check_milliseconds(value, field, least=least)
        assert isinstance(value, int | float)
        return value

    return ValueType({"type": "number", "minimum": least, "maximum": validation.MAX_SECONDS}, check, _as_number)


def choice(*allowed: str) -> ValueType:
    def check(value: object, field: str) -> str:
        if value not in allowed:
            raise BadInput(f"must be one of {', '.join(allowed)}, not {str(value)[:60]!r}", field=field)
        return str(value)

    return ValueType({"type": "string", "enum": list(allowed)}, check, _as_text)


def _check_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"must be true or false, not {kind(value)}", field=field)
    return value


BOOLEAN = ValueType({"type": "boolean"}, _check_flag, _as_flag)


def many(inner: ValueType, least: int = 1, most: int = MAX_PER_CALL) -> ValueType:
    def check(value: object, field: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise BadInput(f"must be an array of {least} to {most}, not {_how_many(value)}", field=field)
        return [inner.check(one, f"{field}[{number}]") for number, one in enumerate(value)]

    return ValueType({"type": "array", "items": inner.schema, "minItems": least, "maxItems": most}, check, _as_text)


def _how_many(value: object) -> str:
    return f"one of {len(value)}" if isinstance(value, list) else kind(value)


def _named(pattern: str, check: Callable[[object, str], str]) -> ValueType:
    return ValueType({"type": "string", "pattern": f"^{pattern}$"}, check, _as_text)


QUEUE_NAME = _named(validation.QUEUE.pattern, validation.check_queue)
MESSAGE_ID = _named(validation.IDENTIFIER.pattern, validation.check_id)
CONSUMER_ID = _named(validation.CONSUMER.pattern, validation.check_consumer)
LEASE_ID = text(40, 3)
REASON = choice(*(reason.value for reason in Reason))

# -- fields that several endpoints take -----------------------------------------------------------------------------

QUEUE = Field("queue", QUEUE_NAME, "name of the queue", needed=True)
ID = Field("id", MESSAGE_ID, "id of the message", needed=True)
CONSUMER = Field("id", CONSUMER_ID, "name of the consumer", needed=True)
TOPIC = Field("topic", QUEUE_NAME, "name of the topic", needed=True)
SUBSCRIBER = Field("name", CONSUMER_ID, "name of the durable subscriber", needed=True)
BRIDGE = Field("name", CONSUMER_ID, "name of the bridge", needed=True)
STATE = Field("state", choice(*(state.value for state in STORED_STATES)), "state of the messages", "ready")
FILTER = Field("filter", text(), "filter; empty: all messages", "")
LIMIT = Field("limit", whole(1, MAX_PER_CALL), "maximum number; a page of large messages may have fewer", 100)
CURSOR = Field("cursor", text(), "cursor of the previous page; empty: the first page", "")


# -- endpoints and requests --------------------------------------------------------------------------------------------

Answer = TypeVar("Answer")
SMALL_BODY = 1024 * 1024
"""Upper bound of the body of a request without messages, in bytes."""
MAX_QUERY_CHARS = 16_384
DEFAULT_FIELDS = {one.name: one for one in (QUEUE, TOPIC, SUBSCRIBER, ID)}
"""Default fields of paths by name; ``Endpoint.path_kinds`` overrides them."""
MAX_VISIBILITY_ENTRIES = 1000
"""Capacity of the visibility cache of a filtered request, in names. An event stream checks the same names
repeatedly."""


class EndpointCall:
    """Request to one endpoint. It is answered once: by ``reply``, by ``respond``, or with the raised error.

    Loop thread only."""

    __slots__ = ("_guard", "context", "endpoint", "exchange", "path", "request")

    path: Mapping[str, str]
    """Checked values of the path, by name."""

    def __init__(
        self,
        context: ServerContext,
        endpoint: "Endpoint",
        path: Mapping[str, str],
        request: Request,
        exchange: Exchange,
        guard: "AccessCheck | None" = None,
    ) -> None:
        self.context = context
        self.endpoint = endpoint
        self.path = path
        self.request = request
        self.exchange = exchange
        self._guard = guard

    def may_see(self) -> Callable[[str], bool]:
        """Return the predicate of the queues or topics that this client may see, for filtered endpoints."""
        grant = self._grant()
        if grant is None:
            return lambda name: True
        verb = self.endpoint.verb
        return lru_cache(MAX_VISIBILITY_ENTRIES)(lambda name: bool(name) and grant.allows(verb, name))

    def may_see_all(self) -> bool:
        """Return True if this client has the scope ``look`` on the whole server."""
        grant = self._grant()
        return grant is None or grant.allows(LOOK, None)

    def listing(self) -> dict[str, Any]:
        """Return ``values`` for a list of queues, with a filter of the queues that this client may see."""
        return self.values() if self.may_see_all() else {**self.values(), "sees": self.may_see()}

    def _grant(self) -> AccessGrant | None:
        return None if self._guard is None else self._guard(self.request, self.endpoint.verb, ANYWHERE)

    @property
    def queue(self) -> str:
        return self.path["queue"]

    # -- values --------------------------------------------------------------------------------------------------------

    def query(self) -> dict[str, Any]:
        return read(self.endpoint.query, parsed(self.endpoint.query, _texts(self.request.query)))

    def document(self) -> object:
        """Return the body as JSON. An empty body is an empty object, unless the endpoint needs a body."""
        if not self.request.body:
            if self.endpoint.content is not None:
                raise BadInput("is needed", field="body")
            return {}
        try:
            return loads(self.request.body)
        except BadInput as error:
            raise BadInput(str(error), field="body") from None

    def values(self) -> dict[str, Any]:
        """Return the checked values of path, query and body by their keys."""
        values: dict[str, Any] = {**self.path, **self.query()}
        if self.endpoint.body:
            values |= read(self.endpoint.body, self.document())
        return values

    # -- operations ----------------------------------------------------------------------------------------------------

    def submit(self, work: Callable[[Transaction], Answer], reply: Callable[[Answer], None]) -> None:
        """Run ``work`` in the next commit; call ``reply`` with its value when that is on disk."""
        self.context.committer.submit(work, self.done_callback(reply))

    def call(self, method: str, given: Mapping[str, Any], reply: Callable[[Any], None]) -> None:
        """Call a named method of ``admin.registry``; ``reply`` gets its value."""
        self.context.methods.find(method)(self.context.committer, given, self.done_callback(reply))

    def done_callback(self, reply: Callable[[Answer], None]) -> Callable[[Answer, QueueError | None], None]:
        """Return a ``done`` callback that calls ``reply`` with the value, or answers with the error."""

        def done_callback(value: Answer, error: QueueError | None) -> None:
            if error is not None:
                self.exchange.answer(rendering.refuse(error))
                return
            try:
                reply(value)
            except QueueError as problem:
                self.exchange.answer(rendering.refuse(problem))
            except Exception as problem:
                self.exchange.answer(rendering.refuse(QueueError(f"{type(problem).__name__}: {problem}")))
                raise

        return done_callback

    # -- answers -------------------------------------------------------------------------------------------------------

    def refuse(self, error: QueueError) -> None:
        self.exchange.answer(rendering.refuse(error))

    def reply(self, document: object, status: int = 200) -> None:
        self.exchange.answer(Response(status, dumps(document), rendering.JSON))

    def respond(self, body: bytes, headers: Headers = rendering.JSON, status: int = 200) -> None:
        """Answer with an encoded body."""
        self.exchange.answer(Response(status, body, headers))


def _texts(query: str) -> dict[str, str]:
    """Parse a query string. A name may occur only once."""
    if not query:
        return {}
    try:
        if len(query) > MAX_QUERY_CHARS:
            raise ValueError(f"longer than {MAX_QUERY_CHARS} characters")
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=50)
    except ValueError as error:
        raise BadInput(f"cannot be read: {error}", field="query") from None
    texts = dict(pairs)
    if len(texts) != len(pairs):
        raise BadInput("the same name twice", field="query")
    return texts


EndpointHandler = Callable[[EndpointCall], None]
AccessCheck = Callable[[Request, str, str | None], AccessGrant | None]
"""(request, verb, queue or topic or None) → the client's grant, or None if it may do everything. Raises
``NotAllowed``."""


def allow_all(request: Request, verb: str, queue: str | None) -> None:
    """Allow every request."""


@dataclass(frozen=True, slots=True)
class BodyContent:
    """Request body that is not a plain object of declared fields: its schema by content type.

    ``needed``: the body must not be empty."""

    types: Mapping[str, Schema]
    about: str
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Endpoint declaration. The OpenAPI document is generated from these declarations only.

    ``verb`` is the verb of ``core.access`` that the client needs, in the queue or topic of the path, or on the whole
    server. If ``is_filtered``, the verb in any queue suffices, and the answer has only the queues that the client may
    see. ``refusals`` are codes of ``core.errors`` in its answers, beside those of every endpoint."""

    method: str
    path: str
    about: str
    handler: EndpointHandler
    tag: str
    verb: str
    answer: Schema
    path_kinds: Sequence[Field] = ()
    """Fields of the path that differ from the default of their name (``DEFAULT_FIELDS``)."""
    query: Sequence[Field] = ()
    body: Sequence[Field] = ()
    content: BodyContent | None = None
    headers: Sequence[Field] = ()
    refusals: Sequence[str] = ()
    max_body: int = SMALL_BODY
    media: str = "application/json"
    """Content type of the answer."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further answers in the document, by status (``{"503": …}``), and further content types of the 200 answer."""
    name: str = ""
    """Operation id in the document, if the id derived from the path belongs to another endpoint."""
    is_filtered: bool = False
    is_coalesced: bool = False
    """Requests are coalesced (``Together``)."""

    def path_fields(self) -> tuple[Field, ...]:
        """Return the fields of the path, in order."""
        known = DEFAULT_FIELDS | {one.name: one for one in self.path_kinds}
        return tuple(known[part[1:-1]] for part in self.path.split("/") if part.startswith("{"))
