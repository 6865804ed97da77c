"""Named methods that change nothing, and pages of messages bounded by count and bytes.

Each method runs inside a transaction and returns at most one page. A page, the body of a RESULT frame, ends at
``limit`` messages or ``PAGE_BYTES`` of payload; a single larger message is a page too. A cursor continues after it.
The size of the page so far decides how many messages the next step loads."""

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
"""Upper bound of payload bytes per page; a single larger message is a page too."""
MOST_PER_STEP = 50
"""Upper bound of messages loaded in one step, so that a step delays other requests little."""

Step = Callable[[int, str], tuple[str, list[Look]]]
"""(number of messages to scan, cursor) → (next cursor, messages found)."""


def gather(step: Step, limit: int, cursor: str) -> tuple[list[Look], str]:
    """Run steps until the page has ``limit`` messages or ``PAGE_BYTES``, or no messages are left.

    The mean payload size of the page so far decides how many messages the next step loads. A step that finds more
    than fit is repeated with a smaller count."""
    views: list[Look] = []
    size, count = 0, 1
    while True:
        ahead, found = step(count, cursor)
        if len(found) > limit - len(views):
            count = limit - len(views)
            continue
        cursor = ahead
        views += found
        size += sum(len(look.envelope.payload) for look in found if look.envelope is not None)
        if not cursor or len(views) >= limit or size >= PAGE_BYTES:
            return views, cursor
        affordable = (PAGE_BYTES - size) * len(views) // size if size else MOST_PER_STEP
        count = max(1, min(count * 4, MOST_PER_STEP, affordable))


# -- methods -----------------------------------------------------------------------------------------------------------

Given = Mapping[str, Any]


MOST_NAMES = 10_000
"""Upper bound of queue names in one answer."""


def queues(transaction: Transaction, given: Given) -> list[str]:
    """Return at most ``limit`` queue names in order: those after ``after`` that begin with ``prefix``.

    With ``policied``, return the queues that have their own policy. Without a limit, return all names, or raise
    ``TooLarge`` if there are more than ``MOST_NAMES`` queues."""
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
    """Return the first messages of a state as a page, and the cursor of the next page."""
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
    """Return one message in any state, as a page of one."""
    queue, id = reading(given, lambda values: (values.queue(), values.id()))
    message = transaction.by_id(queue, [id])[0]
    if message is None:
        raise NotFound(f"queue {queue!r} has no message {id!r}")
    return pack(looks(transaction, [message], clock.ahead_ms()))


def by_id(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return the known messages among these ids, in the order of the ids."""
    queue, ids = reading(given, lambda values: (values.queue(), values.ids()))
    found = [message for message in transaction.by_id(queue, ids) if message is not None]
    return pack(looks(transaction, found, clock.ahead_ms()))


def due(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return messages whose due time has passed, the longest overdue first, without envelopes."""
    limit = reading(given, lambda values: values.limit(1000))
    messages = transaction.due(clock.now_ms(), limit)
    return pack((message, None, None, transaction.policy(message.queue)) for message in messages)


def next_due(transaction: Transaction, given: Given) -> int | None:
    """Return the earliest due time of a message, in ms since 1970, or null if no message has one."""
    reading(given, lambda values: None)
    return transaction.next_due()


def policy_text(transaction: Transaction, given: Given) -> str | None:
    """Return the policy document as it was set, or null if the queue has the defaults."""
    queue = reading(given, lambda values: values.queue())
    return transaction.policy_text(queue)


def policy(transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return the policy in force with every member explicit."""
    queue = reading(given, lambda values: values.queue())
    return show_policy(transaction.policy(queue))


def check_policy(verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return the full form of a policy document, without setting it."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return show_policy(policies.checked(document, queue, verbs.schemas, verbs.gate))


def schedules(clock: Clock, transaction: Transaction, given: Given) -> list[dict[str, Any]]:
    """Return the schedules of all queues or of one, each with its next firing time."""
    queue = reading(given, lambda values: values.some_queue())
    return listed(transaction, clock.wall_ms(), queue)
