"""The parts of the comparison beside the five lines: latency, starting, restarting, a deep backlog."""

import argparse
import os
import shutil
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import cpu
from peers_lines import Contender, Figure, Hall, Line
from peers_ours import OurServer
from peers_process import Server

OFFERED = 1_000
"""Messages a second, for latency."""


@dataclass(slots=True)
class Bench:
    """One whole run: where, with whom, how often, and what came out of it."""

    folder: Path
    hall: Hall
    contenders: list[Contender]
    args: argparse.Namespace
    notes: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    @property
    def repeats(self) -> int:
        repeats: int = self.args.repeats
        return repeats

    def target(self, name: str, figure: str, wanted: str, reached: bool) -> None:
        self.targets.append(f"target: {name} | {figure} | {wanted} | {'reached' if reached else 'short'}")

    def note(self, text: str) -> None:
        self.notes.append(f"note: {text}")

    def servers(self) -> list[Server]:
        """One of each kind."""
        kinds = {type(one.server): one.server for one in self.contenders}
        return list(kinds.values())


def latency(bench: Bench) -> None:
    """From the sending of a message until a consumer has it, at a rate all can bear."""
    count = OFFERED * (2 if bench.args.quick else 10)
    print(f"latency end to end at {OFFERED:,} messages a second")
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(bench.repeats):
        for contender in bench.contenders:
            if not contender.only_role:
                times, share = bench.hall.paced(contender, count, OFFERED)
                cut = statistics.quantiles(times, n=100)
                found.setdefault(contender.name, []).append((cut[49] * 1000, cut[98] * 1000))
                print(f"  {contender.name:<12} p50 {cut[49] * 1000:6.2f} ms   p99 {cut[98] * 1000:6.2f} ms   {share}")
    middles = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (half, most) in middles.items():
        print(f"  {name:<12} median of the runs: p50 {half:.2f} ms   p99 {most:.2f} ms", flush=True)
    half, most = middles["ours"]
    bench.target("latency p50", f"{half:.2f} ms", "<= 1 ms", half <= 1)
    if "Redis" in middles:
        ratio = most / middles["Redis"][1]
        bench.target("latency p99 vs Redis", f"{ratio:.2f} x", "<= 2 x", ratio <= 2)


def starts(bench: Bench) -> None:
    """From the first breath of the process to the first message on disk; what it holds when nobody asks anything."""
    print("cold start to the first message taken, and memory when idle")
    for server in bench.servers():
        seconds, megabytes = [], []
        for turn in range(1 if bench.args.quick else max(3, bench.repeats)):
            fresh = type(server)(bench.folder / f"cold-{turn}", server.packages)
            try:
                seconds.append(fresh.start())
                time.sleep(1)
                megabytes.append(cpu.memory(fresh.pids))
            finally:
                fresh.stop(signal.SIGKILL)
                shutil.rmtree(fresh.folder)
        middle, held = statistics.median(seconds), statistics.median(megabytes)
        print(f"  {server.name:<12} {middle:.3f} s ({min(seconds):.3f}–{max(seconds):.3f})   {held:.0f} MB", flush=True)
        if server.name == "ours":
            bench.target("cold start to first message", f"{middle:.2f} s", "<= 0.5 s", middle <= 0.5)
            bench.target("idle memory", f"{held:.0f} MB", "<= 45 MB", held <= 45)


def restarts(bench: Bench) -> None:
    """Killed with messages waiting: how long until a consumer gets one."""
    waiting = bench.args.waiting
    print(f"restart after kill -9, {waiting:,} waiting")
    server = OurServer(bench.folder / "restart")
    contender = Contender("ours", server, bench.contenders[0].program, bench.contenders[0].python)
    times = []
    try:
        server.start()
        bench.hall.solo(contender, "publish_many", waiting, "waiting")
        for _ in range(1 if bench.args.quick else max(3, bench.repeats)):
            server.stop(signal.SIGKILL)
            times.append(server.start_until(lambda: server.first_delivery("waiting")))
    finally:
        server.stop(signal.SIGKILL)
    middle = statistics.median(times)
    print(f"  {'ours':<12} first delivery after {middle:.3f} s ({min(times):.3f}–{max(times):.3f})", flush=True)
    bench.target(f"restart with {waiting:,} waiting", f"{middle:.2f} s", "<= 1 s", middle <= 1)


def backlog(bench: Bench, lines: list[Line]) -> None:
    """The same lines on an empty and on a deep queue, taking turns."""
    deep = bench.args.deep
    print(f"backlog of {deep:,}")
    base = bench.contenders[0]
    empty = Contender("empty", OurServer(bench.folder / "empty"), base.program, base.python)
    full = Contender("deep", OurServer(bench.folder / "deep"), base.program, base.python)
    try:
        for one in (empty, full):
            one.server.start()
        begin = time.monotonic()
        bench.hall.solo(full, "publish_many", deep, "deep")
        print(f"  filled at {deep / (time.monotonic() - begin):,.0f}/s")
        for line in lines:
            _beside(bench, line, empty, full)
        held = cpu.memory(full.server.pids, "VmHWM")
        size = sum(entry.stat().st_size for entry in os.scandir(full.server.folder) if entry.is_file()) / 2**20
        print(f"  memory: at most {held:.0f} MB; on disk {size:,.0f} MB", flush=True)
        bench.target(f"memory at {deep:,} waiting", f"{held:.0f} MB", "<= 120 MB", held <= 120)
    finally:
        for one in (empty, full):
            one.server.stop(signal.SIGKILL)
    if bench.args.peers_backlog:
        _peers_backlog(bench, deep)


def _beside(bench: Bench, line: Line, empty: Contender, full: Contender) -> None:
    without, within = Figure(), Figure()
    for _ in range(bench.repeats):
        without.runs.append(bench.hall.quiet_run(empty, line))
        within.runs.append(bench.hall.quiet_run(full, line.on_backlog(), "deep"))
    print(f"  {line.name:<18} empty {without}\n  {'':<18} deep  {within}", flush=True)
    ratio = without.rate / within.rate
    bench.target(f"{line.name} with {bench.args.deep:,} waiting", f"{ratio:.2f} x slower", "<= 1.5 x", ratio <= 1.5)


def _peers_backlog(bench: Bench, deep: int) -> None:
    for contender in bench.contenders[1:]:
        if not contender.only_role:
            try:
                contender.server.start()
                bench.hall.solo(contender, "publish_many", deep, "deep")
                held = cpu.memory(contender.server.pids)
                print(f"  {contender.name:<12} holds {held:,.0f} MB", flush=True)
            finally:
                contender.server.stop(signal.SIGKILL)
