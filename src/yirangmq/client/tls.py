"""TLS without a socket: bytes in the clear on one side, sealed on the other. Threads may seal and open at once, which
an ``ssl.SSLSocket`` does not promise."""

import socket
import ssl
import threading

from yirangmq.client.address import Address

PIECE = 256 * 1024


def tls_context(address: Address) -> ssl.SSLContext:
    """The system's authorities, or the one in the address's ``ca`` file; the host's name is always checked."""
    return ssl.create_default_context(cafile=address.ca or None)


class Tls:
    def __init__(self, address: Address) -> None:
        self._sealed_in = ssl.MemoryBIO()
        self._sealed_out = ssl.MemoryBIO()
        context = tls_context(address)
        self._ssl = context.wrap_bio(self._sealed_in, self._sealed_out, server_hostname=address.host)
        self._lock = threading.Lock()

    def shake_hands(self, channel: socket.socket) -> None:
        while True:
            wants_more = False
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                wants_more = True
            finally:  # an alert goes out even when the other side's certificate is refused
                channel.sendall(self._sealed_out.read())
            if not wants_more:
                return
            data = channel.recv(PIECE)
            if not data:
                raise ConnectionError("the server closed the connection during the TLS handshake")
            self._sealed_in.write(data)

    def seal(self, data: bytes | bytearray) -> bytes:
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[self._ssl.write(view) :]
            return self._sealed_out.read()

    def open(self, data: memoryview) -> bytes:
        """What the sealed bytes say, as far as whole records go."""
        clear: list[bytes] = []
        with self._lock:
            self._sealed_in.write(data)
            try:
                while piece := self._ssl.read(PIECE):
                    clear.append(piece)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                pass  # no whole record left, or the other side says good-bye: the socket will say so too
        return b"".join(clear)
