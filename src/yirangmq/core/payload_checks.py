"""Payload checks: conditions on a message's length, header and content before it is stored.

Each check is a value, and its result is a pure function of the message. No check modifies a payload. The time of each
grows with the payload's length alone, so there are no regular expressions.

JSON decoding and schema validation are passed in through ``CheckedMessage`` and run when a check first needs them.
Documents of checks are read by ``core.payload_check_parser``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from yirangmq.core.errors import BadInput

MAX_PAYLOAD = 64 * 1024 * 1024
_PRINTABLE = bytes(range(0x20, 0x7F))
_DIGITS, _LETTERS = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KINDS: dict[str, bytes] = {
    "any": b"",
    "digits": _DIGITS,
    "letters": _LETTERS,
    "alphanumeric": _DIGITS + _LETTERS,
    "hex": _DIGITS + b"ABCDEFabcdef",
    "printable": _PRINTABLE,
    "blank": b" ",
}
"""Character classes of a field, as the bytes allowed. There are no patterns, because their time is not bounded."""


class CheckProblem(NamedTuple):
    """Problem that a check found: the field, and a description."""

    field: str
    text: str


class CheckedMessage:
    """Message that is being checked, with lazy decoding.

    ``header``, ``decode`` (JSON to a value, or ``BadInput``) and ``fits`` (validates a value by a schema and returns
    the problem, "" if there is none) are called when a check first needs them."""

    __slots__ = ("_decode", "_fits", "_header", "_read", "_value", "is_json", "payload")

    def __init__(
        self,
        payload: bytes,
        is_json: bool,
        header: Callable[[], Mapping[str, Any]],
        decode: Callable[[bytes], Any],
        fits: Callable[["Schema", Any], str],
    ) -> None:
        self.payload = payload
        self.is_json = is_json
        self._read = header
        self._decode = decode
        self._fits = fits
        self._header: Mapping[str, Any] | None = None
        self._value: tuple[Any] | None = None

    @property
    def header(self) -> Mapping[str, Any]:
        if self._header is None:
            self._header = self._read()
        return self._header

    @property
    def value(self) -> Any:
        """Payload decoded from JSON; ``BadInput`` if it is not JSON."""
        if self._value is None:
            self._value = (self._decode(self.payload),)
        return self._value[0]

    def schema_problem(self, schema: "Schema") -> str:
        return self._fits(schema, self.value)


class PayloadCheck(Protocol):
    @property
    def name(self) -> str: ...

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None: ...

    def show(self) -> dict[str, Any]: ...


def first_problem(
    checks: tuple[PayloadCheck, ...], subject: CheckedMessage
) -> tuple[PayloadCheck, CheckProblem] | None:
    """Run the checks in order. Return the first one that finds a problem, and the problem; None if all pass."""
    for check in checks:
        found = check.find_problem(subject)
        if found is not None:
            return check, found
    return None


# -- length and header -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Length:
    """Check of the payload's length in bytes."""

    least: int = 0
    most: int = MAX_PAYLOAD
    name: str = "length"

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None:
        size = len(subject.payload)
        if self.least <= size <= self.most:
            return None
        if self.least == self.most:
            wanted = f"exactly {self.most}"
        elif size < self.least:
            wanted = f"at least {self.least}"
        else:
            wanted = f"at most {self.most}"
        return CheckProblem("payload", f"has {size} bytes, not {wanted}")

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "min": self.least, "max": self.most}


@dataclass(frozen=True, slots=True)
class HeaderCondition:
    """Condition on one member of the header. ``least`` and ``most``: its length in characters."""

    member: str
    required: bool = True
    least: int = 0
    most: int = MAX_PAYLOAD
    made_of: str = "any"
    one_of: tuple[Any, ...] = ()

    def find_problem(self, header: Mapping[str, Any]) -> str:
        value = member_of(header, self.member)
        if value is None:
            return "is missing" if self.required else ""
        if self.one_of and value not in self.one_of:
            return f"must be one of {', '.join(map(str, self.one_of))}, not {short(value)}"
        text = value if isinstance(value, str) else str(value)
        if not self.least <= len(text) <= self.most:
            return f"has {len(text)} characters, not {self.least} to {self.most}"
        if not is_made_of(text.encode("utf-8", "replace"), self.made_of):
            return f"must be {self.made_of}, not {short(value)}"
        return ""

    def show(self) -> dict[str, Any]:
        given = {"required": self.required, "min": self.least, "max": self.most, "is": self.made_of}
        return given | ({"oneOf": [*self.one_of]} if self.one_of else {})


@dataclass(frozen=True, slots=True)
class Headers:
    """Check of the envelope's members other than the payload: ``type``, ``version``, ``attributes.bank`` …"""

    wanted: tuple[HeaderCondition, ...]
    name: str = "headers"

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None:
        for one in self.wanted:
            text = one.find_problem(subject.header)
            if text:
                return CheckProblem(one.member, text)
        return None

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "fields": {one.member: one.show() for one in self.wanted}}


@dataclass(frozen=True, slots=True)
class StatedLength:
    """Check of a length that the message states in a member of its header or in its payload.

    The payload must have that length, within ``tolerance`` per cent. ``counts`` "rest": the stated length counts the
    bytes after the length field."""

    member: str = ""
    at: int = 0
    size: int = 0
    written: str = "ascii"
    counts: str = "payload"
    tolerance: float = 0.0
    name: str = "statedLength"

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None:
        field = self.member or f"payload[{self.at}:{self.at + self.size}]"
        stated = self._stated_length(subject)
        if stated is None:
            what = (
                "is missing" if self.member and member_of(subject.header, self.member) is None else "states no length"
            )
            return CheckProblem(field, what)
        real = len(subject.payload) - (self.at + self.size if self.counts == "rest" else 0)
        if abs(real - stated) <= stated * self.tolerance / 100:
            return None
        more = f", more than {self.tolerance:g} % away" if self.tolerance else ""
        return CheckProblem(field, f"states {stated} bytes, has {real}{more}")

    def _stated_length(self, subject: CheckedMessage) -> int | None:
        if self.member:
            return _whole(member_of(subject.header, self.member))
        piece = subject.payload[self.at : self.at + self.size]
        if len(piece) < self.size:
            return None
        if self.written == "ascii":
            return int(piece) if piece.isdigit() else None
        if self.written == "bcd":
            text = piece.hex()
            return int(text) if text.isdecimal() else None
        return int.from_bytes(piece, "big" if self.written == "big" else "little")

    def show(self) -> dict[str, Any]:
        tolerance = {"tolerancePercent": self.tolerance}
        if self.member:
            return {"check": self.name, "header": self.member, **tolerance}
        place = {"at": self.at, "size": self.size, "as": self.written, "counts": self.counts}
        return {"check": self.name, **place, **tolerance}


# -- values -----------------------------------------------------------------------------------------------------------


def member_of(header: Mapping[str, Any], name: str) -> Any:
    """Return a member such as ``type``, or an attribute such as ``attributes.bank``; None if it is missing. The part
    after the first dot is one name, even if it has dots."""
    first, dot, rest = name.partition(".")
    value = header.get(first)
    if not dot:
        return value
    return value.get(rest) if isinstance(value, Mapping) else None


def is_made_of(piece: bytes, what: str) -> bool:
    return what == "any" or not piece.translate(None, KINDS[what])


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 12:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- content -----------------------------------------------------------------------------------------------------------

ROOTS = {"object": b"{", "array": b"[", "string": b'"', "number": b"-0123456789", "boolean": b"tf", "null": b"n"}


@dataclass(frozen=True, slots=True)
class Json:
    """Check that the payload is one JSON document. ``root``: the required type of its root, "" for any."""

    root: str = ""
    name: str = "json"

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None:
        if not subject.is_json:
            try:
                _ = subject.value
            except BadInput as error:
                return CheckProblem("payload", f"is not JSON: {error}")
        first = subject.payload.lstrip(b" \t\r\n")[:1]
        if self.root and first not in [ROOTS[self.root][n : n + 1] for n in range(len(ROOTS[self.root]))]:
            return CheckProblem("payload", f"must be {_article(self.root)}")
        return None

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "root": self.root or None}


@dataclass(frozen=True, slots=True)
class Schema:
    """Check that the payload is JSON and valid by a JSON Schema."""

    schema: Any
    name: str = "schema"

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None:
        try:
            text = subject.schema_problem(self)
        except BadInput as error:
            return CheckProblem("payload", f"is not JSON: {error}")
        if not text:
            return None
        field, _, what = text.partition(": ")
        return CheckProblem(field, what)

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "schema": self.schema}


@dataclass(frozen=True, slots=True)
class Encoding:
    """Check that the payload can be decoded as text of this encoding."""

    encoding: str
    name: str = "encoding"

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None:
        try:
            subject.payload.decode(self.encoding)
        except UnicodeDecodeError as error:
            found = " ".join(f"{byte:02x}" for byte in subject.payload[error.start : error.start + 2])
            return CheckProblem("payload", f"is not {self.encoding}: byte {error.start} ({found}) cannot be read")
        return None

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "encoding": self.encoding}


@dataclass(frozen=True, slots=True)
class RecordColumn:
    """Field at a fixed offset of a record."""

    label: str
    at: int
    size: int
    made_of: str = "any"
    one_of: tuple[str, ...] = ()

    def find_problem(self, record: bytes) -> str:
        piece = record[self.at : self.at + self.size]
        if not is_made_of(piece, self.made_of):
            return f"must be {self.made_of}, not {short(piece.decode('latin-1'))}"
        if self.one_of and piece.decode("latin-1").rstrip(" ") not in self.one_of:
            return f"must be one of {', '.join(self.one_of)}, not {short(piece.decode('latin-1'))}"
        return ""

    def show(self) -> dict[str, Any]:
        given = {"name": self.label, "at": self.at, "size": self.size, "is": self.made_of}
        return given | ({"oneOf": [*self.one_of]} if self.one_of else {})


@dataclass(frozen=True, slots=True)
class Records:
    """Check of fixed-length records. ``ending``: bytes that follow each record, may be empty; ``columns``: fields of
    each record."""

    length: int
    ending: str = ""
    least: int = 1
    most: int = MAX_PAYLOAD
    columns: tuple[RecordColumn, ...] = ()
    name: str = "records"

    def find_problem(self, subject: CheckedMessage) -> CheckProblem | None:
        payload, ending = subject.payload, self.ending.encode("latin-1")
        step = self.length + len(ending)
        count, left = divmod(len(payload), step)
        if left == self.length and ending:
            count, left = count + 1, 0  # the last record may lack its ending
        if left:
            return CheckProblem("payload", f"has {len(payload)} bytes, which is no number of records of {step}")
        if not self.least <= count <= self.most:
            return CheckProblem("payload", f"has {count} records, not {self.least} to {self.most}")
        for number in range(count):
            found = self._wrong(payload[number * step : (number + 1) * step], ending)
            if found is not None:
                return CheckProblem(f"payload[{number}]{found.field}", found.text)
        return None

    def _wrong(self, record: bytes, ending: bytes) -> CheckProblem | None:
        tail = record[self.length :]
        if tail and tail != ending:
            return CheckProblem("", f"has an invalid end of record: {tail.hex(' ')}")
        for column in self.columns:
            text = column.find_problem(record)
            if text:
                return CheckProblem(f".{column.label}", text)
        return None

    def show(self) -> dict[str, Any]:
        limits = {"length": self.length, "ending": self.ending, "min": self.least, "max": self.most}
        return {"check": self.name, **limits, "fields": [column.show() for column in self.columns]}


def _article(root: str) -> str:
    return f"{'an' if root[0] in 'ao' else 'a'} {root}" if root != "null" else root
