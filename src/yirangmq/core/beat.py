"""One heartbeat as a value: what a node of a pair says of itself, and the proof that it is said now.

Knows: the members. Does not know: bytes (``wire.heartbeat``), what follows from it (``core.partner``)."""

from dataclasses import dataclass

from yirangmq.core.pairing import Role, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How a node is doing; for people and alerts, not for decisions."""

    cpu: float = 0.0
    """Of one processor, since the last heartbeat."""
    memory: int = 0
    """Resident bytes."""
    depth: int = 0
    """Messages that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """``boot`` is one life of a process, chosen at its start; ``sequence`` rises by one with every heartbeat of it.
    Both together are never used again, so that an old heartbeat is known for one."""

    node: str
    boot: str
    sequence: int
    at: int
    """Wall clock, milliseconds since 1970."""
    running: int
    active: int
    """Milliseconds in the active role; 0 for a standby."""
    role: Role
    status: Status
    term: int
    claim: int = 0
    grant: int = 0
    grant_boot: str = ""
    """The life of the peer to which this node has consented: not to one that came after it."""
    wish: bool = False
    address: str = ""
    """Where clients reach this node."""
    heard_boot: str = ""
    heard_sequence: int = 0
    """The latest heartbeat of the peer that this node has heard: the peer sees that it is heard, and how fast."""
    heard_age: int = 0
    load: Load = Load()
