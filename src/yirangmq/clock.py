"""System clock, message ids and host facts: store time, UUIDv7, time zones, processor count, default consumer name.

The production implementations of the ports ``core.ports.Clock`` and ``core.ports.Ids``. Other modules receive them as
arguments; tests pass those of ``testing``.

Store time is the time since boot, suspension included, plus an offset (docs/decisions/0021-store-time.md). Setting the
wall clock therefore moves no lease and no delay. Message ids begin with store time, so that they sort in the order of
creation. Alerts use the ``SteadyClock``, which takes its offset from the wall clock at construction."""

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, tzinfo
from functools import partial

from yirangmq.core.errors import BadInput

MIN_CLOCK_STEP_MS = 1_000
"""Minimum difference in ms between wall clock and store time that counts as a clock that was set. Less is slewing, or
the time between the two reads."""
COMPARE_MS = 1_000
"""Minimum ms between two comparisons of the clocks."""
boot_ns: Callable[[], int] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)
"""Nanoseconds since boot, including the time suspended. Setting the wall clock does not change it, and all processes of
one boot read the same value."""


def boot_id() -> str:
    """Return the origin of ``boot_ns``: the id of this boot and the time namespace of the process.

    Return "" if the system does not report it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"  # noqa: PTH115
    except OSError:
        return ""


class SystemClock:
    """``core.ports.Clock``: store time is the time since boot plus an offset. Setting the wall clock does not move it.

    The offset is that of the wall clock at construction, until ``resume`` replaces it by the offset recorded in the
    store (``broker.store_time``). Thread-safe."""

    def __init__(self, boot: Callable[[], int] = boot_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self._boot = boot
        self._wall = wall
        self._compare_at = 0
        self._ahead = 0
        self._offset = wall() // 1_000_000 - boot() // 1_000_000

    def now_ms(self) -> int:
        boot = self._boot() // 1_000_000
        if boot >= self._compare_at:
            self._compare(boot)
        return boot + self._offset

    def wall_ms(self) -> int:
        return self._wall() // 1_000_000

    def ahead_ms(self) -> int:
        """Return how far the wall clock is ahead of store time, in ms; 0 unless it was set. At most 1 s out of date."""
        return self._ahead

    @property
    def boot_ms(self) -> int:
        return self._boot() // 1_000_000

    @property
    def offset_ms(self) -> int:
        """Store time minus the time since boot, in ms."""
        return self._offset

    def resume(self, offset_ms: int) -> None:
        """Use this offset from now on."""
        self._offset = offset_ms
        self._compare(self._boot() // 1_000_000)

    def _compare(self, boot: int) -> None:
        self._compare_at = boot + COMPARE_MS
        ahead = self._wall() // 1_000_000 - boot - self._offset
        if abs(ahead) < MIN_CLOCK_STEP_MS:
            self._ahead = 0
        elif abs(ahead - self._ahead) >= MIN_CLOCK_STEP_MS:
            self._ahead = ahead


class TimeOrderedIds:
    """UUIDs of version 7. They sort by time, so that an index of them grows at its end.

    All ids of one millisecond share one draw of 73 random bits and count up from it. Each thread and each forked
    process has a separate draw. With a store clock the ids have store time, which never goes back: they keep their
    order when the wall clock is set back."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._draws = _Draws()
        self._now = now_ms or SystemClock().now_ms

    def new(self, count: int) -> list[str]:
        draws = self._draws
        now = self._now()
        if now != draws.at or draws.by != _forks:
            draws.draw(now)
        first = draws.next
        draws.next = first + count
        head = draws.head
        if count == 1:
            return [f"{head}{first:012x}"]
        return [f"{head}{number:012x}" for number in range(first, first + count)]

    def fraction(self) -> float:
        return random.random()


# -- random bits of message ids ----------------------------------------------------------------------------------------

DRAW = 10
"""Random bytes per draw. The bytes of 100 draws are read from the system together."""


_forks = 0
"""Number of forks from the first process to this one; a child differs from its parent.

The process id would serve as well, but reading it costs a system call per id."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class _Draws(threading.local):
    """Latest draw of a thread.

    ``at`` is its millisecond and ``by`` its value of ``_forks``. Ids consist of the prefix ``head`` and a number;
    ``next`` is the next number."""

    at = -1
    by = 0
    head = ""
    next = 0
    chance = b""
    """Unused random bytes. Each is used once."""

    def draw(self, now: int) -> None:
        if not self.chance or self.by != _forks:
            self.chance = os.urandom(100 * DRAW)
        drawn, self.chance = int.from_bytes(self.chance[:DRAW]), self.chance[DRAW:]
        stamp = f"{now:012x}"
        group, variant = drawn & 0xFFF, 0x8000 | drawn >> 12 & 0x3FFF
        self.head = f"{stamp[:8]}-{stamp[8:]}-7{group:03x}-{variant:04x}-"
        self.next = drawn >> 26 & 0x7FFF_FFFF_FFFF
        self.at = now
        self.by = _forks


# -- this host ---------------------------------------------------------------------------------------------------------


def default_consumer() -> str:
    """Return the default consumer name: host name and process id."""
    host = "".join([c if c.isalnum() or c in "_-" else "-" for c in socket.gethostname()])[:40] or "host"
    return f"{host}-{os.getpid()}"


GROUPS = "/sys/fs/cgroup"


def processors(groups: str = GROUPS) -> int:
    """Return the number of processors for this process.

    In a container with a CPU quota it is the number of whole processors in the quota, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *_shares(groups)]))


def _shares(groups: str) -> list[int]:
    """Return the whole processors that the control group may use, by cgroup v1 and v2. -1 and max mean no limit."""
    found = []
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = (int(word) for name in names for word in _words(f"{groups}/{name}"))
            found += [quota // period] if quota > 0 else []
    return found


def _words(path: str) -> list[str]:
    with open(path) as file:  # noqa: PTH123 (a pure producer does not load pathlib)
        return file.read().split()


def yield_processor() -> None:
    """Yield the processor to other runnable threads."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


# -- clock of the alerts -----------------------------------------------------------------------------------------------


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _boot_ms() -> int:
    """Return ms since boot, including the time suspended. It cannot be set."""
    return boot_ns() // 1_000_000


class SteadyClock:
    """Clock that starts at wall-clock time and never jumps. ``ahead_ms`` is the lead of the wall clock over it."""

    def __init__(
        self,
        wall: Callable[[], int] = _wall_ms,
        boot: Callable[[], int] = _boot_ms,
    ) -> None:
        self._wall = wall
        self._boot = boot
        self._offset = wall() - boot()

    def now_ms(self) -> int:
        return self._boot() + self._offset

    def wall_ms(self) -> int:
        return self._wall()

    def ahead_ms(self) -> int:
        return self._wall() - self.now_ms()


# -- time zones --------------------------------------------------------------------------------------------------------

LOCAL_ZONE = "local"
"""Name of the time zone that the system is set to."""


def zone_of(name: str, field: str = "timezone") -> tzinfo:
    """Return a time zone of the system's database. Raise ``BadInput`` if it is not there."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # most processes need none

    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        raise BadInput(f"{name!r} is not a time zone of this machine", field=field) from None


def zone_or_local(name: str, field: str) -> tzinfo | None:
    """Return a time zone, or None for ``local``: ``datetime.fromtimestamp`` takes None as the zone of the system."""
    return None if name == LOCAL_ZONE else zone_of(name, field)
