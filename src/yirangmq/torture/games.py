"""What is played with each kind of backend: how a day is told, how a wreck is opened and judged.
Knows: stores of queues and logs of topics, each by its own workload and judge. Does not know: cuts, how it is shown."""

from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from yirangmq.torture.backends import STORE, Backend, LogBackend
from yirangmq.torture.journal import Journal
from yirangmq.torture.judge import Expected, judge
from yirangmq.torture.log_judge import ExpectedLog, judge_log
from yirangmq.torture.log_workload import NO_LOG, LogSnapshot, open_all, take_log, tell_log
from yirangmq.torture.snapshot import NOTHING, Snapshot, take
from yirangmq.torture.tree import Tree
from yirangmq.torture.workload import START_MS, Call, Story, tell


class Moment(NamedTuple):
    """When the power failed: after the call ``done`` had returned, while ``under_way`` was, if one was."""

    done: Call | None
    under_way: Call | None

    @property
    def now_ms(self) -> int:
        call = self.under_way or self.done
        return call.now_ms if call is not None else START_MS


class Game(Protocol):
    def tell(self, top: Path, seed: int, steps: int) -> Story:
        """Live through a day below ``top`` and keep the journal of it."""

    def open_recorded(self, top: Path, journal: Journal) -> None:
        """Open what lies there, look at it and close it, with everything that is done to the disk in the journal."""

    def judge(self, top: Path, moment: Moment) -> list[str]:
        """What is wrong with what lies there."""

    def is_recorded(self, path: str) -> bool:
        """False: this file is never synced, and made anew after a power cut."""

    def debris(self, day: Path) -> Tree:
        """Files that are never synced, as they may lie about after a cut."""

    def set_aside(self, top: Path) -> int:
        """How many files were put where they can do no harm."""


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
        except Exception as error:  # as in the judge
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
        except Exception as error:  # whatever it is: a log must not fall over what it finds
            return [f"{type(error).__name__}: {error}"]

    def is_recorded(self, path: str) -> bool:
        return path != f"{STORE}.lock"

    def debris(self, day: Path) -> Tree:
        return {}

    def set_aside(self, top: Path) -> int:
        return 0
