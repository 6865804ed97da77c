"""Head cache: requests whose heads equal earlier ones are decoded without the parser.

Clients repeat the same headers. The cache keeps three things:

- A block of header lines and its parsed headers: a request with the same block needs only its first line parsed.
- A whole head and its route, once it has come twice.
- A path template, for paths that differ only in an id: the method, the headers, and the path around the id.

It decodes only input that is exactly one whole request. Anything unusual goes to the parser: chunks, upgrades, an
incomplete body, another version. Each table is cleared when it has ``MOST_BLOCKS`` entries."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

from yirangmq.protocols.http.types import Head, Route, Stem, new_head

LINE = re.compile(rb"(GET|PUT|POST|PATCH|DELETE|HEAD) (/[!\"$-~]*) HTTP/1\.1")
"""Request lines that the parser accepts and whose target is a plain path: visible ASCII, no fragment."""
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
    """Parsed headers of a block of header lines, and the length of the body in bytes."""

    headers: Mapping[str, str]
    length: int


class Found(NamedTuple):
    """A request that was decoded from the cache. ``route``: its route if that is cached too, otherwise None."""

    head: Head
    body: bytes
    route: Route | None


class Around(NamedTuple):
    """Cached head of requests that differ only in one value of the path."""

    method: str
    headers: Mapping[str, str]
    length: int
    stem: Stem


new_found = cast("Callable[[tuple[Head, bytes, Route | None]], Found]", partial(tuple.__new__, Found))


class Blocks:
    """Head cache shared by all connections of a server. Loop thread only."""

    __slots__ = ("_around", "_heads", "_known", "_once")

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._heads: dict[bytes, tuple[Head, Route]] = {}
        self._around: dict[tuple[bytes, bytes, bytes], Around] = {}
        """Keys: the start of the request line, its segment before or behind the value, and the block of header
        lines."""
        self._once: set[bytes] = set()
        """Heads seen once; they are cached the second time, because some never recur."""

    def read(self, data: bytes, longest_target: int) -> Found | None:
        """Decode the bytes as one whole request; return None if the cache does not cover them."""
        end = data.find(END)
        if end < 0:
            return None
        opening = data[:end]
        found = self._heads.get(opening) or self._head(opening, longest_target)
        if found is None:
            return None
        head, route = found
        if len(data) - end - 4 != head.length:
            return None
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
        """Cache the route of a request that ``read`` decoded: with a ``Stem`` immediately, otherwise the second time
        that the head is seen."""
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
        """Cache the header block of a request that the parser decoded from exactly these bytes."""
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
