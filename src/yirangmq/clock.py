"""System clock, message ids and host facts: store time, UUIDv7, processor count, default consumer name.

The production implementations of the ports ``core.ports.Clock`` and ``core.ports.Ids``. Other modules receive them as
arguments; tests pass those of ``testing``.

Store time is the time since boot, suspension included, plus an offset (docs/decisions/0021-store-time.md). Setting the
wall clock therefore moves no lease and no delay. Message ids begin with store time, so that they sort in the order in
which they were drawn. Alerts use the ``SteadyClock``, whose offset is the wall clock's when it is made."""

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

LEAST_SET_MS = 1_000
"""A wall clock that differs from the store time by less was not set: it is being slewed, or read at another moment."""
COMPARE_MS = 1_000
"""How often the two are compared, at most."""
boot_ns: Callable[[], int] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)
"""Nanoseconds since the machine was started, those in which it was suspended included. Setting the wall clock does not
change it, and all processes of one boot read the same."""


def boot_id() -> str:
    """What the value of ``boot_ns`` is counted from: this boot of the machine, and the time namespace of the process.
    Empty where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"  # noqa: PTH115
    except OSError:
        return ""


class SystemClock:
    """``core.ports.Clock``: store time is the time since boot plus an offset. Setting the wall clock does not move it.

    The offset is that of the wall clock when the process begins, until ``resume`` replaces it by the one that the store
    has on record (``broker.store_time``). Used from any thread."""

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
        """How far the wall clock is ahead of store time; 0 unless it was set, a second late at most."""
        return self._ahead

    @property
    def boot_ms(self) -> int:
        return self._boot() // 1_000_000

    @property
    def offset_ms(self) -> int:
        """Store time less the time since boot."""
        return self._offset

    def resume(self, offset_ms: int) -> None:
        """Go by this offset from now on."""
        self._offset = offset_ms
        self._compare(self._boot() // 1_000_000)

    def _compare(self, boot: int) -> None:
        self._compare_at = boot + COMPARE_MS
        ahead = self._wall() // 1_000_000 - boot - self._offset
        if abs(ahead) < LEAST_SET_MS:
            self._ahead = 0
        elif abs(ahead - self._ahead) >= LEAST_SET_MS:
            self._ahead = ahead


class TimeOrderedIds:
    """UUIDs of version 7: they sort by time, so that an index of them grows at its end.

    All of one millisecond share one draw of 73 random bits and count up from it. Each thread has draws of its own, and
    so has a process that was forked off. The time in them is store time if its clock is given: it never goes back, so
    that ids keep their order when the wall clock is set back."""

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
"""Random bytes of one draw; as many as a hundred need are asked for at once."""


_forks = 0
"""How often this process, and those it descends from, were forked off: that of a child is another than its parent's.
(To ask for the process number would be a system call for each id.)"""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class _Draws(threading.local):
    """The latest draw: of which millisecond and process (``_forks``), what its ids begin with, what the next one ends
    with."""

    at = -1
    by = 0
    head = ""
    next = 0
    chance = b""
    """Random bytes, each used once."""

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
    """Who we are if nobody says: host and process."""
    host = "".join(c if c.isalnum() or c in "_-" else "-" for c in socket.gethostname())[:40] or "host"
    return f"{host}-{os.getpid()}"


GROUPS = "/sys/fs/cgroup"


def processors(groups: str = GROUPS) -> int:
    """How many we may run on; where a container has a share of their time, how many whole ones that is."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *_shares(groups)]))


def _shares(groups: str) -> list[int]:
    """Whole processors that the group may use, as both versions of Linux's groups tell it; -1 and max: all."""
    found = []
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = (int(word) for name in names for word in _words(f"{groups}/{name}"))
            found += [quota // period] if quota > 0 else []
    return found


def _words(path: str) -> list[str]:
    with open(path) as file:  # noqa: PTH123 (who only publishes loads no pathlib)
        return file.read().split()


def give_way() -> None:
    """Whoever else wants this processor has it first."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


# -- clock of the alerts -----------------------------------------------------------------------------------------------


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _boot_ms() -> int:
    """Milliseconds that go on while the machine sleeps, and that nobody sets."""
    return boot_ns() // 1_000_000


class SteadyClock:
    """Begins as the wall clock does and never jumps. ``ahead``: how far the wall clock is ahead of it by now."""

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
