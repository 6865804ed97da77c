"""Test doubles, also for users' tests: a manual clock, predictable ids and a store that fails on demand.

``open_for_test`` opens queues on a memory store with that clock and those ids. A test of an hour takes no time, and a
failure can be replayed. Nothing here depends on pytest or another test runner."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from yirangmq.broker.queues import Queues
from yirangmq.core.errors import StoreFull
from yirangmq.core.ports import CheckProgress, Clock, Finding, Ids, Store, Transaction, no_progress
from yirangmq.stores.open import open_store

START_MS = 1_768_296_060_000
"""2026-01-13T09:21:00Z: a realistic instant, fixed so that a failure can be replayed."""


class ManualClock:
    """``core.ports.Clock`` that moves only by ``advance``, so that a test of an hour takes no time.

    ``set_wall`` sets the wall clock forward or back by ms, as an operator or NTP does. Store time does not follow."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now = start_ms
        self._ahead = 0

    def now_ms(self) -> int:
        return self._now

    def wall_ms(self) -> int:
        return self._now + self._ahead

    def ahead_ms(self) -> int:
        return self._ahead

    def set_wall(self, by_milliseconds: int) -> None:
        self._ahead += by_milliseconds

    def advance(self, milliseconds: int) -> None:
        if milliseconds < 0:
            raise ValueError("time cannot go back")
        self._now += milliseconds


class CountingIds:
    """``core.ports.Ids`` that returns m-1, m-2, m-3 …; ``chance`` is the result of ``fraction``."""

    def __init__(self, prefix: str = "m", chance: float = 0.5) -> None:
        self._prefix = prefix
        self._given = 0
        self.chance = chance

    def new(self, count: int) -> list[str]:
        first = self._given + 1
        self._given += count
        return [f"{self._prefix}-{number}" for number in range(first, first + count)]

    def fraction(self) -> float:
        return self.chance


class FailingStore:
    """Wrapper of a store that fails on demand and counts transactions.

    ``fail_at`` selects one of the following write transactions: 1 is the next one. With ``commit=True`` the work is
    done and the commit fails; with ``False`` the transaction fails before any work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failures: dict[int, tuple[BaseException, bool]] = {}
        self.transactions = 0
        """Number of write transactions started."""
        self.commits = 0
        """Number of write transactions committed."""

    def fail_at(self, number: int = 1, error: BaseException | None = None, *, commit: bool = True) -> None:
        problem = StoreFull("no space left, says the test") if error is None else error
        self._failures[self.transactions + number] = (problem, commit)

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        return self._writing() if write else self._store.transaction(write=False)

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        self.transactions += 1
        error, at_commit = self._failures.pop(self.transactions, (None, False))
        if error is not None and not at_commit:
            raise error
        with self._store.transaction() as transaction:
            yield transaction
            if error is not None:
                raise error
        self.commits += 1

    def wait(self, timeout: float) -> None:
        self._store.wait(timeout)

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        return self._store.check(repair=repair, progress=progress)

    def durability(self) -> str:
        return self._store.durability()

    def close(self) -> None:
        self._store.close()


def open_for_test(
    url: str = "memory:",
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    consumer: str = "tester",
) -> Queues:
    """Open queues on ``store``, or on a new one at ``url``, with a clock and ids that the test controls."""
    return Queues(store or open_store(url), clock or ManualClock(), ids or CountingIds(), consumer)
