"""The letters of the filter language: text to tokens, words to values, an error to a finger on the place.
Does not know: fields, what a filter means."""

import re
from datetime import UTC, datetime
from typing import NamedTuple

from yirangmq.core.errors import BadFilter

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
