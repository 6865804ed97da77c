"""Parser of payload checks: converts their documents to the values of ``core.payload_checks``.

Unknown members and impossible numbers raise ``BadPolicy``, which names the field. ``core.processor`` loads this module
when it meets the first processor document."""

import codecs
from collections.abc import Callable, Mapping
from typing import Any

from yirangmq.core.errors import BadPolicy
from yirangmq.core.payload_checks import (
    KINDS,
    MAX_PAYLOAD,
    ROOTS,
    Encoding,
    HeaderCondition,
    Headers,
    Json,
    Length,
    PayloadCheck,
    RecordColumn,
    Records,
    Schema,
    StatedLength,
    short,
)
from yirangmq.core.validation import Fields, kind

MAX_FIELDS = 200
MAX_NAME_CHARS = 200
WRITTEN = ("ascii", "big", "little", "bcd")
COUNTED = ("payload", "rest")
NO_CODE_PAGES = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"})
"""Codecs of Python that are not usable as text encodings of a payload."""


def _read_length(part: Fields) -> Length:
    if not part.is_null("exact"):
        size = part.whole("exact", 0, least=0, most=MAX_PAYLOAD)
        return Length(size, size)
    return Length(
        part.whole("min", 0, least=0, most=MAX_PAYLOAD), part.whole("max", MAX_PAYLOAD, least=0, most=MAX_PAYLOAD)
    )


def _read_headers(part: Fields) -> Headers:
    given = part.take("fields", None)
    field = part.name("fields")
    if not isinstance(given, Mapping) or not 0 < len(given) <= MAX_FIELDS:
        raise BadPolicy(f"must be an object of 1 to {MAX_FIELDS} members, not {kind(given)}", field=field)
    found = []
    for name, about in given.items():
        one = Fields(about, f"{field}.{name}", BadPolicy)
        found.append(
            HeaderCondition(
                str(name),
                required=one.flag("required", True),
                least=one.whole("min", 0, least=0, most=MAX_PAYLOAD),
                most=one.whole("max", MAX_PAYLOAD, least=0, most=MAX_PAYLOAD),
                made_of=one.choice("is", "any", tuple(KINDS)),
                one_of=_read_choices(one),
            )
        )
        one.done()
    return Headers(tuple(found))


def _read_choices(part: Fields) -> tuple[Any, ...]:
    given = part.take("oneOf", [])
    if not isinstance(given, list | tuple) or not all(isinstance(one, str | int) for one in given):
        raise BadPolicy("must be an array of texts or whole numbers", field=part.name("oneOf"))
    return tuple(given)


def _read_stated(part: Fields) -> StatedLength:
    tolerance = part.number("tolerancePercent", 0, least=0, most=100)
    if not part.is_null("header"):
        return StatedLength(_text(part, "header"), tolerance=tolerance)
    return StatedLength(
        at=part.whole("at", 0, least=0, most=MAX_PAYLOAD),
        size=part.whole("size", 4, least=1, most=8),
        written=part.choice("as", "ascii", WRITTEN),
        counts=part.choice("counts", "payload", COUNTED),
        tolerance=tolerance,
    )


def _read_json(part: Fields) -> Json:
    return Json("" if part.is_null("root") else part.choice("root", "", tuple(ROOTS)))


def _read_schema(part: Fields) -> Schema:
    given = part.take("schema", None)
    if not isinstance(given, Mapping | bool):
        raise BadPolicy("must be a JSON Schema", field=part.name("schema"))
    return Schema(given)


def _read_encoding(part: Fields) -> Encoding:
    name = _text(part, "encoding")
    field = part.name("encoding")
    try:
        known = codecs.lookup(name)
    except (LookupError, ValueError):
        raise BadPolicy(f"{short(name)} is not a known encoding", field=field) from None
    if known.name.replace("_", "-") in NO_CODE_PAGES or not known._is_text_encoding:
        raise BadPolicy(f"{short(name)} is not an encoding of text", field=field)
    return Encoding(name)


def _read_records(part: Fields) -> Records:
    ending = part.take("ending", "")
    if not isinstance(ending, str) or len(ending) > 8 or any(ord(one) > 0xFF for one in ending):
        raise BadPolicy("must be a text of at most 8 characters, each one byte", field=part.name("ending"))
    length = part.whole("length", 0, least=1, most=MAX_PAYLOAD)
    least = part.whole("min", 1, least=0, most=MAX_PAYLOAD)
    most = part.whole("max", MAX_PAYLOAD, least=0, most=MAX_PAYLOAD)
    given = part.take("fields", [])
    if not isinstance(given, list | tuple) or len(given) > MAX_FIELDS:
        raise BadPolicy(f"must be an array of at most {MAX_FIELDS}", field=part.name("fields"))
    columns = tuple(_read_column(one, f"{part.name('fields')}[{n}]", length) for n, one in enumerate(given))
    return Records(length, ending, least, most, columns)


def _read_column(given: object, path: str, length: int) -> RecordColumn:
    part = Fields(given, path, BadPolicy)
    column = RecordColumn(
        _text(part, "name"),
        part.whole("at", 0, least=0, most=length - 1),
        part.whole("size", 1, least=1, most=length),
        part.choice("is", "any", tuple(KINDS)),
        tuple(map(str, _read_choices(part))),
    )
    part.done()
    if column.at + column.size > length:
        raise BadPolicy(f"ends behind its record of {length} bytes", field=part.name("size"))
    return column


def _text(part: Fields, key: str) -> str:
    value = part.take(key, None)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        raise BadPolicy(f"must be a text of 1 to {MAX_NAME_CHARS} characters, not {short(value)}", field=part.name(key))
    return value


READERS: dict[str, Callable[[Fields], PayloadCheck]] = {
    "length": _read_length,
    "headers": _read_headers,
    "statedLength": _read_stated,
    "json": _read_json,
    "schema": _read_schema,
    "encoding": _read_encoding,
    "records": _read_records,
}
"""Parser of each check, by its name in the document."""


def read_check(given: object, path: str) -> PayloadCheck:
    part = Fields(given, path, BadPolicy)
    if part.is_null("check"):
        raise BadPolicy(f"is needed: one of {', '.join(READERS)}", field=part.name("check"))
    check = READERS[part.choice("check", "", tuple(READERS))](part)
    part.done()
    least, most = getattr(check, "least", 0), getattr(check, "most", MAX_PAYLOAD)
    if least > most:
        raise BadPolicy(f"must not be larger than max, which is {most}", field=part.name("min"))
    return check
