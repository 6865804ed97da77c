"""SQLite under power cuts: nothing confirmed is lost with full durability, and the method sees it when it is."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from yirangmq.core.ports import Store
from yirangmq.crashtest.backends import STORE, RecordingDisk, ServedBackend, SqliteBackend
from yirangmq.crashtest.disk_model import SyncFolder
from yirangmq.crashtest.runner import PowerCutPlan, torture
from yirangmq.crashtest.workload import record_workload
from yirangmq.stores.sqlite.store import SqliteStore


class CarelessSqlite(SqliteBackend):
    """The store with its syncs turned down, as a tuning guide on the web would have it."""

    def __init__(self, synchronous: str) -> None:
        self._synchronous = synchronous

    def _open(self, top: Path, vfs: str | None) -> Store:
        store = SqliteStore(top / STORE, vfs=vfs)
        store.file.db.execute(f"PRAGMA synchronous = {self._synchronous}")
        return store


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_power_cut_at_any_point_keeps_every_confirmed_message_of_sqlite(seed: int) -> None:
    report = torture(PowerCutPlan(SqliteBackend(), steps=8, seed=seed, states=3))
    assert report.losses == []
    assert report.points > 100
    assert report.states > report.points
    assert report.second_cuts > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_power_cut_at_any_point_keeps_every_message_confirmed_by_a_server(seed: int) -> None:
    report = torture(PowerCutPlan(ServedBackend(), steps=12, seed=seed, states=3))
    assert report.losses == []
    assert report.points > 80
    assert report.second_cuts > 0


@pytest.mark.parametrize("bug", ["a record is not synced", "records are never void"])
def test_power_cut_test_detects_redo_records_not_synced_or_never_void(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "a record is not synced":
        monkeypatch.setattr(RecordingDisk, "fdatasync", lambda self, fd: None)
    else:
        monkeypatch.setattr("yirangmq.stores.sqlite.redo_committer.new_generation", lambda: 1)
    report = torture(PowerCutPlan(ServedBackend(), steps=30, seed=1, states=4, max_losses=1))
    assert len(report.losses) == 1


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_power_cut_test_detects_messages_lost_without_a_sync_at_each_commit(synchronous: str) -> None:
    report = torture(PowerCutPlan(CarelessSqlite(synchronous), steps=12, seed=1, states=4, max_losses=1))
    assert len(report.losses) == 1


def test_durability_os_loses_messages_in_a_power_cut_and_the_report_keeps_the_disk(tmp_path: Path) -> None:
    """It promises to survive a killed process only; the torture shows that it does not survive a power cut."""

    class OnlyTheSystem(SqliteBackend):
        def _open(self, top: Path, vfs: str | None) -> Store:
            return SqliteStore(top / STORE, vfs=vfs, durability="os")

    report = torture(PowerCutPlan(OnlyTheSystem(), steps=12, seed=1, states=4, keep=tmp_path, max_losses=1))
    (loss,) = report.losses
    assert any("absent" in complaint or "not" in complaint for complaint in loss.complaints)
    assert loss.kept is not None
    assert (loss.kept / "why.txt").read_text().startswith(loss.complaints[0])
    assert (loss.kept / "disk").is_dir()


@pytest.fixture
def synced_folders() -> Iterator[list[bytes]]:
    """Each time SQLite itself opens a folder, which it does in order to sync it."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
    vfs = apsw.VFS("watch-folders", "unix")
    pointer = vfs.xGetSystemCall("openDirectory")
    assert pointer is not None
    original = kind(pointer)
    opened: list[bytes] = []

    def open_directory(path: bytes, descriptor: object) -> int:
        opened.append(path)
        return int(original(path, descriptor))

    watching = kind(open_directory)
    vfs.xSetSystemCall("openDirectory", ctypes.cast(watching, ctypes.c_void_p).value or 0)
    yield opened
    vfs.xSetSystemCall("openDirectory", 0)
    vfs.unregister()


@pytest.mark.parametrize("seed", range(5))
def test_recorder_counts_every_folder_sync_of_sqlite(synced_folders: list[bytes], tmp_path: Path, seed: int) -> None:
    story = record_workload(SqliteBackend(), tmp_path, seed, 40)
    recorded = sum(isinstance(event, SyncFolder) for event in story.journal.events)
    assert recorded == len(synced_folders) > 0
