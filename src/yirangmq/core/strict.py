"""Reads what people say to us to the last field: a mapping in, checked values out, or an error naming the field."""

from collections.abc import Mapping

from yirangmq.core.errors import BadInput
from yirangmq.core.nearest import nearest


class Fields:
    """One mapping being read. Ask for each known field once, then ``done`` refuses whatever is left."""

    def __init__(self, given: object, path: str = "", error: type[BadInput] = BadInput) -> None:
        self._error = error
        self._path = path
        if not isinstance(given, Mapping):
            raise error(f"must be a JSON object, not {kind(given)}", field=path or "document")
        self._left: dict[object, object] = dict(given)
        self._asked: list[str] = []

    def name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str, default: object) -> object:
        self._asked.append(key)
        return self._left.pop(key, default)

    def is_null(self, key: str) -> bool:
        """It is null, or not there."""
        if self._left.get(key) is not None:
            return False
        self.take(key, None)
        return True

    def says_null(self, key: str) -> bool:
        """It is there, and null."""
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
            near = nearest(str(key), self._asked)
            hint = f"; did you mean {near!r}?" if near else f"; known: {', '.join(self._asked)}"
            raise self._error(f"not a known field{hint}", field=self.name(str(key)))


def kind(value: object) -> str:
    """The JSON name of a value's type, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
