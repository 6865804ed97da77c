"""Messages that are dead letters from the start: of batches and bridges, each with what was wrong with it."""

from collections.abc import Sequence

from yirangmq.broker.groups import swap
from yirangmq.broker.room import check_new_queues
from yirangmq.broker.verbs import Verbs
from yirangmq.core import transitions
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Change, Transaction


def bury(verbs: Verbs, transaction: Transaction, queue: str, found: Sequence[tuple[Envelope, str]], now: int) -> None:
    """New, and at once among the dead letters, each for its reason."""
    check_new_queues(transaction, [queue], verbs.defaults.max_queues)
    policy = transaction.policy(queue)
    stored = transaction.add([envelope for envelope, _ in found], now, now)
    changes = []
    for receipt, (envelope, why) in zip(stored, found, strict=True):
        if not receipt.duplicate:
            before = transitions.fresh(envelope, receipt.seq, now)
            outcome = transitions.refuse(before, policy, now, why)
            changes.append(Change(before, outcome.message, outcome.failure))
    swap(transaction, changes, now, verbs.touched)
    verbs.happened.refused(changes, now)
