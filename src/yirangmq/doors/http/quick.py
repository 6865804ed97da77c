"""Requests that look like ones seen before, read without the parser.

Clients say the same headers again and again. A block of header lines that the parser has read once is kept with what it
means; a request with the very same block, whole in one piece, needs but its first line looked at. Whatever is in any
way unusual (chunks, upgrades, a body that is still to come, another version) goes to the parser.

Knows: which blocks mean what. Does not know: connections, routes, limits of bodies."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from yirangmq.doors.http.head import Head

LINE = re.compile(rb"(GET|PUT|POST|PATCH|DELETE|HEAD) (/[!\"$-~]*) HTTP/1\.1")
"""What the parser takes for a first line, and we for a path: visible ASCII, no fragment."""
END = b"\r\n\r\n"
LONGEST_BLOCK = 1024
MOST_BLOCKS = 1000
PLAIN_ENDS = re.compile(rb"(?:[^\r\n]|\r\n)*")
UNUSUAL = frozenset({"upgrade", "transfer-encoding", "expect", "trailer", "te", "http2-settings", "proxy-connection"})


class Known(NamedTuple):
    headers: Mapping[str, str]
    length: int


class Found(NamedTuple):
    head: Head
    body: bytes


class Blocks:
    """One for all connections of a door."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def read(self, data: bytes, longest_target: int) -> Found | None:
        """The one request that these bytes are, if it can be told at a glance."""
        line_end = data.find(b"\r\n")
        end = data.find(END, line_end)
        if end < 0 or line_end > longest_target:
            return None
        known = self._known.get(data[line_end:end])
        if known is None or len(data) - end - 4 != known.length:
            return None
        line = LINE.fullmatch(data, 0, line_end)
        if line is None:
            return None
        path, _, query = line[2].decode("ascii").partition("?")
        method = line[1].decode("ascii")
        return Found(Head(method, path, query, known.headers, known.length, False, True, False), data[end + 4 :])

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
