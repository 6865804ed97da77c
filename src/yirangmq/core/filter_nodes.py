"""What a filter is made of: its fields, and the nodes of one that was read. Frozen values; no reading, no matching."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from yirangmq.core.reasons import Reason
from yirangmq.core.states import State


class Kind(Enum):
    TEXT = "text"
    CODE = "one of a closed list"
    NUMBER = "number"
    INSTANT = "date or time"
    OPEN = "whatever the producer put there"


FIELDS: dict[str, Kind] = {
    "reasonCode": Kind.CODE,
    "reasonMessage": Kind.TEXT,
    "failedAt": Kind.INSTANT,
    "attempt": Kind.NUMBER,
    "consumerId": Kind.TEXT,
    "messageId": Kind.TEXT,
    "sourceQueue": Kind.TEXT,
    "type": Kind.TEXT,
    "version": Kind.NUMBER,
    "traceId": Kind.TEXT,
    "priority": Kind.NUMBER,
    "publishedAt": Kind.INSTANT,
    "state": Kind.CODE,
    "attributes": Kind.OPEN,
    "payload": Kind.OPEN,
}
CODES: dict[str, dict[str, str]] = {
    "reasonCode": {reason.lower(): reason.value for reason in Reason},
    "state": {state.lower(): state.value for state in State},
}


@dataclass(frozen=True, slots=True)
class Value:
    """What stands right of an operator. A bare word may be read as a number or an instant too; a quoted one is text."""

    text: str
    quoted: bool = False
    number: int | float | None = None
    instant: int | None = None

    @property
    def is_null(self) -> bool:
        return not self.quoted and self.text == "null"


@dataclass(frozen=True, slots=True)
class Everything:
    pass


@dataclass(frozen=True, slots=True)
class Compare:
    path: tuple[str, ...]
    operator: str
    value: Value


@dataclass(frozen=True, slots=True)
class Both:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: "Node"


Node = Everything | Compare | Both | Either | Not


def fields_of(node: Node) -> frozenset[str]:
    """The fields a filter asks for, so that nobody loads what it does not."""
    return frozenset(compare.path[0] for compare in _compares(node))


def names_state(node: Node, state: State) -> bool:
    """Whether the filter says ``state=…`` for this very state somewhere."""
    wanted = (("state",), "=", state.value)
    return any((compare.path, compare.operator, compare.value.text) == wanted for compare in _compares(node))


def _compares(node: Node) -> Iterator[Compare]:
    match node:
        case Compare():
            yield node
        case Not(part):
            yield from _compares(part)
        case Both(parts) | Either(parts):
            for part in parts:
                yield from _compares(part)
