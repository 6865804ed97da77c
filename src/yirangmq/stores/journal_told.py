"""What files by date and their store say of each other: the position up to which lines are true, what was told last,
and whether a card agrees with it.

Knows: lines, cards, the note in the store. Does not know: commits."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from yirangmq.core.errors import BadInput
from yirangmq.core.journal import SETTLED, Kind, Outcome, Position
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.format import journal_line
from yirangmq.format.journal_line import Head
from yirangmq.format.json_codec import dumps, loads
from yirangmq.stores.dayfiles import files, lines

NOTE = "files-by-date/position"


def accepted_in(root: Path) -> frozenset[tuple[int, str]]:
    found = set()
    for name in files(root):
        for line in lines(root / name):
            with contextlib.suppress(BadInput):
                head = journal_line.head_of(line)
                if head.kind == Kind.ACCEPTED:
                    found.add((head.seq, head.id))
    return frozenset(found)


def last_told(found: Iterable[bytes]) -> list[Head]:
    """Of each message the latest word."""
    told = {}
    for line in found:
        head = journal_line.head_of(line)
        if head.kind != Kind.QUEUE_DELETED:
            told[head.seq] = head
    return list(told.values())


def contradicted(head: Head, card: Message | None) -> Outcome | None:
    """What must be told of a message if this was told of it last and its card, or none, is what there is."""
    is_there = card is not None and card.id == head.id
    if head.kind == Kind.OUTCOME and head.state in SETTLED:
        is_wrong = is_there and card is not None and card.state not in SETTLED
    else:
        is_wrong = not is_there
    if not is_wrong:
        return None
    if card is None or not is_there:
        gone = Message(head.seq, head.queue, head.id, State.DROPPED, 0, 0, 0, 0, 0, 0, 0, "", "", 0, False)
        return Outcome(gone, State.DROPPED, None, 0, "", 0, "not_stored")
    return Outcome(card, card.state, None, card.attempt, "", 0, "not_stored")


def read_position(transaction: Transaction) -> Position | None:
    """Where the files are true up to; None where they were never written."""
    text = transaction.note(NOTE)
    if text is None:
        return None
    try:
        found = loads(text.encode())
        return Position(str(found["file"]), *(int(found[name]) for name in ("size", "seq", "begin")))
    except (BadInput, KeyError, TypeError, ValueError):
        return None


def write_position(known: Position) -> str:
    return dumps(known._asdict()).decode()
