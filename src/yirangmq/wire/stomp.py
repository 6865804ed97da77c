"""STOMP frame codec, versions 1.0 to 1.2. Sans-IO.

``docs/stomp.md`` says what each version requires; tests/golden pins the bytes.

    COMMAND LF
    name:value LF …
    LF
    body NUL

The body has ``content-length`` bytes of any value; without that header it ends at the first NUL. Line ends between
frames are heart-beats. Version 1.2 allows CR LF as the line end; the reader accepts it in every version, as other
servers do."""

import re
from collections.abc import Generator, Mapping
from typing import NamedTuple

from yirangmq.core.errors import BadInput, TooLarge

V10, V11, V12 = VERSIONS = ("1.0", "1.1", "1.2")
MOST_HEADERS = 200
"""Of one frame. (ActiveMQ takes 1000, RabbitMQ 100.)"""
LONGEST_LINE = 10 * 1024
"""Bytes of one header, as others have it too."""
LONGEST_HEAD = 64 * 1024
"""Bytes of command and headers: an envelope beside its payload holds no more either."""
MOST_BODY = 16 * 1024 * 1024
BEAT = b"\n"
PLAIN = frozenset({"CONNECT", "STOMP", "CONNECTED"})
"""Frames whose headers are not escaped, so that 1.0 can read them."""
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_SPECIAL = {V10: re.compile(r"[\n\r\0]"), V11: re.compile(r"[\\\n:\0]"), V12: re.compile(r"[\\\n\r:\0]")}
_MEANING = {
    V11: {"n": "\n", "c": ":", "\\": "\\"},
    V12: {"n": "\n", "c": ":", "\\": "\\", "r": "\r"},
}
_WRITTEN = {"\n": "\\n", ":": "\\c", "\\": "\\\\", "\r": "\\r", "\0": " "}
"""A NUL would end the frame for some readers, and no version has words for it."""
_COMMAND = re.compile(r"[A-Z]{1,20}")


class Frame(NamedTuple):
    """Of a header that stands there twice the first one counts."""

    command: str
    headers: dict[str, str]
    body: bytes


class _Head(NamedTuple):
    command: str
    headers: dict[str, str]
    length: int | None
    """None: up to the first NUL."""


class StompReader:
    """Feed it any split of the bytes, take whole frames out. ``version`` is set when it is known; until then headers
    are read as 1.2 reads those of CONNECT. What is too large is refused as soon as that can be seen."""

    def __init__(self, most_body: int = MOST_BODY) -> None:
        self.version = V12
        self.most_body = most_body
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._need = 0
        self._scanned = 0
        self._is_interrupted = False

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame kept in memory."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Generator[Frame, None, None]:
        """Whole frames of what has come so far; who stops early goes on with ``feed(b"")``. After an error the stream
        is beyond repair: close it."""
        if self._buffer:
            self._buffer += data
            if not self._is_worth_a_look(data):
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        at = 0
        self._is_interrupted = True
        try:
            while True:
                if self._head is None:
                    at = _skip_ends(data, at)
                    end = self._take_head(data, at)
                    if not end:
                        break
                    at = end
                end, skip = self._body_end(data, at)
                if end < 0:
                    break
                (command, headers, _), self._head = self._head, None  # type: ignore[misc]
                begin, at, self._scanned = at, end + skip, 0
                yield Frame(command, headers, data[begin:end])
            self._is_interrupted = False
        finally:
            self._buffer += data[at:]

    def _is_worth_a_look(self, data: bytes) -> bool:
        """A large frame in small pieces is looked at when it can be whole, not at each piece."""
        size = len(self._buffer)
        if not data or self._is_interrupted:
            return True
        if self._head is None:
            return b"\n" in data or b"\0" in data or size > LONGEST_HEAD
        if self._head.length is None:
            return b"\0" in data or size > self.most_body
        return size >= self._need

    def _take_head(self, data: bytes, at: int) -> int:
        """Where the body begins; 0 if the head is not whole yet."""
        end = data.find(b"\n\n", at)
        skip = 2
        other = data.find(b"\n\r\n", at, end + 1 if end >= 0 else at + LONGEST_HEAD + 3)
        if other >= 0:
            end, skip = other, 3
        if end < 0 or end - at > LONGEST_HEAD:
            if len(data) - at > LONGEST_HEAD:
                raise TooLarge(f"command and headers of more than {LONGEST_HEAD} bytes", field="headers")
            if data.find(b"\0", at) >= 0:
                raise BadInput("a frame ended before its headers did: an empty line is missing", field="frame")
            return 0
        self._head = self._read_head(data[at:end])
        return end + skip

    def _read_head(self, raw: bytes) -> _Head:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise BadInput("command and headers must be UTF-8", field="headers") from None
        command, *lines = text.split("\n")
        command = command.removesuffix("\r")
        if not _COMMAND.fullmatch(command):
            raise BadInput(f"{command[:40]!r} is no command", field="command")
        if len(lines) > MOST_HEADERS:
            raise TooLarge(f"{len(lines)} headers, at most {MOST_HEADERS}", field="headers")
        version = V10 if command in PLAIN else self.version
        headers: dict[str, str] = {}
        for line in lines:
            name, value = _header(line, version)
            headers.setdefault(name, value)
        return _Head(command, headers, self._length(headers.get("content-length")))

    def _length(self, given: str | None) -> int | None:
        if given is None:
            return None
        text = given.strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise BadInput(f"must be a number of bytes, not {given[:40]!r}", field="content-length")
        if int(text) > self.most_body:
            raise TooLarge(f"a body of {text} bytes, at most {self.most_body}", field="content-length")
        return int(text)

    def _body_end(self, data: bytes, at: int) -> tuple[int, int]:
        """Where the body ends, and how much follows it that is no part of it; -1: it is not whole yet."""
        length = None if self._head is None else self._head.length
        if length is None:
            end = data.find(b"\0", at + self._scanned)
            if (len(data) if end < 0 else end) - at > self.most_body:
                raise TooLarge(f"a body of more than {self.most_body} bytes", field="body")
            self._scanned = len(data) - at if end < 0 else 0
            return end, 1
        end = at + length
        if len(data) <= end:
            self._need = length + 1
            return -1, 0
        if data[end]:
            raise BadInput(f"the body is longer than the {length} bytes it said", field="content-length")
        return end, 1


def _skip_ends(data: bytes, at: int) -> int:
    """Past ends of lines; a CR at the very end may be the first half of one."""
    size = len(data)
    while at < size and (data[at] == 10 or (data[at] == 13 and at + 1 < size and data[at + 1] == 10)):
        at += 1
    return at


def _header(line: str, version: str) -> tuple[str, str]:
    if len(line) > LONGEST_LINE:
        raise TooLarge(f"a header of more than {LONGEST_LINE} characters", field="headers")
    name, colon, value = line.removesuffix("\r").partition(":")
    if not colon or not name:
        raise BadInput(f"{line[:40]!r} is no header: name:value", field="headers")
    if version == V10:
        return name.strip(), value.strip()
    if "\\" in line:
        return _unescaped(name, version), _unescaped(value, version)
    return name, value


def _unescaped(text: str, version: str) -> str:
    meaning = _MEANING[version]

    def mean(found: re.Match[str]) -> str:
        letter = meaning.get(found[1])
        if letter is None:
            raise BadInput(f"\\{found[1]} means nothing in STOMP {version}", field="headers")
        return letter

    return _ESCAPED.sub(mean, text)


def escape(text: str, version: str) -> str:
    """As it stands in a header. 1.0 has no words for the end of a line: it becomes a space."""
    special = _SPECIAL[version]
    if not special.search(text):
        return text
    if version == V10:
        return special.sub(" ", text)
    return special.sub(lambda found: _WRITTEN[found[0]], text)


def encode(version: str, command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A whole frame; a body is given its length."""
    plain = command in PLAIN
    lines = [command]
    for name, value in headers.items():
        if version == V10 and ":" in name:
            continue  # nobody could read it
        lines.append(f"{name}:{value}" if plain else f"{escape(name, version)}:{escape(value, version)}")
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join([*lines, "", ""]).encode() + body + b"\0"
