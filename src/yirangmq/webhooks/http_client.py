"""HTTP/1.1 client for webhooks: keep-alive, response parser, outcome of a response, signature.

Redirects are not followed. A host name is resolved at most every ``ADDRESS_SECONDS``, and only addresses that the
setting ``outgoing_networks`` allows are called. If an idle connection turns out to be dead, the request is sent on a
new connection. The parser is sans-IO; it reads at most ``MAX_BODY`` bytes of a body and keeps ``KEPT_BODY_BYTES`` of
them.

Outcome: 2xx acks the message, 4xx other than 408, 425 and 429 rejects it, any other status retries it. ``Retry-After``
of 429 and 503 delays all messages.

Signature: HMAC-SHA256 over timestamp and body; ``docs/webhooks.md`` shows how to verify it. Alert sinks use this module
too."""

import asyncio
import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from yirangmq.core.message import Reason
from yirangmq.core.webhook import OutgoingNetworks

# -- response ----------------------------------------------------------------------------------------------------------

MAX_HEAD = 64 * 1024
KEPT_BODY_BYTES = 4 * 1024
"""Maximum number of bytes of a body that are kept."""
MAX_BODY = 64 * 1024
"""Maximum number of bytes of a body that are read. The outcome does not depend on the rest."""


class BadResponse(Exception):
    """The response is not valid HTTP."""


class NoResponse(BadResponse):
    """The connection was closed without a response."""


class WebhookResponse:
    """HTTP response, and its incremental parser. ``is_complete`` is set when no more bytes are needed."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_complete = False
        self.keeps_alive = False
        """True if the connection can be kept alive."""
        self._parser = httptools.HttpResponseParser(self)
        self._size = self._head = 0

    def feed(self, data: bytes) -> None:
        if not self.status:
            self._head += len(data)
            if self._head > MAX_HEAD:
                raise BadResponse("the head of the answer is too long")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadResponse(f"the answer is not HTTP: {error}") from None
        if self._size > MAX_BODY:
            self.is_complete, self.keeps_alive = True, False

    def on_connection_end(self) -> None:
        """Handle the end of the connection: a response without a length ends there."""
        if not self._head:
            raise NoResponse("the connection was closed without an answer")
        if not self.status:
            raise BadResponse("the connection was closed in the middle of an answer")
        self.is_complete, self.keeps_alive = True, False

    # -- httptools ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # 1xx responses precede the final one
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if len(self.body) < KEPT_BODY_BYTES:
            self.body += data[: KEPT_BODY_BYTES - len(self.body)]

    def on_message_complete(self) -> None:
        if self.status:
            self.is_complete = True
            self.keeps_alive = self._parser.should_keep_alive()


# -- connections -------------------------------------------------------------------------------------------------------

BUFFER = 16 * 1024
ADDRESS_SECONDS = 30.0
"""Time in seconds for which the addresses of a host name are cached."""
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RefusedAddress(OSError):
    """A host has only addresses that ``outgoing_networks`` refuses."""


def allowed_addresses(found: Sequence[tuple[Any, ...]], host: str, networks: OutgoingNetworks) -> list[str]:
    """Return the allowed addresses of a ``getaddrinfo`` result, in their order. Raises ``RefusedAddress`` if all are
    refused."""
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    refusals = {address: networks.refusal(address) for address in addresses}
    allowed = [address for address in addresses if not refusals[address]]
    if addresses and not allowed:
        raise RefusedAddress(f"{host}: {next(iter(refusals.values()))}")
    return allowed


class WebhookClient:
    """HTTP client for POST requests to one URL, with keep-alive. Loop thread only.

    ``tls`` creates the context for https; it is not called for http."""

    def __init__(self, url: str, tls: Callable[[], ssl.SSLContext], networks: OutgoingNetworks) -> None:
        self._networks = networks
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._named = parts.netloc
        self._tls = tls() if parts.scheme == "https" else None
        self._idle: list[Stream] = []
        self._finding = asyncio.Lock()
        self._known: list[str] = []
        self._known_until = 0.0
        self._is_closed = False

    async def post(self, headers: Sequence[tuple[str, str]], body: bytes) -> WebhookResponse:
        """Send a POST request and return the response. Raises ``OSError`` or ``BadResponse``.

        If an idle connection turns out to be dead, the request is sent on a new one."""
        data = self._request(headers, body)
        if self._idle:
            try:
                return await self._exchange(self._idle.pop(), data)
            except (OSError, NoResponse):
                pass
        return await self._exchange(await self._connect(), data)

    def close(self) -> None:
        """Close idle connections. Connections in use are closed when their request ends."""
        self._is_closed = True
        while self._idle:
            self._idle.pop()[1].close()

    def _request(self, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
        lines = [f"POST {self._target} HTTP/1.1", f"Host: {self._named}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    async def _connect(self) -> Stream:
        name = self._host if self._tls is not None else None
        trouble: OSError | None = None
        for address in await self._addresses():
            try:
                return await asyncio.open_connection(address, self._port, ssl=self._tls, server_hostname=name)
            except OSError as error:
                trouble = error
        raise trouble or OSError(f"{self._host} has no address")

    async def _addresses(self) -> list[str]:
        """Return the cached addresses of the host, or resolve it.

        At most one lookup runs per endpoint, because lookups use threads that all endpoints share."""
        async with self._finding:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._known_until:
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                self._known = allowed_addresses(found, self._host, self._networks)
                self._known_until = loop.time() + ADDRESS_SECONDS
            return self._known

    async def _exchange(self, stream: Stream, data: bytes) -> WebhookResponse:
        reader, writer = stream
        answer = WebhookResponse()
        try:
            writer.write(data)  # no drain: the data is in memory anyway, and a response may come before it is sent
            while not answer.is_complete:
                piece = await reader.read(BUFFER)
                answer.feed(piece) if piece else answer.on_connection_end()
        except BaseException:
            writer.close()
            raise
        if answer.keeps_alive and not self._is_closed:
            self._idle.append(stream)
        else:
            writer.close()
        return answer


# -- outcome -----------------------------------------------------------------------------------------------------------

RETRY_STATUSES = frozenset({408, 425, 429})
"""4xx statuses that are retried."""
HOLD_STATUSES = frozenset({429, 503})
"""Statuses with a ``Retry-After`` that applies to all messages, not only to this one."""
MAX_HOLD_SECONDS = 86_400.0
SHOWN = 200
"""Maximum number of bytes of a response body that are kept with a failure."""


class WebhookOutcome(NamedTuple):
    """Outcome of a request. ``reason`` is empty if it succeeded.

    ``delay``: seconds before the retry, if the endpoint gave a time. ``hold``: seconds for which nothing is sent."""

    reason: str = ""
    text: str = ""
    delay: float | None = None
    hold: float = 0

    @property
    def is_endpoint_failure(self) -> bool:
        """True if the endpoint is failing, rather than rejecting this message."""
        return self.reason not in ("", Reason.REJECTED)


def response_outcome(status: int, headers: dict[str, str], body: bytes, now: float) -> WebhookOutcome:
    if 200 <= status < 300:
        return WebhookOutcome()
    text = f"the webhook answered {status}"
    said = body[:SHOWN].decode("utf-8", "replace").strip()
    if said:
        text = f"{text}: {said}"
    if 400 <= status < 500 and status not in RETRY_STATUSES:
        return WebhookOutcome(Reason.REJECTED.value, text)
    after = retry_after(headers.get("retry-after", ""), now) if status in HOLD_STATUSES else None
    return WebhookOutcome(Reason.HANDLER_ERROR.value, text, after, after or 0)


def retry_after(given: str, now: float) -> float | None:
    """Parse ``Retry-After``, a number of seconds or a date, and return the delay in seconds; None if it is invalid."""
    if given.isascii() and given.isdigit():
        return min(float(given[:10]), MAX_HOLD_SECONDS)
    try:
        moment = parsedate_to_datetime(given)
    except (ValueError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, min((moment - datetime.fromtimestamp(now, UTC)).total_seconds(), MAX_HOLD_SECONDS))


# -- signature ---------------------------------------------------------------------------------------------------------


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return ``sha256=…``, the HMAC-SHA256 of the timestamp, a dot, and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
