"""What consumers say of their leases: ack, nack, extend, release; many at a time, a result for each."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from yirangmq.broker.operations import Verbs
from yirangmq.broker.settle import Leases, Results
from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Reason, check_reason
from yirangmq.core.ports import Transaction
from yirangmq.doors.http.together import Together
from yirangmq.doors.http.v1 import errors
from yirangmq.doors.http.v1.endpoint import Act, Ask, Endpoint
from yirangmq.doors.http.v1.fields import CONSUMER_ID, LEASE_ID, REASON, Field, many, seconds, text
from yirangmq.doors.http.v1.schemas import ref
from yirangmq.format.json_codec import dumps

Settle = Callable[[Verbs, Transaction, Leases, dict[str, Any]], Results]


def answer_results(ask: Ask, name: str, given: Sequence[str], results: Sequence[QueueError | None]) -> None:
    """All that could be done is done. If anything could not, the answer says so also to whoever looks only at its
    status: it is that of the first error."""
    failed = [error for error in results if error is not None]
    if not failed:
        done = b",".join([b'{"%s":%s,"ok":true}' % (name.encode(), dumps(one)) for one in given])
        ask.respond(b'{"failed":0,"results":[%s]}' % done)
        return
    told = [
        {name: one, "ok": True} if error is None else {name: one, "ok": False, "error": errors.document(error)}
        for one, error in zip(given, results, strict=True)
    ]
    document = {"error": errors.document(failed[0]), "failed": len(failed), "results": told}
    ask.reply(document, errors.STATUS_OF[failed[0].code])


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
    leases: Leases
    consumer: str | None


class Acking:
    """Acks that come at the same time are done as one, as far as nobody can tell."""

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
                pass  # the same one in two calls, or too many
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
