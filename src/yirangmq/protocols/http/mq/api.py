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
from yirangmq.broker.two_step import Drafts, Orders
from yirangmq.core.access import ADMIN, ANYWHERE, CONSUME, LIST, LOOK, OPERATE, PUBLISH
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Counts
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Transaction
from yirangmq.format.json_codec import dumps
from yirangmq.observe.logs import log
from yirangmq.protocols.context import House
from yirangmq.protocols.http.auth import Guard
from yirangmq.protocols.http.mq import request
from yirangmq.protocols.http.mq.messages import Messages, Ordering
from yirangmq.protocols.http.mq.request import (
    ARRAY,
    COMMON,
    JSON,
    LINES,
    READ,
    TEXT,
    Call,
    check_id,
    check_version,
    is_hashed,
    namespace_of,
    nowhere,
    preferred,
    queue_of,
    refusal,
)
from yirangmq.protocols.http.router import Api, Params
from yirangmq.protocols.http.server import Together
from yirangmq.protocols.http.types import Exchange, Outlet, Request, Response

# -- listings ----------------------------------------------------------------------------------------------------------

QUEUES_PER_PAGE = 200
Page = Callable[[Transaction, str], tuple[Sequence[str], str]]
"""(transaction, cursor) → texts, and the cursor of the next page. The first cursor is ""; a returned "" means that this
was the last page."""


class Listing:
    """Stream of a listing (``protocols.http.types.Stream``): a JSON array, or lines without a final newline.

    A page is read when the client has read the previous one."""

    def __init__(self, house: House, form: str, page: Page) -> None:
        self._house = house
        self._page = page
        self._begin, self._between, self._end = (b"", b"\n", b"") if form == LINES else (b"[", b",", b"]")
        self._cursor = ""
        self._is_over = False

    def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._next()

    def drained(self) -> None:
        self._next()

    def gone(self) -> None:
        self._is_over = True

    def _next(self) -> None:
        texts, self._cursor = self._house.desk.read(lambda transaction: self._page(transaction, self._cursor))
        piece = self._between.join([dumps(text) for text in texts])
        if piece:
            piece, self._begin = self._begin + piece, self._between
        if self._cursor:
            if self._outlet.write(piece):
                self._house.desk.later(0, self._go_on)
            return
        self._is_over = True
        if self._begin is not self._between:  # the listing is empty
            piece = self._begin
        self._outlet.write(piece + self._end)
        self._outlet.end()

    def _go_on(self) -> None:
        if self._is_over:
            return
        try:
            self._next()
        except Exception:
            log.exception("http_list_failed")
            self._outlet.fail()


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
    "unique": ("unique", request.a_flag),
    "drafting-timeout": ("draftSec", request.seconds),
    "ordered-timeout": ("claimSec", request.seconds),
    "active-timeout": ("activeSec", request.seconds),
    "concurrency": ("concurrency", request.whole),
}
"""Settings by their name in the path: the member of the policy, and the reader of its value."""


class Admin:
    """Administrator routes: the configuration of queues, protected by a password."""

    def __init__(self, password: str, tried: Callable[[Request, bool], None]) -> None:
        """``tried``: called after each check of a password, with the request and whether the password is right."""
        self._password = password.encode()
        self._tried = tried

    def guarded(self, route: Callable[[Call], None]) -> Callable[[Call], None]:
        def entry(call: Call) -> None:
            refusal = self._refusal(call)
            if refusal is None:
                route(call)
            else:
                body = dumps({"error": f"{refusal} authorization header"})
                call.answer(Response(401, body, (*COMMON, ("www-authenticate", "Bearer"), JSON)))

        return entry

    def _refusal(self, call: Call) -> str | None:
        said = call.request.headers.get("authorization")
        if said is None:
            return "missing"
        scheme, _, shown = said.partition(" ")
        is_it = compare_digest(shown.strip().encode("latin-1"), self._password)  # the bytes as sent
        is_right = bool(is_it and self._password and scheme.lower() == "bearer")
        self._tried(call.request, is_right)
        return None if is_right else "invalid"

    # -- routes ---------------------------------------------------------------------------------------------------

    def configured(self, call: Call) -> None:
        """List the queues for which at least one setting is configured."""
        listing = Listing(call.house, ARRAY, queues_page(_is_configured))
        call.answer(call.stream(ARRAY, listing))

    def config(self, call: Call) -> None:
        call.submit(lambda transaction: transaction.policy(call.queue), lambda policy: call.json(_config(policy)))

    def put(self, setting: str) -> Callable[[Call], None]:
        member, read = SETTINGS[setting]

        def route(call: Call) -> None:
            given = call.document(*READ)
            if given is None:
                raise BadInput("must not be null", field=setting)
            self._configure(call, member, read(given, setting))

        return route

    def delete(self, setting: str) -> Callable[[Call], None]:
        member, _ = SETTINGS[setting]

        def route(call: Call) -> None:
            call.no_document()
            self._configure(call, member, None)

        return route

    def _configure(self, call: Call, member: str, value: object) -> None:
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


class Queues:
    """Queue routes: counts, listings of namespaces and failed messages, and operations on a whole queue."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def stats(self, call: Call) -> None:
        call.submit(
            lambda transaction: self._orders.stats(transaction, call.queue),
            lambda counts: call.json(_stats(call.namespace, counts)),
        )

    def namespaces(self, call: Call) -> None:
        """List the queues with a count above 0: a queue that has never had a message does not exist yet."""
        grant = call.grant

        def is_wanted(transaction: Transaction, queue: str) -> bool:
            return (grant is None or grant.allows(LIST, queue)) and any(transaction.counts(queue))

        self._list(call, queues_page(is_wanted))

    def failed(self, call: Call) -> None:
        self._list(call, lambda transaction, cursor: failed_page(transaction, call.queue, cursor, PER_PAGE))

    def _list(self, call: Call, page: Page) -> None:
        form = preferred(call.request.headers.get("accept", ""))
        call.answer(call.stream(form, Listing(call.house, form, page)))

    def renew_failed(self, call: Call) -> None:
        call.no_document()
        call.method("failed_renew", {"queue": call.queue})

    def abandon_failed(self, call: Call) -> None:
        call.no_document()
        call.method("failed_abandon", {"queue": call.queue})

    def clear(self, call: Call) -> None:
        call.no_document()
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
LONGEST_PARAM = 600
"""Maximum number of characters of a value in the path; a longer one is answered like an unknown route."""

Whole = Callable[[Call], None]
Single = Callable[[Call, str], None]


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of this API, in bytes: the payload limit, and the limit for setting the content of a draft."""

    payload_limit: int = 1_048_576
    set_limit: int = 1_048_576
    admin_password: str = ""


class MqApi:
    """API of the HTTP queue: its routes; ``find`` serves every path under one of ``PREFIXES``."""

    def __init__(self, house: House, guard: Guard, terms: Terms, together: Together | None = None) -> None:
        """``together``: the request coalescer of the HTTP server if other APIs use it too."""
        self._house = house
        self._guard = guard
        self._limit = terms.payload_limit
        self.routes: list[tuple[str, str, str | None]] = []
        """Every route: its method, its template, and its verb in the table of ``core.access``; None: the password."""
        self._api = Api(refusal, nowhere, options=_preflight)
        self.find = self._api.find
        self._together = together or Together(house.desk)
        orders = Orders(house.desk.verbs, house.clock)
        self._add_messages(orders, terms.set_limit)
        self._add_queues(orders)
        self._add_admin(Admin(terms.admin_password, guard.tried))

    # -- route table ---------------------------------------------------------------------------------------------------

    def _add_messages(self, orders: Orders, set_limit: int) -> None:
        drafts = Drafts(self._house.desk.verbs, self._house.clock)
        messages, ordering = Messages(drafts, orders, self._together), Ordering(self._house, orders)
        every, one = "/mq/{namespace}/messages", "/mq/{namespace}/messages/{id}"
        self._whole("POST", every, PUBLISH, messages.draft, is_single=True)
        self._whole("GET", every, CONSUME, ordering.order)
        self._single("PUT", one, PUBLISH, messages.set, set_limit)
        self._single("GET", one, CONSUME, messages.get)
        self._single("DELETE", one, CONSUME, messages.settle(orders.abandon))
        self._single("PATCH", f"{one}/complete", CONSUME, messages.settle(orders.complete))
        self._single("PATCH", f"{one}/fail", CONSUME, messages.settle(orders.fail))
        self._single("PATCH", f"{one}/renew", CONSUME, messages.settle(orders.renew))

    def _add_queues(self, orders: Orders) -> None:
        queues, failed = Queues(orders), "/mq/{namespace}/failed-messages"
        self._server("/mq", LIST, queues.namespaces)
        self._whole("DELETE", "/mq/{namespace}", ADMIN, queues.clear)
        self._whole("GET", "/mq/{namespace}/stats", LIST, queues.stats)
        self._whole("GET", failed, LOOK, queues.failed)
        self._whole("DELETE", failed, ADMIN, queues.abandon_failed)
        self._whole("PATCH", f"{failed}/renew", OPERATE, queues.renew_failed)

    def _add_admin(self, admin: Admin) -> None:
        """Add the administrator routes. They need no grant, only the password."""
        config = "/admin/mq/{namespace}/config"
        self._server("/admin/mq-with-config", None, admin.guarded(admin.configured))
        self._whole("GET", config, None, admin.guarded(admin.config))
        for setting in SETTINGS:
            self._whole("PUT", f"{config}/{setting}", None, admin.guarded(admin.put(setting)))
            self._whole("DELETE", f"{config}/{setting}", None, admin.guarded(admin.delete(setting)))

    # -- one route ------------------------------------------------------------------------------------------------

    def _server(self, template: str, verb: str | None, route: Whole) -> None:
        def handle(request: Request, exchange: Exchange, params: Params) -> None:
            self._enter(request, exchange, None, verb, route)

        self.routes.append(("GET", template, verb))
        self._api.add("GET", template, handle, max_body=self._limit)

    def _whole(self, method: str, template: str, verb: str | None, route: Whole, *, is_single: bool = False) -> None:
        """Add a route about a queue.

        ``is_single``: the route is about one message and is coalesced. Other routes are ordered after the earlier
        requests of their connection."""

        def in_turn(call: Call) -> None:
            self._together.after(call.request)
            route(call)

        entry = route if is_single else in_turn

        def handle(request: Request, exchange: Exchange, params: Params) -> None:
            self._enter(request, exchange, params[0], verb, entry)

        self.routes.append((method, template, verb))
        self._api.add(method, template, handle, max_body=self._limit)

    def _single(self, method: str, template: str, verb: str, route: Single, limit: int | None = None) -> None:
        def handle(request: Request, exchange: Exchange, params: Params) -> None:
            namespace, id = params
            self._enter(request, exchange, namespace, verb, lambda call: route(call, id), id)

        self.routes.append((method, template, verb))
        self._api.add(method, template, handle, max_body=self._limit if limit is None else limit)

    def _enter(
        self,
        request: Request,
        exchange: Exchange,
        namespace: str | None,
        verb: str | None,
        route: Whole,
        id: str = "",
    ) -> None:
        """Check version, names and access of a request, then call its route."""
        try:
            if len(id) > LONGEST_PARAM or len(namespace or "") > LONGEST_PARAM:
                exchange.answer(nowhere(request.method, request.path, ()))
                return
            check_version(request)
            queue = None if namespace is None else queue_of(namespace)
            check_id(id)
            grant = None
            if verb is not None:
                grant = self._guard.check(request, verb, ANYWHERE if queue is None else queue)
            route(Call(self._house, request, exchange, namespace or "", queue or "", grant))
        except QueueError as error:
            exchange.answer(refusal(error))


def _preflight(request: Request, exchange: Exchange, params: Params) -> None:
    """Answer OPTIONS requests that are no preflights; ``protocols.http.auth`` answers or refuses preflights."""
    exchange.answer(Response(400, b"Invalid Preflight Request", (*COMMON, TEXT)))
