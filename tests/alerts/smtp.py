"""A small mail server on loopback: enough of SMTP for a client to greet it, to begin TLS, to log in and to leave a
mail. It remembers what was left."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class MailServer:
    def __init__(
        self, tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None, *, is_tls_first: bool = False
    ) -> None:
        self.tls = tls
        self.login = login
        self.is_tls_first = is_tls_first
        """TLS is there before the first word, as on port 465."""
        self.mails: list[str] = []
        self.recipients: list[str] = []
        self.logins: list[tuple[str, str]] = []
        self.encrypted: list[bool] = []
        """Of each mail, whether it came over TLS."""
        self.connections = 0
        self.refuses = 0
        """So many more connections are sent away."""
        self.is_mute = False
        """It accepts and says nothing."""
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                if self.is_mute:
                    await reader.read()
                elif self.refuses > 0:
                    self.refuses -= 1
                    writer.write(b"421 not now\r\n")
                else:
                    await self._talk(reader, writer)
        finally:
            writer.close()
            self._writers.discard(writer)

    async def end(self) -> None:
        """Nobody is talked to any longer when this returns."""
        for writer in list(self._writers):
            writer.transport.abort()
        async with asyncio.timeout(60):
            while self._writers:  # noqa: ASYNC110  (each ends by itself, now that its line is cut)
                await asyncio.sleep(0.005)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        is_known, is_safe = self.login is None, self.is_tls_first
        while line := (await reader.readline()).decode().strip():
            verb, _, rest = line.partition(" ")
            match verb.upper():
                case "EHLO" | "HELO":
                    extras = ["here"]
                    extras += ["STARTTLS"] if self.tls is not None and not is_safe else []
                    extras += ["AUTH PLAIN"] if self.login is not None else []
                    last = len(extras) - 1
                    told = [f"250{' ' if n == last else '-'}{extra}\r\n" for n, extra in enumerate(extras)]
                    writer.write("".join(told).encode())
                case "STARTTLS" if self.tls is not None:
                    writer.write(b"220 go on\r\n")
                    await writer.start_tls(self.tls)
                    is_safe = True
                case "AUTH":
                    _, user, password = base64.b64decode(rest.split()[-1]).decode().split("\0")
                    self.logins.append((user, password))
                    is_known = (user, password) == self.login
                    writer.write(b"235 welcome\r\n" if is_known else b"535 who are you\r\n")
                case "RCPT":
                    self.recipients.append(rest)
                    writer.write(b"250 fine\r\n")
                case "DATA" if is_known:
                    writer.write(b"354 go on\r\n")
                    text = await reader.readuntil(b"\r\n.\r\n")
                    self.mails.append(text.decode())
                    self.encrypted.append(is_safe)
                    writer.write(b"250 kept\r\n")
                case "QUIT":
                    writer.write(b"221 bye\r\n")
                    await writer.drain()
                    return
                case "MAIL" | "RSET" | "NOOP":
                    writer.write(b"250 fine\r\n" if is_known else b"530 log in first\r\n")
                case _:
                    writer.write(b"502 what\r\n")
            await writer.drain()


@asynccontextmanager
async def mail_server(
    tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None, *, is_tls_first: bool = False
) -> AsyncIterator[MailServer]:
    made = MailServer(tls, login, is_tls_first=is_tls_first)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls if is_tls_first else None)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.end()
