"""Tables on the screen: rows to aligned lines that fit the terminal.

On a terminal, columns without content are left out, then columns of low priority until the line fits, and at last
columns of free text are shortened. Ids and names are never shortened. Instants are shown relative to now. A table for a
pipe has all columns, whole texts and instants in UTC.

Columns are aligned by the width of characters: wide East Asian ones take two places. Control characters of messages are
escaped, because a payload must not control the terminal."""

import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from yirangmq.cli.arguments import format_duration, format_instant

GAP = "  "
MIN_WIDTH = 8
"""Minimum width of a column that may shrink, in characters."""
MIN_NAME = 16
"""Width of the first column above which a name may get a line of its own, in characters."""
GOOD_WIDTH = 32
"""Width of free text below which columns of rank ``EXTRA`` or more are left out, in characters."""
EXTRA = 3
BOLD, DIM, RED, GREEN, YELLOW = 1, 2, 31, 32, 33
WORD_COLOURS = {
    **dict.fromkeys(("fail", "FAIL", "CRITICAL", "dead", "damaged", "silent", "stuck", "FAILED", "TIMEOUT", "no"), RED),
    **dict.fromkeys(
        ("degraded", "WARNING", "paused", "settling", "offline", "recovering", "stopped", "parked"), YELLOW
    ),
    **dict.fromkeys(("ok", "live", "running", "over", "DELIVERED", "yes"), GREEN),
}
"""Colours of the words in a column with ``marks``."""


class TableColumn(NamedTuple):
    """Column of a table.

    ``right``: align to the right. ``shrinks``: free text that may be shortened. ``rank``: 0 is always shown; a column
    of a higher rank is left out earlier. ``hides_zero``: left out if all values are 0. ``alarms``: a number above 0 is
    red. ``marks``: a state, coloured by its word. ``spills``: of a first column: a long name gets a line of its own
    before a column of rank 2 or less is left out. In other tables only a name of two thirds of a line does."""

    title: str
    right: bool = False
    shrinks: bool = False
    rank: int = 0
    hides_zero: bool = False
    spills: bool = False
    alarms: bool = False
    marks: bool = False


class Instant(NamedTuple):
    """Cell with an instant: in UTC for a pipe, relative to now on a terminal."""

    milliseconds: int

    def text(self, now_ms: int | None) -> str | None:
        return format_instant(self.milliseconds) if now_ms is None else relative_time(self.milliseconds, now_ms)


def instant_of(iso_text: str | None) -> Instant | None:
    """Return the cell of an ISO 8601 instant."""
    if iso_text is None:
        return None
    moment = datetime.fromisoformat(iso_text)
    return Instant(round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def relative_time(milliseconds: int, now_ms: int) -> str | None:
    """Format an instant as ``3m 12s ago`` or ``in 5m 2s``. Return None for 0."""
    if not milliseconds:
        return None
    seconds = (now_ms - milliseconds) / 1000
    if abs(seconds) < 1:
        return "now"
    return f"{format_duration(seconds)} ago" if seconds > 0 else f"in {format_duration(-seconds)}"


def render(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[object]],
    width: int | None,
    *,
    now_ms: int | None = None,
    colour: bool = False,
) -> Iterator[str]:
    """Yield the lines of a table. ``width``: of the terminal; None for a pipe. ``now_ms``: show instants relative."""
    texts = [[plain(cell.text(now_ms) if isinstance(cell, Instant) else cell) for cell in row] for row in rows]
    chosen = list(range(len(columns)))
    if width is not None:
        chosen = [at for at in chosen if at == 0 or not texts or _has_content(columns[at], [row[at] for row in texts])]
    measured = [max(measure(line[at]) for line in ([one.title for one in columns], *texts)) for at in chosen]
    if width is not None:
        chosen, measured = _fit(columns, chosen, measured, width)
    titles = (_cell(columns[at].title, size, columns[at].right) for at, size in zip(chosen, measured, strict=True))
    heading = GAP.join(titles).rstrip()
    yield paint(heading, BOLD) if colour else heading
    for line in texts:
        parts = []
        if measured and measure(line[0]) > measured[0] and not columns[0].shrinks:
            yield line[0]
            line = ["", *line[1:]]
        for at, size in zip(chosen, measured, strict=True):
            text = _cell(line[at], size, columns[at].right)
            parts.append(_paint_cell(columns[at], line[at], text) if colour else text)
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


def paint(text: str, *codes: int) -> str:
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


def _has_content(column: TableColumn, texts: Sequence[str]) -> bool:
    empty = ("", "-", "0") if column.hides_zero else ("", "-")
    return any(text not in empty for text in texts)


def _fit(
    columns: Sequence[TableColumn], chosen: list[int], measured: list[int], width: int
) -> tuple[list[int], list[int]]:
    """Leave out columns of the highest rank until the others fit at their minimum, then shorten the widest texts."""
    chosen, measured = list(chosen), list(measured)
    natural, spills = measured[0], not columns[0].shrinks

    def least(at: int, size: int, wanted: int = MIN_WIDTH) -> int:
        return min(size, max(wanted, measure(columns[at].title))) if columns[at].shrinks else size

    def drop(wanted: int, rank: int) -> None:
        while _line_width([least(at, size, wanted) for at, size in zip(chosen, measured, strict=True)]) > width:
            droppable = [place for place, at in enumerate(chosen) if columns[at].rank >= rank]
            if not droppable:
                return
            place = max(droppable, key=lambda one: (columns[chosen[one]].rank, one))
            del chosen[place], measured[place]

    drop(GOOD_WIDTH, EXTRA)
    if spills:
        measured[0] = min(natural, MIN_NAME if columns[0].spills else max(MIN_NAME, width * 2 // 3))
    drop(MIN_WIDTH, 1)
    if spills:
        measured[0] = min(natural, max(measured[0], width - _line_width(measured) + measured[0]))
    smallest = [least(at, size) for at, size in zip(chosen, measured, strict=True)]
    over = _line_width(measured) - width
    while over > 0:
        wide = [place for place, size in enumerate(measured) if size > smallest[place]]
        if not wide:
            break
        measured[max(wide, key=measured.__getitem__)] -= 1
        over -= 1
    return chosen, measured


def _line_width(sizes: Sequence[int]) -> int:
    return sum(sizes) + len(GAP) * (len(sizes) - 1)


def _cell(text: str, width: int, right: bool) -> str:
    text = cut(text, width)
    space = " " * (width - measure(text))
    return space + text if right else text + space


def _paint_cell(column: TableColumn, value: str, text: str) -> str:
    if value == "-":
        return paint(text, DIM)
    if column.alarms and value not in ("0", ""):
        return paint(text, RED)
    if column.marks and (colour := WORD_COLOURS.get(value.partition(" ")[0])):
        return paint(text, colour)
    return text
