"""What a caller may say, declared once: a value is checked by its declaration, and the API's document shows it.

Knows: kinds of values and how each is written in JSON, in a query and in a schema. Does not know: endpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from yirangmq.broker.settle import MOST_PER_CALL
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.message import Reason
from yirangmq.core.states import KEPT
from yirangmq.core.validation import Fields, kind

Schema = dict[str, Any]
MOST_TEXT = 10_000


class Kind(NamedTuple):
    """One kind of value. ``check`` returns it, or raises ``BadInput`` naming the field; ``parse`` turns the text of a
    query into what JSON would have said."""

    schema: Schema
    check: Callable[[object, str], Any]
    parse: Callable[[str, str], object]


class Field(NamedTuple):
    """One value that an endpoint takes. ``key`` is what the verb behind it calls it."""

    name: str
    kind: Kind
    about: str
    default: Any = None
    key: str = ""
    needed: bool = False

    def schema(self) -> Schema:
        shown: Schema = {**self.kind.schema, "description": self.about}
        return shown if self.default is None else {**shown, "default": self.default}


def read(fields: Sequence[Field], given: object) -> dict[str, Any]:
    """The checked values of a JSON object, by the keys of their verb; one that was not given and has no default is
    left out."""
    reader = Fields(given)
    values: dict[str, Any] = {}
    missing = object()
    for wanted in fields:
        value = reader.take(wanted.name, missing)
        if value is not missing:
            values[wanted.key or wanted.name] = wanted.kind.check(value, wanted.name)
        elif wanted.needed:
            raise BadInput("is needed", field=wanted.name)
        elif wanted.default is not None:
            values[wanted.key or wanted.name] = wanted.default
    reader.done()
    return values


def parsed(fields: Sequence[Field], texts: Mapping[str, str]) -> dict[str, object]:
    """The texts of a query as the values that JSON would have said; names that are not known stay, to be refused."""
    kinds = {field.name: field.kind for field in fields}
    return {name: kinds[name].parse(text, name) if name in kinds else text for name, text in texts.items()}


# -- kinds ----------------------------------------------------------------------------------------------------------


def _as_text(text: str, field: str) -> object:
    return text


def _as_number(text: str, field: str) -> object:
    for read_number in (int, float):
        if text.isascii() and "_" not in text and text == text.strip():
            try:
                return read_number(text)
            except ValueError:
                continue
    raise BadInput(f"must be a number, not {text[:60]!r}", field=field)


def _as_flag(text: str, field: str) -> object:
    if text not in ("true", "false"):
        raise BadInput(f"must be true or false, not {text[:60]!r}", field=field)
    return text == "true"


def text(most: int = MOST_TEXT, least: int = 0) -> Kind:
    def check(value: object, field: str) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most:
            raise BadInput(f"must be a text of {least} to {most} characters", field=field)
        return value

    return Kind({"type": "string", "minLength": least, "maxLength": most}, check, _as_text)


def whole(least: int, most: int) -> Kind:
    def check(value: object, field: str) -> int:
        if isinstance(value, float) and value.is_integer():  # 1.0 is a whole number in JSON
            value = int(value)
        return validation.check_count(value, field, least=least, most=most)

    return Kind({"type": "integer", "minimum": least, "maximum": most}, check, _as_number)


def seconds(least: float = 0) -> Kind:
    def check(value: object, field: str) -> float:
        validation.check_milliseconds(value, field, least=least)
        assert isinstance(value, int | float)
        return value

    return Kind({"type": "number", "minimum": least, "maximum": validation.MAX_SECONDS}, check, _as_number)


def choice(*allowed: str) -> Kind:
    def check(value: object, field: str) -> str:
        if value not in allowed:
            raise BadInput(f"must be one of {', '.join(allowed)}, not {str(value)[:60]!r}", field=field)
        return str(value)

    return Kind({"type": "string", "enum": list(allowed)}, check, _as_text)


def _check_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"must be true or false, not {kind(value)}", field=field)
    return value


BOOLEAN = Kind({"type": "boolean"}, _check_flag, _as_flag)


def many(inner: Kind, least: int = 1, most: int = MOST_PER_CALL) -> Kind:
    def check(value: object, field: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise BadInput(f"must be an array of {least} to {most}, not {_how_many(value)}", field=field)
        return [inner.check(one, f"{field}[{number}]") for number, one in enumerate(value)]

    return Kind({"type": "array", "items": inner.schema, "minItems": least, "maxItems": most}, check, _as_text)


def _how_many(value: object) -> str:
    return f"one of {len(value)}" if isinstance(value, list) else kind(value)


def _named(pattern: str, check: Callable[[object, str], str]) -> Kind:
    return Kind({"type": "string", "pattern": f"^{pattern}$"}, check, _as_text)


QUEUE_NAME = _named(validation.QUEUE.pattern, validation.check_queue)
MESSAGE_ID = _named(validation.IDENTIFIER.pattern, validation.check_id)
CONSUMER_ID = _named(validation.CONSUMER.pattern, validation.check_consumer)
LEASE_ID = text(40, 3)
REASON = choice(*(reason.value for reason in Reason))

# -- fields that several endpoints take -----------------------------------------------------------------------------

QUEUE = Field("queue", QUEUE_NAME, "the name of the queue", needed=True)
ID = Field("id", MESSAGE_ID, "the id of the message", needed=True)
CONSUMER = Field("id", CONSUMER_ID, "the name of the consumer", needed=True)
TOPIC = Field("topic", QUEUE_NAME, "the name of the topic", needed=True)
SUBSCRIBER = Field("name", CONSUMER_ID, "the name of the durable subscriber", needed=True)
BRIDGE = Field("name", CONSUMER_ID, "the name of the bridge", needed=True)
STATE = Field("state", choice(*(state.value for state in KEPT)), "messages of this state", "ready")
FILTER = Field("filter", text(), "which ones, in the filter language; empty: all", "")
LIMIT = Field("limit", whole(1, MOST_PER_CALL), "at most so many; a page of large messages may have fewer", 100)
CURSOR = Field("cursor", text(), "where the page before this one ended; empty: begin", "")
