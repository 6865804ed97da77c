"""Fault injection: after every failing call nothing is lost, nothing refused appears, and the next operation works.

The short form: a sample of the cases of each store, alone and below a server. ``make torture-faults`` runs them all."""

import argparse
import errno
import json
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from yirangmq.cli.commands.torture import FaultServer, fault_arguments, power_cut_arguments, run_faults
from yirangmq.core.errors import StoreBusy
from yirangmq.core.ports import Transaction
from yirangmq.crashtest.faults import protocols, targets
from yirangmq.crashtest.faults.injector import APPLIES, FaultingVfs, Injector, SystemCalls
from yirangmq.crashtest.faults.runner import FaultPlan, FaultReport, inject
from yirangmq.crashtest.faults.targets import TARGET_NAMES
from yirangmq.protocols.http import server
from yirangmq.stores.files.store import RootLock
from yirangmq.stores.files.undo_log import FileBatch

SAMPLES = {"sqlite": 60, "served": 40, "fs": 30, "log": 30, "served-server": 15, "fs-server": 10, "log-server": 6}
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_faults_of_a_sample_of_calls_are_survived(target: str) -> None:
    report = inject(FaultPlan([target], seed=1, sample=SAMPLES[target]), FaultServer)
    assert report.failures == []
    assert report.cases == SAMPLES[target]
    assert report.fired > 0


# -- planted bugs: the run finds them ---------------------------------------------------------------------------------


def found(only: str, max_failures: int = 1) -> FaultReport:
    return inject(FaultPlan([only.split("/", 1)[0]], only=only, max_failures=max_failures), FaultServer)


def test_faults_find_a_coalesced_batch_that_only_its_work_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: a transaction that fails at its start leaves the batch open, and the next request joins it."""
    monkeypatch.setattr(protocols, "DEADLINE", 1.0)

    def work(batch: server.CoalescedBatch, transaction: Transaction) -> Sequence[Any]:
        opened = batch._coalescer._open
        for key in [key for key, one in opened.items() if one is batch]:
            del opened[key]
        return batch._perform(transaction, batch.queue, batch.items)

    monkeypatch.setattr(server.RequestCoalescer, "_close", lambda self: None)
    monkeypatch.setattr(server.CoalescedBatch, "work", work)
    report = found("fs-server/http/publish/once/EIO")  # the lock of the store among them: the transaction never begins
    assert any("the next publish to the same queue failed: NoReply" in one for one in report.failures[0].complaints)


def test_faults_find_a_refused_message_that_a_disk_would_not_take_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileBatch, "is_undone", True)
    report = found("fs/embedded/publish/while/ENOSPC")
    assert any("a refused message is ready" in one for failure in report.failures for one in failure.complaints)


def test_faults_find_an_error_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(lock: RootLock) -> None:
        import fcntl

        lock._held = False
        try:
            fcntl.flock(lock._fd, fcntl.LOCK_UN)
        finally:
            lock._thread_lock.release()

    monkeypatch.setattr(RootLock, "release", release)
    report = found("fs/embedded/publish/once/EINTR")
    assert any("a refused message is ready" in one for failure in report.failures for one in failure.complaints)


def test_faults_find_a_lock_that_is_kept_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = RootLock.acquire

    def kept(lock: RootLock, *, shared: bool) -> None:
        try:
            acquire(lock, shared=shared)
        except OSError:
            lock._thread_lock.acquire()
            raise

    monkeypatch.setattr(targets, "TURN_SECONDS", 0.3)
    monkeypatch.setattr(RootLock, "acquire", kept)
    monkeypatch.setattr(RootLock, "close", RootLock._close)  # which would wait for it
    report = found("fs-server/http/publish/once/EIO")
    assert any("after the fault: StoreBusy" in one for one in report.failures[0].complaints)


def test_faults_target_reading_a_servers_store_waits_for_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, looked = threading.Event(), threading.Event()

    class SlowServer:
        addresses = protocols.Addresses("unix:none", ("127.0.0.1", 0), ("127.0.0.1", 0))

        def __init__(self, store: Any, data: Path) -> None:
            store.never_wait()
            self._store = store
            self._thread = threading.Thread(target=self._hold)
            self._thread.start()
            entered.wait()

        def _hold(self) -> None:
            with self._store.transaction():
                entered.set()
                looked.wait()

        def stop(self) -> None:
            self._thread.join()

    monkeypatch.setattr(targets, "sleep", lambda seconds: looked.set())  # it was busy: its transaction ends
    target = targets.StoreTarget("fs", tmp_path, None, SlowServer)
    target.start()
    assert target.states("work") == {}
    assert looked.is_set()
    target.stop()


def test_faults_target_at_rest_refuses_transactions_while_files_are_copied(tmp_path: Path) -> None:
    """The sweeper of a server would remove them meanwhile."""
    target = targets.StoreTarget("fs", tmp_path, None, None)
    target.start()
    raised: list[Exception] = []

    def sweep() -> None:
        try:
            with target.store.transaction():
                pass
        except StoreBusy as error:
            raised.append(error)

    with target.pause_removals():
        thread = threading.Thread(target=sweep)
        thread.start()
        thread.join()
    assert len(raised) == 1
    sweep()
    assert len(raised) == 1
    target.stop()


def test_faults_report_files_that_cannot_be_copied_as_a_failure_and_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def copytree(*args: Any, **options: Any) -> None:
        raise shutil.Error("gone meanwhile")

    monkeypatch.setattr(shutil, "copytree", copytree)
    report = found("fs/embedded/publish/once/EIO/1", max_failures=5)
    assert report.cases > 1
    assert len(report.failures) == 2
    assert all("gone meanwhile" in failure.complaints[0] for failure in report.failures)


# -- the injector -----------------------------------------------------------------------------------------------------


def test_injector_fails_the_armed_calls_and_counts_those_that_apply() -> None:
    injector = Injector()
    injector.arm("EIO", 2, 2)
    assert [injector.must_fail("fsync", "f") for _ in range(4)] == [False, True, True, False]
    assert not injector.must_fail("xLock", "f")
    assert injector.disarm() == 4
    injector.arm("EMFILE", 1, None)
    assert [injector.must_fail(call, "f") for call in ("write", "open", "open")] == [False, True, True]


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT", "EINTR"])
def test_injector_fails_system_calls_below_the_folder_and_nowhere_else(tmp_path: Path, error: str) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    injector = Injector()
    with SystemCalls(injector, inside):
        injector.arm(error, 1, None)
        (outside).write_text("as ever")
        with pytest.raises(OSError, match=os.strerror(getattr(errno, error))):
            (inside / "file").write_text("refused")
        injector.disarm()
        (inside / "file").write_text("taken")
    assert (inside / "file").read_text() == "taken"


@pytest.mark.parametrize(
    ("error", "raised"),
    [("EIO", apsw.IOError), ("ENOSPC", apsw.FullError), ("CORRUPT", apsw.CorruptError), ("EMFILE", apsw.CantOpenError)],
)
def test_injector_makes_sqlite_fail_with_the_error_of_its_vfs(
    tmp_path: Path, error: str, raised: type[apsw.Error]
) -> None:
    injector = Injector()
    with FaultingVfs("test-faults", injector):
        db = apsw.Connection(str(tmp_path / "db"), vfs="test-faults")
        db.execute("CREATE TABLE a (b)")
        db.cache_flush()
        db.execute("PRAGMA cache_size = 0")
        injector.arm(error, 1, 1)
        with pytest.raises(raised):
            db.execute("INSERT INTO a VALUES (1); SELECT * FROM a").fetchall()
        injector.disarm()
        db.execute("INSERT INTO a VALUES (2)")
        db.close()


def test_injector_errors_each_apply_to_some_call() -> None:
    assert all(APPLIES.values())


# -- the command ------------------------------------------------------------------------------------------------------


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    power_cut_arguments(parser)
    fault_arguments(parser)
    return parser.parse_args(["--faults", *words])


def test_faults_command_prints_a_verdict_and_repeats_one_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_faults(parsed("--backend", "sqlite", "--sample", "5"), FaultServer) == 0
    assert capsys.readouterr().out.endswith("and the next operation worked\n")
    assert run_faults(parsed("--only", "sqlite/embedded/publish/once/EIO/2", "--json"), FaultServer) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["cases"], report["fired"], report["failures"]) == (True, 1, 1, [])


def test_faults_command_reports_an_unknown_case_or_an_exceeded_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_faults(parsed("--only", "sqlite/embedded/fly"), FaultServer) == 1
    assert capsys.readouterr().out.endswith("result: no such case\n")
    assert run_faults(parsed("--backend", "sqlite", "--seconds", "0.001"), FaultServer) == 1
    assert "time was over" in capsys.readouterr().out


def test_faults_command_lists_failures_with_the_command_that_repeats_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileBatch, "is_undone", True)
    assert run_faults(parsed("--backend", "fs", "--only", "fs/embedded/publish/while/ENOSPC"), FaultServer) == 1
    out = capsys.readouterr().out
    assert "again: yirangmq torture --faults --backend fs --only fs/embedded/publish/while/ENOSPC" in out
    assert out.endswith("cases failed\n")
