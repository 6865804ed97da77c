"""POSTs to one endpoint over connections that are kept. Redirects are answers like any other: nobody follows them.

Knows: sockets, TLS, HTTP/1.1. Does not know: queues, what an answer means."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from yirangmq.core.webhook import OutgoingNetworks
from yirangmq.doors.webhooks.answer import Answer, NoAnswer

BUFFER = 16 * 1024
ADDRESS_SECONDS = 30.0
"""How long the address behind a name is remembered."""
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RefusedAddress(OSError):
    """A host has only addresses that ``outgoing_networks`` refuses."""


def allowed_addresses(found: Sequence[tuple[Any, ...]], host: str, networks: OutgoingNetworks) -> list[str]:
    """The addresses of a ``getaddrinfo`` result that may be called, in their order; ``RefusedAddress`` if there is
    none."""
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    refusals = {address: networks.refusal(address) for address in addresses}
    allowed = [address for address in addresses if not refusals[address]]
    if addresses and not allowed:
        raise RefusedAddress(f"{host}: {next(iter(refusals.values()))}")
    return allowed


class Poster:
    """``tls`` makes the context for https, at first use."""

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

    async def post(self, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        """Raises ``OSError`` or ``BadAnswer``. A kept connection that turns out to be dead is no failure: another one
        is made."""
        data = self._request(headers, body)
        if self._idle:
            try:
                return await self._exchange(self._idle.pop(), data)
            except (OSError, NoAnswer):
                pass
        return await self._exchange(await self._connect(), data)

    def close(self) -> None:
        """Connections in use end with what they are used for."""
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
        """One search at a time: names are looked up by threads, which all endpoints share."""
        async with self._finding:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._known_until:
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                self._known = allowed_addresses(found, self._host, self._networks)
                self._known_until = loop.time() + ADDRESS_SECONDS
            return self._known

    async def _exchange(self, stream: Stream, data: bytes) -> Answer:
        reader, writer = stream
        answer = Answer()
        try:
            writer.write(data)  # all at once: it is in memory anyway, and an answer may come before it is taken
            while not answer.is_complete:
                piece = await reader.read(BUFFER)
                answer.feed(piece) if piece else answer.ended()
        except BaseException:
            writer.close()
            raise
        if answer.stays and not self._is_closed:
            self._idle.append(stream)
        else:
            writer.close()
        return answer
