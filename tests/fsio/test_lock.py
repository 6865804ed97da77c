"""File locks: two open files of one process exclude each other as those of two processes do."""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yirangmq.core.backoff import Backoff
from yirangmq.fsio.lock import lock_within, try_lock, unlock


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Descriptors of one file, opened twice."""
    path = tmp_path / "lock"
    path.touch()
    files = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    yield files
    for fd in files:
        os.close(fd)


def test_lock_exclusive_excludes_every_other(two: tuple[int, int]) -> None:
    first, second = two
    assert try_lock(first)
    assert not try_lock(second)
    assert not try_lock(second, shared=True)
    unlock(first)
    assert try_lock(second)


def test_lock_shared_excludes_an_exclusive_one_only(two: tuple[int, int]) -> None:
    first, second = two
    assert try_lock(first, shared=True)
    assert try_lock(second, shared=True)
    assert not try_lock(first)


def test_lock_with_a_zero_timeout_is_tried_once_without_sleeping(
    two: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    try_lock(first)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    assert not lock_within(second, 0)


def test_lock_within_retries_with_backoff_until_the_lock_is_free(
    two: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    try_lock(first)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            unlock(first)

    monkeypatch.setattr(time, "sleep", sleep)
    assert lock_within(second, 60, backoff=Backoff(first=1, limit=3))
    assert slept == [1, 2, 3]


def test_lock_within_stops_at_its_timeout_while_the_lock_stays_held(two: tuple[int, int]) -> None:
    first, second = two
    try_lock(first)
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(lock_within(second, 0.03)))
    thread.start()
    thread.join(10)
    assert done == [False]


def test_lock_errors_other_than_a_held_lock_are_raised(two: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    for call in (try_lock, unlock):
        with pytest.raises(OSError, match="No locks available"):
            call(two[0])
    with pytest.raises(OSError, match="No locks available"):
        lock_within(two[0], 60)
