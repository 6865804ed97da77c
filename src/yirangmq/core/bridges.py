"""Bridges from topics to a queue: definition, cursor, and the message ids that make delivery exactly-once.

Each wanted record becomes one message with the id ``EPOCH-SEQUENCE``, so that a record that is brought twice is a
duplicate. Definitions and cursors are notes of the store, under ``bridge/`` and ``bridge-cursor/``. The worker is
``broker.bridge_worker``. Pure."""

from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import MOST_SEQUENCE, Start
from yirangmq.core.validation import Fields, kind

DEFINED = "bridge/"
REACHED = "bridge-cursor/"
"""Where the notes of bridges begin: what each is, and how far it has come."""
MOST_GROUP = 255
"""Characters of a group id."""


class BridgeState(StrEnum):
    RUNNING = "running"
    """It brings over what is published."""
    WAITING = "waiting"
    """The queue or its store takes nothing now; it is tried again."""
    PAUSED = "paused"
    """An operator wants it so."""
    STOPPED = "stopped"
    """It cannot go on by itself: what it needs next is gone, or the log is another one."""


class Bridge(NamedTuple):
    """``groups``: a record's key becomes its message's group. ``changed_at``: when it was last paused or resumed."""

    name: str
    queue: str
    topics: tuple[str, ...] = ()
    groups: bool = True
    is_paused: bool = False
    changed_at: int = 0

    @property
    def filter(self) -> Filter:
        return make_filter(self.topics)


class Reached(NamedTuple):
    """Everything up to ``sequence`` of this epoch is in the queue, as far as it is wanted there."""

    epoch: str
    sequence: int
    at: int


class NewBridge(NamedTuple):
    """One to be made: where it begins, too."""

    bridge: Bridge
    start: Start = Start.NEW
    at: int = 0


def check_bridge(name: object, field: str = "name") -> str:
    return validation.check_consumer(name, field)


def read_new(given: object, path: str = "") -> NewBridge:
    """From a document. ``BadInput`` names the field."""
    fields = Fields(given, path)
    name = check_bridge(fields.take("name", None), fields.name("name"))
    queue = validation.check_queue(fields.take("queue", None), fields.name("queue"))
    topics = _topics(fields.take("topics", []), fields.name("topics"))
    groups = fields.flag("groups", True)
    start, at = read_start(fields)
    fields.done()
    return NewBridge(Bridge(name, queue, topics, groups), start, at)


def read_start(fields: Fields, default: Start = Start.NEW) -> tuple[Start, int]:
    start = Start(fields.choice("start", default, tuple(Start)))
    at = fields.whole("at", 0, least=0, most=MOST_SEQUENCE)
    if (start in (Start.SEQUENCE, Start.TIME)) != bool(at):
        raise BadInput("goes with start sequence or time, and they need it", field=fields.name("at"))
    return start, at


def _topics(given: object, field: str) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise BadInput(f"must be an array of names and patterns, not {kind(given)}", field=field)
    make_filter(given)
    return tuple(given)


def read_all(given: object, path: str) -> tuple[NewBridge, ...]:
    """An array of them, each name once."""
    if not isinstance(given, list):
        raise BadInput(f"must be an array of objects, not {kind(given)}", field=path)
    found = tuple(read_new(one, f"{path}[{place}]") for place, one in enumerate(given))
    if len({one.bridge.name for one in found}) != len(found):
        raise BadInput("the same name twice", field=path)
    return found


def as_document(bridge: Bridge) -> dict[str, Any]:
    """As its note has it."""
    return {**bridge._asdict(), "topics": list(bridge.topics)}


def of_document(given: dict[str, Any]) -> Bridge:
    return Bridge(**{**given, "topics": tuple(given["topics"])})


def message_id(epoch: str, sequence: int) -> str:
    """The same for the same record, always: what brings it twice is seen."""
    return f"{epoch}-{sequence}"


def group_of(key: str | None) -> str | None:
    """A key that is too long for a group id stands there as its hash."""
    if not key:
        return None
    return key if len(key) <= MOST_GROUP else f"blake2b:{blake2b(key.encode(), digest_size=32).hexdigest()}"
