"""Who may change a files store now: one writer among all threads and processes, or many readers among processes.

``flock`` on one file: the system lets go of it when a process dies, however it dies. Knows: locks. Does not know:
what they guard."""

import os
import threading
from contextlib import suppress

from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import StoreBusy, StoreError
from yirangmq.fsio.lock import lock_within, unlock
from yirangmq.fsio.permissions import access_in, open_file

BACKOFF = Backoff(first=0.0001, limit=0.0025, jitter=1.0)
"""Seconds between two attempts: up to 0.2 ms after the first one, up to 5 ms at most."""
TURN_SECONDS = 0.05
"""For a thread of this process, where nobody waits for other processes."""


class RootLock:
    """One per opening of a store. Threads of this process take turns, for reading too."""

    def __init__(self, path: str, busy_seconds: float, *, read_only: bool = False) -> None:
        """``read_only``: the file is not made; where there is none, the folder is locked, which no writer does."""
        if read_only and not os.path.exists(path):
            path = os.path.dirname(path)
        self._path = path
        self._flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._busy_seconds = self._turn_seconds = busy_seconds
        self._turn = threading.RLock()
        self._access = access_in(os.path.dirname(path))
        self._fd = self._open()
        self._pid = os.getpid()
        self._held = False

    def never_wait(self) -> None:
        """From now on ``StoreBusy`` is raised at once where another process holds the lock; a thread of this process is
        waited for, briefly."""
        self._busy_seconds, self._turn_seconds = 0.0, TURN_SECONDS

    def acquire(self, *, shared: bool) -> None:
        """Wait for the lock; ``StoreBusy`` if somebody sits on it."""
        if not self._turn.acquire(timeout=self._turn_seconds):
            raise StoreBusy(f"another thread holds {self._path}; try again")
        try:
            if self._held:
                raise StoreError("a transaction inside a transaction")
            self._follow_fork()
            if self._fd < 0:  # closed after an error
                self._fd = self._open()
            self._wait(shared=shared)
            while not self._is_the_lock():
                self._reopen()
                self._wait(shared=shared)
            self._held = True
        except BaseException:
            if not self._held:
                self._let_go()
            self._turn.release()
            raise

    def change(self, *, shared: bool) -> None:
        """Let go and take it again in the other way; others may have come between."""
        unlock(self._fd)
        self._wait(shared=shared)

    def release(self) -> None:
        """Never fails: what was done under the lock is done, and its caller must not hear otherwise."""
        try:
            self._held = False
            self._let_go()
        finally:
            self._turn.release()

    def _let_go(self) -> None:
        """Where the lock cannot be released, its file is closed, which releases it; ``acquire`` opens it again."""
        if self._fd < 0:
            return
        try:
            unlock(self._fd)
        except OSError:
            self._close()

    def _follow_fork(self) -> None:
        """A forked child shares its parent's lock; it needs one of its own."""
        if os.getpid() != self._pid:
            self._reopen()
            self._pid = os.getpid()

    def _reopen(self) -> None:
        self._close()
        self._fd = self._open()

    def _open(self) -> int:
        if not self._flags & os.O_CREAT:
            return os.open(self._path, self._flags | os.O_CLOEXEC)
        return open_file(self._path, self._flags, self._access)

    def _close(self) -> None:
        """The descriptor is forgotten first: a number that was closed may be another file's soon."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _is_the_lock(self) -> bool:
        """If somebody removed the file, others lock another one."""
        try:
            return os.stat(self._path).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False

    def _wait(self, *, shared: bool) -> None:
        if not lock_within(self._fd, self._busy_seconds, shared=shared, backoff=BACKOFF):
            raise StoreBusy(f"{self._path} is held by another process; try again")

    def close(self) -> None:
        with self._turn:
            self._close()
