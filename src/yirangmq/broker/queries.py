"""Read-only queries: a status row per queue, totals of all queues, messages with envelope and failure.

The row is the same in every protocol. A queue whose policy cannot be read is listed with ``policyError``, so that it
does not hide the others. Instants of messages are shown in wall-clock time, which is ``ahead`` of store time."""

from collections.abc import Sequence
from typing import Any

from yirangmq.broker.store_time import envelope_in_wall_time, failure_in_wall_time, message_in_wall_time
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy, NotFound
from yirangmq.core.message import Message
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView

# -- queues ------------------------------------------------------------------------------------------------------------

STATES = ("ready", "delayed", "held", "leased", "dead", "parked", "done")
TOTALS = ("published", "acked", "failed", "dropped", "redriven")


def rows(transaction: Transaction, wanted: Sequence[str] | None, now: int) -> list[dict[str, Any]]:
    """Return rows of these queues, or of all. About 25 µs per queue: a server reads slices (``admin.queue_lists``)."""
    if wanted is None:
        return [row(transaction, name, True, now) for name in transaction.queues()]
    chosen = [validation.check_queue(name) for name in wanted]
    return [row(transaction, name, transaction.has_queue(name), now) for name in chosen]


def row(transaction: Transaction, queue: str, exists: bool, now: int) -> dict[str, Any]:
    counts = transaction.counts(queue)
    policy, problem = _policy(transaction, queue)
    return {
        "queue": queue,
        "exists": exists,
        "backlog": counts.ready + counts.delayed + counts.held,
        **{name: getattr(counts, name) for name in STATES},
        "headAgeSec": _head_age(transaction, queue, now),
        "paused": policy.paused,
        "strategy": None if policy.dispatch is None else policy.dispatch.strategy.value,
        "dlqQueue": policy.dlq.queue,
        "policyError": problem,
        "totals": {name: getattr(counts, name) for name in TOTALS},
    }


def _policy(transaction: Transaction, queue: str) -> tuple[QueuePolicy, str | None]:
    """Return the policy and None, or the defaults and the error if the policy cannot be read after a manual edit."""
    try:
        return transaction.policy(queue), None
    except BadPolicy as error:
        return read_policy({}, queue), str(error)


def queue_totals(transaction: Transaction) -> dict[str, Any]:
    """Return the totals of all queues."""
    counts = transaction.totals()
    return {
        "queues": transaction.queue_count(),
        "backlog": counts.ready + counts.delayed + counts.held,
        **{name: getattr(counts, name) for name in STATES},
        "totals": {name: getattr(counts, name) for name in TOTALS},
    }


def is_overdue(transaction: Transaction, now: int) -> bool:
    """True if a message is due and not yet swept."""
    return transaction.next_due(before=now + 1) is not None


def _head_age(transaction: Transaction, queue: str, now: int) -> float | None:
    """Return the age of the first ready message, in seconds. With priorities, an older message may be behind it."""
    head = transaction.scan(queue, State.READY, 1).messages
    envelope = transaction.envelopes(head)[0] if head else None
    return None if envelope is None else max(0, now - envelope.published_at) / 1000


def some_with_leases(transaction: Transaction, after: str, limit: int = 500) -> tuple[list[str], str]:
    """Return those of the next ``limit`` queues that have leased messages, and the cursor; "" at the end."""
    names = transaction.queues(after, limit)
    return [name for name in names if transaction.counts(name).leased], names[-1] if len(names) == limit else ""


class QueueRotation:
    """Round-robin over all queues, ``limit`` per call, for periodic reads: the cost of a call does not depend on the
    number of queues. If there are at most ``limit`` queues, each call returns all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._after = ""

    def next(self, transaction: Transaction) -> list[str]:
        found = transaction.queues(self._after, self._limit)
        if not found and self._after:
            found = transaction.queues("", self._limit)
        self._after = found[-1] if len(found) == self._limit else ""
        return found


# -- messages ----------------------------------------------------------------------------------------------------------


def check_state(state: str) -> State:
    try:
        return State(state)
    except ValueError:
        raise BadInput(f"{state!r} is not one of {', '.join(State)}", field="state") from None


def inspect_messages(transaction: Transaction, messages: Sequence[Message], ahead: int) -> list[MessageView]:
    """Return messages with envelope, failure and policy. Instants are converted to the wall clock, which is ``ahead``
    ms ahead of store time (``Clock.ahead_ms``)."""
    parts = zip(messages, transaction.envelopes(messages), transaction.failures(messages), strict=True)
    found = [MessageView(message, sent, failure, transaction.policy(message.queue)) for message, sent, failure in parts]
    return [shown(view, ahead) for view in found] if ahead else found


def shown(view: MessageView, ahead: int) -> MessageView:
    message, envelope, failure, rules = view
    return MessageView(
        message_in_wall_time(message, ahead),
        None if envelope is None else envelope_in_wall_time(envelope, ahead),
        None if failure is None else failure_in_wall_time(failure, ahead),
        rules,
    )


def page(
    transaction: Transaction, queue: str, state: State, limit: int, cursor: str, ahead: int
) -> tuple[str, list[MessageView]]:
    page = transaction.scan(queue, state, limit, cursor)
    return page.cursor, inspect_messages(transaction, page.messages, ahead)


def one(transaction: Transaction, queue: str, id: str, ahead: int) -> MessageView:
    message = transaction.by_id(queue, [id])[0]
    if message is None:
        raise NotFound(f"queue {queue!r} has no message {id!r}")
    return inspect_messages(transaction, [message], ahead)[0]
