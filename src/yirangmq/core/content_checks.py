"""Checks of what is in a message: JSON and its schema, text of an encoding, records of one length (see ``checks``)."""

from dataclasses import dataclass
from typing import Any

from yirangmq.core.checks import LARGEST, Complaint, Subject, is_made_of, short
from yirangmq.core.errors import BadInput

ROOTS = {"object": b"{", "array": b"[", "string": b'"', "number": b"-0123456789", "boolean": b"tf", "null": b"n"}


@dataclass(frozen=True, slots=True)
class Json:
    """One JSON document; ``root``: of which kind."""

    root: str = ""
    name: str = "json"

    def complaint(self, subject: Subject) -> Complaint | None:
        if not subject.is_json:
            try:
                _ = subject.value
            except BadInput as error:
                return Complaint("payload", f"is not JSON: {error}")
        first = subject.payload.lstrip(b" \t\r\n")[:1]
        if self.root and first not in [ROOTS[self.root][n : n + 1] for n in range(len(ROOTS[self.root]))]:
            return Complaint("payload", f"must be {_article(self.root)}")
        return None

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "root": self.root or None}


@dataclass(frozen=True, slots=True)
class Schema:
    """JSON that fits a JSON Schema."""

    schema: Any
    name: str = "schema"

    def complaint(self, subject: Subject) -> Complaint | None:
        try:
            text = subject.complaint_of(self)
        except BadInput as error:
            return Complaint("payload", f"is not JSON: {error}")
        if not text:
            return None
        field, _, what = text.partition(": ")
        return Complaint(field, what)

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "schema": self.schema}


@dataclass(frozen=True, slots=True)
class Encoding:
    """Bytes that can be read as text of this encoding."""

    encoding: str
    name: str = "encoding"

    def complaint(self, subject: Subject) -> Complaint | None:
        try:
            subject.payload.decode(self.encoding)
        except UnicodeDecodeError as error:
            found = " ".join(f"{byte:02x}" for byte in subject.payload[error.start : error.start + 2])
            return Complaint("payload", f"is not {self.encoding}: byte {error.start} ({found}) cannot be read")
        return None

    def show(self) -> dict[str, Any]:
        return {"check": self.name, "encoding": self.encoding}


@dataclass(frozen=True, slots=True)
class Column:
    """A field at a fixed place of a record."""

    label: str
    at: int
    size: int
    made_of: str = "any"
    one_of: tuple[str, ...] = ()

    def complaint(self, record: bytes) -> str:
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
    """Records of one length, each followed by the same bytes or by none; ``columns`` are fields of each."""

    length: int
    ending: str = ""
    least: int = 1
    most: int = LARGEST
    columns: tuple[Column, ...] = ()
    name: str = "records"

    def complaint(self, subject: Subject) -> Complaint | None:
        payload, ending = subject.payload, self.ending.encode("latin-1")
        step = self.length + len(ending)
        count, left = divmod(len(payload), step)
        if left == self.length and ending:
            count, left = count + 1, 0  # the last one may do without its ending
        if left:
            return Complaint("payload", f"has {len(payload)} bytes, which is no number of records of {step}")
        if not self.least <= count <= self.most:
            return Complaint("payload", f"has {count} records, not {self.least} to {self.most}")
        for number in range(count):
            found = self._wrong(payload[number * step : (number + 1) * step], ending)
            if found is not None:
                return Complaint(f"payload[{number}]{found.field}", found.text)
        return None

    def _wrong(self, record: bytes, ending: bytes) -> Complaint | None:
        tail = record[self.length :]
        if tail and tail != ending:
            return Complaint("", f"does not end as a record does: {tail.hex(' ')} stands there")
        for column in self.columns:
            text = column.complaint(record)
            if text:
                return Complaint(f".{column.label}", text)
        return None

    def show(self) -> dict[str, Any]:
        limits = {"length": self.length, "ending": self.ending, "min": self.least, "max": self.most}
        return {"check": self.name, **limits, "fields": [column.show() for column in self.columns]}


def _article(root: str) -> str:
    return f"{'an' if root[0] in 'ao' else 'a'} {root}" if root != "null" else root
