"""Requests that wait while another process holds the store's lock.

The event loop never sleeps for a lock. A commit that finds the lock taken (``StoreBusy``) is tried again by a timer;
its requests wait here, in order of arrival, each until its deadline. A request whose deadline passes is refused with
``store_busy`` and is never run again, so nothing of it is stored later. Loop thread only."""

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from yirangmq.broker.commit_jobs import Long, Task
from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import StoreBusy

BUSY_SECONDS = 5.0
"""Default deadline of a request, from the first attempt to commit it."""
BACKOFF = Backoff(first=0.0015, limit=0.0375, jitter=1 / 3)
"""Seconds between two attempts: from 1 to 2 ms after the first one, from 25 to 50 ms at most, which is far below the
time in which people notice that a lock is free again."""
RETRY_AFTER = 1
"""Seconds after which a refused client should try again."""


class Group(NamedTuple):
    """Requests that found the lock taken at the same moment."""

    deadline: float
    tasks: list[Task]


class BusyWait:
    """``seconds``: how long a request waits. ``retry`` is called when ``is_due``: the next commit tries the lock."""

    def __init__(
        self, seconds: float, later: Callable[[float, Callable[[], None]], Any], retry: Callable[[], None]
    ) -> None:
        self.seconds = seconds
        self._later = later
        self._retry = retry
        self.since: float | None = None
        """When the lock was first found taken, in seconds of the committer's clock; None: the store is free."""
        self.refused = 0
        """Requests refused since then."""
        self._groups: list[Group] = []
        self._long: dict[Long, float] = {}
        self._tries = 0
        self._is_timed = False
        self.is_due = False
        """The timer has run out. Until then a commit leaves the lock alone."""

    @property
    def tasks(self) -> list[Task]:
        """All that wait for the next commit, in order of arrival."""
        return [task for group in self._groups for task in group.tasks]

    def hold(self, tasks: list[Task], long: Iterable[Long], now: float) -> None:
        """The lock is taken: these wait as well, from now on."""
        self.since = now if self.since is None else self.since
        if tasks:
            self._groups.append(Group(now + self.seconds, tasks))
        for job in long:
            self._long.setdefault(job, now + self.seconds)

    def expired(self, now: float) -> list[Task]:
        """Requests whose deadline has passed; they wait no longer. ``Long`` ones have to be taken from their queue."""
        found: list[Task] = [job for job, deadline in self._long.items() if deadline <= now]
        for job in found:
            del self._long[job]  # type: ignore[arg-type]
        while self._groups and self._groups[0].deadline <= now:
            found += self._groups.pop(0).tasks
        self.refused += len(found)
        return found

    def start_timer(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self._later(self._pause(), self._ring)

    def _ring(self) -> None:
        self._is_timed, self.is_due = False, True
        self._retry()

    def _pause(self) -> float:
        """Seconds until the next attempt."""
        self._tries += 1
        return BACKOFF.delay(self._tries, random.random())

    def free(self) -> None:
        """A transaction was begun: the lock is ours, and nothing waits for it any more."""
        if self.since is not None:
            self.since = None
            self.refused = self._tries = 0
            self._groups.clear()
            self._long.clear()

    def refusal(self) -> StoreBusy:
        return StoreBusy(
            f"the store was locked for over {self.seconds:g} s, by another process or a long commit of this server; "
            f"nothing was stored, try again in {RETRY_AFTER} s"
        )
