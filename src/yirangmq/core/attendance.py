"""Who counts as a consumer of a queue: those registered by name, those who are there, and those who were there a moment
ago. Pure; the time is handed in.

Knows: names and instants. Does not know: connections, stores."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

MOST_SEEN = 1_000
"""Names remembered that are not registered; the longest away make room."""


class Attendance(NamedTuple):
    """``registered``: by an operator or by itself, since when; until it is deregistered. ``here``: who waits for
    messages now, and whether it asks anew for each batch. ``seen``: those who do not, and when they last did."""

    registered: Mapping[str, int] = {}
    here: Mapping[str, bool] = {}
    seen: Mapping[str, int] = {}

    def everyone(self, now: int, grace_ms: int) -> list[str]:
        late = [name for name, at in self.seen.items() if now - at <= grace_ms]
        return sorted({*self.registered, *self.here, *late})


def looked(before: Attendance, here: Mapping[str, bool], now: int, *, keeps_all: bool) -> Attendance:
    """Who is here now. Of those who went, a poller may come again at once, and so is only away; one whose connection
    ended is gone, unless ``keeps_all``."""
    seen = {name: at for name, at in before.seen.items() if name not in here}
    for name, is_poll in before.here.items():
        if name not in here and (is_poll or keeps_all):
            seen[name] = now
    return before._replace(here=dict(here), seen=_bounded(seen))


def asked(before: Attendance, name: str, now: int) -> Attendance:
    """Somebody took messages without waiting for them."""
    if name in before.here:
        return before
    return before._replace(seen=_bounded({**before.seen, name: now}))


def forgotten(before: Attendance, now: int, grace_ms: int) -> Attendance:
    """Without those who are away for too long."""
    if all(now - at <= grace_ms for at in before.seen.values()):
        return before
    return before._replace(seen={name: at for name, at in before.seen.items() if now - at <= grace_ms})


def registered(before: Attendance, name: str, now: int) -> Attendance:
    return before if name in before.registered else before._replace(registered={**before.registered, name: now})


def deregistered(before: Attendance, name: str) -> Attendance:
    """One that is here stays for as long as it is."""
    return before._replace(registered=_without(before.registered, name), seen=_without(before.seen, name))


def next_change(attendance: Attendance, grace_ms: int) -> int | None:
    """When somebody will be away for too long, if nobody comes back."""
    return min((at + grace_ms + 1 for at in attendance.seen.values()), default=None)


def _without(names: Mapping[str, int], name: str) -> dict[str, int]:
    return {one: at for one, at in names.items() if one != name}


def _bounded(seen: dict[str, int]) -> dict[str, int]:
    if len(seen) <= MOST_SEEN:
        return seen
    latest: Iterable[tuple[str, int]] = sorted(seen.items(), key=lambda item: item[1])[-MOST_SEEN:]
    return dict(latest)
