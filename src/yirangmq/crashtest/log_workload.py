"""Workload of the power-cut run on the topic log and its cursors.

It appends batches of every size over many small segments, trims, recycles files, moves cursors, and reopens the log in
between. The same seed gives the same calls: nothing runs in the background. The journal records each call."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from yirangmq.core.topics import Cursor, NewRecord, Record, Retention
from yirangmq.crashtest.backends import STORE, LogBackend
from yirangmq.crashtest.disk_model import CallReturned, CallStarted, IoJournal
from yirangmq.crashtest.workload import START_MS, RecordedWorkload, WorkloadCall
from yirangmq.fsio.disk import Disk
from yirangmq.stores.cursors import FileCursors
from yirangmq.stores.log.log import LogSettings, SegmentLog

TOPICS = ("trades", "quotes", "rare")
NAMES = ("billing", "audit")
SETTINGS = LogSettings(segment_bytes=4096, ahead=False)
"""Small segments, so that there are many. No background work, so that a run is reproducible."""
RETAINED_BYTES = 9_000
FIRST_CALLS = ("append", "append many", "append", "confirm")


class LogSnapshot(NamedTuple):
    """Content of a log and its cursors as one comparable value."""

    epoch: str
    first: int
    records: dict[int, Record]
    cursors: dict[str, Cursor]

    @property
    def last(self) -> int:
        return max(self.records, default=self.first - 1)


EMPTY_LOG = LogSnapshot("", 1, {}, {})


class OpenLog(NamedTuple):
    log: SegmentLog
    cursors: FileCursors

    def close(self) -> None:
        self.cursors.close()
        self.log.close()


def open_all(top: Path, disk: Disk | None, now_ms: int, rng: Random) -> OpenLog:
    log = SegmentLog(
        top / STORE, SETTINGS, disk=disk, now_ns=lambda: now_ms * 1_000_000, new_epoch=lambda: rng.randbytes(16)
    )
    try:
        return OpenLog(log, FileCursors(top / STORE / "cursors", disk=disk))
    except BaseException:
        log.close()
        raise


def take_log_snapshot(opened: OpenLog) -> LogSnapshot:
    log = opened.log
    records = {record.sequence: record for record in log.reader().records(log.first)}
    return LogSnapshot(log.epoch, log.first, records, {cursor.name: cursor for cursor in opened.cursors.all()})


def record_log_workload(
    backend: LogBackend, top: Path, seed: int, steps: int, stepped: Callable[[int], None] = lambda step: None
) -> RecordedWorkload:
    """Run the workload in ``top``, an empty folder, and record its I/O. ``stepped`` is called before each step."""
    journal = IoJournal(top)
    workload = _LogWorkload(top, backend.disk(journal), journal, Random(f"log {seed}"))
    try:
        workload.run(steps, stepped)
    finally:
        workload.close()
    return RecordedWorkload(journal, workload.calls, workload.complaints)


class _LogWorkload:
    def __init__(self, top: Path, disk: Disk, journal: IoJournal, rng: Random) -> None:
        self._top = top
        self._disk = disk
        self._journal = journal
        self._rng = rng
        self._now_ms = START_MS
        self._opened: OpenLog | None = None
        self._known: dict[int, Record] = {}
        self.calls: list[WorkloadCall] = []
        self.complaints: list[str] = []

    def run(self, steps: int, stepped: Callable[[int], None]) -> None:
        operations: dict[str, tuple[int, Callable[[], object]]] = {
            "append": (8, lambda: self._append(1)),
            "append many": (8, lambda: self._append(self._rng.choice((2, 3, 9)))),
            "trim": (2, self._trim),
            "retain": (3, self._retain),
            "confirm": (4, self._confirm),
            "forget": (1, self._forget),
            "open again": (2, self._open),
        }
        self._call("open", self._open)
        weights = [weight for weight, _ in operations.values()]
        drawn = self._rng.choices(list(operations), weights, k=steps)
        for step, text in enumerate([*FIRST_CALLS, *drawn][:steps]):
            stepped(step)
            self._now_ms += self._rng.choice((0, 1, 300, 2_000))
            self._call(text, operations[text][1])
            if self.complaints:
                return

    def _call(self, text: str, work: Callable[[], object]) -> None:
        number = len(self.calls)
        self._journal.add(CallStarted(number))
        work()
        self._journal.add(CallReturned(number))
        after = take_log_snapshot(self._open_log)
        self.calls.append(WorkloadCall(text, self._now_ms, after))
        wrong = [n for n, record in after.records.items() if self._known.setdefault(n, record) != record]
        missing = [n for n in range(after.first, max(self._known, default=0) + 1) if n not in after.records]
        self.complaints = [f"after call {number} ({text}): record {n} is not what was appended" for n in wrong]
        self.complaints += [f"after call {number} ({text}): record {n} is gone" for n in missing]

    @property
    def _open_log(self) -> OpenLog:
        if self._opened is None:
            raise RuntimeError("the day has not begun")
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # -- verbs ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.close()
        self._opened = open_all(self._top, self._disk, self._now_ms, self._rng)

    def _append(self, count: int) -> None:
        sizes = (0, 1, 40, 300, 700) if count > 1 else (0, 1, 300, 700, 2_000, 5_000)
        batch = [
            NewRecord(
                self._rng.choices(TOPICS, (8, 8, 1))[0],
                self._rng.randbytes(self._rng.choice(sizes)),
                self._rng.choice((None, None, "key")),
            )
            for _ in range(count)
        ]
        done = self._open_log.log.append(batch)
        self._known |= {
            number: record
            for number, record in take_log_snapshot(self._open_log).records.items()
            if number >= done.first
        }

    def _trim(self) -> None:
        log = self._open_log.log
        log.trim(self._rng.randint(log.first, log.last + 1))

    def _retain(self) -> None:
        floor = min((cursor.sequence + 1 for cursor in self._open_log.cursors.all()), default=None)
        self._open_log.log.retain(Retention(size=RETAINED_BYTES), floor)

    def _confirm(self) -> None:
        log = self._open_log.log
        names = self._rng.sample(NAMES, self._rng.randint(1, len(NAMES)))
        at = self._rng.randint(max(0, log.first - 1), log.last)
        self._open_log.cursors.put([Cursor(name, log.epoch, at, "trades.*" * 40, self._now_ms) for name in names])

    def _forget(self) -> None:
        self._open_log.cursors.drop(self._rng.choice(NAMES))
