"""Endpoints for consumers: lease with or without long poll, ack, nack, extend and release.

Leases and acks that arrive together are coalesced into one operation if no client can observe it. A long poll leases no
messages after its client has disconnected. Messages leased for a client that has disconnected are released, and the
attempt does not count.

A call settles many leases. Each lease is settled if possible and has its own result; the status of the answer is that
of the first error."""

from collections.abc import Callable, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

from yirangmq.broker.credit_window import Waiting
from yirangmq.broker.operations import Verbs
from yirangmq.broker.settle import MOST_PER_CALL, Leases, Results
from yirangmq.broker.waiting_consumers import BYTES_PER_TAKER
from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, QueueError, StoreError
from yirangmq.core.message import Reason, check_reason
from yirangmq.core.ports import Transaction
from yirangmq.format import cloudevents
from yirangmq.format.delivery import Delivery
from yirangmq.format.json_codec import dumps
from yirangmq.protocols.context import House
from yirangmq.protocols.http.server import Together
from yirangmq.protocols.http.v1 import rendering
from yirangmq.protocols.http.v1.endpoint import (
    BATCH_TYPE,
    BOOLEAN,
    CONSUMER_ID,
    LEASE_ID,
    REASON,
    Act,
    Ask,
    Endpoint,
    Field,
    many,
    seconds,
    text,
    wants_events,
    whole,
)
from yirangmq.protocols.http.v1.schemas import TEXT, items, ref, thing
from yirangmq.protocols.native.consumers import MOST_NAMES

# -- lease -------------------------------------------------------------------------------------------------------------

ANYBODY = "http"
"""Default consumer name of a lease."""


Taken = tuple[dict[str, Any], Sequence[Delivery]]


class Taking(NamedTuple):
    """Lease request without long poll: an item of a coalesced batch."""

    verbs: Verbs
    values: dict[str, Any]
    who: str
    span: int | None

    def take(self, transaction: Transaction, queue: str) -> Taken | QueueError:
        try:
            found = self.verbs.lease(transaction, queue, self.values["max"], self.span, self.who, BYTES_PER_TAKER)
            return self.values, found
        except StoreError:
            raise
        except QueueError as error:
            return error


class Leasing:
    """Lease endpoint, with request coalescing, and the set of open long polls. Loop thread only.

    A stopping server answers the open long polls with no messages."""

    def __init__(self, together: Together) -> None:
        self._waiting: set[LongPoll] = set()
        self._together = together
        self._work = self._take_all

    def stop(self) -> None:
        for one in list(self._waiting):
            one.give_up()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def lease(self, ask: Ask) -> None:
        values = ask.values()
        who = _consumer(ask.house, values)
        length = values.get("leaseSec")
        span = None if length is None else validation.check_milliseconds(length, "leaseSec", least=0.001)
        if values["waitSec"]:
            self._together.after(ask.request)
            LongPoll(ask, values, who, span, self._waiting).begin()
        else:
            self._together.ask(ask, Taking(ask.house.desk.verbs, values, who, span), self._work, _hand_over)

    def _take_all(self, transaction: Transaction, queue: str, calls: Sequence[Taking]) -> list[Taken | QueueError]:
        """Run the leases of a batch.

        If each request wants one message and all have the same consumer and lease length, a single lease operation
        serves them, in the order of arrival."""
        first = calls[0]
        alike = [one.values["max"] == 1 and one.who == first.who and one.span == first.span for one in calls]
        if len(calls) > 1 and all(alike):
            found = first.verbs.lease(transaction, queue, len(calls), first.span, first.who)
            return [(one.values, found[n : n + 1]) for n, one in enumerate(calls)]
        return [one.take(transaction, queue) for one in calls]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/queues/{queue}/lease", "Take messages for a while", self.lease, "consuming",
                     "consume", ANSWER, body=BODY, more={BATCH_TYPE: items({"type": "object"})}, joins=True),
        )  # fmt: skip


class LongPoll:
    """Long poll: a lease that waits for messages. A client that disconnects while it waits leases none."""

    def __init__(self, ask: Ask, values: dict[str, Any], who: str, span: int | None, among: set["LongPoll"]) -> None:
        self._ask = ask
        self._values = values
        self._among = among
        self._taker = Waiting(values["queue"], who, span, values["max"], self._take)

    def begin(self) -> None:
        desk = self._ask.house.desk
        desk.wait(self._taker)
        self._among.add(self)
        self._taker.alarm = desk.later(self._values["waitSec"], self.give_up)
        self._ask.exchange.when_gone(self._leave)

    def _leave(self) -> None:
        self._end()

    def _end(self) -> bool:
        """Stop waiting. Return True if the request was still waiting."""
        if self not in self._among:
            return False
        self._among.discard(self)
        self._taker.alarm.cancel()
        self._ask.house.desk.leave(self._taker)
        return True

    def give_up(self) -> None:
        if self._end():
            hand_over(self._ask, self._values, [])

    def _take(self, deliveries: Sequence[Delivery]) -> bool:
        if not self._end() or self._ask.exchange.is_gone:
            return False
        hand_over(self._ask, self._values, deliveries)
        return True


def _hand_over(ask: Ask, taken: Taken) -> None:
    hand_over(ask, *taken)


def hand_over(ask: Ask, values: dict[str, Any], deliveries: Sequence[Delivery]) -> None:
    """Answer with the leased messages. If the client has disconnected, release them; the attempt does not count."""
    if ask.exchange.is_gone:
        put_back(ask.house, deliveries)
    elif wants_events(ask.request):
        events = b",".join([cloudevents.as_json(one.envelope, lease_of(one)) for one in deliveries])
        ask.respond(b"[%s]" % events, (("content-type", BATCH_TYPE),))
    else:
        messages = b",".join(map(rendering.delivery, deliveries, repeat(ask.house.clock.ahead_ms())))
        policy = b""
        if values["policy"] and deliveries:
            policy = b',"policy":%s' % dumps(deliveries[0].policy)
        ask.respond(b'{"queue":%s,"messages":[%s]%s}' % (dumps(values["queue"]), messages, policy))


def put_back(house: House, deliveries: Sequence[Delivery]) -> None:
    if deliveries:
        leases = Leases([one.lease_id for one in deliveries])
        house.desk.submit(lambda transaction: house.desk.verbs.release(transaction, leases, None), _ignore)


def lease_of(one: Delivery) -> dict[str, Any]:
    """Return the lease as extension attributes of a CloudEvent."""
    return {"mqleaseid": one.lease_id, "mqattempt": one.attempt}


def _consumer(house: House, values: dict[str, Any]) -> str:
    who: str = values["consumer"]
    if len(house.consumers) < MOST_NAMES:
        house.consumers.add(who)
    return who


def _ignore(value: Any, error: QueueError | None) -> None:
    """Ignore the outcome of a release. If the store refused it, the leases expire."""


BODY = (
    Field("max", whole(1, MOST_PER_CALL), "at most so many; large messages may come in smaller numbers", 1),
    Field("waitSec", seconds(), "wait so long for the first one", 0),
    Field("leaseSec", seconds(0.001), "for how long; the queue's visibility time-out if not said"),
    Field("consumer", CONSUMER_ID, "who takes them", ANYBODY),
    Field("policy", BOOLEAN, "tell the queue's policy too", False),
)
ANSWER = thing(("policy",), queue=TEXT, messages=items(ref("Delivery")), policy=ref("Policy"))


# -- ack, nack, extend and release -------------------------------------------------------------------------------------

Settle = Callable[[Verbs, Transaction, Leases, dict[str, Any]], Results]


def answer_results(ask: Ask, name: str, given: Sequence[str], results: Sequence[QueueError | None]) -> None:
    """Answer with a result for each item. If any item failed, the status of the answer is that of the first error.

    So a client that checks only the status also detects the failure."""
    failed = [error for error in results if error is not None]
    if not failed:
        done = b",".join([b'{"%s":%s,"ok":true}' % (name.encode(), dumps(one)) for one in given])
        ask.respond(b'{"failed":0,"results":[%s]}' % done)
        return
    told = [
        {name: one, "ok": True} if error is None else {name: one, "ok": False, "error": rendering.document(error)}
        for one, error in zip(given, results, strict=True)
    ]
    document = {"error": rendering.document(failed[0]), "failed": len(failed), "results": told}
    ask.reply(document, rendering.STATUS_OF[failed[0].code])


def _settling(settle: Settle) -> Act:
    def act(ask: Ask) -> None:
        values = ask.values()
        leases = Leases(values["leases"], values["queue"])
        verbs = ask.house.desk.verbs
        ask.submit(
            lambda transaction: settle(verbs, transaction, leases, values),
            lambda results: answer_results(ask, "leaseId", values["leases"], results),
        )

    return act


class Ack(NamedTuple):
    """Ack request: an item of a coalesced batch."""

    leases: Leases
    consumer: str | None


class Acking:
    """Ack endpoint with request coalescing: acks of one loop iteration run in one operation.

    Every call gets the same answer as if it had run separately. Loop thread only."""

    def __init__(self, verbs: Verbs, together: Together) -> None:
        self._verbs = verbs
        self._together = together
        self._work = self._ack_all

    def ack(self, ask: Ask) -> None:
        values = ask.values()
        leases = Leases(values["leases"], values["queue"])
        self._together.ask(ask, Ack(leases, values.get("consumer")), self._work, _acked)

    def _ack_all(
        self, transaction: Transaction, queue: str, acks: Sequence[Ack]
    ) -> Sequence[tuple[Leases, Results] | QueueError]:
        if len(acks) > 1 and len({ack.consumer for ack in acks}) == 1:
            try:
                leases = Leases([lease for ack in acks for lease in ack.leases.texts], queue)
            except BadInput:
                pass  # a lease occurs in two calls, or there are too many leases for one operation
            else:
                results = iter(self._verbs.ack(transaction, leases, acks[0].consumer))
                return [(ack.leases, list(islice(results, len(ack.leases.texts)))) for ack in acks]
        return [(ack.leases, self._verbs.ack(transaction, ack.leases, ack.consumer)) for ack in acks]

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            "POST", f"{ONE}/ack", "It worked", self.ack, "consuming", "consume", ref("Results"),
            body=(LEASES, CONSUMER), refusals=REFUSALS, joins=True,
        )  # fmt: skip


def _acked(ask: Ask, found: tuple[Leases, Results]) -> None:
    leases, results = found
    answer_results(ask, "leaseId", leases.texts, results)


def _release(verbs: Verbs, transaction: Transaction, leases: Leases, values: dict[str, Any]) -> Results:
    return verbs.release(transaction, leases, values.get("consumer"))


def _nack(verbs: Verbs, transaction: Transaction, leases: Leases, values: dict[str, Any]) -> Results:
    delay = values.get("delaySec")
    cause = transitions.Cause(
        check_reason(values["reason"]),
        validation.check_text(values["text"]),
        None if delay is None else validation.check_milliseconds(delay, "delaySec"),
    )
    return verbs.nack(transaction, leases, values.get("consumer"), cause)


def _extend(verbs: Verbs, transaction: Transaction, leases: Leases, values: dict[str, Any]) -> Results:
    length = values.get("leaseSec")
    span = None if length is None else validation.check_milliseconds(length, "leaseSec", least=0.001)
    return verbs.extend(transaction, leases, values.get("consumer"), span)


LEASES = Field("leases", many(LEASE_ID), "lease ids, as the lease gave them", needed=True)
CONSUMER = Field("consumer", CONSUMER_ID, "who holds them; one held by another is refused")
NACK = (
    LEASES,
    CONSUMER,
    Field("reason", REASON, "why", Reason.HANDLER_ERROR.value),
    Field("text", text(), "why, in the consumer's words", ""),
    Field("delaySec", seconds(), "try again after so long, instead of the policy's backoff"),
)
EXTEND = (LEASES, CONSUMER, Field("leaseSec", seconds(0.001), "from now; the queue's time-out if not said"))
ONE = "/v1/queues/{queue}"
REFUSALS = ("not_found", "lease_lost")


def _endpoint(verb: str, about: str, settle: Settle, body: Sequence[Field]) -> Endpoint:
    return Endpoint(
        "POST", f"{ONE}/{verb}", about, _settling(settle), "consuming", "consume", ref("Results"), body=body,
        refusals=REFUSALS,
    )  # fmt: skip


ENDPOINTS = (
    _endpoint("nack", "It did not work: again after the policy's backoff, or to the dead letters", _nack, NACK),
    _endpoint("extend", "Keep it longer", _extend, EXTEND),
    _endpoint("release", "Give back what was not worked on: at once in line again", _release, (LEASES, CONSUMER)),
)
