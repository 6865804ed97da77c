"""Limits of the HTTP server and of one client: sizes, times, rates and memory.

Every limit can be set; the defaults stand here, each with its unit and its reason."""

from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the HTTP server and of one client."""

    connections: int = 10_000
    """Maximum number of connections; further ones are answered 503."""
    pipelined: int = 64
    """Maximum number of unanswered requests per connection; at this number reading pauses."""

    target_bytes: int = 8 * KIB
    """Maximum size of the request target (path and query). nginx, Apache and Node: 8 KiB too."""
    header_bytes: int = 32 * KIB
    """Maximum size of all header names and values of a head. nginx: 32 KiB; Node: 16 KiB; Apache: 8 KiB per header."""
    header_count: int = 100
    """Maximum number of headers, as in Apache."""

    idle_seconds: float = 72
    """Keep-alive timeout: idle time between two requests."""
    head_seconds: float = 30
    """Timeout of a whole head, from its first byte."""
    body_seconds: float = 30
    """Interval at which the rate of an incomplete body is checked: it must average ``body_rate`` in each interval."""
    body_rate: int = 500
    """Minimum rate of a body, in bytes/s, as in Apache's mod_reqtimeout."""
    write_seconds: float = 30
    """Write timeout: a connection with unsent bytes is closed if its client reads nothing for this time."""
    linger_seconds: float = 2
    """Lingering close: after a last answer, input is read and discarded for this time. Otherwise the system would reset
    the connection and discard the answer."""
    ping_seconds: float = 15
    """Silence of an event stream after which a keep-alive comment is sent, so that a dead peer is detected."""

    write_buffer: int = MIB
    """High-water mark of unsent bytes of a client; above it reading pauses and streams wait."""
    client_memory: int = 64 * MIB
    """Upper bound of unsent bytes of a client; its connection is closed before they exceed it."""
    request_memory: int = MIB
    """Bytes of unanswered requests of one connection above which reading pauses."""
    total_memory: int = 512 * MIB
    """Maximum number of bytes of requests of all connections; a body above it is answered 503."""

    @property
    def max_stalled_bytes(self) -> int:
        """Bytes that may be parsed without progress: the maximum size of a head."""
        return self.target_bytes + self.header_bytes
