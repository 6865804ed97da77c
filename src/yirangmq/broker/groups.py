"""FIFO groups: of the messages that share a group id one is in line or in hand, the others are held behind it.

Every change of messages goes through ``swap``, so that a group whose first message is done with, whatever the verb,
moves on in the same commit. Knows: transactions. The moves themselves are ``core.transitions``."""

from collections.abc import Sequence

from yirangmq.core import transitions
from yirangmq.core.message import Message
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import WAITING, State


def swap(transaction: Transaction, changes: Sequence[Change], now: int, touched: set[str]) -> None:
    """``Transaction.swap``, and the turn of whoever is next in the groups it concerns."""
    transaction.swap(changes)
    if any(change[1][15] for change in changes):
        _turn(transaction, changes, now, touched)


def line_up(transaction: Transaction, new: Sequence[Message]) -> None:
    """Messages just added: those behind others of their group are held."""
    held = [message for message in new if message.group and message.state in (State.READY, State.DELAYED)]
    firsts = _firsts(transaction, held)
    transaction.swap([Change(m, transitions.hold(m)) for m in held if firsts[m.queue, m.group].seq != m.seq])


def _turn(transaction: Transaction, changes: Sequence[Change], now: int, touched: set[str]) -> None:
    came = [after for before, after, _ in changes if after.group and _entered(before, after)]
    line_up(transaction, came)
    left = [after for before, after, _ in changes if after.group and _left(before, after)]
    next_ones = [message for message in _firsts(transaction, left).values() if message.state is State.HELD]
    turns = []
    for message, envelope in zip(next_ones, transaction.envelopes(next_ones), strict=True):
        if envelope is not None:  # else its content is lost, and the store has passed its turn on
            turns.append(Change(message, transitions.free(message, envelope.available_at, now)))
            touched.add(message.queue)
    transaction.swap(turns)


def _entered(before: Message, after: Message) -> bool:
    return after.state in WAITING and before.state not in WAITING


def _left(before: Message, after: Message) -> bool:
    return before.state in WAITING and after.state not in WAITING


def _firsts(transaction: Transaction, messages: Sequence[Message]) -> dict[tuple[str, int], Message]:
    groups: dict[str, dict[int, None]] = {}
    for message in messages:
        groups.setdefault(message.queue, {})[message.group] = None
    found = {}
    for queue, numbers in groups.items():
        for group, first in zip(numbers, transaction.group_first(queue, list(numbers)), strict=True):
            if first is not None:
                found[queue, group] = first
    return found
