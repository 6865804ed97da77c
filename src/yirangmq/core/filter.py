"""Filter language for messages and dead letters: fields, syntax tree, lexer, parser, evaluation.

Example: ``reasonCode=TIMEOUT and attempt>=3 and failedAt<2026-01-14``. Users read docs/filter.md.

    filter  = [either]                          nothing matches everything
    either  = both { "or" both }
    both    = single { "and" single }
    single  = "not" single | "(" either ")" | field operator value

The parser checks fields and types of values; ``BadFilter`` has a caret under the place. ``matches`` gets the values of
a message through ``lookup``, and asks only for fields that the filter names."""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from yirangmq.core.errors import BadFilter
from yirangmq.core.message import Reason
from yirangmq.core.states import State
from yirangmq.core.validation import nearest

# -- fields and syntax tree --------------------------------------------------------------------------------------------


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


# -- lexer -------------------------------------------------------------------------------------------------------------

LONGEST = 10_000
"""Characters of a filter; one that is longer was made by a program that should select by id."""
SHOWN = 100
"""Characters of the filter repeated in an error; the rest is cut off around the place."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<open>\() | (?P<close>\))
      | (?P<operator>!=|<=|>=|=|<|>|~)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<word>(?:[^\s()<>=!~"']|(?<=\.)"(?:[^"\\]|\\.)*")+)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{1,300})?([eE][+-]?\d{1,3})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_STEP = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """Every token with its place, then one of kind "end"."""
    if len(text) > LONGEST:
        raise BadFilter(f"has {len(text)} characters, at most {LONGEST}", field="filter")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            quote = text[at] in "\"'"
            raise pointing(text, at, "this quote is never closed" if quote else f"{text[at]!r} does not belong here")
        if match.lastgroup != "space":
            found.append(Token(str(match.lastgroup), match.group(), at))
        at = match.end()
    found.append(Token("end", "", len(text)))
    return found


def pointing(text: str, at: int, complaint: str) -> BadFilter:
    """The error, the filter, and a caret under the place."""
    flat = re.sub(r"\s", " ", text)
    begin = max(0, at - SHOWN // 2) if len(flat) > SHOWN else 0
    shown = flat[begin : begin + SHOWN]
    return BadFilter(f"{complaint}\n  {shown}\n  {' ' * (at - begin)}^", field="filter")


def unquoted(text: str) -> str:
    return _ESCAPE.sub(r"\1", text[1:-1])


def path_of(word: str) -> tuple[str, ...]:
    """``payload.a."b.c".d`` to its steps; empty where it is not a path."""
    steps: list[str] = []
    at = 0
    while match := _STEP.match(word, at):
        steps.append(_ESCAPE.sub(r"\1", match[1]) if match[1] is not None else match[2])
        at = match.end()
        if at == len(word):
            return tuple(steps)
        if word[at] != ".":
            break
        at += 1
    return ()


def number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return float(text) if "." in text or "e" in text.lower() else int(text)


def instant(text: str) -> int | None:
    """ISO 8601 to milliseconds since 1970; without an offset it is UTC, without a time it is midnight."""
    if not _DATE.match(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


# -- parser ------------------------------------------------------------------------------------------------------------

DEEPEST = 50
"""Nested parentheses and nots; a person needs three."""
ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Lookup = Callable[[str], object]
"""From a name in ``FIELDS`` to its value: text, a number, milliseconds for an instant, None where there is none;
for ``attributes`` and ``payload`` the whole value, into which a path is followed here."""


def parse(text: str) -> Node:
    """A filter to its meaning, or BadFilter with a caret under the place that is wrong."""
    return _Reader(text).whole()


class _Reader:
    """One filter being read, from left to right, one method per line of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        if self._peek().kind == "end":
            return Everything()
        node = self._either()
        left = self._peek()
        if left.kind != "end":
            hint = "there is no '(' for this" if left.kind == "close" else "expected 'and', 'or' or the end"
            raise self._wrong(left, hint)
        return node

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _keyword(self, word: str) -> bool:
        token = self._peek()
        if token.kind == "word" and token.text.lower() == word:
            self._next += 1
            return True
        return False

    def _wrong(self, token: Token, complaint: str) -> BadFilter:
        return pointing(self._text, token.at, complaint)

    def _either(self) -> Node:
        parts = [self._both()]
        while self._keyword("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self) -> Node:
        parts = [self._single()]
        while self._keyword("and"):
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _single(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._wrong(self._peek(), f"more than {DEEPEST} levels deep")
        try:
            if self._keyword("not"):
                return Not(self._single())
            if self._peek().kind == "open":
                return self._inside()
            return self._comparison()
        finally:
            self._depth -= 1

    def _inside(self) -> Node:
        opening = self._take()
        node = self._either()
        if self._peek().kind != "close":
            if self._peek().kind == "end":
                raise self._wrong(opening, "this '(' is never closed")
            raise self._wrong(self._peek(), "expected 'and', 'or' or ')'")
        self._take()
        return node

    def _comparison(self) -> Compare:
        field = self._take()
        if field.kind != "word":
            raise self._wrong(field, "expected a field, such as reasonCode")
        path = self._path(field)
        sign = self._take()
        if sign.kind != "operator":
            raise self._wrong(sign, f"expected = != < <= > >= or ~ after {field.text}")
        word = self._take()
        if word.kind not in ("word", "string"):
            raise self._wrong(word, f"expected a value after {sign.text}")
        return Compare(path, sign.text, self._value(path[0], sign, word))

    def _path(self, field: Token) -> tuple[str, ...]:
        path = path_of(field.text)
        kind = FIELDS.get(path[0]) if path else None
        if kind is None:
            near = nearest(path[0] if path else field.text, FIELDS)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(FIELDS)}"
            raise self._wrong(field, f"{field.text!r} is not a field; {hint}")
        if kind is Kind.OPEN and len(path) < 2:
            raise self._wrong(field, f"say which: {path[0]}.NAME")
        if kind is not Kind.OPEN and len(path) > 1:
            raise self._wrong(field, f"{path[0]} has no parts")
        return path

    def _value(self, field: str, sign: Token, word: Token) -> Value:
        if word.kind == "string":
            value = Value(unquoted(word.text), quoted=True)
        else:
            value = Value(word.text, False, number(word.text), instant(word.text))
        if value.is_null:
            if sign.text not in ("=", "!="):
                raise self._wrong(sign, "null can only be compared with = and !=")
            return value
        match FIELDS[field]:
            case Kind.CODE:
                return self._code(field, sign, word, value)
            case Kind.NUMBER | Kind.INSTANT as kind:
                return self._measure(field, kind, sign, word, value)
            case Kind.TEXT:
                return Value(value.text, quoted=True)
            case Kind.OPEN:
                return value

    def _code(self, field: str, sign: Token, word: Token, value: Value) -> Value:
        if sign.text in ORDERINGS:
            raise self._wrong(sign, f"{field} has no order; use =, != or ~")
        known = CODES[field]
        if sign.text == "~" or value.text.lower() in known:
            return Value(known.get(value.text.lower(), value.text), quoted=True)
        near = nearest(value.text.lower(), known)
        hint = f"did you mean {known[near]}?" if near else f"known: {', '.join(known.values())}"
        raise self._wrong(word, f"{value.text!r} is not a {field}; {hint}")

    def _measure(self, field: str, kind: Kind, sign: Token, word: Token, value: Value) -> Value:
        if sign.text == "~":
            raise self._wrong(sign, f"{field} is a {kind.value}; ~ looks into text")
        if kind is Kind.NUMBER:
            amount = number(value.text)
            if amount is None:
                raise self._wrong(word, f"{field} is a number, and {value.text!r} is not")
            return Value(value.text, False, amount)
        moment = instant(value.text)
        if moment is None:
            raise self._wrong(word, f"{field} is a time, such as 2026-01-14 or 2026-01-14T09:30:00+09:00")
        return Value(value.text, False, moment)


# -- evaluation --------------------------------------------------------------------------------------------------------


def matches(node: Node, lookup: Lookup) -> bool:
    match node:
        case Compare(path, sign, value):
            found = _follow(lookup(path[0]), path[1:])
            return not _holds(found, "=", value) if sign == "!=" else _holds(found, sign, value)
        case Both(parts):
            return all(matches(part, lookup) for part in parts)
        case Either(parts):
            return any(matches(part, lookup) for part in parts)
        case Not(part):
            return not matches(part, lookup)
        case Everything():
            return True


def _follow(value: object, steps: tuple[str, ...]) -> object:
    """Into objects by name, into arrays by number; None where the way ends."""
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _holds(found: object, sign: str, value: Value) -> bool:
    if value.is_null:
        return found is None
    if sign == "~":
        return _contains(found, value)
    match found:
        case bool():
            return sign == "=" and not value.quoted and value.text == ("true" if found else "false")
        case int() | float():
            return value.number is not None and _ordered(sign, found, value.number)
        case str():
            return _text_holds(found, sign, value)
        case _:
            return False


def _text_holds(found: str, sign: str, value: Value) -> bool:
    """Text against a bare date is time, and against a bare number is a number, where both sides can be read so."""
    if value.instant is not None:
        moment = instant(found)
        if moment is not None:
            return _ordered(sign, moment, value.instant)
    if value.number is not None and sign in ORDERINGS:
        amount = number(found)
        return amount is not None and _ordered(sign, amount, value.number)
    return _ordered(sign, found, value.text)


def _ordered(sign: str, left: object, right: object) -> bool:
    return left == right if sign == "=" else ORDERINGS[sign](left, right)


def _contains(found: object, value: Value) -> bool:
    """Text within text, whatever the case; an element of an array."""
    if isinstance(found, list):
        return any(_holds(element, "=", value) for element in found)
    return isinstance(found, str) and value.text.casefold() in found.casefold()
