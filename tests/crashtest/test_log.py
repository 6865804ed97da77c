"""The log of topics under power cuts: nothing confirmed is lost, and each sync that is left out is noticed."""

import pytest

from tests.support.faulty_disk import ForgetsContents, ForgetsFolders
from yirangmq.core.topics import NO_HEADERS, Cursor, Record
from yirangmq.crashtest.backends import LogBackend, RecordingDisk
from yirangmq.crashtest.disk_model import IoJournal
from yirangmq.crashtest.log_workload import LogSnapshot
from yirangmq.crashtest.runner import PowerCutPlan, torture
from yirangmq.crashtest.verify import ExpectedLog, log_differences
from yirangmq.fsio.disk import Disk


@pytest.mark.parametrize("seed", [1, 2])
def test_power_cut_at_any_point_keeps_every_confirmed_record(seed: int) -> None:
    report = torture(PowerCutPlan(LogBackend(), steps=20, seed=seed, states=4))
    assert report.losses == []
    assert report.points > 100
    assert report.states > report.points
    assert report.second_cuts > 0


class ForgetsEverySecond(RecordingDisk):
    """Syncs contents, but not each time."""

    def __init__(self, journal: IoJournal) -> None:
        super().__init__(journal, use_syncfs=False)
        self._count = 0

    def fdatasync(self, fd: int) -> None:
        self._count += 1
        if self._count % 2:
            super().fdatasync(fd)


class CarelessLog(LogBackend):
    def __init__(self, sort: str) -> None:
        self._sort = sort

    def disk(self, journal: IoJournal) -> Disk:
        match self._sort:
            case "folders":
                return ForgetsFolders(journal, use_syncfs=False)
            case "contents":
                return ForgetsContents(journal, use_syncfs=False)
            case _:
                return ForgetsEverySecond(journal)


@pytest.mark.parametrize("sort", ["folders", "contents", "every second"])
def test_power_cut_test_detects_a_missing_sync(sort: str) -> None:
    report = torture(PowerCutPlan(CarelessLog(sort), steps=12, seed=1, states=4, max_losses=1))
    assert len(report.losses) == 1


def snapshot(first: int, last: int, *, epoch: str = "e", payload: bytes = b"x", at: int = 0) -> LogSnapshot:
    records = {n: Record(n, n, 0, "t", None, NO_HEADERS, payload) for n in range(first, last + 1)}
    return LogSnapshot(epoch, first, records, {"audit": Cursor("audit", epoch, at, "", 0)})


@pytest.mark.parametrize(
    "found", [snapshot(1, 5), snapshot(1, 6), snapshot(1, 7), snapshot(3, 5), snapshot(1, 5, at=4)], ids=range(5)
)
def test_log_verifier_accepts_the_state_before_after_or_within_a_call(found: LogSnapshot) -> None:
    after = snapshot(3, 7, at=4)
    assert log_differences(found, ExpectedLog(snapshot(1, 5), after._replace(records=snapshot(1, 7).records), 0)) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (snapshot(1, 4), "the log ends at 4, not at 5 or 7"),
        (snapshot(1, 8), "the log ends at 8, not at 5 or 7"),
        (snapshot(2, 5), "the log begins at 2, not at 1 or 1"),
        (snapshot(1, 5, epoch="f"), "the epoch is f, not e"),
        (snapshot(1, 5, payload=b"y"), "record 1 is not what was appended"),
        (
            snapshot(1, 5)._replace(records={n: r for n, r in snapshot(1, 5).records.items() if n != 3}),
            "record 3 is missing",
        ),
        (snapshot(1, 5)._replace(cursors={}), "the cursors are {}"),
    ],
    ids=["short", "long", "begin", "epoch", "content", "hole", "cursors"],
)
def test_log_verifier_names_each_broken_promise(found: LogSnapshot, complaint: str) -> None:
    complaints = log_differences(found, ExpectedLog(snapshot(1, 5), snapshot(1, 7), 0))
    assert any(text.startswith(complaint) for text in complaints)
