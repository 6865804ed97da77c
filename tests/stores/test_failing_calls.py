"""State that an error used to leave behind: after each of these errors the next call works."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yirangmq.core.errors import StoreError
from yirangmq.fsio.background import LoopExecutor
from yirangmq.fsio.disk import exists, isdir
from yirangmq.stores.files.index import Index
from yirangmq.stores.files.store import RootLock
from yirangmq.stores.lock import Holder, StoreLock
from yirangmq.stores.log.segment_set import MaintenanceExecutor

NOBODY = Holder(1, "", "node", "now")


def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, code: int, when: Callable[..., bool]) -> None:
    """Calls of a function of the system for which ``when`` says so fail."""
    original = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        if when(*given):
            raise OSError(code, os.strerror(code))
        return original(*given, **named)

    monkeypatch.setattr(owner, name, call)


def test_lock_is_free_after_a_release_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = RootLock(str(tmp_path / "lock"), 0.1), RootLock(str(tmp_path / "lock"), 0.1)
    lock.acquire(shared=False)
    with monkeypatch.context() as patch:
        failing(patch, fcntl, "flock", errno.EIO, lambda fd, kind: kind == fcntl.LOCK_UN)
        lock.release()
    other.acquire(shared=False)
    other.release()
    lock.acquire(shared=False)
    lock.release()


def test_lock_that_failed_to_reopen_its_file_is_opened_by_the_next_acquire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = RootLock(str(tmp_path / "lock"), 0.1)
    (tmp_path / "lock").unlink()
    with monkeypatch.context() as patch:
        failing(patch, os, "open", errno.EMFILE, lambda *given: True)
        with pytest.raises(OSError, match="Too many open files"):
            lock.acquire(shared=False)
    lock.acquire(shared=False)
    lock.release()


def test_index_that_failed_to_reopen_its_state_file_is_opened_by_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(str(tmp_path))
    Path(index.state_path).unlink()
    with monkeypatch.context() as patch:
        failing(patch, os, "open", errno.EMFILE, lambda path, *given: path == index.state_path)
        with pytest.raises(OSError, match="Too many open files"):
            index.load()
    assert index.load() is False
    index.close()


def test_store_lock_is_released_although_its_file_cannot_be_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"log:{tmp_path / 'topics'}"
    lock = StoreLock(url, NOBODY)
    with monkeypatch.context() as patch:
        failing(patch, os, "ftruncate", errno.EIO, lambda *given: True)
        lock.close()
    StoreLock(url, NOBODY).close()


def test_store_lock_that_flock_refuses_raises_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"log:{tmp_path / 'topics'}"
    with monkeypatch.context() as patch:
        failing(patch, fcntl, "flock", errno.EINTR, lambda *given: True)
        with pytest.raises(StoreError):
            StoreLock(url, NOBODY)
    StoreLock(url, NOBODY).close()


def test_exists_and_isdir_raise_when_stat_fails_with_an_io_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exists(str(tmp_path))
    assert isdir(str(tmp_path))
    assert not exists(str(tmp_path / "a"))
    assert not isdir(str(tmp_path / "a"))
    with monkeypatch.context() as patch:
        failing(patch, os, "stat", errno.EIO, lambda *given: True)
        for look in (exists, isdir):
            with pytest.raises(OSError, match="Input/output error"):
                look(str(tmp_path))


def test_log_background_work_continues_after_a_job_that_failed() -> None:
    errands = MaintenanceExecutor(ahead=True)
    done: list[int] = []

    def fail() -> None:
        raise OSError(errno.EIO, "a planted fault")

    errands.run(fail)
    errands.run(lambda: done.append(1))
    errands.wait_idle()
    errands.close()
    assert done == [1]


def test_log_background_work_runs_in_the_caller_when_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    errands = MaintenanceExecutor(ahead=True)
    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no thread")))
        errands.run(lambda: done.append(1))
    assert done == [1]
    errands.run(lambda: done.append(2))
    errands.close()
    assert done == [1, 2]


def test_background_job_whose_thread_cannot_start_is_refused_and_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    done: list[str] = []
    told: list[Any] = []
    aside = LoopExecutor(lambda call: call())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no thread")))
        aside.run(lambda: done.append("refused"), lambda value, error: told.append(error.code if error else "done"))
    aside.run(lambda: done.append("next"), lambda value, error: told.append(error.code if error else "done"))
    aside.stop()
    assert (told, done) == (["unavailable", "done"], ["next"])
