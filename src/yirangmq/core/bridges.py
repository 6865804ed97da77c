"""Bridges from topics to a queue: definition, cursor, and the message ids that make delivery exactly-once.

Each record that matches the filter becomes one message with the id ``EPOCH-SEQUENCE``, so that a record that is copied
twice is a duplicate. Definitions and cursors are notes of the store, under ``bridge/`` and ``bridge-cursor/``. The
worker is ``broker.bridge_worker``. Pure."""

from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import MAX_SEQUENCE, Start
from yirangmq.core.validation import Fields, kind

DEFINITION_PREFIX = "bridge/"
CURSOR_PREFIX = "bridge-cursor/"
"""Prefixes of the notes of bridges: definitions, and cursors."""
MAX_GROUP_CHARS = 255
"""Maximum length of a group id, in characters."""


class BridgeState(StrEnum):
    RUNNING = "running"
    """It copies records as they are published."""
    WAITING = "waiting"
    """The queue or its store accepts nothing now; the worker retries."""
    PAUSED = "paused"
    """An operator paused it."""
    STOPPED = "stopped"
    """It cannot continue without an operator: the next record was retired, or the log has another epoch."""


class Bridge(NamedTuple):
    """Bridge from topics to a queue. ``groups``: the key of a record becomes the group of its message. ``changed_at``:
    instant at which it was last paused or resumed."""

    name: str
    queue: str
    topics: tuple[str, ...] = ()
    groups: bool = True
    is_paused: bool = False
    changed_at: int = 0

    @property
    def filter(self) -> Filter:
        return make_filter(self.topics)

    def is_same(self, other: "Bridge") -> bool:
        """Return True if both are defined alike; one of them may be paused."""
        return self == other._replace(is_paused=self.is_paused, changed_at=self.changed_at)


class BridgeCursor(NamedTuple):
    """Cursor of a bridge: all matching records up to ``sequence`` of this epoch are in the queue."""

    epoch: str
    sequence: int
    at: int


class NewBridge(NamedTuple):
    """Definition of a bridge to be created, with the place in the log where it starts."""

    bridge: Bridge
    start: Start = Start.NEW
    at: int = 0


def check_bridge(name: object, field: str = "name") -> str:
    return validation.check_consumer(name, field)


def read_new(given: object, path: str = "") -> NewBridge:
    """Parse the document of a new bridge; ``BadInput`` names the field that is wrong."""
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
    at = fields.whole("at", 0, least=0, most=MAX_SEQUENCE)
    if (start in (Start.SEQUENCE, Start.TIME)) != bool(at):
        raise BadInput("goes with start sequence or time, and they need it", field=fields.name("at"))
    return start, at


def _topics(given: object, field: str) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise BadInput(f"must be an array of names and patterns, not {kind(given)}", field=field)
    make_filter(given)
    return tuple(given)


def read_all(given: object, path: str) -> tuple[NewBridge, ...]:
    """Parse an array of new bridges; each name may occur once."""
    if not isinstance(given, list):
        raise BadInput(f"must be an array of objects, not {kind(given)}", field=path)
    found = tuple(read_new(one, f"{path}[{place}]") for place, one in enumerate(given))
    if len({one.bridge.name for one in found}) != len(found):
        raise BadInput("the same name twice", field=path)
    return found


def as_document(bridge: Bridge) -> dict[str, Any]:
    """Return the bridge as the document of its note."""
    return {**bridge._asdict(), "topics": list(bridge.topics)}


def from_document(given: dict[str, Any]) -> Bridge:
    return Bridge(**{**given, "topics": tuple(given["topics"])})


def message_id(epoch: str, sequence: int) -> str:
    """Return the message id of a record. It is always the same, so that a record that is copied twice is a
    duplicate."""
    return f"{epoch}-{sequence}"


def group_of(key: str | None) -> str | None:
    """Return the group id of a key; a key that is too long for a group id is replaced by its hash."""
    if not key:
        return None
    return key if len(key) <= MAX_GROUP_CHARS else f"blake2b:{blake2b(key.encode(), digest_size=32).hexdigest()}"
