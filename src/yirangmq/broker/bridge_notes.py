"""What the store keeps of bridges: notes, written in the commits that store their messages.

Knows: notes. What they mean is ``core.bridges``."""

from collections.abc import Callable
from typing import Any, TypeVar

from yirangmq.core.bridges import DEFINED, REACHED, Bridge, Reached, as_document, of_document
from yirangmq.core.errors import StoreDamaged
from yirangmq.core.ports import Transaction
from yirangmq.format.json_codec import dumps, loads

Value = TypeVar("Value")


def bridges(transaction: Transaction) -> list[tuple[Bridge, Reached]]:
    """In the order of their names."""
    found = []
    for key, text in transaction.notes(DEFINED).items():
        bridge = _read(key, text, of_document)
        found.append((bridge, read_reached(transaction, bridge.name)))
    return found


def bridge(transaction: Transaction, name: str) -> Bridge | None:
    text = transaction.note(DEFINED + name)
    return None if text is None else _read(DEFINED + name, text, of_document)


def read_reached(transaction: Transaction, name: str) -> Reached:
    key = REACHED + name
    text = transaction.note(key)
    if text is None:
        raise StoreDamaged(f"the note {key} is missing")
    return _read(key, text, lambda given: Reached(**given))


def define(transaction: Transaction, bridge: Bridge) -> None:
    transaction.set_note(DEFINED + bridge.name, dumps(as_document(bridge)).decode())


def reach(transaction: Transaction, name: str, reached: Reached) -> None:
    transaction.set_note(REACHED + name, dumps(reached._asdict()).decode())


def remove(transaction: Transaction, name: str) -> None:
    transaction.set_note(DEFINED + name, None)
    transaction.set_note(REACHED + name, None)


def _read(key: str, text: str, make: Callable[[dict[str, Any]], Value]) -> Value:
    try:
        return make(loads(text.encode()))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamaged(f"the note {key} cannot be read: {error}") from None
