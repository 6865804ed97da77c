"""Head cache: requests whose heads equal earlier ones are decoded without the parser.

Clients repeat the same headers. The cache keeps three things:

- A block of header lines and its parsed headers: a request with the same block needs only its first line parsed.
- A whole head and its route, once it has come twice.
- A path template, for paths that differ only in an id: the method, the headers, and the path around the id.

It decodes only input that is exactly one whole request. Anything unusual goes to the parser: chunks, upgrades, an
incomplete body, another version. Each table is cleared when it has ``MAX_TABLE_ENTRIES`` entries."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

from yirangmq.protocols.http.types import HttpRoute, PathTemplate, RequestHead, new_head

LINE = re.compile(rb"(GET|PUT|POST|PATCH|DELETE|HEAD) (/[!\"$-~]*) HTTP/1\.1")
"""Request lines that the parser accepts and whose target is a plain path: visible ASCII, no fragment."""
END = b"\r\n\r\n"
MAX_BLOCK_BYTES = 1024
MAX_TABLE_ENTRIES = 1000
PLAIN_ENDS = re.compile(rb"(?:[^\r\n]|\r\n)*")
VALUE = re.compile(rb"[A-Za-z0-9._-]{1,255}")
UNUSUAL = frozenset(
    {
        "upgrade", "transfer-encoding", "content-encoding", "expect", "trailer", "te", "http2-settings",
        "proxy-connection",
    }
)  # fmt: skip


class HeaderBlock(NamedTuple):
    """Parsed headers of a block of header lines, and the length of the body in bytes."""

    headers: Mapping[str, str]
    length: int


class CachedRequest(NamedTuple):
    """A request that was decoded from the cache. ``route``: its route if that is cached too, otherwise None."""

    head: RequestHead
    body: bytes
    route: HttpRoute | None


class TemplateHead(NamedTuple):
    """Cached head of requests that differ only in one value of the path."""

    method: str
    headers: Mapping[str, str]
    length: int
    path_template: PathTemplate


new_cached_request = cast(
    "Callable[[tuple[RequestHead, bytes, HttpRoute | None]], CachedRequest]", partial(tuple.__new__, CachedRequest)
)


class HeadCache:
    """Head cache shared by all connections of a server. Loop thread only."""

    __slots__ = ("_blocks", "_heads", "_seen_once", "_templates")

    def __init__(self) -> None:
        self._blocks: dict[bytes, HeaderBlock] = {}
        self._heads: dict[bytes, tuple[RequestHead, HttpRoute]] = {}
        self._templates: dict[tuple[bytes, bytes, bytes], TemplateHead] = {}
        """Keys: the start of the request line, its segment before or behind the value, and the block of header
        lines."""
        self._seen_once: set[bytes] = set()
        """Heads seen once; they are cached the second time, because some never recur."""

    def read(self, data: bytes, max_target: int) -> CachedRequest | None:
        """Decode the bytes as one whole request; return None if the cache does not cover them."""
        end = data.find(END)
        if end < 0:
            return None
        opening = data[:end]
        found = self._heads.get(opening) or self._head(opening, max_target)
        if found is None:
            return None
        head, route = found
        if len(data) - end - 4 != head.length:
            return None
        return new_cached_request((head, data[end + 4 :], route))

    def _head(self, opening: bytes, max_target: int) -> tuple[RequestHead, HttpRoute | None] | None:
        line_end = opening.find(b"\r\n")
        if not 0 <= line_end <= max_target:
            return None
        block = opening[line_end:]
        parts = opening[:line_end].rsplit(b"/", 3)
        if len(parts) == 4 and parts[3] == b"1.1":
            start, before, behind, _ = parts
            template = self._templates.get((start, before, block))
            if template is not None:
                if behind[-5:] == b" HTTP" and VALUE.fullmatch(behind, 0, len(behind) - 5):
                    return _from_template(template, behind[:-5].decode("ascii"))
            else:
                template = self._templates.get((start, behind, block))
                if template is not None and VALUE.fullmatch(before):
                    return _from_template(template, before.decode("ascii"))
        header_block = self._blocks.get(block)
        line = LINE.fullmatch(opening, 0, line_end) if header_block is not None else None
        if header_block is None or line is None:
            return None
        method, target = line.group(1, 2)
        path, _, query = target.decode("ascii").partition("?")
        return new_head((method.decode("ascii"), path, query, *header_block, False, True, False)), None

    def add_route(self, data: bytes, found: CachedRequest, route: HttpRoute) -> None:
        """Cache the route of a request that ``read`` decoded: with a ``PathTemplate`` immediately, otherwise the second
        time that the head is seen."""
        head = found.head
        opening = data[: len(data) - len(found.body) - 4]
        if len(opening) > MAX_BLOCK_BYTES or not (route.is_lasting or route.path_template) or head.length is None:
            return
        if route.path_template is not None:
            line, _, _ = opening.partition(b"\r\n")
            start, before, behind, _ = line.rsplit(b"/", 3)
            if len(self._templates) >= MAX_TABLE_ENTRIES:
                self._templates.clear()
            key = start, behind if route.path_template.after else before, opening[len(line) :]
            self._templates[key] = TemplateHead(head.method, head.headers, head.length, route.path_template)
        elif opening in self._seen_once:
            if len(self._heads) >= MAX_TABLE_ENTRIES:
                self._heads.clear()
            self._heads[opening] = head, route
        else:
            if len(self._seen_once) >= MAX_TABLE_ENTRIES:
                self._seen_once.clear()
            self._seen_once.add(opening)

    def add_block(self, data: bytes, head: RequestHead) -> None:
        """Cache the header block of a request that the parser decoded from exactly these bytes."""
        line_end = data.find(b"\r\n")
        end = data.find(END, line_end)
        block = data[line_end:end]
        if end < 0 or len(block) > MAX_BLOCK_BYTES or head.length is None or len(data) - end - 4 != head.length:
            return
        if LINE.fullmatch(data, 0, line_end) is None:
            return
        if head.is_old or not head.keep_alive or head.expects_continue or not UNUSUAL.isdisjoint(head.headers):
            return
        if head.headers.get("connection", "keep-alive").lower() != "keep-alive" or not PLAIN_ENDS.fullmatch(block):
            return
        if len(self._blocks) >= MAX_TABLE_ENTRIES:
            self._blocks.clear()
        self._blocks[block] = HeaderBlock(head.headers, head.length)


def _from_template(template: TemplateHead, value: str) -> tuple[RequestHead, HttpRoute]:
    method, headers, length, (before, after, route) = template
    return new_head((method, f"{before}{value}{after}", "", headers, length, False, True, False)), route(value)
