"""Named methods that change nothing, and pages of messages bounded by count and bytes.

Each method runs inside a transaction and returns at most one page. A page, the body of a RESULT frame, ends at
``limit`` messages or ``PAGE_BYTES`` of payload; a single larger message is a page too. A cursor continues after it.
The size of the page so far decides how many messages the next step loads."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from yirangmq.admin.registry import read_arguments
from yirangmq.broker import policies
from yirangmq.broker.cron_scheduler import schedule_rows
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.queries import check_state, inspect_messages
from yirangmq.core import validation
from yirangmq.core.errors import NotFound, TooLarge
from yirangmq.core.policy import show_policy
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView
from yirangmq.wire.messages import pack

# -- pages of messages -------------------------------------------------------------------------------------------------

PAGE_BYTES = 1024 * 1024
"""Upper bound of payload bytes per page; a single larger message is a page too."""
MAX_PER_STEP = 50
"""Upper bound of messages loaded in one step, so that a step delays other requests little."""

Step = Callable[[int, str], tuple[str, list[MessageView]]]
"""(number of messages to scan, cursor) → (next cursor, messages found)."""


def read_page(step: Step, limit: int, cursor: str) -> tuple[list[MessageView], str]:
    """Run steps until the page has ``limit`` messages or ``PAGE_BYTES``, or no messages are left.

    The mean payload size of the page so far decides how many messages the next step loads. A step that finds more
    than fit is repeated with a smaller count."""
    views: list[MessageView] = []
    size, count = 0, 1
    while True:
        ahead, found = step(count, cursor)
        if len(found) > limit - len(views):
            count = limit - len(views)
            continue
        cursor = ahead
        views += found
        size += sum(len(view.envelope.payload) for view in found if view.envelope is not None)
        if not cursor or len(views) >= limit or size >= PAGE_BYTES:
            return views, cursor
        affordable = (PAGE_BYTES - size) * len(views) // size if size else MAX_PER_STEP
        count = max(1, min(count * 4, MAX_PER_STEP, affordable))


# -- methods -----------------------------------------------------------------------------------------------------------

Given = Mapping[str, Any]


MAX_NAMES = 10_000
"""Upper bound of queue names in one answer."""


def queues(transaction: Transaction, given: Given) -> list[str]:
    """Return at most ``limit`` queue names in order: those after ``after`` that begin with ``prefix``.

    With ``queues_with_policy``, return the queues that have their own policy. Without a limit, return all names, or
    raise ``TooLarge`` if there are more than ``MAX_NAMES`` queues."""
    after, limit, prefix, queues_with_policy = read_arguments(
        given,
        lambda values: (
            values.text("after"),
            values.take("limit", None),
            values.text("prefix"),
            values.flag("policied", False),
        ),
    )
    if queues_with_policy:
        return transaction.queues_with_policy()
    if limit is not None:
        limit = validation.check_count(limit, "limit", most=MAX_NAMES)
    elif transaction.queue_count() > MAX_NAMES:
        raise TooLarge(f"there are more than {MAX_NAMES} queues; request them in pages", field="limit")
    return transaction.queues(after, limit, prefix)


def counts(transaction: Transaction, given: Given) -> dict[str, int]:
    queue = read_arguments(given, lambda values: values.queue())
    return transaction.counts(queue)._asdict()


def peek(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return the first messages of a state as a page, and the cursor of the next page."""
    queue, state, limit, cursor = read_arguments(
        given,
        lambda values: (
            values.queue(),
            check_state(values.text("state", "ready")),
            values.limit(10),
            values.text("cursor"),
        ),
    )
    return pack(*read_page(partial(_step, clock, transaction, queue, state), limit, cursor))


def _step(
    clock: Clock, transaction: Transaction, queue: str, state: State, count: int, cursor: str
) -> tuple[str, list[MessageView]]:
    page = transaction.scan(queue, state, count, cursor)
    return page.cursor, inspect_messages(transaction, page.messages, clock.ahead_ms())


def show(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return one message in any state, as a page of one."""
    queue, id = read_arguments(given, lambda values: (values.queue(), values.id()))
    message = transaction.by_id(queue, [id])[0]
    if message is None:
        raise NotFound(f"queue {queue!r} has no message {id!r}")
    return pack(inspect_messages(transaction, [message], clock.ahead_ms()))


def by_id(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return the known messages among these ids, in the order of the ids."""
    queue, ids = read_arguments(given, lambda values: (values.queue(), values.ids()))
    found = [message for message in transaction.by_id(queue, ids) if message is not None]
    return pack(inspect_messages(transaction, found, clock.ahead_ms()))


def due(clock: Clock, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return messages whose due time has passed, the longest overdue first, without envelopes."""
    limit = read_arguments(given, lambda values: values.limit(1000))
    messages = transaction.due(clock.now_ms(), limit)
    return pack((message, None, None, transaction.policy(message.queue)) for message in messages)


def next_due(transaction: Transaction, given: Given) -> int | None:
    """Return the earliest due time of a message, in ms since 1970, or null if no message has one."""
    read_arguments(given, lambda values: None)
    return transaction.next_due()


def policy_text(transaction: Transaction, given: Given) -> str | None:
    """Return the policy document as it was set, or null if the queue has the defaults."""
    queue = read_arguments(given, lambda values: values.queue())
    return transaction.policy_text(queue)


def policy(transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return the policy in force with every member explicit."""
    queue = read_arguments(given, lambda values: values.queue())
    return show_policy(transaction.policy(queue))


def check_policy(operations: QueueOperations, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Return the full form of a policy document, without setting it."""
    queue, document = read_arguments(given, lambda values: (values.queue(), values.take("document", None)))
    return show_policy(policies.checked(document, queue, operations.schemas, operations.admission))


def schedules(clock: Clock, transaction: Transaction, given: Given) -> list[dict[str, Any]]:
    """Return the schedules of all queues or of one, each with its next firing time."""
    queue = read_arguments(given, lambda values: values.optional_queue())
    return schedule_rows(transaction, clock.wall_ms(), queue)
