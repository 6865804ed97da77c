"""The API put together: its routes, in one table, and what each needs of whoever asks.

Knows: paths, verbs. Does not know: how anything is done."""

from collections.abc import Callable
from dataclasses import dataclass

from yirangmq.broker.two_step import Drafts, Orders
from yirangmq.core.access import ADMIN, ANYWHERE, CONSUME, LIST, LOOK, OPERATE, PUBLISH
from yirangmq.core.errors import QueueError
from yirangmq.doors.house import House
from yirangmq.doors.http.exchange import Exchange, Request, Response
from yirangmq.doors.http.guard import Guard
from yirangmq.doors.http.mq.admin import SETTINGS, Admin
from yirangmq.doors.http.mq.answers import COMMON, TEXT, check_version, nowhere, refusal
from yirangmq.doors.http.mq.call import Call
from yirangmq.doors.http.mq.messages import Messages
from yirangmq.doors.http.mq.ordering import Ordering
from yirangmq.doors.http.mq.queues import Queues
from yirangmq.doors.http.mq.spaces import check_id, queue_of
from yirangmq.doors.http.router import Api, Params
from yirangmq.doors.http.together import Together

PREFIXES = ("/mq", "/admin")
LONGEST_PARAM = 600
"""Characters of a value in the path; a longer one leads nowhere."""

Whole = Callable[[Call], None]
Single = Callable[[Call, str], None]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a server says of this API."""

    payload_limit: int = 1_048_576
    set_limit: int = 1_048_576
    admin_password: str = ""


class MqApi:
    """``find`` is what a router asks for every path under one of ``PREFIXES``. ``together``: the door's, where it has
    other APIs too."""

    def __init__(self, house: House, guard: Guard, terms: Terms, together: Together | None = None) -> None:
        self._house = house
        self._guard = guard
        self._limit = terms.payload_limit
        self.routes: list[tuple[str, str, str | None]] = []
        """Every route: its method, its template, its verb in the table of ``core.access``; None: a password."""
        self._api = Api(refusal, nowhere, options=_preflight)
        self.find = self._api.find
        self._together = together or Together(house.desk)
        orders = Orders(house.desk.verbs, house.clock)
        self._add_messages(orders, terms.set_limit)
        self._add_queues(orders)
        self._add_admin(Admin(terms.admin_password, guard.tried))

    # -- the table ------------------------------------------------------------------------------------------------

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
        """Their password is all they ask for."""
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
        """``is_single``: it is about one message and goes together with others; whatever else comes in turn."""

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
        """What all routes have in common."""
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
    """A preflight never comes here: ``doors.http.origins`` answers or refuses it."""
    exchange.answer(Response(400, b"Invalid Preflight Request", (*COMMON, TEXT)))
