"""Compares this tree with an earlier revision: the same benchmark by both, in turns. ``make bench-turns``.

    make bench-turns BENCH_FLAGS="--before v0.1.0 --parts peers http store --rounds 6"

The order alternates from round to round, so that a slow minute of the machine meets both. For each line of a benchmark
two ratios are printed, after / before, each the median over the rounds with its spread: messages per second, and where
the benchmark states it the server's processor time per message. Rates on a shared machine move by tens of percent from
run to run; processor time does not, and decides where the rates disagree with it. A line is slower if its rate fell by
more than ``--tolerance`` and its processor time did not stay within it."""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PARTS: dict[str, list[str]] = {
    "peers": ["benchmarks/peers.py", "--only", "ours", "--quick", "--sections", "lines"],
    "http": ["benchmarks/http_door.py", "--quick"],
    "store": ["benchmarks/store.py", "--repeats", "5", "--deep", "20000", "--deep-files", "2000"],
    "topics": ["benchmarks/topics_feed.py", "--quick", "--only", "fan-out", "--only", "recovery"],
}
TAKE_FOLDER = ("store", "topics")
"""Parts whose benchmark has ``--folder``."""
LINE = re.compile(r"^\s+(?P<name>\S.*?):?\s+(?P<rate>[\d,]+)(?: deliveries| MB)?/s\b(?P<rest>.*)$")
PROCESSOR = re.compile(r"(?:broker|server)\s+([\d.]+) µs")
Key = tuple[str, str]


class Figures(NamedTuple):
    """Of one line in one run: the median where the benchmark repeats it."""

    rate: float
    processor: float | None


def parse(text: str) -> dict[Key, Figures]:
    """By heading and name of the line."""
    heading = ""
    found: dict[Key, list[Figures]] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith(" "):
            heading = re.sub(r"[\d,]{3,}", "N", line.split(",")[0].strip())
        matched = LINE.match(line)
        if matched is None:
            continue
        cost = PROCESSOR.search(matched["rest"])
        figures = Figures(float(matched["rate"].replace(",", "")), float(cost[1]) if cost else None)
        found.setdefault((heading, re.sub(r"[\d,]{4,}", "N", matched["name"])), []).append(figures)
    return {key: _middle(runs) for key, runs in found.items()}


def _middle(runs: list[Figures]) -> Figures:
    costs = [one.processor for one in runs if one.processor is not None]
    return Figures(statistics.median(one.rate for one in runs), statistics.median(costs) if costs else None)


def run(tree: Path, part: str, folder: Path) -> dict[Key, Figures]:
    """``folder``: the same for both trees, because the speed of small files depends on where they lie on the disk."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    words = [*PARTS[part], "--folder", str(folder)] if part in TAKE_FOLDER else PARTS[part]
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{part} failed in {tree}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return parse(done.stdout)


class Ratio(NamedTuple):
    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:5.3f} ({self.low:.2f}–{self.high:.2f})"


def ratio(pairs: list[tuple[float, float]]) -> Ratio | None:
    """After / before, round by round."""
    found = [after / before for before, after in pairs if before and after]
    return Ratio(statistics.median(found), min(found), max(found)) if found else None


def compare(part: str, rounds: list[tuple[dict[Key, Figures], dict[Key, Figures]]], tolerance: float) -> list[str]:
    targets = []
    for key in rounds[0][0]:
        both = [(before[key], after[key]) for before, after in rounds if key in before and key in after]
        rate = ratio([(before.rate, after.rate) for before, after in both])
        cost = ratio([(before.processor or 0.0, after.processor or 0.0) for before, after in both])
        if rate is None:
            continue
        name = f"{part}: {key[0]}: {key[1]}"
        print(f"  {name:<80} rate {rate}" + (f"   processor {cost}" if cost else ""), flush=True)
        is_kept = rate.middle >= 1 - tolerance or (cost is not None and cost.middle <= 1 + tolerance)
        figure = f"rate {rate.middle:.3f} x" + (f", processor {cost.middle:.3f} x" if cost else "")
        wanted = f"rate >= {1 - tolerance:g} x, or processor <= {1 + tolerance:g} x"
        targets.append(f"target: {name} | {figure} | {wanted} | {'reached' if is_kept else 'short'}")
    return targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="HEAD~1", help="the revision to compare with (default: HEAD~1)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["peers", "http", "store"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tolerance", type=float, default=0.03, help="how much slower a line may be (default: 0.03)")
    args = parser.parse_args()
    targets: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", str(before), args.before], cwd=ROOT, check=True
        )
        try:
            for part in args.parts:
                rounds = []
                for number in range(args.rounds):
                    order = (before, ROOT) if number % 2 == 0 else (ROOT, before)
                    found = {tree: run(tree, part, Path(folder)) for tree in order}
                    rounds.append((found[before], found[ROOT]))
                    print(f"{part}: round {number + 1} of {args.rounds}", flush=True)
                targets += compare(part, rounds, args.tolerance)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=ROOT, check=False)
    print("\n".join(["", *targets]))


if __name__ == "__main__":
    main()
