"""How fast the stores are, beside the bare disk work they cannot do without. ``make bench-store``.

Every figure is the median of several repeats, with its spread; rivals take turns in the same run. Nothing is weakened:
durability is full throughout. Each target line at the end has: name | figure | wanted | reached or short."""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import apsw

import yirangmq
from yirangmq.broker.queues import Queues
from yirangmq.stores.sqlite.connection import CHECKPOINT_BYTES, PAGE_SIZE

BODY = (b'{"reading":"' + b"x" * 2000)[:1998] + b'"}'
TARGETS: list[str] = []


def target(name: str, figure: float, wanted: str, reached: bool, unit: str = "") -> None:
    TARGETS.append(f"target: {name} | {figure:.3g}{unit} | {wanted} | {'reached' if reached else 'short'}")


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def show(name: str, seconds: list[float], count: int) -> float:
    middle = statistics.median(seconds)
    low, high = min(seconds), max(seconds)
    print(
        f"  {name:<44} {count / middle:>10,.0f}/s   {middle / count * 1e6:7.1f} µs each   spread {low:.4f}–{high:.4f} s"
    )
    return middle


class Bare:
    """The same rows into a table without an index: what SQLite itself takes."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.execute(f"PRAGMA page_size = {PAGE_SIZE}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        self.db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // PAGE_SIZE}")
        self.db.execute("CREATE TABLE row (queue, id, rank, published, available, expires, key, header, payload)")

    def insert(self, count: int) -> None:
        rows = [(1, f"01a1de83-a906-7171-96d3-{n:012x}", 2**53, 1, 1, 0, None, "", BODY) for n in range(count)]
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany("INSERT INTO row VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self.db.execute("COMMIT")


def take(queues: Queues, queue: str, count: int) -> None:
    leased = queues.lease(queue, count, lease_seconds=600)
    assert len(leased) == count
    queues.ack([delivery.lease_id for delivery in leased])


def sqlite_throughput(folder: Path, repeats: int) -> None:
    print("SQLite, 2000-byte messages, full durability")
    bare = Bare(folder / "bare.db")
    with yirangmq.open(f"sqlite:{folder / 'ours.db'}") as queues:
        bare_times, ours_times, hundred, taken = [], [], [], []
        for _ in range(repeats):  # ten batches a sample, so that each pays for its own checkpoints
            bare_times.append(timed(lambda: [bare.insert(1000) for _ in range(10)]))
            ours_times.append(timed(lambda: [queues.publish_many("bench", [BODY] * 1000) for _ in range(10)]))
        for _ in range(repeats):
            hundred.append(timed(lambda: [queues.publish_many("bench", [BODY] * 100) for _ in range(10)]))
            taken.append(timed(lambda: [take(queues, "bench", 100) for _ in range(10)]))
        ratio = show("bare executemany + commit, 1000", bare_times, 10_000) / show(
            "publish, batches of 1000", ours_times, 10_000
        )
        times = show("lease + ack, batches of 100", taken, 1000) / show("publish, batches of 100", hundred, 1000)
        target("sqlite publish 1000 vs bare insert", ratio, ">= 0.7", ratio >= 0.7, " x")
        target("sqlite lease+ack 100 vs publish 100", times, "<= 2", times <= 2, " x")


def write_one(folder: Path, number: int) -> None:
    """A file the careful way: temp, fsync, rename, fsync folder."""
    temp = folder / f"{number}.tmp"
    with temp.open("wb") as file:
        file.write(BODY)
        file.flush()
        os.fsync(file.fileno())
    temp.rename(folder / f"{number}.json")
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def files_throughput(folder: Path, repeats: int) -> None:
    print("Files, 2000-byte messages, full durability")
    plain = folder / "plain"
    plain.mkdir()
    numbers = iter(range(10**9))
    with yirangmq.open(f"files:{folder / 'queues'}") as queues:
        singly, ours, taken = [], [], []
        for _ in range(repeats):
            singly.append(timed(lambda: [write_one(plain, next(numbers)) for _ in range(100)]))
            ours.append(timed(lambda: queues.publish_many("bench", [BODY] * 100)))
            taken.append(timed(lambda: take(queues, "bench", 100)))
        one = show("100 files one by one, each synced", singly, 100)
        batch = show("publish, batches of 100", ours, 100)
        show("lease + ack, batches of 100", taken, 100)
        target("files publish 100 vs one by one", one / batch, ">= 3", one / batch >= 3, " x")


def fill(queues: Queues, count: int, priorities: int) -> None:
    step = 1000
    for begin in range(0, count, step):
        many = min(step, count - begin)
        if priorities == 1:
            queues.publish_many("deep", [BODY] * many)
        else:
            queues.publish_many(
                "deep", [yirangmq.NewMessage(payload=BODY, priority=n % priorities) for n in range(many)]
            )
        if begin % (count // 10 or 1) < step and sys.stderr.isatty():
            print(f"\r  filling {begin:,} of {count:,}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 40, end="\r", file=sys.stderr)


def depth(folder: Path, scheme: str, deep: int, priorities: int, repeats: int) -> None:
    """The same calls on a shallow and on a deep store, taking turns."""
    print(f"Depth, {scheme}: {deep:,} waiting beside 1,000, {priorities} priorities")
    batch = 100
    names = ("publish", "lease", "ack")
    times: dict[tuple[str, str], list[float]] = {(d, n): [] for d in ("shallow", "deep") for n in names}
    with (
        yirangmq.open(f"{scheme}:{folder / f'shallow-{scheme}-{priorities}'}") as shallow,
        yirangmq.open(f"{scheme}:{folder / f'deep-{scheme}-{priorities}'}") as big,
    ):
        fill(shallow, 1000, priorities)
        fill(big, deep, priorities)
        messages: list[object] = [yirangmq.NewMessage(payload=BODY, priority=n % priorities) for n in range(batch)]
        if priorities == 1:
            messages = [BODY] * batch
        for turn in range(repeats + 2):
            for name, queues in (("shallow", shallow), ("deep", big)):
                published = timed(lambda q=queues: q.publish_many("deep", messages))  # type: ignore[misc]
                begin = time.perf_counter()
                leased = queues.lease("deep", batch, lease_seconds=600)
                middle = time.perf_counter()
                queues.ack([delivery.lease_id for delivery in leased])
                end = time.perf_counter()
                if turn >= 2:
                    times[name, "publish"].append(published)
                    times[name, "lease"].append(middle - begin)
                    times[name, "ack"].append(end - middle)
    allowed = 1.25 if priorities == 1 else 1.75
    for name in names:
        base = show(f"{name} 100, 1,000 waiting", times["shallow", name], batch)
        ours = show(f"{name} 100, {deep:,} waiting", times["deep", name], batch)
        label = f"{scheme} {name} at {deep:,}, {priorities} priorit{'y' if priorities == 1 else 'ies'}"
        target(label, ours / base, f"<= {allowed}", ours / base <= allowed, " x")


_PROBE = """
import sys, time
begin = time.perf_counter()
import yirangmq
with yirangmq.open(sys.argv[1]) as queues:
    queues.lease("deep", 1)
    opened = time.perf_counter() - begin
    for _ in range(20):
        queues.ack([d.lease_id for d in queues.lease("deep", 100)] or [])
    # Not ru_maxrss: a new process begins with the peak of the one that started it.
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(opened, int(peak.split()[1]) / 1024)
"""


def probe(store: str) -> tuple[float, float]:
    """(seconds to open and lease the first, peak RSS in MB) in a process of its own."""
    done = subprocess.run([sys.executable, "-c", _PROBE, store], capture_output=True, text=True, check=True)
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)


def opening(folder: Path, scheme: str, deep: int, allowed: float, repeats: int) -> None:
    print(f"Opening, {scheme}: {deep:,} waiting")
    with yirangmq.open(f"{scheme}:{folder / f'empty-{scheme}'}") as empty:
        empty.publish_many("deep", [BODY] * 2100)
    empties = [probe(f"{scheme}:{folder / f'empty-{scheme}'}") for _ in range(repeats)]
    deeps = [probe(f"{scheme}:{folder / f'deep-{scheme}-1'}") for _ in range(repeats)]
    seconds = statistics.median(figure[0] for figure in deeps)
    more = statistics.median(figure[1] for figure in deeps) - statistics.median(figure[1] for figure in empties)
    print(f"  open and lease the first: {seconds:.3f} s   peak memory above an empty store: {more:.1f} MB")
    target(f"{scheme} open + first lease at {deep:,}", seconds, f"<= {allowed} s", seconds <= allowed, " s")
    if scheme == "sqlite":
        target(f"sqlite memory at {deep:,} above empty", more, "<= 25 MB", more <= 25, " MB")


def importing(repeats: int) -> None:
    times = []
    for _ in range(repeats):
        code = "import time; t = time.perf_counter(); import yirangmq; print(time.perf_counter() - t)"
        times.append(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout))
    middle = statistics.median(times)
    print(f"import yirangmq: {middle * 1000:.0f} ms ({min(times) * 1000:.0f}–{max(times) * 1000:.0f})")
    target("import yirangmq", middle, "< 0.15 s", middle < 0.15, " s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--deep", type=int, default=1_000_000, help="messages waiting in SQLite")
    parser.add_argument("--deep-files", type=int, default=100_000, help="messages waiting in files")
    parser.add_argument("--only", choices=("sqlite", "files"), help="one store only")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder here)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder or Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        importing(args.repeats)
        if args.only != "files":
            sqlite_throughput(folder, args.repeats * 4)
            depth(folder, "sqlite", args.deep, 1, args.repeats * 2)
            opening(folder, "sqlite", args.deep, 0.5, args.repeats)
            depth(folder, "sqlite", args.deep, 10, args.repeats * 2)
        if args.only != "sqlite":
            files_throughput(folder, args.repeats)
            depth(folder, "files", args.deep_files, 1, args.repeats * 2)
            opening(folder, "files", args.deep_files, 3, args.repeats)
            depth(folder, "files", args.deep_files, 10, args.repeats * 2)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory of this benchmark: {peak:.0f} MB\n")
    print("\n".join(TARGETS))


if __name__ == "__main__":
    main()
