"""Power-cut run: records a workload, cuts the power at every event, verifies the possible disks.

``Game`` has the differences between stores and the topic log: how the workload is recorded, how a possible disk is
opened and verified. ``torture`` writes each disk to a folder, in ``/dev/shm`` if the system has it, and verifies it.

One disk in three also gets stale files that the store never syncs. After one in six the power fails again while the
store is opened. The run stops early after ``Plan.enough`` losses."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from yirangmq.crashtest.backends import STORE, Backend, LogBackend
from yirangmq.crashtest.disk_model import Called, Event, Journal, Returned, Shadow, Tree, lay_out
from yirangmq.crashtest.log_workload import NO_LOG, LogSnapshot, open_all, take_log, tell_log
from yirangmq.crashtest.power_cuts import Wreck, wrecks
from yirangmq.crashtest.verify import Expected, ExpectedLog, judge, judge_log
from yirangmq.crashtest.workload import NOTHING, START_MS, Call, Snapshot, Story, take, tell

# -- stores and the topic log ------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """Time of a power cut: after the call ``done`` returned, and during ``under_way`` if that is not None."""

    done: Call | None
    under_way: Call | None

    @property
    def now_ms(self) -> int:
        call = self.under_way or self.done
        return call.now_ms if call is not None else START_MS


class Game(Protocol):
    def tell(self, top: Path, seed: int, steps: int) -> Story:
        """Run the workload in the folder ``top`` and record its I/O."""

    def open_recorded(self, top: Path, journal: Journal) -> None:
        """Open the store in ``top``, read it and close it, and record all its I/O in the journal."""

    def judge(self, top: Path, moment: Moment) -> list[str]:
        """Verify the store in ``top`` and return the problems."""

    def is_recorded(self, path: str) -> bool:
        """Return False if the store never syncs this file and rebuilds it after a power cut."""

    def debris(self, day: Path) -> Tree:
        """Return stale files that are never synced, as they may exist after a cut."""

    def set_aside(self, top: Path) -> int:
        """Return the number of quarantined files."""


def game_of(backend: Backend | LogBackend) -> Game:
    return LogGame(backend) if isinstance(backend, LogBackend) else StoreGame(backend)


class StoreGame:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def tell(self, top: Path, seed: int, steps: int) -> Story:
        return tell(self._backend, top, seed, steps)

    def open_recorded(self, top: Path, journal: Journal) -> None:
        with self._backend.recorded(top, journal) as open_store:
            store = open_store()
            take(store)
            store.close()

    def judge(self, top: Path, moment: Moment) -> list[str]:
        try:
            store = self._backend.plain(top)
        except Exception as error:  # of any type, as in ``judge``
            return [f"does not open: {type(error).__name__}: {error}"]
        try:
            left = [f"{path} is half-written and was not set aside" for path in self._backend.half_written(top)]
            return [*left, *judge(store, self._expected(moment))]
        finally:
            store.close()

    def _expected(self, moment: Moment) -> Expected:
        before: Snapshot = moment.done.after if moment.done is not None else NOTHING
        after: Snapshot = moment.under_way.after if moment.under_way is not None else before
        return Expected(before, after, moment.now_ms, self._backend.is_atomic)

    def is_recorded(self, path: str) -> bool:
        return self._backend.is_recorded(path)

    def debris(self, day: Path) -> Tree:
        return self._backend.debris(day)

    def set_aside(self, top: Path) -> int:
        return self._backend.set_aside(top)


class LogGame:
    def __init__(self, backend: LogBackend) -> None:
        self._backend = backend

    def tell(self, top: Path, seed: int, steps: int) -> Story:
        return tell_log(self._backend, top, seed, steps)

    def open_recorded(self, top: Path, journal: Journal) -> None:
        opened = open_all(top, self._backend.disk(journal), START_MS, Random(0))
        try:
            take_log(opened)
        finally:
            opened.close()

    def judge(self, top: Path, moment: Moment) -> list[str]:
        before: LogSnapshot = moment.done.after if moment.done is not None else NO_LOG
        after: LogSnapshot = moment.under_way.after if moment.under_way is not None else before
        try:
            return judge_log(top, ExpectedLog(before, after, moment.now_ms))
        except Exception as error:  # of any type: a log must not fail because of the files it finds
            return [f"{type(error).__name__}: {error}"]

    def is_recorded(self, path: str) -> bool:
        return path != f"{STORE}.lock"

    def debris(self, day: Path) -> Tree:
        return {}

    def set_aside(self, top: Path) -> int:
        return 0


# -- the run -----------------------------------------------------------------------------------------------------------

MEMORY = Path("/dev/shm")
"""Folder for the possible disks. Thousands are written and deleted; in memory they do not wear the real disk."""
DEBRIS = 3
"""One disk in this many also gets stale files that the store never syncs."""
SECOND_CUT = 6
"""After one disk in this many the power fails again while the store is opened."""
MOST_LOSSES = 20
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
    enough: int = MOST_LOSSES
    """Number of losses after which the run stops."""


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
    set_aside: int
    """Half-written messages that were quarantined, over all disks."""
    losses: list[Loss]


def torture(plan: PowerCutPlan, progress: Callable[[int, int], None] = lambda done, total: None) -> PowerCutReport:
    """Record a workload and cut the power at every point of it. Stop early after ``Plan.enough`` losses."""
    folder = tempfile.mkdtemp(prefix="yirangmq-torture-", dir=MEMORY if MEMORY.is_dir() else None)
    try:
        return _Torture(plan, Path(folder)).run(progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Torture:
    def __init__(self, plan: PowerCutPlan, folder: Path) -> None:
        self._plan = plan
        self._game = game_of(plan.backend)
        self._folder = folder
        self._calls: list[Call] = []
        self._debris: Tree = {}
        self._returned = 0
        self._under_way = False
        self._seen: set[tuple[bytes, int, bool]] = set()
        self._states = 0
        self._second_cuts = 0
        self._set_aside = 0
        self._losses: list[Loss] = []

    def run(self, progress: Callable[[int, int], None]) -> PowerCutReport:
        day = self._folder / "day"
        day.mkdir()
        story = self._game.tell(day, self._plan.seed, self._plan.steps)
        self._calls = story.calls
        self._debris = self._game.debris(day)
        if story.complaints:
            self._losses.append(Loss(-1, story.calls[-1].text, "no cut at all", story.complaints, None))
        events = story.journal.events
        shadow = Shadow(story.journal.start)
        points = 0
        for point in range(len(events) + 1):
            if len(self._losses) >= self._plan.enough or story.complaints:
                break
            if self._plan.only in (None, point):
                self._cut(point, shadow)
                points += 1
            if point < len(events):
                self._pass(shadow, events[point])
            progress(point, len(events))
        return PowerCutReport(len(self._calls), points, self._states, self._second_cuts, self._set_aside, self._losses)

    def _pass(self, shadow: Shadow, event: Event) -> None:
        shadow.feed(event)
        if isinstance(event, Called):
            self._under_way = True
        elif isinstance(event, Returned):
            self._under_way = False
            self._returned = event.call + 1

    def _moment(self) -> Moment:
        returned = self._returned
        done = self._calls[returned - 1] if returned else None
        is_under_way = self._under_way and returned < len(self._calls)
        return Moment(done, self._calls[returned] if is_under_way else None)

    def _cut(self, point: int, shadow: Shadow) -> None:
        chance = Random(f"cut {self._plan.seed} {point}")
        for wreck in wrecks(shadow, self._plan.states, chance):
            key = (wreck.digest, self._returned, self._under_way)
            if key in self._seen:
                continue
            self._seen.add(key)
            if STORE in wreck.tree and chance.randrange(DEBRIS) == 0:
                wreck = wreck._replace(tree={**wreck.tree, **self._debris})
            if self._survives(point, wreck, "") and chance.randrange(SECOND_CUT) == 0:
                self._cut_again(point, wreck, chance)
            if len(self._losses) >= self._plan.enough:
                return

    def _cut_again(self, point: int, wreck: Wreck, chance: Random) -> None:
        """Cut the power again while the store is opened: its recovery must itself be crash-safe."""
        folder = self._laid_out(wreck)
        journal = Journal(folder, wreck.tree)
        try:
            self._game.open_recorded(folder, journal)
        finally:
            shutil.rmtree(folder)
        shadow = Shadow(wreck.tree)
        for event in journal.events[: chance.randint(0, len(journal.events))]:
            shadow.feed(event)
        for second in wrecks(shadow, 2, chance):
            self._second_cuts += 1
            self._survives(point, second, f"{wreck.story}; then, cut again while opening: ")

    def _survives(self, point: int, wreck: Wreck, first: str) -> bool:
        self._states += 1
        folder = self._laid_out(wreck)
        try:
            complaints = self._game.judge(folder, self._moment())
            self._set_aside += self._game.set_aside(folder)
        finally:
            shutil.rmtree(folder)
        if complaints:
            call = self._calls[min(self._returned, len(self._calls) - 1)].text if self._under_way else "between calls"
            disk = first + wreck.story
            self._losses.append(Loss(point, call, disk, complaints, self._kept(point, wreck, disk, complaints)))
        return not complaints

    def _laid_out(self, wreck: Wreck) -> Path:
        folder = self._folder / "wreck"
        folder.mkdir()
        lay_out(wreck.tree, folder)
        return folder

    def _kept(self, point: int, wreck: Wreck, disk: str, complaints: list[str]) -> Path | None:
        if self._plan.keep is None:
            return None
        folder = self._plan.keep / f"point-{point}-state-{self._states}"
        (folder / "disk").mkdir(parents=True)
        lay_out(wreck.tree, folder / "disk")
        (folder / "why.txt").write_text("\n".join([*complaints, "", disk, ""]))
        return folder
