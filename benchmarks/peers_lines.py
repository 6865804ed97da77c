"""The five lines of the comparison: how many producers and consumers, what they do, and one run of it.

Knows: workers, progress, processor shares. Does not know: how any broker works."""

import itertools
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cpu
from peers_process import PATIENCE, Board, Server, Worker
from peers_worker import FOREVER

MOST_OTHER = 0.4
"""Cores of other work; a run with more is repeated."""
MOST_REPEATS = 3
"""Runs thrown away for that reason before the least disturbed one is taken, and marked."""
SLOTS = 32
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Line:
    """``fill`` messages wait already; then ``producers`` and ``consumers`` begin together on ``count`` messages."""

    name: str
    count: int
    producers: int = 0
    consumers: int = 0
    role: str = "publish_many"
    fill: bool = False

    def shorter(self, times: int) -> "Line":
        return replace(self, count=self.count // times)

    def on_backlog(self) -> "Line":
        """There is enough to take already."""
        return replace(self, fill=False)


@dataclass(frozen=True, slots=True)
class Contender:
    """A server, the program of its clients, the Python that has their library, and what to tell them."""

    name: str
    server: Server
    program: str
    python: Path
    orders: dict[str, Any] = field(default_factory=dict)
    only_role: str = ""
    """It differs from another contender in this role alone."""

    def plays(self, line: Line) -> bool:
        return not self.only_role or (line.producers > 0 and line.role == self.only_role)

    def worker(self, board: Board, **orders: Any) -> Worker:
        base = {"address": self.server.address, "progress": str(board.path), "slot": SLOTS - 1, "count": 0}
        return Worker(self.program, self.python, {**base, **self.orders, **orders})


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    share: cpu.Share

    def __str__(self) -> str:
        """The shares, and what a message costs in processor time: less shaken by other work than a rate."""
        client, broker = (cores / self.rate * 1e6 for cores in (self.share.client, self.share.broker))
        return f"cores: {self.share}   per message: client {client:5.1f} µs  broker {broker:5.1f} µs"


@dataclass(slots=True)
class Figure:
    """All runs of one line by one contender."""

    runs: list[Run] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(run.rate for run in self.runs)

    def __str__(self) -> str:
        rates = [run.rate for run in self.runs]
        middle = min(self.runs, key=lambda run: abs(run.rate - self.rate))
        most_other = max(run.share.other for run in self.runs)
        mark = "" if most_other <= MOST_OTHER else f"   disturbed (other up to {most_other:.2f})"
        return f"{self.rate:>9,.0f}/s   spread {min(rates):,.0f}–{max(rates):,.0f}   {middle}{mark}"


class Hall:
    """Where runs happen: one board, fresh queues, workers that never stay behind."""

    def __init__(self, folder: Path, patience: float) -> None:
        self._board = Board(folder / "progress", SLOTS)
        self._patience = patience

    def quiet_run(self, contender: Contender, line: Line, queue: str = "") -> Run:
        """Again while others are busy, within bounds; then the quietest of them."""
        runs: list[Run] = []
        while len(runs) <= MOST_REPEATS:
            cpu.wait_for_quiet(MOST_OTHER, self._patience)
            runs.append(self.run(contender, line, queue))
            if runs[-1].share.other <= MOST_OTHER:
                return runs[-1]
        return min(runs, key=lambda run: run.share.other)

    def run(self, contender: Contender, line: Line, queue: str = "") -> Run:
        """One measured run, on a queue of its own unless one is named."""
        name = queue or f"bench-{next(_numbers)}"
        if line.fill:
            self.solo(contender, "publish_many", line.count, name)
        try:
            return self._measure(contender, line, name)
        finally:
            if not queue:
                self.solo(contender, "clean", 0, name)

    def solo(self, contender: Contender, role: str, count: int, queue: str, **orders: Any) -> Any:
        """One worker, not measured."""
        worker = contender.worker(self._board, role=role, count=count, queue=queue, **orders)
        try:
            worker.expect_ready()
            worker.begin()
            return worker.result()
        finally:
            worker.stop()

    def paced(self, contender: Contender, count: int, rate: int) -> tuple[list[float], cpu.Share]:
        """One producer at a steady pace, one consumer: the seconds each message took."""
        queue = f"bench-{next(_numbers)}"
        roles = ("consume_timed", "publish_paced")
        workers = [contender.worker(self._board, role=role, count=count, queue=queue, rate=rate) for role in roles]
        try:
            for worker in workers:
                worker.expect_ready()
            cpu.wait_for_quiet(MOST_OTHER, self._patience)
            before, begin = cpu.read(), time.monotonic()
            for worker in workers:
                worker.begin()
            workers[1].result()
            times: list[float] = workers[0].result()
            after, end = cpu.read(), time.monotonic()
        finally:
            for worker in workers:
                worker.stop()
            self.solo(contender, "clean", 0, queue)
        pids = [worker.pid for worker in workers]
        return times, cpu.shares(before, after, end - begin, pids, contender.server.pids)

    def _measure(self, contender: Contender, line: Line, queue: str) -> Run:
        board = Board(self._board.path, SLOTS)
        workers = [
            contender.worker(
                board, role=line.role, count=_part(line.count, line.producers, slot), queue=queue, slot=slot
            )
            for slot in range(line.producers)
        ]
        alone = line.consumers == 1
        for slot in range(line.producers, line.producers + line.consumers):
            count = line.count if alone else FOREVER
            workers.append(contender.worker(board, role="consume", count=count, queue=queue, slot=slot))
        try:
            return self._watch(contender, line, board, workers)
        finally:
            for worker in workers:
                worker.stop()

    def _watch(self, contender: Contender, line: Line, board: Board, workers: list[Worker]) -> Run:
        for worker in workers:
            worker.expect_ready()
        every = list(range(len(workers)))
        ends = every[line.producers :] or every
        before, begin = cpu.read(), time.monotonic()
        for worker in workers:
            worker.begin()
        while board.read(ends)[0] < line.count:
            time.sleep(0.005)
            if time.monotonic() - begin > PATIENCE or any(worker.failed() for worker in workers):
                sys.exit(f"{contender.name}, {line.name}: {board.read(ends)[0]} of {line.count} and no more")
        if len(ends) == 1:
            workers[ends[0]].result()
        after, end = cpu.read(), time.monotonic()
        first = board.read(every)[1]
        last = board.read(ends)[2] if len(ends) > 1 else max(board.read(ends)[2], first)
        share = cpu.shares(before, after, end - begin, [worker.pid for worker in workers], contender.server.pids)
        return Run(line.count / (last - first), share)


def _part(count: int, workers: int, slot: int) -> int:
    """An equal part for each; the first ones take the remainder."""
    return count // workers + (slot < count % workers)
