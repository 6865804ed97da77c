"""Programs that were not let in, or not allowed what they asked for: counted, told as events, and logged, but not more
often than somebody can read.

Knows: doors by name, addresses. Does not know: why somebody should be let in."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from yirangmq.core.errors import QueueError, Stranger
from yirangmq.core.events import ClientRefused, Event
from yirangmq.core.ports import Clock
from yirangmq.doors.attempts import log
from yirangmq.doors.gate import host_of
from yirangmq.format.envelope import iso

QUIET_MS = 10_000
"""The same refusal of the same address is told once in so long, with how often it happened."""
MOST_KNOWN = 1_000
MOST_KEPT = 100


class Refusals:
    """``tell`` takes the events. Used from the loop's thread."""

    def __init__(self, clock: Clock, tell: Callable[[Sequence[Event]], None]) -> None:
        self._clock = clock
        self._tell = tell
        self.counts: Counter[tuple[str, str]] = Counter()
        """By door and reason, since the start."""
        self._latest: deque[dict[str, Any]] = deque(maxlen=MOST_KEPT)
        self._told: dict[tuple[str, str, str, str], tuple[int, int]] = {}
        """When each was told last, and how often it happened since."""

    def add(self, door: str, address: str, error: QueueError, who: str = "") -> None:
        why, host = reason_of(error), host_of(address)
        self.counts[door, why] += 1
        now = self._clock.now_ms()
        key = door, host, who, why
        at, untold = self._told.get(key, (0, 0))
        if at and 0 <= now - at < QUIET_MS:
            self._told[key] = at, untold + 1
            return
        if len(self._told) >= MOST_KNOWN:
            self._told.clear()
        self._told[key] = now, 0
        event = ClientRefused(door, host, who, why, str(error)[:200], untold + 1)
        self._latest.appendleft(
            {
                "at": iso(self._clock.wall_ms()),
                "door": door,
                "address": host,
                "program": who or None,
                "reason": why,
                "text": event.text,
            }
            | {"count": event.count}
        )
        log.warning(
            "client refused",
            extra={"values": {"door": door, "address": host, "program": who, "reason": why, "count": event.count}},
        )
        self._tell([event])

    def document(self) -> dict[str, Any]:
        """For operators."""
        counts = [{"door": door, "reason": why, "count": n} for (door, why), n in sorted(self.counts.items())]
        return {"counts": counts, "latest": list(self._latest)}


def reason_of(error: QueueError) -> str:
    """``unknown``: nobody that is known; ``forbidden``: known, and not allowed this."""
    return "unknown" if isinstance(error, Stranger) else "forbidden"
