"""Expiry: the sweep of due messages, pruning, and two notes in the store that concern due times.

The sweep applies due transitions: delays end, leases and messages expire, dead letters pass their retention. Pruning
removes history and deduplication ids beyond their limits. Both are bounded per call, because they share a commit with
callers that wait.

The adoption mark is a note in a store whose messages another node is adopting (``broker.export_import``). A marked
store must not be served. The recorded timeouts are the server defaults from which due times in the store were computed.
If a server starts with other defaults, ``broker.bulk`` recomputes those due times."""

from yirangmq.broker.changes import apply_changes
from yirangmq.broker.context import TransactionContext
from yirangmq.core import transitions
from yirangmq.core.errors import WrongState
from yirangmq.core.message import Message
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Change, Transaction

# -- sweep and pruning -------------------------------------------------------------------------------------------------

MAX_PER_SWEEP = 500
"""Upper bound of messages per sweep, because a sweep shares its commit with callers that wait. The next sweep continues
with the rest."""
PRUNE_INTERVAL_MS = 1_000
"""Interval at which history is pruned while messages are published or settled, in ms."""
IDLE_PRUNE_INTERVAL_MS = 60_000
"""The same interval while the queues are idle, in ms: polling consumers must not cause writes."""
PRUNE_AFTER_SETTLED = 500
"""Settled messages after which history is pruned before ``PRUNE_INTERVAL_MS`` has passed. A pruning may remove twice as
many messages as were settled since the last, so that history stays within its bounds at any rate."""


def sweep(context: TransactionContext, transaction: Transaction) -> int:
    """Apply expiries and due times, up to the limit of a commit; return the number of changed messages."""
    now = context.clock.now_ms()
    if now >= context.store_time.record_at:
        context.store_time.renew_record(transaction)
    return sweep_once(context, transaction, now) + prune(transaction, now)


def sweep_once(context: TransactionContext, transaction: Transaction, now: int, limit: int = MAX_PER_SWEEP) -> int:
    """Apply due transitions to at most ``limit`` messages and return how many were processed."""
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
            context.wake_queues.add(message.queue)
    apply_changes(context, transaction, changes, now, context.event_buffer.swept)
    transaction.forget(over)
    return len(due)


def sweep_if_due(context: TransactionContext, transaction: Transaction, now: int) -> None:
    """Sweep once per transaction. Messages that fall due during the transaction are swept in the next."""
    if transaction is context.sweeps.swept_in:
        return
    context.sweeps.swept_in = transaction
    if now >= context.store_time.record_at:
        context.store_time.renew_record(transaction)
    sweep_once(context, transaction, now)
    _prune_if_due(context, transaction, now)


def prune(transaction: Transaction, now: int, limit: int = MAX_PER_SWEEP) -> int:
    """Prune expired deduplication keys, and history beyond each queue's limit. Return how many entries were removed."""
    return transaction.forget_keys(now, limit) + transaction.trim(limit)


def prune_after(context: TransactionContext, transaction: Transaction, settled: int, now: int) -> None:
    """Count ``settled`` more messages, and prune history if it is due."""
    state = context.sweeps
    state.settled += settled
    state.is_quiet = state.is_quiet and not settled
    _prune_if_due(context, transaction, now)


def _prune_if_due(context: TransactionContext, transaction: Transaction, now: int) -> None:
    state = context.sweeps
    interval = IDLE_PRUNE_INTERVAL_MS if state.is_quiet else PRUNE_INTERVAL_MS
    if 0 <= now - state.pruned_at < interval and state.settled < PRUNE_AFTER_SETTLED:
        return
    most = MAX_PER_SWEEP + 2 * state.settled
    state.pruned_at, state.settled = now, 0
    state.is_quiet = sweep_once(context, transaction, now, most) + prune(transaction, now, most) == 0


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
