"""Native HTTP API: every endpoint in one table, routing with access checks, and its OpenAPI 3.1 document.

The OpenAPI document is generated from the table of endpoints, so it cannot disagree with it. Names in a path are
compared as they were sent; values are decoded and checked when a request is handled. A standby refuses publishing
and consuming before the body is read."""

from collections.abc import Iterable, Sequence
from typing import Any

from yirangmq.core.access import ALLOWED, ANYWHERE, SCOPES
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.observe.events import EventStream
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.router import Params, Router, decoded, fixed_route, is_cacheable
from yirangmq.protocols.http.server import RequestCoalescer
from yirangmq.protocols.http.types import Exchange, HttpRoute, Request, Response
from yirangmq.protocols.http.v1 import consume, messages, publish, queues, rendering, server, topics
from yirangmq.protocols.http.v1.consume import LeaseEndpoint
from yirangmq.protocols.http.v1.endpoint import (
    SMALL_BODY,
    AccessCheck,
    Endpoint,
    EndpointCall,
    Field,
    Schema,
    allow_all,
)
from yirangmq.protocols.http.v1.log import LogRoutes
from yirangmq.protocols.http.v1.pipelines import BatchRoutes, PipelineRoutes
from yirangmq.protocols.http.v1.schemas import COMPONENTS, ref
from yirangmq.protocols.http.v1.sse import QueueEventStreams, TopicEventStreams

# -- OpenAPI document --------------------------------------------------------------------------------------------------

JSON = "application/json"
COMMON_CODES = ("bad_input", "too_large", "packed_body", "not_allowed", "timed_out", "unavailable", "internal_error")
"""Error codes of every endpoint: the request is malformed, the client is not allowed, the server cannot serve it."""
BEFORE_ROUTING = {"414": "the path and the query are too long", "431": "the headers are too large"}
"""Statuses and descriptions of requests that are refused before routing."""
TAGS = {
    "messages": "publish, read and drop messages",
    "consuming": "lease messages and settle them",
    "dead letters": "messages that failed, with the reason",
    "queues": "queues with their counts",
    "policies": "settings of each queue",
    "consumers": "consumers, strategies and deliveries",
    "topics": "records, subscribers, bridges and the log",
    "batches": "batches of pipelines, each written once",
    "pipelines": "Spark pipelines and their progress",
    "alerts": "alerts, rules and sinks",
    "events": "streams of queue events",
    "server": "the server",
}


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Yi-Rang MQ",
            "version": version,
            "summary": "A durable message queue: lease, retry, dead letters.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.about,
        "tags": [endpoint.tag],
        "x-verb": endpoint.verb,
        "x-scopes": [scope for scope in SCOPES if scope in ALLOWED[endpoint.verb]],
        "parameters": [
            *(_parameter(field, "path") for field in endpoint.path_fields()),
            *(_parameter(field, "query") for field in endpoint.query),
            *(_parameter(field, "header") for field in endpoint.headers),
        ],
        "responses": _responses(endpoint),
    }
    body = _body(endpoint)
    return shown if body is None else {**shown, "requestBody": body}


def operation_id(endpoint: Endpoint) -> str:
    """Return the operation id of an endpoint: ``POST /v1/queues/{queue}/messages`` is ``postQueuesMessages``.

    If the path ends with a parameter, ``One`` is appended."""
    if endpoint.name:
        return endpoint.name
    parts = [part for part in endpoint.path.split("/")[2:] if not part.startswith("{")]
    words = "".join(word.capitalize() for part in parts for word in part.replace(".", "-").split("-"))
    return endpoint.method.lower() + words + ("One" if endpoint.path.endswith("}") else "")


def _parameter(field: Field, place: str) -> dict[str, Any]:
    needed = field.needed or place == "path"
    schema = field.schema()
    return {
        "name": field.name,
        "in": place,
        "description": schema.pop("description"),
        "schema": schema,
        **({"required": True} if needed else {}),
    }


def _body(endpoint: Endpoint) -> dict[str, Any] | None:
    if endpoint.content is not None:
        return {
            "description": endpoint.content.about,
            "required": endpoint.content.needed,
            "content": {name: {"schema": schema} for name, schema in endpoint.content.types.items()},
        }
    if not endpoint.body:
        return None
    is_needed = any(field.needed for field in endpoint.body)
    return {"required": is_needed, "content": {JSON: {"schema": object_of(endpoint.body)}}}


def object_of(fields: Sequence[Field]) -> Schema:
    """Return the schema of a body of declared fields; further members are not allowed."""
    needed = [field.name for field in fields if field.needed]
    schema: Schema = {
        "type": "object",
        "properties": {field.name: field.schema() for field in fields},
        "additionalProperties": False,
    }
    return {**schema, "required": needed} if needed else schema


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    first: dict[str, Any] = {endpoint.media: {"schema": endpoint.answer}}
    first |= {name: {"schema": schema} for name, schema in endpoint.more.items() if "/" in name}
    answers: dict[str, Any] = {"200": {"description": "done", "content": first}}
    codes: dict[str, list[str]] = {}
    for code in dict.fromkeys((*COMMON_CODES, *endpoint.refusals)):
        codes.setdefault(str(rendering.STATUS_OF[code]), []).append(code)
    for status, about in BEFORE_ROUTING.items():
        answers[status] = {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}
    codes["401"] = ["not_allowed"]
    for status, names in sorted(codes.items()):
        own = endpoint.more.get(status)
        schema = {"anyOf": [own, ref("Error")]} if own is not None else ref("Error")
        answers[status] = {"description": ", ".join(names), "content": {JSON: {"schema": schema}}}
    if "Results" in endpoint.answer.get("$ref", ""):
        for status in ("404", "409"):
            answers[status] = {
                "description": "some failed: the first error, and a result for each",
                "content": {JSON: {"schema": {"anyOf": [ref("Results"), ref("Error")]}}},
            }
    return answers


# -- routing and access checks -----------------------------------------------------------------------------------------

ACTIVE_ONLY_VERBS = ("publish", "consume")
"""Verbs that a standby refuses before the body is read. Administration is refused later, when it would change
something."""


class EndpointTable:
    """Routing table of the endpoints.

    Names in a path are compared as they were sent; values are decoded and checked when a request is handled. A path
    with an empty value is not found. Loop thread only."""

    def __init__(
        self,
        context: ServerContext,
        endpoints: Iterable[Endpoint],
        guard: AccessCheck = allow_all,
        coalescer: RequestCoalescer | None = None,
    ) -> None:
        self._context = context
        self._guard = guard
        self._coalescer = coalescer
        self._router: Router[tuple[Endpoint, tuple[Field, ...]]] = Router(self._make)
        self.find = self._router.find
        self.endpoints: list[Endpoint] = []
        for endpoint in endpoints:
            self.add(endpoint)

    def add(self, endpoint: Endpoint) -> None:
        self._router.add(endpoint.method, endpoint.path, (endpoint, endpoint.path_fields()))
        self.endpoints.append(endpoint)

    def _make(self, method: str, path: str) -> HttpRoute:
        node, values = self._router.match(path.split("/")[1:])
        if not node.by_method or "" in values:
            lost = NotFound(f"{path[:100]} is not a path of this API; /v1/openapi.json lists them", field="path")
            return fixed_route(rendering.refuse(lost), SMALL_BODY, rendering.refuse)
        found = node.by_method.get("GET" if method == "HEAD" else method)
        if found is None:
            return _not_allowed(method, ", ".join(sorted(node.by_method)))
        endpoint, fields = found
        bound = BoundEndpoint(self._context, endpoint, fields, values, self._guard, self._coalescer)
        return HttpRoute(bound.handle, endpoint.max_body, rendering.refuse, bound.admit, is_cacheable(path, values))


def _not_allowed(method: str, known: str) -> HttpRoute:
    allow = (("allow", known),)
    if method == "OPTIONS":
        return fixed_route(Response(204, None, allow), SMALL_BODY, rendering.refuse)
    error = BadInput(f"{method[:20]} is not for this path; it takes {known}", field="method")
    return fixed_route(rendering.refuse(error, 405, allow), SMALL_BODY, rendering.refuse)


class BoundEndpoint:
    """Endpoint bound to one path, for any number of requests. The checked values of the path are cached."""

    __slots__ = ("_coalescer", "_context", "_endpoint", "_fields", "_guard", "_is_active_only", "_path", "_values")

    def __init__(
        self,
        context: ServerContext,
        endpoint: Endpoint,
        fields: tuple[Field, ...],
        values: Params,
        guard: AccessCheck,
        coalescer: RequestCoalescer | None,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._fields = fields
        self._values = values
        self._guard = guard
        self._coalescer = None if endpoint.is_coalesced else coalescer
        self._is_active_only = endpoint.verb in ACTIVE_ONLY_VERBS
        self._path: dict[str, str] | None = None

    def admit(self, request: Request) -> None:
        """Check access and the role of the server, before the body is read."""
        if self._guard is not allow_all:
            path = self._path or self._check_path()
            place = path.get("queue", path.get("topic")) if not self._endpoint.is_filtered else ANYWHERE
            self._guard(request, self._endpoint.verb, place)
        if self._is_active_only and request.method not in ("GET", "HEAD"):
            guard = self._context.committer.guard
            if not guard.is_on:
                raise guard.refusal()

    def handle(self, request: Request, exchange: Exchange) -> None:
        if self._coalescer is not None:
            self._coalescer.order_after(request)
        path = self._path or self._check_path()
        self._endpoint.handler(EndpointCall(self._context, self._endpoint, path, request, exchange, self._guard))

    def _check_path(self) -> dict[str, str]:
        """Return the checked values of the path by name, and cache them."""
        pairs = zip(self._fields, self._values, strict=True)
        self._path = {one.name: one.kind.check(decoded(value), one.name) for one, value in pairs}
        return self._path


# -- the API -----------------------------------------------------------------------------------------------------------

PREFIX = "/v1/"
MAX_BODY = 16 * 1024 * 1024
"""Default upper bound of the body of a request with messages, in bytes."""


class NativeApi:
    """Native HTTP API of one server: all endpoints with their state. Loop thread only.

    ``find`` returns the route of a path that starts with ``PREFIX``. ``feed`` is the server's event stream; without
    it the API creates one. ``coalescer`` is the request coalescer of the HTTP listener, if other APIs share it."""

    def __init__(
        self,
        context: ServerContext,
        feed: EventStream | None = None,
        *,
        max_body: int = MAX_BODY,
        guard: AccessCheck = allow_all,
        coalescer: RequestCoalescer | None = None,
    ) -> None:
        coalescer = coalescer or RequestCoalescer(context.committer)
        self._version = context.identity.server.rpartition(" ")[2]
        self._lease_endpoint = LeaseEndpoint(coalescer)
        self._events = QueueEventStreams(feed or context.feed or _own_feed(context), f"{context.clock.now_ms():x}")
        self._topic_events = TopicEventStreams()
        self._log = LogRoutes()
        self.table = EndpointTable(context, (), guard, coalescer)
        self.find = self.table.find
        for endpoint in (
            *publish.PublishEndpoint(context.committer.operations, coalescer).endpoints(max_body),
            *self._lease_endpoint.endpoints,
            consume.AckEndpoint(context.committer.operations, coalescer).endpoint,
            *consume.ENDPOINTS,
            *messages.ENDPOINTS,
            *messages.RECORD_ENDPOINTS,
            *messages.DEAD_LETTER_ENDPOINTS,
            *queues.ENDPOINTS,
            *queues.DISPATCH_ENDPOINTS,
            *queues.endpoints(max_body),
            *server.ENDPOINTS,
            *server.ALERT_ENDPOINTS,
            *server.PAIR_ENDPOINTS,
            *topics.endpoints(max_body),
            *server.BRIDGE_ENDPOINTS,
            *self._topic_events.endpoints,
            *self._log.endpoints,
            *BatchRoutes(None if context.batches is None else context.batches()).endpoints(max_body),
            *PipelineRoutes().endpoints,
            *self._events.endpoints,
            Endpoint(
                "GET", "/v1/openapi.json", "Get this document", self._describe, "server", "greet", {"type": "object"}
            ),
        ):
            self.table.add(endpoint)

    @property
    def waiting(self) -> int:
        """Number of leases that wait for a message."""
        return self._lease_endpoint.waiting

    @property
    def open_streams(self) -> int:
        """Number of open event streams."""
        return self._events.open_streams + self._topic_events.open_streams

    def stop(self) -> None:
        """Answer long polls with no messages and end all streams: the server stops."""
        self._lease_endpoint.stop()
        self._events.stop()
        self._topic_events.stop()
        self._log.stop()

    def redirect(self) -> None:
        """Answer long polls with no messages and end the streams of topics: another node is active now."""
        self._lease_endpoint.stop()
        self._topic_events.stop()

    def _describe(self, call: EndpointCall) -> None:
        call.reply(self.document())

    def document(self) -> dict[str, object]:
        return document(self.table.endpoints, self._version)


def _own_feed(context: ServerContext) -> EventStream:
    feed = EventStream(context.clock)
    context.committer.operations.event_buffer.add_listener(feed.on_events)
    return feed
