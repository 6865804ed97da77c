"""``make soak-topics``: runs of topics by seed, most of them step by step in this process, a share with whole processes
that are killed. Each line has the seed that repeats it: ``python -m benchmarks.soak.topics --seed N [--process]``.

It ends with one line: runs, records, gaps, duplicates; and with exit code 1 if there is anything but records."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.soak.judge import Verdict
from benchmarks.soak.process_run import ProcessRun
from benchmarks.soak.stage_run import StageRun
from tests.support.worker_processes import Crew, crew

SHARE = 5
"""One run in so many has processes."""


@contextmanager
def folder_for(seed: int) -> Iterator[Path]:
    """In memory, if it can be: no power is cut here, and syncing is what takes the time."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=f"soak-{seed}-", dir=where, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def stage_run(seed: int) -> list[Verdict]:
    with folder_for(seed) as folder:
        return StageRun(seed, folder).play()


def process_run(seed: int, team: Crew) -> tuple[list[Verdict], list[object]]:
    with folder_for(seed) as folder:
        run = ProcessRun(seed, folder, team)
        return run.play(), run.troubles


class Tally:
    def __init__(self) -> None:
        self.runs = self.records = 0
        self.bad: list[int] = []
        self.sums = {"gaps": 0, "duplicates": 0, "disorder": 0, "foreign": 0}

    def add(self, seed: int, kind: str, verdicts: list[Verdict], seconds: float) -> None:
        self.runs += 1
        self.records += sum(one.wanted for one in verdicts)
        for name in self.sums:
            self.sums[name] += sum(getattr(one, name) for one in verdicts)
        is_good = all(one.is_good for one in verdicts)
        if not is_good:
            self.bad.append(seed)
        said = ", ".join(f"{one.wanted} records" if one.is_good else str(one) for one in verdicts)
        print(f"seed {seed} {kind}: {'good' if is_good else 'BAD'}: {said} ({seconds:.2f} s)", flush=True)

    def line(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in self.sums.items())
        return f"{self.runs} runs, {self.records} deliveries: {counted}; bad seeds: {self.bad or 'none'}"


def soak(first: int, runs: int, share: int) -> Tally:
    tally = Tally()
    with crew(*MODULES) as team:
        for seed in range(first, first + runs):
            begin = time.monotonic()
            if share and seed % share == 0:
                verdicts, _ = process_run(seed, team)
                tally.add(seed, "processes", verdicts, time.monotonic() - begin)
            else:
                tally.add(seed, "steps", stage_run(seed), time.monotonic() - begin)
    return tally


MODULES = (
    "benchmarks.soak.roles",
    "yirangmq.cli.commands.serve",
    "yirangmq.client.topic_subscription",
    "yirangmq.stores.log.log",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="this run alone")
    parser.add_argument("--process", action="store_true", help="with processes; else every fifth seed is")
    parser.add_argument("--share", type=int, default=SHARE, help="one run in so many has processes; 0: none")
    args = parser.parse_args()
    first, runs = (args.first, args.runs) if args.seed is None else (args.seed, 1)
    tally = soak(first, runs, 1 if args.process else args.share)
    print(tally.line())
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
