"""Cache of parsed HTTP heads: requests like earlier ones are read without the parser.

Clients repeat the same headers. The cache keeps three things:

- A block of header lines and its parsed headers: a request with the same block needs only its first line parsed.
- A whole head and its route, once it has come twice.
- What stands around an id, for paths that differ in an id alone.

It reads only input that is exactly one whole request. Anything unusual goes to the parser: chunks, upgrades, a body
that is still to come, another version. Each table is cleared when it has ``MOST_BLOCKS`` entries."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

from yirangmq.protocols.http.types import Head, Route, Stem, new_head

LINE = re.compile(rb"(GET|PUT|POST|PATCH|DELETE|HEAD) (/[!\"$-~]*) HTTP/1\.1")
"""What the parser takes for a first line, and we for a path: visible ASCII, no fragment."""
END = b"\r\n\r\n"
LONGEST_BLOCK = 1024
MOST_BLOCKS = 1000
PLAIN_ENDS = re.compile(rb"(?:[^\r\n]|\r\n)*")
VALUE = re.compile(rb"[A-Za-z0-9._-]{1,255}")
UNUSUAL = frozenset(
    {
        "upgrade", "transfer-encoding", "content-encoding", "expect", "trailer", "te", "http2-settings",
        "proxy-connection",
    }
)  # fmt: skip


class Known(NamedTuple):
    headers: Mapping[str, str]
    length: int


class Found(NamedTuple):
    """``route``: where it leads, if that is known too."""

    head: Head
    body: bytes
    route: Route | None


class Around(NamedTuple):
    """What is said around a value."""

    method: str
    headers: Mapping[str, str]
    length: int
    stem: Stem


new_found = cast("Callable[[tuple[Head, bytes, Route | None]], Found]", partial(tuple.__new__, Found))


class Blocks:
    """One for all connections of a door."""

    __slots__ = ("_around", "_heads", "_known", "_once")

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._heads: dict[bytes, tuple[Head, Route]] = {}
        self._around: dict[tuple[bytes, bytes, bytes], Around] = {}
        """By the line up to the value, what stands before or behind it, and the block."""
        self._once: set[bytes] = set()
        """Heads that came once: some never come again."""

    def read(self, data: bytes, longest_target: int) -> Found | None:
        """The one request that these bytes are, if it can be told at a glance."""
        end = data.find(END)
        if end < 0:
            return None
        opening = data[:end]
        found = self._heads.get(opening) or self._head(opening, longest_target)
        if found is None or len(data) - end - 4 != found[0][4]:
            return None
        head, route = found
        return new_found((head, data[end + 4 :], route))

    def _head(self, opening: bytes, longest_target: int) -> tuple[Head, Route | None] | None:
        line_end = opening.find(b"\r\n")
        if not 0 <= line_end <= longest_target:
            return None
        block = opening[line_end:]
        parts = opening[:line_end].rsplit(b"/", 3)
        if len(parts) == 4 and parts[3] == b"1.1":
            start, before, behind, _ = parts
            around = self._around.get((start, before, block))
            if around is not None:
                if behind[-5:] == b" HTTP" and VALUE.fullmatch(behind, 0, len(behind) - 5):
                    return _between(around, behind[:-5].decode("ascii"))
            else:
                around = self._around.get((start, behind, block))
                if around is not None and VALUE.fullmatch(before):
                    return _between(around, before.decode("ascii"))
        known = self._known.get(block)
        line = LINE.fullmatch(opening, 0, line_end) if known is not None else None
        if known is None or line is None:
            return None
        method, target = line.group(1, 2)
        path, _, query = target.decode("ascii").partition("?")
        return new_head((method.decode("ascii"), path, query, *known, False, True, False)), None

    def keep(self, data: bytes, found: Found, route: Route) -> None:
        """This is where what was read of these bytes leads; the second time it is remembered."""
        head = found.head
        opening = data[: len(data) - len(found.body) - 4]
        if len(opening) > LONGEST_BLOCK or not (route.is_lasting or route.stem) or head.length is None:
            return
        if route.stem is not None:
            line, _, _ = opening.partition(b"\r\n")
            start, before, behind, _ = line.rsplit(b"/", 3)
            if len(self._around) >= MOST_BLOCKS:
                self._around.clear()
            key = start, behind if route.stem.after else before, opening[len(line) :]
            self._around[key] = Around(head.method, head.headers, head.length, route.stem)
        elif opening in self._once:
            if len(self._heads) >= MOST_BLOCKS:
                self._heads.clear()
            self._heads[opening] = head, route
        else:
            if len(self._once) >= MOST_BLOCKS:
                self._once.clear()
            self._once.add(opening)

    def learn(self, data: bytes, head: Head) -> None:
        """The parser took these bytes for one whole request with this head."""
        line_end = data.find(b"\r\n")
        end = data.find(END, line_end)
        block = data[line_end:end]
        if end < 0 or len(block) > LONGEST_BLOCK or head.length is None or len(data) - end - 4 != head.length:
            return
        if LINE.fullmatch(data, 0, line_end) is None:
            return
        if head.is_old or not head.stays or head.expects or not UNUSUAL.isdisjoint(head.headers):
            return
        if head.headers.get("connection", "keep-alive").lower() != "keep-alive" or not PLAIN_ENDS.fullmatch(block):
            return
        if len(self._known) >= MOST_BLOCKS:
            self._known.clear()
        self._known[block] = Known(head.headers, head.length)


def _between(around: Around, value: str) -> tuple[Head, Route]:
    method, headers, length, (before, after, route) = around
    return new_head((method, f"{before}{value}{after}", "", headers, length, False, True, False)), route(value)
