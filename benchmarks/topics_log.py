"""How fast the log of topics is, beside the bare disk work it cannot do without. Part one of ``make bench-topics``.

Ours and the bare write take turns in the same run, in short spells, on the same disk; nothing is weakened: durability
is full wherever publishing is timed. Each target line at the end has: name | figure | wanted | reached or short."""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from yirangmq.core.topics import NewRecord, Retention
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.wire.records import RecordReader, encode_batch

PAYLOAD = os.urandom(2000)
RECORD = NewRecord("trades.krx", PAYLOAD)
SEGMENT = 64 << 20
SPELL = 64
"""Batches of a spell: short, so that whatever else the machine does falls on both sides alike."""
TARGETS: list[str] = []


def target(name: str, figure: float, wanted: str, reached: bool, unit: str = "") -> None:
    TARGETS.append(f"target: {name} | {figure:,.3g}{unit} | {wanted} | {'reached' if reached else 'short'}")


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Bare:
    """The same bytes with pwrite and fdatasync over a file that was filled with zeros: what the disk itself takes."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        for offset in range(0, SEGMENT, 1 << 20):
            os.pwrite(self._fd, bytes(1 << 20), offset)
        os.fsync(self._fd)
        self._at = 0

    def spell(self, data: bytes) -> None:
        for _ in range(SPELL):
            if self._at + len(data) > SEGMENT:
                self._at = 0
            os.pwrite(self._fd, data, self._at)
            os.fdatasync(self._fd)
            self._at += len(data)


def settle(log: SegmentLog) -> None:
    """Past the growing segments of a new log, to where every file is one that was used before."""
    written = 0
    while written < 8 * SEGMENT:
        written += len(log.append([RECORD] * 1000).data)
        log.retain(Retention(size=2 * SEGMENT))


def publishing(folder: Path, rounds: int) -> None:
    print(f"Publishing {len(PAYLOAD)}-byte records, each batch synced; {rounds} rounds of {SPELL} batches, in turns")
    bare = Bare(folder / "bare")
    with SegmentLog(folder / "log") as log:
        settle(log)
        for size in (1, 16, 100):
            batch = [RECORD] * size
            data = log.append(batch).data
            theirs, ours = [], []
            for _ in range(rounds):
                theirs.append(timed(lambda data=data: bare.spell(data)))
                ours.append(timed(lambda batch=batch: [log.append(batch) for _ in range(SPELL)]))
                log.retain(Retention(size=2 * SEGMENT))
            rate = SPELL * size / statistics.median(ours)
            share = statistics.median(one / other for one, other in zip(theirs, ours, strict=True))
            whole = sum(theirs) / sum(ours)
            print(
                f"  batches of {size:>3}: {rate:>9,.0f}/s, bare {SPELL * size / statistics.median(theirs):>9,.0f}/s; "
                f"share {share:.2f} (all rounds together {whole:.2f})"
            )
            if size == 16:
                target("durable publish, batches of 16, as a share of write+fdatasync", share, ">= 0.7", share >= 0.7)
                target("durable publish, batches of 16", rate, ">= 100000 on an idle machine", rate >= 1e5, "/s")
        crowd(log)


def crowd(log: SegmentLog) -> None:
    """Many callers, one record each: they share their syncs."""
    each = 300

    def publish() -> None:
        for _ in range(each):
            log.append([RECORD])

    alone = each / timed(publish)
    threads = [threading.Thread(target=publish) for _ in range(16)]
    together = timed(lambda: ([thread.start() for thread in threads], [thread.join() for thread in threads]))
    print(f"  one record a call: {alone:,.0f}/s by one caller, {16 * each / together:,.0f}/s by sixteen")


def frames() -> None:
    print("Frames, without a disk")
    batch, count = [RECORD] * 100, 300
    encoding = timed(lambda: [encode_batch(batch, 1, 1, {}, synced=True) for _ in range(count)])
    data = encode_batch(batch, 1, 1, {}, synced=True).data
    decoding = timed(lambda: [list(RecordReader().feed(data)) for _ in range(count)])
    rate = 100 * count / encoding
    print(f"  encoded {rate:,.0f}/s in batches of 100, decoded and checked {100 * count / decoding:,.0f}/s")
    target("frames encoded, batches of 100", rate, ">= 250000", rate >= 250_000, "/s")


def opening(folder: Path, size: int) -> None:
    """A log of ``size`` bytes: how long opening takes, and how fast it is read."""
    print(f"Opening and reading {size / 1e9:.2g} GB")
    with SegmentLog(folder / "large", LogSettings(durability="os")) as log:
        while log.size < size:
            log.append([RECORD] * 500)
        records = log.last
    opened = [timed(lambda: SegmentLog(folder / "large").close()) for _ in range(5)]
    viewed = [timed(lambda: SegmentView(folder / "large")) for _ in range(5)]
    seconds = statistics.median(opened)
    print(f"  opened for writing in {seconds * 1000:.0f} ms, for reading in {statistics.median(viewed) * 1000:.0f} ms")
    target(f"open a log of {size / 1e9:.2g} GB", seconds, "<= 0.5 s", seconds <= 0.5, " s")
    reader = SegmentView(folder / "large").reader()
    decoded = timed(lambda: [None for _ in reader.records(1)])
    copied = timed(lambda: sum(len(part.data) for part in reader.frames(1)))
    print(f"  records, checked: {records / decoded:,.0f}/s; frames: {records / copied:,.0f}/s")
    far = records - records // 3
    found = statistics.median(timed(lambda: next(iter(reader.records(far, far + 1)))) for _ in range(20))
    at_ns = next(iter(reader.records(far, far + 1))).at_ns
    when = statistics.median(timed(lambda: reader.sequence_at(at_ns)) for _ in range(20))
    print(f"  one record by its sequence: {found * 1e6:.0f} µs; by its time: {when * 1e6:.0f} µs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, a quarter of the rounds")
    parser.add_argument("--folder", help="where to measure (default: a new folder below the temporary one)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="yirangmq-bench-", dir=args.folder))
    try:
        frames()
        publishing(folder, 10 if args.quick else 40)
        opening(folder, 100_000_000 if args.quick else 1_000_000_000)
    finally:
        shutil.rmtree(folder)
    print("\n".join(TARGETS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
