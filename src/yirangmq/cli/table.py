"""Tables on the screen: rows to aligned lines, cut to the width of the terminal.

Columns are aligned by the width of characters: wide East Asian ones take two places. Control characters of messages are
escaped, because a payload must not control the terminal."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

GAP = "  "
MIN_WIDTH = 8
"""Minimum width of a column that may shrink, in characters."""


class TableColumn(NamedTuple):
    """Column of a table. ``right``: align to the right. ``shrinks``: may be truncated on a narrow terminal."""

    title: str
    right: bool = False
    shrinks: bool = False


def render(columns: Sequence[TableColumn], rows: Sequence[Sequence[object]], width: int | None) -> Iterator[str]:
    """Yield the lines of a table, truncated to ``width`` columns if it is given."""
    cells = [[plain(cell) for cell in row] for row in rows]
    lines = [[column.title for column in columns], *cells]
    widths = [max(measure(line[at]) for line in lines) for at in range(len(columns))]
    if width is not None:
        widths = _fit_widths(columns, widths, width)
    for line in lines:
        parts = (_cell(text, size, column.right) for text, size, column in zip(line, widths, columns, strict=True))
        yield GAP.join(parts).rstrip()


def plain(value: object) -> str:
    """Format a cell: "-" for None, otherwise text with control characters escaped."""
    if value is None:
        return "-"
    return safe(str(value))


def safe(text: str, keep: str = "") -> str:
    """Escape control and format characters, except those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def measure(text: str) -> int:
    """Return the width on the terminal: wide East Asian characters take two columns, combining characters none."""
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    if measure(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _width(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _fit_widths(columns: Sequence[TableColumn], widths: list[int], width: int) -> list[int]:
    """Narrow the widest shrinkable column by one until the line fits or all are at the minimum."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    widths = list(widths)
    while over > 0:
        candidates = [at for at, column in enumerate(columns) if column.shrinks and widths[at] > MIN_WIDTH]
        if not candidates:
            break
        widest = max(candidates, key=lambda at: widths[at])
        widths[widest] -= 1
        over -= 1
    return widths


def _cell(text: str, width: int, right: bool) -> str:
    text = cut(text, width)
    space = " " * (width - measure(text))
    return space + text if right else text + space
