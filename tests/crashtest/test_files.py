"""The files store under power cuts: nothing confirmed is lost, and each sync that is left out is noticed."""

import pytest

from tests.support.faulty_disk import ForgetsContents, ForgetsFolders
from yirangmq.crashtest.backends import FilesBackend, RecordingDisk
from yirangmq.crashtest.disk_model import IoJournal, SyncFile
from yirangmq.crashtest.runner import PowerCutPlan, torture
from yirangmq.fsio.disk import Disk


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_power_cut_at_any_point_keeps_every_confirmed_message_of_the_files_store(seed: int) -> None:
    report = torture(PowerCutPlan(FilesBackend(), steps=8, seed=seed, states=3))
    assert report.losses == []
    assert report.points > 100
    assert report.states > report.points
    assert report.second_cuts > 0
    assert report.quarantined > 0


class RenamesFirst(RecordingDisk):
    """Syncs a content only after it has got its name; by the time a call returns everything is synced."""

    def __init__(self, journal: IoJournal) -> None:
        super().__init__(journal, use_syncfs=False)
        self._late: list[int] = []

    def fsync(self, fd: int) -> None:
        self._late.append(self._nodes[fd])

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        while self._late:
            self._journal.add(SyncFile(self._late.pop()))


class ForgetsAll(RecordingDisk):
    """A syncfs that does nothing."""

    def syncfs(self, path: str) -> None:
        pass


class CarelessFiles(FilesBackend):
    def __init__(self, sort: str) -> None:
        self._sort = sort

    def _disk(self, journal: IoJournal, *, use_syncfs: bool) -> Disk:
        match self._sort:
            case "folders":
                return ForgetsFolders(journal, use_syncfs=False)
            case "contents":
                return ForgetsContents(journal, use_syncfs=False)
            case "order":
                return RenamesFirst(journal)
            case _:
                return ForgetsAll(journal, use_syncfs=True)


@pytest.mark.parametrize("sort", ["folders", "contents", "order", "syncfs"])
def test_power_cut_test_detects_a_missing_or_late_sync(sort: str) -> None:
    """The day of seed 9 begins with a batch large enough for ``syncfs``."""
    report = torture(PowerCutPlan(CarelessFiles(sort), steps=12, seed=9, states=4, max_losses=1))
    assert len(report.losses) == 1
