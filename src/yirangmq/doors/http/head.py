"""The head of a request, checked: where it goes, how its body comes, what happens to the connection.

Knows: what a head may say. Does not know: bytes on the wire, routes."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SINGLE = frozenset({"host", "content-length", "content-type", "authorization", "expect", "transfer-encoding"})
"""Said twice, nobody can know which one another server on the way has believed."""
ABSOLUTE = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)


class Refused(Exception):
    """A request that is answered by the protocol itself, after which the connection is closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Head(NamedTuple):
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    length: int | None
    """Of the body; None: it comes in chunks."""
    is_old: bool
    """HTTP/1.0: knows no chunks."""
    stays: bool
    """The connection is for further requests."""
    expects: bool
    """The client sends the body when it is told to go on."""


# The same as Head(…) without a Python frame for each (as in ``core.message``).
new_head = cast("Callable[[tuple[Any, ...]], Head]", partial(tuple.__new__, Head))


def check_head(method: str, target: str, version: str, headers: dict[str, str], stays: bool) -> Head:
    """The head of a request that can be served, or ``Refused``."""
    if version not in ("1.1", "1.0"):
        raise Refused(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if method not in METHODS:
        raise Refused(501, f"the method {method} is not known here")
    is_old = version == "1.0"
    if not is_old and "host" not in headers:
        raise Refused(400, "the header Host is missing")
    path, query = split_target(method, target)
    absolute = None if target[:1] == "/" else ABSOLUTE.match(target)
    if absolute is not None:
        headers["host"] = absolute[1]  # whatever the header says: RFC 9112, 3.2.2
    length = _length(headers, is_old)
    expects = False
    if "expect" in headers:
        if headers["expect"].lower() != "100-continue":
            raise Refused(417, "the only thing to expect here is 100-continue")
        expects = not is_old and length != 0
    return Head(method, path, query, headers, length, is_old, stays, expects)


def split_target(method: str, target: str) -> tuple[str, str]:
    """Path and query, as they were sent; of an absolute target too, and ``*`` for the whole server. (The parser has
    seen to it that they are visible ASCII.)"""
    if "#" in target:
        raise Refused(400, "a fragment stays with the client: the request target must not hold a #")
    if target[:1] != "/":
        if target == "*" and method == "OPTIONS":
            return "*", ""
        found = ABSOLUTE.match(target)
        if found is None:
            raise Refused(400, "the request target must begin with /")
        target = target[found.end() :]
        target = target if target.startswith("/") else f"/{target}"
    path, _, query = target.partition("?")
    return path, query


def _length(headers: Mapping[str, str], is_old: bool) -> int | None:
    """One way to tell where the body ends, and no doubt about it."""
    coding = headers.get("transfer-encoding")
    told = headers.get("content-length")
    if coding is not None:
        if told is not None or is_old:
            raise Refused(400, "Transfer-Encoding beside Content-Length or in HTTP/1.0: where does the body end?")
        if coding.lower() != "chunked":
            raise Refused(501, "the only transfer coding known here is chunked")
        return None
    if told is None:
        return 0
    if not (told.isascii() and told.isdecimal() and len(told) <= 18):
        raise Refused(400, "Content-Length must be a number of bytes")
    return int(told)
