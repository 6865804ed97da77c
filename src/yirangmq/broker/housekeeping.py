"""Housekeeping: the sweep of due messages, pruning, the adoption mark, and the recorded default timeouts.

The sweep applies what is due: delays end, leases and messages expire, dead letters pass their retention. Pruning
forgets history and deduplication ids beyond their limits. Both are bounded per call, since they share a commit with
callers that wait.

The adoption mark is a note in a store whose messages another node is taking (``broker.export_import``); a marked store
must not be served. The recorded timeouts are the server defaults by which due times in the store were computed. If a
server starts with others, ``broker.bulk`` recomputes them."""

from collections.abc import Callable, Sequence

from yirangmq.broker.event_buffer import Happenings
from yirangmq.core import transitions
from yirangmq.core.errors import WrongState
from yirangmq.core.message import Message
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Change, Transaction

# -- sweep and pruning -------------------------------------------------------------------------------------------------

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


# -- adoption mark -----------------------------------------------------------------------------------------------------

MARK = "pair-adopting"
"""In the other store: who is taking its messages."""


def check_unmarked(transaction: Transaction) -> None:
    """A store whose adoption was broken off must not be served: some of its messages may be delivered elsewhere."""
    found = transaction.note(MARK)
    if found is not None:
        raise WrongState(
            f"its messages are being adopted by {found}: finish that with 'pair adopt' there", field="store"
        )


# -- recorded default timeouts -----------------------------------------------------------------------------------------

NOTE = "mq/timeouts"
"""Key of the note that holds the defaults by which due times were computed."""


def are_other(transaction: Transaction, defaults: Defaults) -> bool:
    return _said(defaults) != (transaction.note(NOTE) or _said(Defaults()))


def keep(transaction: Transaction, defaults: Defaults) -> None:
    transaction.set_note(NOTE, _said(defaults))


def _said(defaults: Defaults) -> str:
    return f"{defaults.draft_ms}/{defaults.claim_ms}/{defaults.active_ms}"
