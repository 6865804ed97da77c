"""One answer to a POST, out of the bytes that come. Sans-IO.

Knows: HTTP/1.1 as far as an answer goes, and how much of it is kept. Does not know: sockets, what it means."""

import httptools

LONGEST_HEAD = 64 * 1024
KEPT = 4 * 1024
"""Bytes of a body that are kept."""
LONGEST_BODY = 64 * 1024
"""Bytes of a body that are read; past them the answer is known well enough."""


class BadAnswer(Exception):
    """What came is no HTTP."""


class NoAnswer(BadAnswer):
    """Nothing came at all."""


class Answer:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_complete = False
        self.stays = False
        """The connection may be used again."""
        self._parser = httptools.HttpResponseParser(self)
        self._size = self._head = 0

    def feed(self, data: bytes) -> None:
        if not self.status:
            self._head += len(data)
            if self._head > LONGEST_HEAD:
                raise BadAnswer("the head of the answer is too long")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadAnswer(f"the answer is no HTTP: {error}") from None
        if self._size > LONGEST_BODY:
            self.is_complete, self.stays = True, False

    def ended(self) -> None:
        """The endpoint closed: an answer without a length ends so."""
        if not self._head:
            raise NoAnswer("the connection was closed without an answer")
        if not self.status:
            raise BadAnswer("the connection was closed in the middle of an answer")
        self.is_complete, self.stays = True, False

    # -- httptools ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # before it others may come that say: wait
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if len(self.body) < KEPT:
            self.body += data[: KEPT - len(self.body)]

    def on_message_complete(self) -> None:
        if self.status:
            self.is_complete = True
            self.stays = self._parser.should_keep_alive()
