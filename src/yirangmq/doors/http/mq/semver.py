"""Does a version satisfy a range, as npm writes ranges: ``^0.6.0``, ``0.6.x``, ``>=0.5 <1 || 2``, ``1.2 - 1.4``.

Knows: versions of three numbers. A range that cannot be read is satisfied by nothing."""

import re
from functools import lru_cache
from typing import NamedTuple

Version = tuple[int, int, int]
PART = r"(\d{1,15}|[xX*])"
PARTIAL = re.compile(rf"[v=\s]*{PART}(?:\.{PART})?(?:\.{PART})?(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")
COMPARATOR = re.compile(rf"\s*(\^|~>?|>=|<=|>|<|=)?\s*({PARTIAL.pattern})\s*")
HYPHEN = re.compile(rf"\s*({PARTIAL.pattern})\s+-\s+({PARTIAL.pattern})\s*")
LONGEST_VERSION = 256
END: Version = (10**16, 0, 0)


class Span(NamedTuple):
    """From the first, up to but not including the second."""

    low: Version
    high: Version


@lru_cache(maxsize=256)
def satisfies(version: Version, text: str) -> bool:
    if len(text) > LONGEST_VERSION:
        return False
    plain = " ".join(text.split())
    return any(_all_hold(version, part) for part in plain.split("||"))


def _all_hold(version: Version, text: str) -> bool:
    """One part of a range: two ends, or comparators that must all hold. Nothing at all is any version."""
    ends = HYPHEN.fullmatch(text)
    if ends is not None:
        return _covered(_numbers(ends[1])).low <= version < _covered(_numbers(ends[5])).high
    at, rest = 0, text.rstrip()
    while at < len(rest):
        found = COMPARATOR.match(rest, at)
        if found is None or not _holds(version, found[1] or "", _numbers(found[2])):
            return False
        at = found.end()
    return True


def _holds(version: Version, operator: str, said: list[int]) -> bool:
    span = _covered(said)
    match operator:
        case ">":
            return version >= span.high
        case ">=":
            return version >= span.low
        case "<":
            return version < span.low
        case "<=":
            return version < span.high
        case "^":
            return span.low <= version < _caret_end(said)
        case "~" | "~>":
            return span.low <= version < _next(said[:2])  # the next minor version, or major where none is said
        case _:
            return span.low <= version < span.high


def _numbers(text: str) -> list[int]:
    """Those that are said, as far as the first that is not."""
    partial = PARTIAL.fullmatch(text)
    said: list[int] = []
    for part in partial.groups() if partial is not None else ():
        if part is None or not part.isdecimal():
            break
        said.append(int(part))
    return said


def _covered(said: list[int]) -> Span:
    """The versions that a version, or the beginning of one, stands for."""
    low = [*said, 0, 0, 0]
    return Span((low[0], low[1], low[2]), _next(said))


def _next(said: list[int]) -> Version:
    """The first version behind all those that begin so."""
    if not said:
        return END
    bumped = [*said[:-1], said[-1] + 1, 0, 0]
    return bumped[0], bumped[1], bumped[2]


def _caret_end(said: list[int]) -> Version:
    """Up to the next change of the first number that is not 0."""
    for place, number in enumerate(said):
        if number:
            return _next(said[: place + 1])
    return _next(said)
