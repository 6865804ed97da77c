"""What time brings: delays end, leases lapse, messages age, history and remembered ids go."""

from collections.abc import Callable, Sequence

from yirangmq.broker.happenings import Happenings
from yirangmq.core import transitions
from yirangmq.core.message import Message
from yirangmq.core.ports import Change, Transaction

MOST_PER_SWEEP = 500
"""A sweep shares its commit with callers that wait; what is left over is due at the next one."""
Swap = Callable[[Transaction, Sequence[Change], int], None]


def sweep(
    transaction: Transaction,
    now: int,
    swap: Swap,
    touched: set[str],
    happened: Happenings,
    limit: int = MOST_PER_SWEEP,
) -> int:
    """Apply what is due; how many messages changed. Queues that have more to take now are added to ``touched``."""
    due = transaction.due(now, limit)
    if not due:
        return 0
    place = transaction.places(len(due))
    changes: list[Change] = []
    over: list[Message] = []
    for offset, message in enumerate(due):
        outcome = transitions.expire(message, transaction.policy(message.queue), now, place + offset)
        if outcome is None:
            over.append(message)
        else:
            changes.append(Change(message, outcome.message, outcome.failure))
            touched.add(message.queue)
    swap(transaction, changes, now)
    transaction.forget(over)
    happened.swept(changes, now)
    return len(due)


def tidy(transaction: Transaction, now: int, limit: int = MOST_PER_SWEEP) -> int:
    """Deduplication windows that are over, and history beyond what each queue keeps; how many were forgotten."""
    return transaction.forget_keys(now, limit) + transaction.trim(limit)
