"""What one HTTP client may cost, and all of them together. Each number can be set; these are the defaults."""

from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    connections: int = 10_000
    """More are answered 503."""
    pipelined: int = 64
    """Requests of one connection at work at the same time; past them nothing more is read from it."""

    target_bytes: int = 8 * KIB
    """Of the request line's path and query. nginx, Apache and Node: 8 KiB too."""
    header_bytes: int = 32 * KIB
    """Of all names and values of one head. nginx: 32 KiB; Node: 16 KiB; Apache: 8 KiB each."""
    header_count: int = 100
    """As Apache has it."""

    idle_seconds: float = 72
    """Between two requests."""
    head_seconds: float = 30
    """For a whole head, from its first byte."""
    body_seconds: float = 30
    """A body must end within such a span, or have brought ``body_rate`` bytes for each second of it; then another."""
    body_rate: int = 500
    """As Apache's mod_reqtimeout has it."""
    write_seconds: float = 30
    """A client that waits for bytes and takes none for so long is closed."""
    linger_seconds: float = 2
    """After a last answer, what the client still sends is read and thrown away for so long, or the system would throw
    the answer away with it."""
    ping_seconds: float = 15
    """Silence of a stream of events after which a comment is sent, so that a dead peer is noticed."""

    write_buffer: int = MIB
    """Bytes waiting for a client past which nothing more is read from it and its streams wait."""
    client_memory: int = 64 * MIB
    """Bytes waiting for a client that are never exceeded: it is closed before."""
    request_memory: int = MIB
    """Bytes of requests of one connection at work, past which no further one is taken from it."""
    total_memory: int = 512 * MIB
    """Bytes of requests of all connections; past them a body is answered 503."""

    @property
    def longest_quiet(self) -> int:
        """Bytes that may be parsed without anything coming of it."""
        return self.target_bytes + self.header_bytes
