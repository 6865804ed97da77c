"""Power-cut run: records a workload, cuts the power at every event, verifies the possible disks.

``CrashTest`` has the differences between stores and the topic log: how the workload is recorded, how a possible disk is
opened and verified. ``torture`` writes each disk to a folder, in ``/dev/shm`` if the system has it, and verifies it.

One disk in three also gets stale files that the store never syncs. After one in six the power fails again while the
store is opened. The run stops early after ``Plan.max_losses`` losses or ``Plan.seconds``."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from yirangmq.crashtest.backends import STORE, Backend, LogBackend
from yirangmq.crashtest.disk_model import CallReturned, CallStarted, DiskModel, Event, IoJournal, Tree, write_tree
from yirangmq.crashtest.log_workload import EMPTY_LOG, LogSnapshot, open_all, record_log_workload, take_log_snapshot
from yirangmq.crashtest.power_cuts import PossibleDisk, possible_disks
from yirangmq.crashtest.verify import ExpectedLog, ExpectedStore, verify, verify_log
from yirangmq.crashtest.workload import (
    EMPTY_SNAPSHOT,
    START_MS,
    RecordedWorkload,
    Snapshot,
    WorkloadCall,
    record_workload,
    take_snapshot,
)

# -- stores and the topic log ------------------------------------------------------------------------------------------


class CutMoment(NamedTuple):
    """Time of a power cut: after the call ``done`` returned, and during ``in_progress`` if that is not None."""

    done: WorkloadCall | None
    in_progress: WorkloadCall | None

    @property
    def now_ms(self) -> int:
        call = self.in_progress or self.done
        return call.now_ms if call is not None else START_MS


class CrashTest(Protocol):
    def record_workload(
        self, top: Path, seed: int, steps: int, stepped: Callable[[int], None] = ...
    ) -> RecordedWorkload:
        """Run the workload in the folder ``top`` and record its I/O. ``stepped`` is called before each step."""

    def open_recorded(self, top: Path, journal: IoJournal) -> None:
        """Open the store in ``top``, read it and close it, and record all its I/O in the journal."""

    def verify(self, top: Path, moment: CutMoment) -> list[str]:
        """Verify the store in ``top`` and return the problems."""

    def is_recorded(self, path: str) -> bool:
        """Return False if the store never syncs this file and rebuilds it after a power cut."""

    def stale_files(self, recorded_folder: Path) -> Tree:
        """Return stale files that are never synced, as they may exist after a cut."""

    def quarantined(self, top: Path) -> int:
        """Return the number of quarantined files."""


def crash_test_of(backend: Backend | LogBackend) -> CrashTest:
    return LogCrashTest(backend) if isinstance(backend, LogBackend) else StoreCrashTest(backend)


class StoreCrashTest:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def record_workload(
        self, top: Path, seed: int, steps: int, stepped: Callable[[int], None] = lambda step: None
    ) -> RecordedWorkload:
        return record_workload(self._backend, top, seed, steps, stepped)

    def open_recorded(self, top: Path, journal: IoJournal) -> None:
        with self._backend.recorded(top, journal) as open_store:
            store = open_store()
            take_snapshot(store)
            store.close()

    def verify(self, top: Path, moment: CutMoment) -> list[str]:
        try:
            store = self._backend.open_plain(top)
        except Exception as error:  # of any type, as in ``verify``
            return [f"does not open: {type(error).__name__}: {error}"]
        try:
            left = [f"{path} is half-written and was not set aside" for path in self._backend.half_written(top)]
            return [*left, *verify(store, self._expected(moment))]
        finally:
            store.close()

    def _expected(self, moment: CutMoment) -> ExpectedStore:
        before: Snapshot = moment.done.after if moment.done is not None else EMPTY_SNAPSHOT
        after: Snapshot = moment.in_progress.after if moment.in_progress is not None else before
        return ExpectedStore(before, after, moment.now_ms, self._backend.is_atomic)

    def is_recorded(self, path: str) -> bool:
        return self._backend.is_recorded(path)

    def stale_files(self, recorded_folder: Path) -> Tree:
        return self._backend.stale_files(recorded_folder)

    def quarantined(self, top: Path) -> int:
        return self._backend.quarantined(top)


class LogCrashTest:
    def __init__(self, backend: LogBackend) -> None:
        self._backend = backend

    def record_workload(
        self, top: Path, seed: int, steps: int, stepped: Callable[[int], None] = lambda step: None
    ) -> RecordedWorkload:
        return record_log_workload(self._backend, top, seed, steps, stepped)

    def open_recorded(self, top: Path, journal: IoJournal) -> None:
        opened = open_all(top, self._backend.disk(journal), START_MS, Random(0))
        try:
            take_log_snapshot(opened)
        finally:
            opened.close()

    def verify(self, top: Path, moment: CutMoment) -> list[str]:
        before: LogSnapshot = moment.done.after if moment.done is not None else EMPTY_LOG
        after: LogSnapshot = moment.in_progress.after if moment.in_progress is not None else before
        try:
            return verify_log(top, ExpectedLog(before, after, moment.now_ms))
        except Exception as error:  # of any type: a log must not fail because of the files it finds
            return [f"{type(error).__name__}: {error}"]

    def is_recorded(self, path: str) -> bool:
        return path != f"{STORE}.lock"

    def stale_files(self, recorded_folder: Path) -> Tree:
        return {}

    def quarantined(self, top: Path) -> int:
        return 0


# -- the run -----------------------------------------------------------------------------------------------------------

MEMORY_FOLDER = Path("/dev/shm")
"""Folder for the possible disks. Thousands are written and deleted; in memory they do not wear the real disk."""
STALE_FILES_EVERY = 3
"""One disk in this many also gets stale files that the store never syncs."""
SECOND_CUT_EVERY = 6
"""After one disk in this many the power fails again while the store is opened."""
MAX_LOSSES = 20
"""Default number of losses after which a run stops."""


class PowerCutPlan(NamedTuple):
    backend: Backend | LogBackend
    steps: int
    seed: int
    states: int
    """Number of different disks per point."""
    keep: Path | None = None
    """Folder for copies of the disks on which something was lost."""
    only: int | None = None
    """Cut at this point only."""
    max_losses: int = MAX_LOSSES
    """Number of losses after which the run stops."""
    seconds: float | None = None
    """Time limit in seconds; None: no limit."""


class Loss(NamedTuple):
    """A broken guarantee: the point of the cut, the call, the disk, and the problems."""

    point: int
    call: str
    disk: str
    complaints: list[str]
    kept: Path | None


class PowerCutReport(NamedTuple):
    calls: int
    points: int
    states: int
    second_cuts: int
    quarantined: int
    """Half-written messages that were quarantined, over all disks."""
    losses: list[Loss]
    is_complete: bool = True
    """False if the time limit ended the run before the last point."""


Progress = Callable[[str, int, int], None]
"""Called with the phase of a run, the steps of it that are done, and all of them."""


def no_progress(phase: str, done: int, total: int) -> None:
    """Ignore the progress."""


class _TimeOver(Exception):
    """The time limit is over while the workload is recorded."""


def torture(plan: PowerCutPlan, progress: Progress = no_progress) -> PowerCutReport:
    """Record a workload and cut the power at every point of it.

    Stop early after ``Plan.max_losses`` losses or ``Plan.seconds``; the time may be exceeded by one step."""
    folder = tempfile.mkdtemp(prefix="yirangmq-torture-", dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)
    try:
        return _PowerCutRun(plan, Path(folder)).run(progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _PowerCutRun:
    def __init__(self, plan: PowerCutPlan, folder: Path) -> None:
        self._plan = plan
        self._crash_test = crash_test_of(plan.backend)
        self._folder = folder
        self._calls: list[WorkloadCall] = []
        self._stale_files: Tree = {}
        self._returned = 0
        self._in_progress = False
        self._seen: set[tuple[bytes, int, bool]] = set()
        self._states = 0
        self._second_cuts = 0
        self._quarantined = 0
        self._losses: list[Loss] = []
        self._until = None if plan.seconds is None else time.monotonic() + plan.seconds

        self._is_complete = True

    def _stops(self) -> bool:
        """Return True if there is more to do and the losses or the time end the run here."""
        if self._until is not None and time.monotonic() > self._until:
            self._is_complete = False
        return not self._is_complete or len(self._losses) >= self._plan.max_losses

    def run(self, progress: Progress) -> PowerCutReport:
        recorded_folder = self._folder / "day"
        recorded_folder.mkdir()
        steps = self._plan.steps

        def stepped(step: int) -> None:
            progress("calls recorded", step, steps)
            if self._stops():
                raise _TimeOver

        try:
            story = self._crash_test.record_workload(recorded_folder, self._plan.seed, steps, stepped)
        except _TimeOver:
            return PowerCutReport(0, 0, 0, 0, 0, [], is_complete=False)
        self._calls = story.calls
        self._stale_files = self._crash_test.stale_files(recorded_folder)
        if story.complaints:
            self._losses.append(Loss(-1, story.calls[-1].text, "no cut at all", story.complaints, None))
        events = story.journal.events
        model = DiskModel(story.journal.start)
        points = 0
        for point in range(len(events) + 1):
            if story.complaints or self._stops():
                break
            if self._plan.only in (None, point):
                self._cut(point, model)
                points += 1
            if point < len(events):
                self._apply_event(model, events[point])
            progress("power cuts", point, len(events))
        return PowerCutReport(
            len(self._calls),
            points,
            self._states,
            self._second_cuts,
            self._quarantined,
            self._losses,
            self._is_complete,
        )

    def _apply_event(self, model: DiskModel, event: Event) -> None:
        model.feed(event)
        if isinstance(event, CallStarted):
            self._in_progress = True
        elif isinstance(event, CallReturned):
            self._in_progress = False
            self._returned = event.call + 1

    def _moment(self) -> CutMoment:
        returned = self._returned
        done = self._calls[returned - 1] if returned else None
        is_under_way = self._in_progress and returned < len(self._calls)
        return CutMoment(done, self._calls[returned] if is_under_way else None)

    def _cut(self, point: int, model: DiskModel) -> None:
        rng = Random(f"cut {self._plan.seed} {point}")
        for possible_disk in possible_disks(model, self._plan.states, rng):
            if self._stops():
                return
            key = (possible_disk.digest, self._returned, self._in_progress)
            if key in self._seen:
                continue
            self._seen.add(key)
            if STORE in possible_disk.tree and rng.randrange(STALE_FILES_EVERY) == 0:
                possible_disk = possible_disk._replace(tree={**possible_disk.tree, **self._stale_files})
            if self._survives(point, possible_disk, "") and rng.randrange(SECOND_CUT_EVERY) == 0:
                self._cut_again(point, possible_disk, rng)

    def _cut_again(self, point: int, possible_disk: PossibleDisk, rng: Random) -> None:
        """Cut the power again while the store is opened: its recovery must itself be crash-safe."""
        folder = self._write_disk(possible_disk)
        journal = IoJournal(folder, possible_disk.tree)
        try:
            self._crash_test.open_recorded(folder, journal)
        finally:
            shutil.rmtree(folder)
        model = DiskModel(possible_disk.tree)
        for event in journal.events[: rng.randint(0, len(journal.events))]:
            model.feed(event)
        for second in possible_disks(model, 2, rng):
            self._second_cuts += 1
            self._survives(point, second, f"{possible_disk.story}; then, cut again while opening: ")

    def _survives(self, point: int, possible_disk: PossibleDisk, first: str) -> bool:
        self._states += 1
        folder = self._write_disk(possible_disk)
        try:
            complaints = self._crash_test.verify(folder, self._moment())
            self._quarantined += self._crash_test.quarantined(folder)
        finally:
            shutil.rmtree(folder)
        if complaints:
            call = self._calls[min(self._returned, len(self._calls) - 1)].text if self._in_progress else "between calls"
            disk = first + possible_disk.story
            self._losses.append(
                Loss(point, call, disk, complaints, self._keep_copy(point, possible_disk, disk, complaints))
            )
        return not complaints

    def _write_disk(self, possible_disk: PossibleDisk) -> Path:
        folder = self._folder / "wreck"
        folder.mkdir()
        write_tree(possible_disk.tree, folder)
        return folder

    def _keep_copy(self, point: int, possible_disk: PossibleDisk, disk: str, complaints: list[str]) -> Path | None:
        if self._plan.keep is None:
            return None
        folder = self._plan.keep / f"point-{point}-state-{self._states}"
        (folder / "disk").mkdir(parents=True)
        write_tree(possible_disk.tree, folder / "disk")
        (folder / "why.txt").write_text("\n".join([*complaints, "", disk, ""]))
        return folder
