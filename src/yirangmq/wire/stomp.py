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
MAX_HEADERS = 200
"""Maximum number of headers per frame. (ActiveMQ accepts 1000, RabbitMQ 100.)"""
MAX_LINE = 10 * 1024
"""Maximum bytes of one header, as in other servers."""
MAX_HEAD = 64 * 1024
"""Maximum bytes of command and headers: an envelope without its payload has the same limit."""
MAX_BODY = 16 * 1024 * 1024
HEARTBEAT = b"\n"
UNESCAPED_COMMANDS = frozenset({"CONNECT", "STOMP", "CONNECTED"})
"""Frames with unescaped headers, so that version 1.0 can read them."""
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_SPECIAL = {V10: re.compile(r"[\n\r\0]"), V11: re.compile(r"[\\\n:\0]"), V12: re.compile(r"[\\\n\r:\0]")}
_MEANING = {
    V11: {"n": "\n", "c": ":", "\\": "\\"},
    V12: {"n": "\n", "c": ":", "\\": "\\", "r": "\r"},
}
_WRITTEN = {"\n": "\\n", ":": "\\c", "\\": "\\\\", "\r": "\\r", "\0": " "}
"""Escape sequences. A NUL becomes a space: it would end the frame for some readers, and no version can escape it."""
_COMMAND = re.compile(r"[A-Z]{1,20}")


class StompFrame(NamedTuple):
    """A STOMP frame. If a header is repeated, the first one counts."""

    command: str
    headers: dict[str, str]
    body: bytes


class _FrameHead(NamedTuple):
    command: str
    headers: dict[str, str]
    length: int | None
    """Body length in bytes; None: the body ends at the first NUL."""


class StompReader:
    """STOMP frame reader: accepts any split of the bytes and yields whole frames.

    ``version`` is set after it was negotiated; until then headers are parsed as 1.2 parses those of CONNECT. A frame
    that is too large is refused as early as possible."""

    def __init__(self, most_body: int = MAX_BODY) -> None:
        self.version = V12
        self.most_body = most_body
        self._buffer = bytearray()
        self._head: _FrameHead | None = None
        self._need = 0
        self._scanned = 0
        self._is_interrupted = False

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame kept in memory."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Generator[StompFrame, None, None]:
        """Yield the whole frames received so far. A caller that stops early resumes with ``feed(b"")``.

        After an error the stream cannot be resynchronized: close it."""
        if self._buffer:
            self._buffer += data
            if not self._may_be_complete(data):
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
                yield StompFrame(command, headers, data[begin:end])
            self._is_interrupted = False
        finally:
            self._buffer += data[at:]

    def _may_be_complete(self, data: bytes) -> bool:
        """Return whether a frame or head may be complete: a large frame in small pieces is not parsed at each piece."""
        size = len(self._buffer)
        if not data or self._is_interrupted:
            return True
        if self._head is None:
            return b"\n" in data or b"\0" in data or size > MAX_HEAD
        if self._head.length is None:
            return b"\0" in data or size > self.most_body
        return size >= self._need

    def _take_head(self, data: bytes, at: int) -> int:
        """Parse command and headers; return the offset of the body, or 0 if the head is incomplete."""
        end = data.find(b"\n\n", at)
        skip = 2
        other = data.find(b"\n\r\n", at, end + 1 if end >= 0 else at + MAX_HEAD + 3)
        if other >= 0:
            end, skip = other, 3
        if end < 0 or end - at > MAX_HEAD:
            if len(data) - at > MAX_HEAD:
                raise TooLarge(f"command and headers of more than {MAX_HEAD} bytes", field="headers")
            if data.find(b"\0", at) >= 0:
                raise BadInput("a frame ended before its headers did: an empty line is missing", field="frame")
            return 0
        self._head = self._read_head(data[at:end])
        return end + skip

    def _read_head(self, raw: bytes) -> _FrameHead:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise BadInput("command and headers must be UTF-8", field="headers") from None
        command, *lines = text.split("\n")
        command = command.removesuffix("\r")
        if not _COMMAND.fullmatch(command):
            raise BadInput(f"{command[:40]!r} is not a command", field="command")
        if len(lines) > MAX_HEADERS:
            raise TooLarge(f"{len(lines)} headers, at most {MAX_HEADERS}", field="headers")
        version = V10 if command in UNESCAPED_COMMANDS else self.version
        headers: dict[str, str] = {}
        for line in lines:
            name, value = _header(line, version)
            headers.setdefault(name, value)
        return _FrameHead(command, headers, self._length(headers.get("content-length")))

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
        """Return the end of the body and the number of terminator bytes after it; end -1 if it is incomplete."""
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
            raise BadInput(f"the body is longer than its content-length of {length} bytes", field="content-length")
        return end, 1


def _skip_ends(data: bytes, at: int) -> int:
    """Skip line ends. A CR as the last byte is kept: it may be the first half of a CR LF."""
    size = len(data)
    while at < size and (data[at] == 10 or (data[at] == 13 and at + 1 < size and data[at + 1] == 10)):
        at += 1
    return at


def _header(line: str, version: str) -> tuple[str, str]:
    if len(line) > MAX_LINE:
        raise TooLarge(f"a header of more than {MAX_LINE} characters", field="headers")
    name, colon, value = line.removesuffix("\r").partition(":")
    if not colon or not name:
        raise BadInput(f"{line[:40]!r} is not a header: name:value", field="headers")
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
            raise BadInput(f"\\{found[1]} is not an escape in STOMP {version}", field="headers")
        return letter

    return _ESCAPED.sub(mean, text)


def escape(text: str, version: str) -> str:
    """Escape text for a header. Version 1.0 has no escape sequences: a line end becomes a space."""
    special = _SPECIAL[version]
    if not special.search(text):
        return text
    if version == V10:
        return special.sub(" ", text)
    return special.sub(lambda found: _WRITTEN[found[0]], text)


def encode(version: str, command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Encode a frame. A non-empty body gets a ``content-length`` header."""
    plain = command in UNESCAPED_COMMANDS
    lines = [command]
    for name, value in headers.items():
        if version == V10 and ":" in name:
            continue  # 1.0 cannot escape the colon
        lines.append(f"{name}:{value}" if plain else f"{escape(name, version)}:{escape(value, version)}")
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join([*lines, "", ""]).encode() + body + b"\0"
