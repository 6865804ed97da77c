"""The dispatch of a queue, as operators see and steer it: its strategy set in place, its consumers registered and
deregistered, its deliveries looked at.

Knows: policies, who attends. Does not know: who asks."""

from collections.abc import Mapping
from typing import Any

from yirangmq.broker import policies
from yirangmq.broker.verbs import Verbs
from yirangmq.core import validation
from yirangmq.core.dispatch import Dispatch, show_dispatch
from yirangmq.core.errors import BadInput, BadPolicy, NotFound
from yirangmq.core.events import Status, show
from yirangmq.core.ports import Transaction
from yirangmq.format.json_codec import loads

MEMBERS = ("strategy", "weights", "key", "graceSec", "outcomes")
NONE = "none"
"""In place of a strategy: the queue has no dispatch any more."""


def change(verbs: Verbs, transaction: Transaction, queue: str, given: Mapping[str, Any], now: int) -> dict[str, Any]:
    """Put members of ``dispatch`` in force, the others as they were. Nothing that is in hand, in line or waiting for
    its retry is touched: what is given out from this commit on goes by the new words."""
    validation.check_queue(queue)
    for name in given:
        if name not in MEMBERS:
            raise BadInput(f"not a known member; known: {', '.join(MEMBERS)}", field=f"dispatch.{name}"[:80])
    text = transaction.policy_text(queue)
    document = loads(text.encode()) if text else {}
    if given.get("strategy") == NONE:
        if len(given) > 1:
            raise BadPolicy("takes all of it away: nothing else can be set with it", field="dispatch.strategy")
        document.pop("dispatch", None)
    else:
        document["dispatch"] = {**(document.get("dispatch") or {}), **given}
    policies.checked(document, queue, verbs.schemas)
    policies.put(transaction, verbs, queue, document or None)
    return look(verbs, transaction, queue, now)


def register(verbs: Verbs, transaction: Transaction, queue: str, who: str, now: int) -> bool:
    """It is one of the queue's consumers from now on, there or not. False: it was already."""
    _check(transaction, queue)
    verbs.touched.add(queue)
    return verbs.dispatching.attending.register(transaction, queue, validation.check_consumer(who), now)


def deregister(verbs: Verbs, transaction: Transaction, queue: str, who: str, now: int) -> bool:
    """It is no longer, unless it is there. False: it was not registered."""
    _check(transaction, queue)
    verbs.touched.add(queue)
    return verbs.dispatching.attending.deregister(transaction, queue, validation.check_consumer(who), now)


def _check(transaction: Transaction, queue: str) -> None:
    if not transaction.has_queue(validation.check_queue(queue)):
        raise NotFound(f"there is no queue {queue!r}", field="queue")


def look(verbs: Verbs, transaction: Transaction, queue: str, now: int) -> dict[str, Any]:
    """How a queue is dispatched, to whom, and how the deliveries since the start of the process went."""
    validation.check_queue(queue)
    dispatch = transaction.policy(queue).dispatch
    log = verbs.happened.deliveries
    known = show_dispatch(dispatch) or {**(show_dispatch(Dispatch()) or {}), "strategy": None}
    return {
        "queue": queue,
        **known,
        "consumers": _consumers(verbs, transaction, queue, dispatch or Dispatch(), now),
        "deliveries": {status.value: log.totals[queue, status.value] for status in Status if status != "DELIVERING"},
        "inFlight": log.in_flight_of(queue),
    }


def _consumers(
    verbs: Verbs, transaction: Transaction, queue: str, dispatch: Dispatch, now: int
) -> list[dict[str, Any]]:
    attendance = verbs.dispatching.attending.of(transaction, queue, now)
    log = verbs.happened.deliveries
    holding = log.holders(queue)
    everyone = {*attendance.everyone(now, dispatch.grace_ms), *holding}
    return [
        {
            "consumerId": name,
            "registered": name in attendance.registered,
            "here": name in attendance.here,
            "awaySec": None if name not in attendance.seen else max(0, now - attendance.seen[name]) / 1000,
            "inFlight": log.in_flight(queue, name),
            "weight": dispatch.weight(name),
        }
        for name in sorted(everyone)
    ]


def deliveries(verbs: Verbs, given: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """``given``: queue, id, consumer and status, those that are not None."""
    status = given.get("status")
    if status is not None and status not in tuple(Status):
        raise BadInput(f"{status!r} is not one of {', '.join(Status)}", field="status")
    found = verbs.happened.deliveries.find(
        limit,
        given.get("queue"),
        given.get("id"),
        given.get("consumer"),
        None if status is None else Status(status),
    )
    return [show(record) for record in found]
