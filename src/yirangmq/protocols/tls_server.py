"""A TCP server that speaks TLS and knows which handshakes are under way, so that it can end them when it closes. The
servers of an event loop tell nobody of a connection before its handshake is over: here connections are accepted, and
then given to the loop.

Knows: sockets, TLS. Does not know: what is spoken. Imported only where TLS is asked for."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import NoReturn

RETRY_SECONDS = 1.0
"""After which it accepts again where no descriptor or no memory was left."""


class TlsServer(asyncio.AbstractServer):
    """Listens at ``sockets``, which are bound, from ``begin`` to ``close``. No handshake takes longer than
    ``handshake_seconds``."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        handshake_seconds: float,
    ) -> None:
        self.sockets = sockets
        self._make = make
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._under_way: dict[asyncio.Task[None], socket.socket] = {}
        """Handshakes, each with its socket."""

    def begin(self, backlog: int) -> None:
        """``backlog``: connections that the system holds for us, and that are taken at one go."""
        for listening in self.sockets:
            listening.setblocking(False)
            listening.listen(backlog)
            self._listen(listening, backlog)

    def _listen(self, listening: socket.socket, backlog: int) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening, backlog)

    def _accept(self, listening: socket.socket, most: int) -> None:
        for _ in range(most):
            try:
                raw, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._loop.call_exception_handler({"message": "no connection can be accepted", "exception": error})
                self._loop.remove_reader(listening)
                self._loop.call_later(RETRY_SECONDS, self._listen, listening, most)
                return
            raw.setblocking(False)
            task = self._loop.create_task(self._shake_hands(raw))
            self._under_way[task] = raw
            task.add_done_callback(self._under_way.pop)

    async def _shake_hands(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError):  # as ssl.SSLError is one: the loop has closed the connection
            transport, _ = await self._loop.connect_accepted_socket(
                self._make, raw, ssl=self._context, ssl_handshake_timeout=self._handshake_seconds
            )
            if self._is_closed and transport is not None:
                transport.abort()  # the last bytes of its handshake were here before we closed

    # -- asyncio.AbstractServer -----------------------------------------------------------------------------------

    def close(self) -> None:
        """No new clients. Handshakes under way end: their transports read the end of the connection, in whatever state
        they are, and close."""
        self._is_closed = True
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = ()
        for raw in self._under_way.values():
            with contextlib.suppress(OSError):  # it is closed, or the client is gone
                raw.shutdown(socket.SHUT_RDWR)

    async def wait_closed(self) -> None:
        """Until every handshake has ended."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return not self._is_closed

    async def start_serving(self) -> None:
        """It does, from ``begin`` on."""

    async def serve_forever(self) -> NoReturn:
        raise NotImplementedError
