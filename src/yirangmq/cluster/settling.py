"""What became of a dispatcher's transaction, brought into its ledger: it was done, or nothing of it was. Knows: the
ledger, the plan, etcd's answers. Does not know: connections, waiting."""

from collections import deque
from typing import Any

from yirangmq.cluster import cards
from yirangmq.cluster.ledger import AHEAD, AHEAD_BYTES, Ledger, Removal, Return
from yirangmq.cluster.planning import Batch
from yirangmq.core.states import State


def settle(ledger: Ledger, batch: Batch, responses: Any, revision: int) -> None:
    """It was done, at this revision: what it did away with leaves the ledger."""
    for arrival in (*batch.moves, *batch.repeats):
        ledger.inbox.leave(arrival)
    for arrival in batch.moves:
        ledger.remember(arrival, batch.at)
    for _ in range(batch.from_ahead):
        ledger.ahead_bytes -= len(ledger.ahead.popleft().value)
    _line_up(ledger, batch)
    if batch.removed:
        ledger.removals = deque(one for one in ledger.removals if one.number not in batch.removed)
    for _ in range(batch.loose):
        ledger.loose.popleft()
    for index in batch.again:
        ledger.leave_again(index)
        ledger.bodies.pop(index, None)
    for place, index, one in batch.returns:
        _came_back(ledger, index, one, responses[place].response_txn.succeeded, revision)
    for key in batch.rewrites:
        ledger.rewrites.pop(key, None)
    for key in batch.drops:
        ledger.drops.pop(key, None)
    ledger.next, ledger.assigned = batch.next, batch.assigned
    ledger.unsaid = bool(batch.returns)
    ledger.tally.moved += len(batch.moves)
    ledger.tally.acked += len(batch.removed)


def _line_up(ledger: Ledger, batch: Batch) -> None:
    """Kept at hand while it follows what is at hand already, and little enough."""
    for one in batch.lined_up:
        follows = ledger.ahead[-1].number + 1 if ledger.ahead else batch.assigned + 1
        if one.number != follows or len(ledger.ahead) >= AHEAD or ledger.ahead_bytes + len(one.value) > AHEAD_BYTES:
            return
        ledger.ahead.append(one)
        ledger.ahead_bytes += len(one.value)


def _came_back(ledger: Ledger, index: int, one: Return, was_there: bool, revision: int) -> None:
    ledger.returning.pop(index, None)
    ledger.taken_at.pop(index, None)
    if not was_there:  # acked at the last moment
        ledger.removals.append(Removal(index, cards.name_of(one.card), one.card.leases > 1))
        ledger.bodies.pop(index, None)
        return
    ledger.tally.returned += 1
    card = one.outcome.message
    if card.state in (State.READY, State.DELAYED):
        ledger.come_back(card, revision)
    else:
        ledger.bodies.pop(index, None)
        ledger.tally.dead += card.state is not State.DROPPED


def undo(ledger: Ledger, batch: Batch) -> None:
    """Nothing of it was done."""
    for card in batch.handed_out:
        ledger.take_back(card)


def drop_changed(ledger: Ledger, batch: Batch, found: Any) -> None:
    """Moves whose key is not as it was: it is gone, or the watch brings its new content."""
    for arrival, answer in zip(batch.moves, found, strict=True):
        kvs = answer.response_range.kvs
        if not kvs or kvs[0].mod_revision != arrival.revision:
            ledger.inbox.leave(arrival)
