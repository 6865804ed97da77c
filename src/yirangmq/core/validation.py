"""Input validation: names and numbers, strict reading of mappings, and the nearest known name.

One place for all protocols, so that they refuse the same input. ``Fields`` reads a mapping completely: a member that
was not read is refused by name, with the most similar known name. ``difflib`` is loaded at the first such error."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from yirangmq.core.errors import BadInput

# -- names and numbers -------------------------------------------------------------------------------------------------

QUEUE = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}")
"""Queue name. It is also a folder name: no slash, no leading dot, space for suffixes within 255 bytes."""
IDENTIFIER = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}")
"""Message id. File names contain it together with the place."""
MAX_DISPATCHED_QUEUE_BYTES = 1024
"""Maximum length of the name of a dispatched queue, in bytes of UTF-8. It is part of each key of the queue."""
_NOT_IN_QUEUE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no name of a dispatched queue has: control characters, and bytes that are not UTF-8."""
NAMESPACE = re.compile(r"[a-zA-Z0-9._-]{0,255}")
"""Name of a queue, or id of a message, in the HTTP queue's API. Most of them are valid queue names as they are."""
CONSUMER = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._:@-]{0,63}")
NOTE = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}(/[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}){0,3}")
"""Key of a note: up to four names with slashes between them, so that a note may be a file in a folder."""
MAX_SECONDS = 10 * 366 * 86400
"""Upper bound of durations, in seconds. Ten years are enough for any delay, and few enough to detect milliseconds given
as seconds."""


def check_queue(name: object, field: str = "queue") -> str:
    if isinstance(name, str) and QUEUE.fullmatch(name):  # without a further call: several times for each request
        return name
    return _matching(name, QUEUE, field, "1 to 200 of letters, digits, '.', '-', '_', not starting with '.'")


def check_dispatched_queue(name: object, field: str = "queue") -> str:
    """Return the name of a dispatched queue as it stands in keys of etcd: one segment of a path, so that a slash is
    written ``%2F``."""
    if not isinstance(name, str):
        raise BadInput(f"must be a string, not {type(name).__name__}", field=field)
    made = name.replace("/", "%2F")
    size = len(made.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_DISPATCHED_QUEUE_BYTES:
        raise BadInput(f"must have 1 to {MAX_DISPATCHED_QUEUE_BYTES} bytes, not {size}", field=field)
    if _NOT_IN_QUEUE.search(made):
        raise BadInput("must be UTF-8 without control characters", field=field)
    return made


def check_id(name: object, field: str = "messageId") -> str:
    return _matching(name, IDENTIFIER, field, "1 to 100 of letters, digits, '.', '-', '_', not starting with '.'")


def check_ids(names: Sequence[str], field: str = "messageId") -> None:
    if not all(map(IDENTIFIER.fullmatch, names)):
        for name in names:
            check_id(name, field)


def check_note(key: object, field: str = "note") -> str:
    return _matching(key, NOTE, field, "up to four names of letters, digits, '.', '-', '_' with '/' between them")


def check_selection(filter: object, ids: Sequence[str] | None, *, all: bool) -> None:
    """Raise ``BadInput`` unless a call selects messages by filter, by ids, or all of them explicitly.

    A forgotten or empty filter must not change every message."""
    if not isinstance(filter, str):
        raise BadInput(f"must be a string, not {type(filter).__name__}", field="filter")
    is_selected = ids is not None or bool(filter.strip())
    if all and is_selected:
        raise BadInput("is given together with filter or ids; give only one", field="all")
    if not all and not is_selected:
        raise BadInput("select messages by a filter, ids, or all", field="filter")


def check_consumer(name: object, field: str = "consumerId") -> str:
    if isinstance(name, str) and CONSUMER.fullmatch(name):
        return name
    return _matching(
        name, CONSUMER, field, "1 to 64 of letters, digits, '.', '-', '_', ':', '@', not starting with '.'"
    )


def check_namespace(name: object, field: str = "namespace") -> str:
    return _matching(name, NAMESPACE, field, "0 to 255 of letters, digits, '.', '-', '_'")


@lru_cache(maxsize=4096)
def line_of(name: str) -> int:
    """Return the number of a group or a target in stores: a hash of 62 bits, never 0 for a name, stable across
    processes and releases. "" is 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % (2**62 - 1) + 1 if name else 0


def _matching(name: object, pattern: re.Pattern[str], field: str, says: str) -> str:
    if not isinstance(name, str):
        raise BadInput(f"must be a string, not {type(name).__name__}", field=field)
    if not pattern.fullmatch(name):
        raise BadInput(f"{name[:60]!r} is not allowed; use {says}", field=field)
    return name


def check_priority(value: object, field: str = "priority") -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise BadInput(f"must be null or a whole number from 0 (first) up, not {value!r}", field=field)
    return value


def check_milliseconds(seconds: object, field: str, *, least: float = 0) -> int:
    """Convert seconds, the unit of the public API, to milliseconds, the internal unit."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        raise BadInput(f"must be a number of seconds, not {seconds!r}", field=field)
    if not least <= seconds <= MAX_SECONDS:
        raise BadInput(f"must be from {least} to {MAX_SECONDS} seconds, not {seconds!r}", field=field)
    return round(seconds * 1000)


def check_count(value: object, field: str, *, least: int = 1, most: int = 1_000_000) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(f"must be a whole number from {least} to {most}, not {value!r}", field=field)
    return value


def check_text(value: object, field: str = "text") -> str:
    """Check a free text. Characters that UTF-8 cannot encode are replaced: an error's text may name a file in bytes
    that are not text."""
    if not isinstance(value, str):
        raise BadInput(f"must be a string, not {type(value).__name__}", field=field)
    return value.encode(errors="replace").decode()


def check_many(values: object, field: str) -> None:
    """Refuse a single text or object where a list is expected: each is a sequence too, and would be read by letter or
    by key."""
    if isinstance(values, str | bytes | bytearray | dict):
        raise BadInput(f"must be a list, not one {type(values).__name__}", field=field)


def check_callback(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise BadInput(f"{callback!r} cannot be called", field="on_receipt")


# -- nearest known name ------------------------------------------------------------------------------------------------


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word most similar to ``word``; None if none is similar enough."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, likeness)), None)


# -- strict reading of mappings ----------------------------------------------------------------------------------------


class Fields:
    """Strict reader of one mapping. Call it once for each known member; then ``done`` refuses the members left."""

    def __init__(self, given: object, path: str = "", error: type[BadInput] = BadInput) -> None:
        self._error = error
        self._path = path
        if not isinstance(given, Mapping):
            raise error(f"must be a JSON object, not {kind(given)}", field=path or "document")
        self._left: dict[object, object] = dict(given)
        self._known: list[str] = []

    def name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._left.pop(key, default)

    def is_null(self, key: str) -> bool:
        """Return True if the member is null or missing."""
        if self._left.get(key) is not None:
            return False
        self.take(key, None)
        return True

    def is_explicit_null(self, key: str) -> bool:
        """Return True if the member is present and null."""
        return key in self._left and self.is_null(key)

    def number(self, key: str, default: float, *, least: float, most: float) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self._error(f"must be a number from {least} to {most}, not {value!r}", field=self.name(key))
        return value

    def whole(self, key: str, default: int, *, least: int, most: int) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._error(f"must be a whole number from {least} to {most}, not {value!r}", field=self.name(key))
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self._error(f"must be true or false, not {value!r}", field=self.name(key))
        return value

    def choice(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.take(key, default)
        if value not in allowed:
            raise self._error(f"must be one of {', '.join(allowed)}, not {value!r}", field=self.name(key))
        return str(value)

    def inner(self, key: str) -> "Fields":
        return Fields(self.take(key, {}), self.name(key), self._error)

    def done(self) -> None:
        for key in self._left:
            near = nearest(str(key), self._known)
            hint = f"; did you mean {near!r}?" if near else f"; known: {', '.join(self._known)}"
            raise self._error(f"not a known field{hint}", field=self.name(str(key)))


def kind(value: object) -> str:
    """Return the JSON name of a value's type, for error texts."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
