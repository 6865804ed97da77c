"""Policies: validation and activation, pause and resume; dispatch settings, members and deliveries.

A policy document is validated completely before it is stored: fields, schemas, hooks, schedules. It takes effect with
its commit, also for waiting consumers. A stored policy that cannot be parsed, because it was edited by hand, affects
its own queue only.

A change of ``dispatch`` does not modify messages that are in flight, ready or delayed. Deliveries after the commit use
the new settings."""

from collections.abc import Mapping
from typing import Any

from yirangmq.broker import dead_letter_sources
from yirangmq.broker.admission.admission import AdmissionControl, Schemas, check_schemas
from yirangmq.broker.cron_scheduler import check_schedules
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.quota import check_new_queues
from yirangmq.core import validation
from yirangmq.core.dispatch import Dispatch, show_dispatch
from yirangmq.core.errors import BadInput, BadPolicy, NotFound
from yirangmq.core.events import DeliveryStatus, QueueChanged, show
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import Transaction
from yirangmq.format.json_codec import dumps, loads

# -- policy documents --------------------------------------------------------------------------------------------------


def checked(document: object, queue: str, schemas: Schemas, admission: AdmissionControl | None = None) -> QueuePolicy:
    """Parse and validate a policy document; None means the defaults. ``BadPolicy`` names the invalid field.

    Without ``admission`` the check that the server allows the policy's hooks is omitted."""
    policy = read_policy({} if document is None else document, validation.check_queue(queue))
    schemas.check_policy(policy)
    check_schemas(policy.chain)
    if admission is not None:
        admission.check_hooks(policy.chain)
    check_schedules(queue, policy)
    return policy


def readable(transaction: Transaction, queue: str) -> QueuePolicy | None:
    """Return the policy in force, or None if it cannot be parsed because it was edited by hand."""
    try:
        return transaction.policy(queue)
    except BadPolicy:
        return None


def put(
    transaction: Transaction, operations: QueueOperations, queue: str, document: object, what: str = "policy"
) -> None:
    """Store a validated policy document. It takes effect with this commit, also for waiting consumers."""
    check_new_queues(transaction, [queue], operations.defaults.max_queues)
    dead_letter_sources.complete(transaction)
    dead_letter_sources.set_policy(transaction, queue, None if document is None else dumps(document).decode())
    operations.touched.add(queue)
    operations.dispatcher.policy_changed(queue, transaction.policy(queue).dispatch)
    operations.event_buffer.add(QueueChanged(queue, what))


def pause(transaction: Transaction, operations: QueueOperations, queue: str, *, paused: bool) -> bool:
    """Pause or resume a queue. A paused queue accepts messages and delivers none. Return True if the state changed."""
    if not transaction.has_queue(validation.check_queue(queue)):
        raise NotFound(f"there is no queue {queue!r}", field="queue")
    if transaction.policy(queue).paused == paused:
        return False
    text = transaction.policy_text(queue)
    document = loads(text.encode()) if text else {}
    document.pop("paused", None)
    if paused:
        document["paused"] = True
    put(transaction, operations, queue, document or None, "pause" if paused else "resume")
    return True


# -- dispatch ----------------------------------------------------------------------------------------------------------

MEMBERS = ("strategy", "weights", "key", "graceSec", "outcomes")
NONE = "none"
"""Value of ``strategy`` that removes ``dispatch`` from the policy."""


def change(
    operations: QueueOperations, transaction: Transaction, queue: str, given: Mapping[str, Any], now: int
) -> dict[str, Any]:
    """Set members of ``dispatch`` in the policy; members that are not given keep their values.

    Messages that are leased, ready or delayed do not change. Deliveries after this commit use the new settings."""
    validation.check_queue(queue)
    for name in given:
        if name not in MEMBERS:
            raise BadInput(f"not a known member; known: {', '.join(MEMBERS)}", field=f"dispatch.{name}"[:80])
    text = transaction.policy_text(queue)
    document = loads(text.encode()) if text else {}
    if given.get("strategy") == NONE:
        if len(given) > 1:
            raise BadPolicy("removes the whole member: nothing else can be set with it", field="dispatch.strategy")
        document.pop("dispatch", None)
    else:
        document["dispatch"] = {**(document.get("dispatch") or {}), **given}
    checked(document, queue, operations.schemas)
    put(transaction, operations, queue, document or None)
    return describe_dispatch(operations, transaction, queue, now)


def register(operations: QueueOperations, transaction: Transaction, queue: str, consumer_id: str, now: int) -> bool:
    """Register a member of the queue, connected or not. Return False if it was registered already."""
    _check(transaction, queue)
    operations.touched.add(queue)
    return operations.dispatcher.membership.register(transaction, queue, validation.check_consumer(consumer_id), now)


def deregister(operations: QueueOperations, transaction: Transaction, queue: str, consumer_id: str, now: int) -> bool:
    """Remove a registered member; it stays a member while it is connected. Return False if it was not registered."""
    _check(transaction, queue)
    operations.touched.add(queue)
    return operations.dispatcher.membership.deregister(transaction, queue, validation.check_consumer(consumer_id), now)


def _check(transaction: Transaction, queue: str) -> None:
    if not transaction.has_queue(validation.check_queue(queue)):
        raise NotFound(f"there is no queue {queue!r}", field="queue")


def describe_dispatch(operations: QueueOperations, transaction: Transaction, queue: str, now: int) -> dict[str, Any]:
    """Return the dispatch settings of a queue, its members, and the delivery counts since the process started."""
    validation.check_queue(queue)
    dispatch = transaction.policy(queue).dispatch
    log = operations.event_buffer.deliveries
    known = show_dispatch(dispatch) or {**(show_dispatch(Dispatch()) or {}), "strategy": None}
    return {
        "queue": queue,
        **known,
        "consumers": _consumers(operations, transaction, queue, dispatch or Dispatch(), now),
        "deliveries": {
            status.value: log.totals[queue, status.value] for status in DeliveryStatus if status != "DELIVERING"
        },
        "inFlight": log.in_flight_of(queue),
    }


def _consumers(
    operations: QueueOperations, transaction: Transaction, queue: str, dispatch: Dispatch, now: int
) -> list[dict[str, Any]]:
    attendance = operations.dispatcher.membership.of(transaction, queue, now)
    log = operations.event_buffer.deliveries
    holding = log.holders(queue)
    members = {*attendance.members(now, dispatch.grace_ms), *holding}
    return [
        {
            "consumerId": name,
            "registered": name in attendance.registered,
            "here": name in attendance.waiting,
            "awaySec": None if name not in attendance.absent else max(0, now - attendance.absent[name]) / 1000,
            "inFlight": log.in_flight(queue, name),
            "weight": dispatch.weight(name),
        }
        for name in sorted(members)
    ]


def deliveries(operations: QueueOperations, given: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """Return recorded deliveries. ``given`` filters by queue, id, consumer and status; None matches all."""
    status = given.get("status")
    if status is not None and status not in tuple(DeliveryStatus):
        raise BadInput(f"{status!r} is not one of {', '.join(DeliveryStatus)}", field="status")
    found = operations.event_buffer.deliveries.find(
        limit,
        given.get("queue"),
        given.get("id"),
        given.get("consumer"),
        None if status is None else DeliveryStatus(status),
    )
    return [show(record) for record in found]
