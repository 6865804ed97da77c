"""Expiry: the sweep of due messages, pruning, the adoption mark, and the recorded default timeouts.

The sweep applies due transitions: delays end, leases and messages expire, dead letters pass their retention. Pruning
removes history and deduplication ids beyond their limits. Both are bounded per call, because they share a commit with
callers that wait.

The adoption mark is a note in a store whose messages another node is adopting (``broker.export_import``). A marked
store must not be served. The recorded timeouts are the server defaults from which due times in the store were computed.
If a server starts with other defaults, ``broker.bulk`` recomputes those due times."""

from collections.abc import Callable, Sequence

from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.core import transitions
from yirangmq.core.errors import WrongState
from yirangmq.core.message import Message
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Change, Transaction

# -- sweep and pruning -------------------------------------------------------------------------------------------------

MAX_PER_SWEEP = 500
"""Upper bound of messages per sweep, because a sweep shares its commit with callers that wait. The next sweep continues
with the rest."""
Swap = Callable[[Transaction, Sequence[Change], int], None]


def sweep(
    transaction: Transaction,
    now: int,
    swap: Swap,
    touched: set[str],
    event_buffer: EventBuffer,
    limit: int = MAX_PER_SWEEP,
) -> int:
    """Apply due transitions to at most ``limit`` messages and return how many were processed.

    Queues that may have newly ready messages are added to ``touched``."""
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
    event_buffer.swept(changes, now)
    return len(due)


def prune(transaction: Transaction, now: int, limit: int = MAX_PER_SWEEP) -> int:
    """Prune expired deduplication keys, and history beyond each queue's limit. Return how many entries were removed."""
    return transaction.forget_keys(now, limit) + transaction.trim(limit)


# -- adoption mark -----------------------------------------------------------------------------------------------------

ADOPTION_MARK = "pair-adopting"
"""Key of the note in the adopted store. Its text names the node that adopts the messages."""


def check_unmarked(transaction: Transaction) -> None:
    """Raise ``WrongState`` if the store has an adoption mark.

    A store whose adoption was interrupted must not be served: the other node may deliver some of its messages."""
    found = transaction.note(ADOPTION_MARK)
    if found is not None:
        raise WrongState(
            f"its messages are being adopted by {found}: finish that with 'pair adopt' there", field="store"
        )


# -- recorded default timeouts -----------------------------------------------------------------------------------------

TIMEOUTS_NOTE = "mq/timeouts"
"""Key of the note that holds the default timeouts from which due times were computed."""


def have_changed(transaction: Transaction, defaults: Defaults) -> bool:
    return _encode_timeouts(defaults) != (transaction.note(TIMEOUTS_NOTE) or _encode_timeouts(Defaults()))


def record_timeouts(transaction: Transaction, defaults: Defaults) -> None:
    transaction.set_note(TIMEOUTS_NOTE, _encode_timeouts(defaults))


def _encode_timeouts(defaults: Defaults) -> str:
    return f"{defaults.draft_ms}/{defaults.claim_ms}/{defaults.active_ms}"
