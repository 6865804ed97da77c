"""Whose work the processors did: the clients', the broker's, the kernel's for the disk, anybody else's.

Read from /proc. A hundredth of a second is the smallest amount it can tell."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TICK = os.sysconf("SC_CLK_TCK")
QUIET_SECONDS = 0.5
KERNEL = 2
"""The parent of all kernel threads."""


class Share(NamedTuple):
    """Cores kept busy over some time: 1.0 is one core all the time."""

    client: float
    broker: float
    kernel: float
    other: float

    def __str__(self) -> str:
        return (
            f"client {self.client:4.2f}  broker {self.broker:4.2f}  kernel {self.kernel:4.2f}  other {self.other:4.2f}"
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """Ticks used so far: by everybody, by each process, and who is whose child."""

    busy: int
    ticks: dict[int, int]
    parents: dict[int, int]


def read() -> Reading:
    ticks, parents = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it may just have ended
                text = Path("/proc", entry, "stat").read_text()
                fields = text[text.rindex(")") + 2 :].split()
                ticks[int(entry)] = int(fields[11]) + int(fields[12])
                parents[int(entry)] = int(fields[1])
    return Reading(_busy(), ticks, parents)


def _busy() -> int:
    """All but idle and waiting for the disk. Time stolen by the host was lost to others, so it counts."""
    line = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in line.split()[1:9])
    return user + nice + system + irq + softirq + steal


def shares(before: Reading, after: Reading, seconds: float, clients: Iterable[int], brokers: Iterable[int]) -> Share:
    """``clients`` and ``brokers`` are processes; their children count with them. This one counts as a client."""

    def spent(pids: set[int]) -> int:
        return sum(after.ticks[pid] - before.ticks.get(pid, 0) for pid in pids if pid in after.ticks)

    client, broker = family(after, clients) | {os.getpid()}, family(after, brokers)
    kernel = {pid for pid, parent in after.parents.items() if parent == KERNEL}
    total = max(seconds, 0.01) * TICK
    work = spent(client - broker), spent(broker), spent(kernel)
    other = max(0, after.busy - before.busy - sum(work))
    return Share(work[0] / total, work[1] / total, work[2] / total, other / total)


def wait_for_quiet(most_other: float, patience: float) -> None:
    """Until hardly anybody works, but not for ever."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before, begin = _busy(), time.monotonic()
        time.sleep(QUIET_SECONDS)
        if (_busy() - before) / TICK / (time.monotonic() - begin) <= most_other:
            return


def family(reading: Reading, pids: Iterable[int]) -> set[int]:
    """These processes and everything they started."""
    found = set(pids)
    while True:
        more = {pid for pid, parent in reading.parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def memory(pids: Iterable[int], field: str = "VmRSS") -> float:
    """Megabytes held by these processes and their children; ``VmHWM`` is the most they ever held."""
    total = 0
    for pid in family(read(), pids):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    total += int(line.split()[1])
    return total / 1024
