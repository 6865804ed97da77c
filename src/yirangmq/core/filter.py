"""The filter language: ``reasonCode=TIMEOUT and attempt>=3 and failedAt<2026-01-14``. Knows: its fields, its grammar,
when a message matches. Does not know: where the values come from; ``matches`` is handed a ``lookup``.

    filter  = [either]                          nothing matches everything
    either  = both { "or" both }
    both    = single { "and" single }
    single  = "not" single | "(" either ")" | field operator value

``docs/filter.md`` is its page."""

import operator
from collections.abc import Callable
from typing import Any

from yirangmq.core import filter_text
from yirangmq.core.errors import BadFilter
from yirangmq.core.filter_nodes import (
    CODES,
    FIELDS,
    Both,
    Compare,
    Either,
    Everything,
    Kind,
    Node,
    Not,
    Value,
)
from yirangmq.core.filter_text import Token
from yirangmq.core.nearest import nearest

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
        self._tokens = filter_text.tokens(text)
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
        return filter_text.pointing(self._text, token.at, complaint)

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
        path = filter_text.path_of(field.text)
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
            value = Value(filter_text.unquoted(word.text), quoted=True)
        else:
            value = Value(word.text, False, filter_text.number(word.text), filter_text.instant(word.text))
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
            amount = filter_text.number(value.text)
            if amount is None:
                raise self._wrong(word, f"{field} is a number, and {value.text!r} is not")
            return Value(value.text, False, amount)
        moment = filter_text.instant(value.text)
        if moment is None:
            raise self._wrong(word, f"{field} is a time, such as 2026-01-14 or 2026-01-14T09:30:00+09:00")
        return Value(value.text, False, moment)


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
        moment = filter_text.instant(found)
        if moment is not None:
            return _ordered(sign, moment, value.instant)
    if value.number is not None and sign in ORDERINGS:
        amount = filter_text.number(found)
        return amount is not None and _ordered(sign, amount, value.number)
    return _ordered(sign, found, value.text)


def _ordered(sign: str, left: object, right: object) -> bool:
    return left == right if sign == "=" else ORDERINGS[sign](left, right)


def _contains(found: object, value: Value) -> bool:
    """Text within text, whatever the case; an element of an array."""
    if isinstance(found, list):
        return any(_holds(element, "=", value) for element in found)
    return isinstance(found, str) and value.text.casefold() in found.casefold()
