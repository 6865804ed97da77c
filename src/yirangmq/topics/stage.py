"""What a feed stands on: the loop it is handed, and its settings. Knows: numbers and their reasons. Does not know:
where they were set."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from yirangmq.core.topics import Retention

MOST_PER_PUBLISH = 10_000
MASKED = ("TOPIC1", "TOPIC2", "MISC")
WEEK_SECONDS = 7 * 86400.0
KEEP_A_WEEK = Retention(round(WEEK_SECONDS * 1e9))


class Pace(NamedTuple):
    """Of recoveries. ``budget``: bytes for one client before the next one has its turn. ``stall_seconds``: a client
    that takes nothing for so long is given up. Not ``threaded``: somebody else calls ``turn``.
    ``beside_live``: bytes a second of all
    recoveries together while live records pass; 0: no limit."""

    budget: int = 1 << 20
    stall_seconds: float = 600.0
    threaded: bool = True
    beside_live: int = 300_000_000


USUAL_PACE = Pace()


@dataclass(frozen=True, slots=True)
class Loop:
    """``soon``: when the current turn is over. ``later``: after some seconds. ``call``: the same as ``soon``, from any
    thread. ``seconds`` only grow; ``now_ns``: since 1970."""

    soon: Callable[[Callable[[], None]], Any]
    later: Callable[[float, Callable[[], None]], Any]
    call: Callable[[Callable[[], None]], Any]
    seconds: Callable[[], float]
    now_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Settings:
    buffer_bytes: int = 2 << 20
    """Bytes waiting for one subscriber past which it is sent the rest from the log."""
    most_buffer_bytes: int = 64 << 20
    """What that may be set to: a connection with more than this waiting for it is closed."""
    commit_bytes: int = 512 << 10
    """Payload bytes in one commit; past this it only gets later, not cheaper."""
    workers: int = 2
    pace: Pace = USUAL_PACE
    """Of the workers. Its ``stall_seconds`` also hold for one that must read before it is handed to a worker."""
    masked: tuple[str, ...] = MASKED
    """Topics that have a bit in masks: 1, 2, 4 …"""
    retention: Retention = KEEP_A_WEEK
    retention_seconds: float = 30.0
    """How often the log is trimmed."""
    cursor_seconds: float = WEEK_SECONDS
    """A durable subscriber that was not heard of for so long holds the log back no longer."""
    lag_limit: int = 1000
    """Records a subscriber may be behind before somebody should look; 0: never."""
    publisher_id: int = 1000
    publisher_name: str = "yirangmq"
