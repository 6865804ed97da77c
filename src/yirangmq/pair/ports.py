"""What a node of a pair is given: its settings, the server whose work it opens and shuts, the clocks it goes by."""

import time
from dataclasses import dataclass
from typing import Protocol

from yirangmq.core.errors import NotActive
from yirangmq.core.failover import Pace


@dataclass(frozen=True, slots=True)
class Settings:
    node: str
    listen: tuple[str, int]
    peer: tuple[str, int]
    key: bytes
    pace: Pace
    witness: str = ""
    """``file:/PATH``, ``etcd://…``, or none."""
    drain_seconds: float = 10.0


class Work(Protocol):
    """The server, as far as the pair steers it."""

    def begin(self) -> None:
        """Work is taken from now on."""

    def end(self, refusal: NotActive) -> None:
        """No more: those who are connected are told."""

    async def drain(self, seconds: float) -> dict[str, int]:
        """Publishing is refused already: hand out what is there and take what is settled, at most so long; then leases
        are treated as at a stop. What is left, by queue."""

    def depth(self) -> int: ...

    def addresses(self) -> str:
        """Where clients reach it."""

    def overlapped(self, since_ms: int, term: int) -> None:
        """Both nodes were active since this moment: report what was taken in here."""


def boot_clock() -> int:
    """Milliseconds that go on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_clock() -> int:
    return time.time_ns() // 1_000_000
