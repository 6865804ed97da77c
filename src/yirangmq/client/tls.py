"""TLS of the client: contexts, an engine over memory buffers, and the classification of permanent handshake errors.

The engine encrypts and decrypts bytes without a socket. One thread may encrypt while another decrypts, which an
``ssl.SSLSocket`` does not guarantee."""

import socket
import ssl
import threading

from yirangmq.client.address import ServerAddress
from yirangmq.core.errors import BadInput, TlsFailed

READ_BYTES = 256 * 1024


NOT_TLS_REASONS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"}
)
"""OpenSSL's reasons for bytes that are not TLS records."""
CERTIFICATE_REASONS = (
    "CERTIFICATE_REQUIRED",
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_ACCESS_DENIED",
    "HANDSHAKE_FAILURE",
)
"""Alerts by which a server refuses the client's certificate, or its absence."""


def tls_context(address: ServerAddress) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or the one in the address's ``ca`` file.

    The host name is always checked. Raises ``BadInput`` for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{address.ca} holds no certificates that can be read: {error}", field="ca") from None
    if address.cert:
        try:
            context.load_cert_chain(address.cert, address.key)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"{address.cert} and {address.key} cannot be used: {error}", field="cert") from None
    return context


def unverified_context() -> ssl.SSLContext:
    """Return a context without verification, only to test whether a port speaks TLS. No data is sent over such a
    connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def permanent_failure(address: ServerAddress, error: BaseException | None) -> TlsFailed | None:
    """Return the error for a failed handshake that no retry can repair. Return None for a transient failure, such as
    a lost connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"{address}: the server's certificate does not verify: {error.verify_message}; name the authority that "
            "signed it with --ca FILE (ca= in an address or in connect()), and use a host name it is issued for"
        )
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in NOT_TLS_REASONS:
        return TlsFailed(
            f"{address}: no TLS is spoken at this port; use tcp://HOST:PORT if the server has no certificate (tls_cert)"
        )
    if any(reason.endswith(one) for one in CERTIFICATE_REASONS):
        return refused_certificate(address)
    return None


def refused_certificate(address: ServerAddress) -> TlsFailed:
    """Return the error for a client certificate that the server does not accept."""
    return TlsFailed(
        f"{address}: the server refused the client's certificate; give one that its tls_client_ca signed, with --cert "
        "FILE and --key FILE"
    )


def speaks_tls(address: ServerAddress) -> TlsFailed:
    """Return the error for a clear-text connection to a TLS port."""
    return TlsFailed(f"{address}: TLS is spoken at this port; use tls://{address.host_and_port}")


class TlsEngine:
    """TLS engine over memory buffers, without a socket. A lock makes it safe to encrypt and decrypt in two threads."""

    def __init__(self, address: ServerAddress) -> None:
        self._encrypted_in = ssl.MemoryBIO()
        self._encrypted_out = ssl.MemoryBIO()
        context = tls_context(address)
        self._ssl = context.wrap_bio(self._encrypted_in, self._encrypted_out, server_hostname=address.host)
        self._lock = threading.Lock()

    def handshake(self, sock: socket.socket) -> None:
        while True:
            wants_more = False
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                wants_more = True
            finally:  # send the alert also if the server's certificate is refused
                sock.sendall(self._encrypted_out.read())
            if not wants_more:
                return
            data = sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection during the TLS handshake")
            self._encrypted_in.write(data)

    def encrypt(self, data: bytes | bytearray) -> bytes:
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[self._ssl.write(view) :]
            return self._encrypted_out.read()

    def decrypt(self, data: memoryview) -> bytes:
        """Decrypt the bytes, as far as they hold complete TLS records."""
        clear: list[bytes] = []
        with self._lock:
            self._encrypted_in.write(data)
            try:
                while piece := self._ssl.read(READ_BYTES):
                    clear.append(piece)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                pass  # no complete record left, or close_notify: the socket's end follows
        return b"".join(clear)
