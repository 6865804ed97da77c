"""Endpoints for consumers: lease with or without long poll, ack, nack, extend and release.

Leases and acks that arrive together are coalesced into one operation if no client can observe it. A long poll leases no
messages after its client has disconnected. Messages leased for a client that has disconnected are released, and the
attempt does not count.

A call settles many leases. Each lease is settled if possible and has its own result; the status of the answer is that
of the first error."""

from collections.abc import Callable, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

from yirangmq.broker import operations, settle
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.credit_window import PendingLeaseRequest
from yirangmq.broker.settle import MAX_PER_CALL, Leases, Results
from yirangmq.broker.waiting_consumers import MAX_BYTES_PER_WAITER
from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, QueueError, StoreError
from yirangmq.core.message import Reason, check_reason
from yirangmq.core.ports import Transaction
from yirangmq.format import cloudevents
from yirangmq.format.delivery import MessageDelivery
from yirangmq.format.json_codec import dumps
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.server import RequestCoalescer
from yirangmq.protocols.http.v1 import rendering
from yirangmq.protocols.http.v1.endpoint import (
    BATCH_TYPE,
    BOOLEAN,
    CONSUMER_ID,
    LEASE_ID,
    REASON,
    Endpoint,
    EndpointCall,
    EndpointHandler,
    Field,
    many,
    seconds,
    text,
    wants_cloudevents,
    whole,
)
from yirangmq.protocols.http.v1.schemas import TEXT, items, ref, struct
from yirangmq.protocols.native.consumers import MAX_CONSUMER_NAMES

# -- lease -------------------------------------------------------------------------------------------------------------

DEFAULT_CONSUMER = "http"
"""Default consumer name of a lease."""


LeaseResult = tuple[dict[str, Any], Sequence[MessageDelivery]]


class LeaseItem(NamedTuple):
    """Lease request without long poll: an item of a coalesced batch."""

    context: TransactionContext
    values: dict[str, Any]
    consumer: str
    span: int | None

    def lease(self, transaction: Transaction, queue: str) -> LeaseResult | QueueError:
        try:
            found = operations.lease(
                self.context, transaction, queue, self.values["max"], self.span, self.consumer, MAX_BYTES_PER_WAITER
            )
            return self.values, found
        except StoreError:
            raise
        except QueueError as error:
            return error


class LeaseEndpoint:
    """Lease endpoint, with request coalescing, and the set of open long polls. Loop thread only.

    A stopping server answers the open long polls with no messages."""

    def __init__(self, coalescer: RequestCoalescer) -> None:
        self._long_polls: set[LongPoll] = set()
        self._coalescer = coalescer
        self._work = self._lease_all

    def stop(self) -> None:
        for one in list(self._long_polls):
            one.time_out()

    @property
    def waiting(self) -> int:
        return len(self._long_polls)

    def lease(self, call: EndpointCall) -> None:
        values = call.values()
        consumer = _consumer(call.context, values)
        length = values.get("leaseSec")
        span = None if length is None else validation.check_milliseconds(length, "leaseSec", least=0.001)
        if values["waitSec"]:
            self._coalescer.order_after(call.request)
            LongPoll(call, values, consumer, span, self._long_polls).start()
        else:
            item = LeaseItem(call.context.committer.context, values, consumer, span)
            self._coalescer.call(call, call.queue, item, self._work, _answer_item)

    def _lease_all(
        self, transaction: Transaction, queue: str, calls: Sequence[LeaseItem]
    ) -> list[LeaseResult | QueueError]:
        """Run the leases of a batch.

        If each request wants one message and all have the same consumer and lease length, a single lease operation
        serves them, in the order of arrival."""
        first = calls[0]
        alike = [one.values["max"] == 1 and one.consumer == first.consumer and one.span == first.span for one in calls]
        if len(calls) > 1 and all(alike):
            found = operations.lease(first.context, transaction, queue, len(calls), first.span, first.consumer)
            return [(one.values, found[n : n + 1]) for n, one in enumerate(calls)]
        return [one.lease(transaction, queue) for one in calls]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/queues/{queue}/lease", "Lease messages", self.lease, "consuming",
                     "consume", ANSWER, body=BODY, more={BATCH_TYPE: items({"type": "object"})}, is_coalesced=True),
        )  # fmt: skip


class LongPoll:
    """Long poll: a lease that waits for messages. A client that disconnects while it waits leases none."""

    def __init__(
        self, call: EndpointCall, values: dict[str, Any], consumer: str, span: int | None, long_polls: set["LongPoll"]
    ) -> None:
        self._ask = call
        self._values = values
        self._long_polls = long_polls
        self._waiter = PendingLeaseRequest(values["queue"], consumer, span, values["max"], self._deliver)

    def start(self) -> None:
        committer = self._ask.context.committer
        committer.add_waiter(self._waiter)
        self._long_polls.add(self)
        self._waiter.alarm = committer.later(self._values["waitSec"], self.time_out)
        self._ask.exchange.on_disconnect(self._on_disconnect)

    def _on_disconnect(self) -> None:
        self._stop_waiting()

    def _stop_waiting(self) -> bool:
        """Stop waiting. Return True if the request was still waiting."""
        if self not in self._long_polls:
            return False
        self._long_polls.discard(self)
        self._waiter.alarm.cancel()
        self._ask.context.committer.remove_waiter(self._waiter)
        return True

    def time_out(self) -> None:
        if self._stop_waiting():
            answer_leases(self._ask, self._values, [])

    def _deliver(self, deliveries: Sequence[MessageDelivery]) -> bool:
        if not self._stop_waiting() or self._ask.exchange.is_disconnected:
            return False
        answer_leases(self._ask, self._values, deliveries)
        return True


def _answer_item(call: EndpointCall, result: LeaseResult) -> None:
    answer_leases(call, *result)


def answer_leases(call: EndpointCall, values: dict[str, Any], deliveries: Sequence[MessageDelivery]) -> None:
    """Answer with the leased messages. If the client has disconnected, release them; the attempt does not count."""
    if call.exchange.is_disconnected:
        release_leases(call.context, deliveries)
    elif wants_cloudevents(call.request):
        events = b",".join([cloudevents.as_json(one.envelope, lease_of(one)) for one in deliveries])
        call.respond(b"[%s]" % events, (("content-type", BATCH_TYPE),))
    else:
        messages = b",".join(map(rendering.delivery, deliveries, repeat(call.context.clock.ahead_ms())))
        policy = b""
        if values["policy"] and deliveries:
            policy = b',"policy":%s' % dumps(deliveries[0].policy)
        call.respond(b'{"queue":%s,"messages":[%s]%s}' % (dumps(values["queue"]), messages, policy))


def release_leases(context: ServerContext, deliveries: Sequence[MessageDelivery]) -> None:
    if deliveries:
        leases = Leases([one.lease_id for one in deliveries])
        context.committer.submit(
            lambda transaction: settle.release(context.committer.context, transaction, leases, None), _ignore
        )


def lease_of(one: MessageDelivery) -> dict[str, Any]:
    """Return the lease as extension attributes of a CloudEvent."""
    return {"mqleaseid": one.lease_id, "mqattempt": one.attempt}


def _consumer(context: ServerContext, values: dict[str, Any]) -> str:
    consumer: str = values["consumer"]
    if len(context.consumers) < MAX_CONSUMER_NAMES:
        context.consumers.add(consumer)
    return consumer


def _ignore(value: Any, error: QueueError | None) -> None:
    """Ignore the outcome of a release. If the store refused it, the leases expire."""


BODY = (
    Field("max", whole(1, MAX_PER_CALL), "maximum number of messages; fewer if they are large", 1),
    Field("waitSec", seconds(), "seconds to wait for the first message", 0),
    Field("leaseSec", seconds(0.001), "length of the lease in seconds; default: the queue's visibility timeout"),
    Field("consumer", CONSUMER_ID, "name of the consumer", DEFAULT_CONSUMER),
    Field("policy", BOOLEAN, "include the queue's policy in the answer", False),
)
ANSWER = struct(("policy",), queue=TEXT, messages=items(ref("Delivery")), policy=ref("Policy"))


# -- ack, nack, extend and release -------------------------------------------------------------------------------------

SettleOperation = Callable[[TransactionContext, Transaction, Leases, dict[str, Any]], Results]


def answer_results(call: EndpointCall, name: str, given: Sequence[str], results: Sequence[QueueError | None]) -> None:
    """Answer with a result for each item. If any item failed, the status of the answer is that of the first error.

    So a client that checks only the status also detects the failure."""
    failed = [error for error in results if error is not None]
    if not failed:
        done = b",".join([b'{"%s":%s,"ok":true}' % (name.encode(), dumps(one)) for one in given])
        call.respond(b'{"failed":0,"results":[%s]}' % done)
        return
    outcomes = [
        {name: one, "ok": True} if error is None else {name: one, "ok": False, "error": rendering.document(error)}
        for one, error in zip(given, results, strict=True)
    ]
    document = {"error": rendering.document(failed[0]), "failed": len(failed), "results": outcomes}
    call.reply(document, rendering.STATUS_OF[failed[0].code])


def _settle_handler(operation: SettleOperation) -> EndpointHandler:
    def handler(call: EndpointCall) -> None:
        values = call.values()
        leases = Leases(values["leases"], values["queue"])
        context = call.context.committer.context
        call.submit(
            lambda transaction: operation(context, transaction, leases, values),
            lambda results: answer_results(call, "leaseId", values["leases"], results),
        )

    return handler


class AckItem(NamedTuple):
    """Ack request: an item of a coalesced batch."""

    leases: Leases
    consumer: str | None


class AckEndpoint:
    """Ack endpoint with request coalescing: acks of one loop iteration run in one operation.

    Every call gets the same answer as if it had run separately. Loop thread only."""

    def __init__(self, context: TransactionContext, coalescer: RequestCoalescer) -> None:
        self._context = context
        self._coalescer = coalescer
        self._work = self._ack_all

    def ack(self, call: EndpointCall) -> None:
        values = call.values()
        leases = Leases(values["leases"], values["queue"])
        self._coalescer.call(call, call.queue, AckItem(leases, values.get("consumer")), self._work, _acked)

    def _ack_all(
        self, transaction: Transaction, queue: str, acks: Sequence[AckItem]
    ) -> Sequence[tuple[Leases, Results] | QueueError]:
        if len(acks) > 1 and len({ack.consumer for ack in acks}) == 1:
            try:
                leases = Leases([lease for ack in acks for lease in ack.leases.texts], queue)
            except BadInput:
                pass  # a lease occurs in two calls, or there are too many leases for one operation
            else:
                results = iter(settle.ack(self._context, transaction, leases, acks[0].consumer))
                return [(ack.leases, list(islice(results, len(ack.leases.texts)))) for ack in acks]
        return [(ack.leases, settle.ack(self._context, transaction, ack.leases, ack.consumer)) for ack in acks]

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            "POST", f"{ONE}/ack", "Ack: the messages were processed", self.ack, "consuming", "consume", ref("Results"),
            body=(LEASES, CONSUMER), refusals=REFUSALS, is_coalesced=True,
        )  # fmt: skip


def _acked(call: EndpointCall, found: tuple[Leases, Results]) -> None:
    leases, results = found
    answer_results(call, "leaseId", leases.texts, results)


def _release(context: TransactionContext, transaction: Transaction, leases: Leases, values: dict[str, Any]) -> Results:
    return settle.release(context, transaction, leases, values.get("consumer"))


def _nack(context: TransactionContext, transaction: Transaction, leases: Leases, values: dict[str, Any]) -> Results:
    delay = values.get("delaySec")
    cause = transitions.Cause(
        check_reason(values["reason"]),
        validation.check_text(values["text"]),
        None if delay is None else validation.check_milliseconds(delay, "delaySec"),
    )
    return settle.nack(context, transaction, leases, values.get("consumer"), cause)


def _extend(context: TransactionContext, transaction: Transaction, leases: Leases, values: dict[str, Any]) -> Results:
    length = values.get("leaseSec")
    span = None if length is None else validation.check_milliseconds(length, "leaseSec", least=0.001)
    return settle.extend(context, transaction, leases, values.get("consumer"), span)


LEASES = Field("leases", many(LEASE_ID), "lease ids, from the answer of the lease", needed=True)
CONSUMER = Field("consumer", CONSUMER_ID, "name of the consumer; a lease of another consumer is refused")
NACK = (
    LEASES,
    CONSUMER,
    Field("reason", REASON, "reason", Reason.HANDLER_ERROR.value),
    Field("text", text(), "text of the reason", ""),
    Field("delaySec", seconds(), "seconds until the next attempt, instead of the policy's backoff"),
)
EXTEND = (
    LEASES,
    CONSUMER,
    Field("leaseSec", seconds(0.001), "seconds from now; default: the queue's visibility timeout"),
)
ONE = "/v1/queues/{queue}"
REFUSALS = ("not_found", "lease_expired", "lease_mismatch")


def _endpoint(verb: str, about: str, settle: SettleOperation, body: Sequence[Field]) -> Endpoint:
    return Endpoint(
        "POST", f"{ONE}/{verb}", about, _settle_handler(settle), "consuming", "consume", ref("Results"), body=body,
        refusals=REFUSALS,
    )  # fmt: skip


ENDPOINTS = (
    _endpoint("nack", "Nack: processing failed; the policy decides between a retry and the dead letters", _nack, NACK),
    _endpoint("extend", "Extend leases", _extend, EXTEND),
    _endpoint(
        "release",
        "Release leases: the messages are ready again at once, and the attempt does not count",
        _release,
        (LEASES, CONSUMER),
    ),
)
