"""Named methods that change nothing, and pages of messages bounded by count and bytes.

Each method runs inside a transaction and returns a page at most. A page, the body of a RESULT frame, ends at ``limit``
messages or ``PAGE_BYTES`` of payload; a single larger message is a page too. A cursor leads to the rest. The bytes so
far decide how many messages the next step loads."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from yirangmq.admin.registry import reading
from yirangmq.broker import policies
from yirangmq.broker.operations import Verbs
from yirangmq.broker.queries import check_state, looks
from yirangmq.broker.scheduler import listed
from yirangmq.core import validation
from yirangmq.core.errors import NotFound, TooLarge
from yirangmq.core.policy import show_policy
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import Look
from yirangmq.wire.messages import pack

# -- pages of messages -------------------------------------------------------------------------------------------------

PAGE_BYTES = 1024 * 1024
"""Payload bytes of a page, but for a single message that is larger."""
MOST_PER_STEP = 50
"""Messages loaded at once, so that one step holds nobody up."""

Step = Callable[[int, str], tuple[str, list[Look]]]
"""(how many to look at, cursor) → (cursor, those found)."""


def gather(step: Step, limit: int, cursor: str) -> tuple[list[Look], str]:
    """Steps until there are ``limit``, or enough bytes, or no more. The size so far tells how many to load next."""
    looks: list[Look] = []
    size, count = 0, 1
    while True:
        ahead, found = step(count, cursor)
        if len(found) > limit - len(looks):
            count = limit - len(looks)
            continue
        cursor = ahead
        looks += found
        size += sum(len(look.envelope.payload) for look in found if look.envelope is not None)
        if not cursor or len(looks) >= limit or size >= PAGE_BYTES:
            return looks, cursor
        affordable = (PAGE_BYTES - size) * len(looks) // size if size else MOST_PER_STEP
        count = max(1, min(count * 4, MOST_PER_STEP, affordable))


# -- methods -----------------------------------------------------------------------------------------------------------

Given = Mapping[str, Any]


MOST_NAMES = 10_000
"""Names of queues in one answer."""


def queues(transaction: Transaction, given: Given) -> list[str]:
    """Names in order: those behind ``after`` that begin with ``prefix``, ``limit`` at most. With ``policied`` those
    that have a policy of their own. Without a limit all of them, where they are no more than one answer takes."""
    after, limit, prefix, policied = reading(
        given,
        lambda values: (
            values.text("after"),
            values.take("limit", None),
            values.text("prefix"),
            values.flag("policied", False),
        ),
    )
    if policied:
        return transaction.policied()
    if limit is not None:
        limit = validation.check_count(limit, "limit", most=MOST_NAMES)
    elif transaction.queue_count() > MOST_NAMES:
        raise TooLarge(f"there are more than {MOST_NAMES} queues; ask for a page at a time", field="limit")
    return transaction.queues(after, limit, prefix)


def counts(transaction: Transaction, given: Given) -> dict[str, int]:
    queue = reading(given, lambda values: values.queue())
    return transaction.counts(queue)._asdict()


def peek(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """The first messages of a state: a page, and a cursor that begins the next one."""
    queue, state, limit, cursor = reading(
        given,
        lambda values: (
            values.queue(),
            check_state(values.text("state", "ready")),
            values.limit(10),
            values.text("cursor"),
        ),
    )
    return pack(*gather(partial(_step, clock, transaction, queue, state), limit, cursor))


def _step(
    clock: Clock, transaction: Transaction, queue: str, state: State, count: int, cursor: str
) -> tuple[str, list[Look]]:
    page = transaction.scan(queue, state, count, cursor)
    return page.cursor, looks(transaction, page.messages, clock.ahead_ms())


def show(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """One message, wherever it stands: a page of one."""
    queue, id = reading(given, lambda values: (values.queue(), values.id()))
    message = transaction.by_id(queue, [id])[0]
    if message is None:
        raise NotFound(f"queue {queue!r} has no message {id!r}")
    return pack(looks(transaction, [message], clock.ahead_ms()))


def by_id(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Those of these messages that are known, in the order of their ids."""
    queue, ids = reading(given, lambda values: (values.queue(), values.ids()))
    found = [message for message in transaction.by_id(queue, ids) if message is not None]
    return pack(looks(transaction, found, clock.ahead_ms()))


def due(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Messages on which time acts now, the longest overdue first; without their envelopes."""
    limit = reading(given, lambda values: values.limit(1000))
    messages = transaction.due(clock.now_ms(), limit)
    return pack((message, None, None, transaction.policy(message.queue)) for message in messages)


def next_due(transaction: Transaction, given: Given) -> int | None:
    """The earliest moment at which time has something to do, in milliseconds since 1970; null: never."""
    reading(given, lambda values: None)
    return transaction.next_due()


def policy_text(transaction: Transaction, given: Given) -> str | None:
    """The policy document as it was set; null where the queue lives on defaults."""
    queue = reading(given, lambda values: values.queue())
    return transaction.policy_text(queue)


def policy(transaction: Transaction, given: Given) -> dict[str, Any]:
    """The policy in force, every member spelled out."""
    queue = reading(given, lambda values: values.queue())
    return show_policy(transaction.policy(queue))


def check_policy(verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    """The full form of a policy document, without setting it."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return show_policy(policies.checked(document, queue, verbs.schemas, verbs.gate))


def schedules(clock: Clock, transaction: Transaction, given: Given) -> list[dict[str, Any]]:
    """The schedules of all queues, or of one, each with the time at which it fires next."""
    queue = reading(given, lambda values: values.some_queue())
    return listed(transaction, clock.wall_ms(), queue)
