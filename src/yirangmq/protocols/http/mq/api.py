"""API of the HTTP queue: its route table, queue routes, administrator routes, and paged listings.

A listing of any length is read one page at a time, as fast as the client reads it. Between pages the loop serves other
requests. It is a JSON array, or one line for each item.

Administrator routes need only the password. A setting is a member of the queue's policy (``docs/policy.md``) under
another name; null means the server's default."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from yirangmq.broker.bulk import failed_page
from yirangmq.broker.policies import readable
from yirangmq.broker.two_step import ClaimOperations, Drafts
from yirangmq.core.access import ADMIN, ANYWHERE, CONSUME, LIST, LOOK, OPERATE, PUBLISH
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Counts
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Transaction
from yirangmq.format.json_codec import dumps
from yirangmq.observe.logs import log
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.auth import HttpAccess
from yirangmq.protocols.http.mq import request
from yirangmq.protocols.http.mq.messages import MessageRoutes, OrderRoutes
from yirangmq.protocols.http.mq.request import (
    ARRAY,
    COMMON,
    JSON,
    LINES,
    READABLE_TYPES,
    TEXT,
    MqCall,
    check_id,
    check_version,
    is_hashed,
    namespace_of,
    preferred,
    queue_of,
    refusal,
    route_not_found,
)
from yirangmq.protocols.http.router import HandlerRoutes, Params
from yirangmq.protocols.http.server import RequestCoalescer
from yirangmq.protocols.http.types import BodyWriter, Exchange, Request, Response

# -- listings ----------------------------------------------------------------------------------------------------------

QUEUES_PER_PAGE = 200
Page = Callable[[Transaction, str], tuple[Sequence[str], str]]
"""(transaction, cursor) → texts, and the cursor of the next page. The first cursor is ""; a returned "" means that this
was the last page."""


class PagedListing:
    """Stream of a listing (``protocols.http.types.Stream``): a JSON array, or lines without a final newline.

    A page is read when the client has read the previous one."""

    def __init__(self, context: ServerContext, form: str, page: Page) -> None:
        self._context = context
        self._page = page
        self._begin, self._between, self._end = (b"", b"\n", b"") if form == LINES else (b"[", b",", b"]")
        self._cursor = ""
        self._is_ended = False

    def start(self, writer: BodyWriter) -> None:
        self._writer = writer
        self._write_page()

    def drained(self) -> None:
        self._write_page()

    def disconnected(self) -> None:
        self._is_ended = True

    def _write_page(self) -> None:
        texts, self._cursor = self._context.committer.read(lambda transaction: self._page(transaction, self._cursor))
        piece = self._between.join([dumps(text) for text in texts])
        if piece:
            piece, self._begin = self._begin + piece, self._between
        if self._cursor:
            if self._writer.write(piece):
                self._context.committer.later(0, self._write_next)
            return
        self._is_ended = True
        if self._begin is not self._between:  # the listing is empty
            piece = self._begin
        self._writer.write(piece + self._end)
        self._writer.end()

    def _write_next(self) -> None:
        if self._is_ended:
            return
        try:
            self._write_page()
        except Exception:
            log.exception("http_list_failed")
            self._writer.fail()


def queues_page(is_wanted: Callable[[Transaction, str], bool]) -> Page:
    """Return a page function for the namespaces of the queues that match, in the order of the queue names."""

    def page(transaction: Transaction, cursor: str) -> tuple[Sequence[str], str]:
        queues = transaction.queues(cursor, QUEUES_PER_PAGE)
        wanted = [queue for queue in queues if is_wanted(transaction, queue)]
        known = [namespace_of(transaction, queue) for queue in wanted]
        return [name for name in known if name is not None], queues[-1] if len(queues) == QUEUES_PER_PAGE else ""

    return page


# -- administrator routes ----------------------------------------------------------------------------------------------

Read = Callable[[object, str], Any]
SETTINGS: Mapping[str, tuple[str, Read]] = {
    "unique": ("unique", request.flag),
    "drafting-timeout": ("draftSec", request.seconds),
    "ordered-timeout": ("claimSec", request.seconds),
    "active-timeout": ("activeSec", request.seconds),
    "concurrency": ("concurrency", request.whole),
}
"""Settings by their name in the path: the member of the policy, and the reader of its value."""


class AdminRoutes:
    """Administrator routes: the configuration of queues, protected by a password."""

    def __init__(self, password: str, record_attempt: Callable[[Request, bool], None]) -> None:
        """``record_attempt``: called after each check of a password, with the request and whether the password is
        right."""
        self._password = password.encode()
        self._record_attempt = record_attempt

    def guarded(self, route: Callable[[MqCall], None]) -> Callable[[MqCall], None]:
        def entry(call: MqCall) -> None:
            refusal = self._refusal(call)
            if refusal is None:
                route(call)
            else:
                body = dumps({"error": f"{refusal} authorization header"})
                call.answer(Response(401, body, (*COMMON, ("www-authenticate", "Bearer"), JSON)))

        return entry

    def _refusal(self, call: MqCall) -> str | None:
        authorization = call.request.headers.get("authorization")
        if authorization is None:
            return "missing"
        scheme, _, shown = authorization.partition(" ")
        is_it = compare_digest(shown.strip().encode("latin-1"), self._password)  # the bytes as sent
        is_right = bool(is_it and self._password and scheme.lower() == "bearer")
        self._record_attempt(call.request, is_right)
        return None if is_right else "invalid"

    # -- routes ---------------------------------------------------------------------------------------------------

    def configured(self, call: MqCall) -> None:
        """List the queues for which at least one setting is configured."""
        listing = PagedListing(call.context, ARRAY, queues_page(_is_configured))
        call.answer(call.stream(ARRAY, listing))

    def config(self, call: MqCall) -> None:
        call.submit(lambda transaction: transaction.policy(call.queue), lambda policy: call.json(_config(policy)))

    def put(self, setting: str) -> Callable[[MqCall], None]:
        member, read = SETTINGS[setting]

        def route(call: MqCall) -> None:
            given = call.document(*READABLE_TYPES)
            if given is None:
                raise BadInput("must not be null", field=setting)
            self._configure(call, member, read(given, setting))

        return route

    def delete(self, setting: str) -> Callable[[MqCall], None]:
        member, _ = SETTINGS[setting]

        def route(call: MqCall) -> None:
            call.ignore_document()
            self._configure(call, member, None)

        return route

    def _configure(self, call: MqCall, member: str, value: object) -> None:
        namespace = call.namespace if is_hashed(call.queue) else ""
        call.method("queue_configure", {"queue": call.queue, "namespace": namespace, "member": member, "value": value})


def _is_configured(transaction: Transaction, queue: str) -> bool:
    policy = readable(transaction, queue)
    return policy is not None and any(value is not None for value in _config(policy).values())


def _config(policy: QueuePolicy) -> dict[str, object]:
    return {
        "unique": policy.unique,
        "draftingTimeout": _seconds(policy.draft_ms),
        "orderedTimeout": _seconds(policy.claim_ms),
        "activeTimeout": _seconds(policy.active_ms),
        "concurrency": policy.concurrency,
    }


def _seconds(milliseconds: int | None) -> float | None:
    if milliseconds is None:
        return None
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


# -- queue routes ------------------------------------------------------------------------------------------------------

PER_PAGE = 500


class QueueRoutes:
    """Queue routes: counts, listings of namespaces and failed messages, and operations on a whole queue."""

    def __init__(self, orders: ClaimOperations) -> None:
        self._orders = orders

    def stats(self, call: MqCall) -> None:
        call.submit(
            lambda transaction: self._orders.stats(transaction, call.queue),
            lambda counts: call.json(_stats(call.namespace, counts)),
        )

    def namespaces(self, call: MqCall) -> None:
        """List the queues with a count above 0: a queue that has never had a message does not exist yet."""
        grant = call.grant

        def is_wanted(transaction: Transaction, queue: str) -> bool:
            return (grant is None or grant.allows(LIST, queue)) and any(transaction.counts(queue))

        self._list(call, queues_page(is_wanted))

    def failed(self, call: MqCall) -> None:
        self._list(call, lambda transaction, cursor: failed_page(transaction, call.queue, cursor, PER_PAGE))

    def _list(self, call: MqCall, page: Page) -> None:
        form = preferred(call.request.headers.get("accept", ""))
        call.answer(call.stream(form, PagedListing(call.context, form, page)))

    def renew_failed(self, call: MqCall) -> None:
        call.ignore_document()
        call.method("failed_renew", {"queue": call.queue})

    def abandon_failed(self, call: MqCall) -> None:
        call.ignore_document()
        call.method("failed_abandon", {"queue": call.queue})

    def clear(self, call: MqCall) -> None:
        call.ignore_document()
        call.method("queue_clear", {"queue": call.queue})


def _stats(namespace: str, counts: Counts) -> dict[str, object]:
    return {
        "namespace": namespace,
        "drafting": counts.draft,
        "waiting": counts.ready + counts.delayed + counts.held,
        "ordered": counts.claimed,
        "active": counts.leased,
        "completed": counts.acked,
        "failed": counts.dead + counts.parked,
    }


# -- route table -------------------------------------------------------------------------------------------------------

PREFIXES = ("/mq", "/admin")
MAX_PARAM_CHARS = 600
"""Maximum number of characters of a value in the path; a longer one is answered like an unknown route."""

QueueHandler = Callable[[MqCall], None]
MessageHandler = Callable[[MqCall, str], None]


@dataclass(frozen=True, slots=True)
class MqSettings:
    """Settings of this API, in bytes: the payload limit, and the limit for setting the content of a draft."""

    payload_limit: int = 1_048_576
    set_limit: int = 1_048_576
    admin_password: str = ""


class MqApi:
    """API of the HTTP queue: its routes; ``find`` serves every path under one of ``PREFIXES``."""

    def __init__(
        self, context: ServerContext, guard: HttpAccess, settings: MqSettings, coalescer: RequestCoalescer | None = None
    ) -> None:
        """``coalescer``: the request coalescer of the HTTP server if other APIs use it too."""
        self._context = context
        self._guard = guard
        self._limit = settings.payload_limit
        self.routes: list[tuple[str, str, str | None]] = []
        """Every route: its method, its template, and its verb in the table of ``core.access``; None: the password."""
        self._api = HandlerRoutes(refusal, route_not_found, options=_preflight)
        self.find = self._api.find
        self._coalescer = coalescer or RequestCoalescer(context.committer)
        orders = ClaimOperations(context.committer.context)
        self._add_messages(orders, settings.set_limit)
        self._add_queues(orders)
        self._add_admin(AdminRoutes(settings.admin_password, guard.record_attempt))

    # -- route table ---------------------------------------------------------------------------------------------------

    def _add_messages(self, orders: ClaimOperations, set_limit: int) -> None:
        drafts = Drafts(self._context.committer.context)
        messages, ordering = MessageRoutes(drafts, orders, self._coalescer), OrderRoutes(self._context, orders)
        every, one = "/mq/{namespace}/messages", "/mq/{namespace}/messages/{id}"
        self._add_queue_route("POST", every, PUBLISH, messages.draft, is_single=True)
        self._add_queue_route("GET", every, CONSUME, ordering.order)
        self._add_message_route("PUT", one, PUBLISH, messages.set, set_limit)
        self._add_message_route("GET", one, CONSUME, messages.get)
        self._add_message_route("DELETE", one, CONSUME, messages.settle(orders.abandon))
        self._add_message_route("PATCH", f"{one}/complete", CONSUME, messages.settle(orders.complete))
        self._add_message_route("PATCH", f"{one}/fail", CONSUME, messages.settle(orders.fail))
        self._add_message_route("PATCH", f"{one}/renew", CONSUME, messages.settle(orders.renew))

    def _add_queues(self, orders: ClaimOperations) -> None:
        queues, failed = QueueRoutes(orders), "/mq/{namespace}/failed-messages"
        self._add_server_route("/mq", LIST, queues.namespaces)
        self._add_queue_route("DELETE", "/mq/{namespace}", ADMIN, queues.clear)
        self._add_queue_route("GET", "/mq/{namespace}/stats", LIST, queues.stats)
        self._add_queue_route("GET", failed, LOOK, queues.failed)
        self._add_queue_route("DELETE", failed, ADMIN, queues.abandon_failed)
        self._add_queue_route("PATCH", f"{failed}/renew", OPERATE, queues.renew_failed)

    def _add_admin(self, admin: AdminRoutes) -> None:
        """Add the administrator routes. They need no grant, only the password."""
        config = "/admin/mq/{namespace}/config"
        self._add_server_route("/admin/mq-with-config", None, admin.guarded(admin.configured))
        self._add_queue_route("GET", config, None, admin.guarded(admin.config))
        for setting in SETTINGS:
            self._add_queue_route("PUT", f"{config}/{setting}", None, admin.guarded(admin.put(setting)))
            self._add_queue_route("DELETE", f"{config}/{setting}", None, admin.guarded(admin.delete(setting)))

    # -- one route ------------------------------------------------------------------------------------------------

    def _add_server_route(self, template: str, verb: str | None, route: QueueHandler) -> None:
        def handle(request: Request, exchange: Exchange, params: Params) -> None:
            self._check_and_route(request, exchange, None, verb, route)

        self.routes.append(("GET", template, verb))
        self._api.add("GET", template, handle, max_body=self._limit)

    def _add_queue_route(
        self, method: str, template: str, verb: str | None, route: QueueHandler, *, is_single: bool = False
    ) -> None:
        """Add a route about a queue.

        ``is_single``: the route is about one message and is coalesced. Other routes are ordered after the earlier
        requests of their connection."""

        def ordered(call: MqCall) -> None:
            self._coalescer.order_after(call.request)
            route(call)

        entry = route if is_single else ordered

        def handle(request: Request, exchange: Exchange, params: Params) -> None:
            self._check_and_route(request, exchange, params[0], verb, entry)

        self.routes.append((method, template, verb))
        self._api.add(method, template, handle, max_body=self._limit)

    def _add_message_route(
        self, method: str, template: str, verb: str, route: MessageHandler, limit: int | None = None
    ) -> None:
        def handle(request: Request, exchange: Exchange, params: Params) -> None:
            namespace, id = params
            self._check_and_route(request, exchange, namespace, verb, lambda call: route(call, id), id)

        self.routes.append((method, template, verb))
        self._api.add(method, template, handle, max_body=self._limit if limit is None else limit)

    def _check_and_route(
        self,
        request: Request,
        exchange: Exchange,
        namespace: str | None,
        verb: str | None,
        route: QueueHandler,
        id: str = "",
    ) -> None:
        """Check version, names and access of a request, then call its route."""
        try:
            if len(id) > MAX_PARAM_CHARS or len(namespace or "") > MAX_PARAM_CHARS:
                exchange.answer(route_not_found(request.method, request.path, ()))
                return
            check_version(request)
            queue = None if namespace is None else queue_of(namespace)
            check_id(id)
            grant = None
            if verb is not None:
                grant = self._guard.check(request, verb, ANYWHERE if queue is None else queue)
            route(MqCall(self._context, request, exchange, namespace or "", queue or "", grant))
        except QueueError as error:
            exchange.answer(refusal(error))


def _preflight(request: Request, exchange: Exchange, params: Params) -> None:
    """Answer OPTIONS requests that are no preflights; ``protocols.http.auth`` answers or refuses preflights."""
    exchange.answer(Response(400, b"Invalid Preflight Request", (*COMMON, TEXT)))
