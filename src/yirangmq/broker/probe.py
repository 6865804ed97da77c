"""Store probe: whether the store can be written now, by what became of the latest commit, or by writing to it.

The probe is a request like any other: it goes through the group commit and the same files, and is synced as they are.
It is made only where the latest commit does not tell already: a commit that changed something within the last second
proves the same. An answer comes within ``PROBE_SECONDS``, also while the store does not answer. Callers that ask at the
same time share one probe. Loop thread only."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction

if TYPE_CHECKING:
    from yirangmq.broker.desk import Desk

PROBE_SECONDS = 0.5
"""How long a caller of health waits for the answer of the store."""
FRESH_SECONDS = 1.0
"""A commit that is no older proves that the store can be written."""
RETRY_SECONDS = 1.0
"""How long after a failed commit the store is probed, and waiting consumers are served again."""
NOTE = "health/probe"
"""What a probe writes: a note, which every store keeps in the same way and commits as everything else."""


class Probed(NamedTuple):
    """``error``: why the store cannot be written; None if it can be. ``is_late``: it has not answered in time."""

    error: QueueError | None = None
    is_late: bool = False


class StoreProbe:
    def __init__(self, committer: "Desk", seconds: Callable[[], float]) -> None:
        self._committer = committer
        self._seconds = seconds
        self._wrote_at = float("-inf")
        self._will_retry = False
        """A commit failed, and the next attempt is scheduled: one timer, however many fail."""
        self.trouble: Exception | None = None
        """Why the latest commit that wrote something failed, until one succeeds; None if it did not."""
        self._asked: list[Callable[[Probed], None]] = []
        self._is_under_way = False
        self.is_written = False
        """The transaction under way has written a probe."""
        self.error: QueueError | None = None
        """Of the latest probe."""

    def wrote(self, at: float) -> None:
        """A commit that changed something is on disk: the store can be written. (One that changes nothing writes
        nothing, and proves nothing.)"""
        self._wrote_at, self.trouble, self.is_written = at, None, False

    def failed(self, error: Exception) -> None:
        self.trouble, self.is_written = error, False
        if not self._will_retry:
            self._will_retry = True
            self._committer.later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        """Waiting consumers and timers are served again, and a probe finds out whether the store can be written."""
        self._will_retry = False
        if self.trouble is not None:
            self.begin()
        self._committer.plan()

    def ask(self, done: Callable[[Probed], None]) -> None:
        """``done`` is called once, now or within ``PROBE_SECONDS``."""
        committer = self._committer
        if not committer.duty.is_on:
            done(Probed(committer.duty.refusal()))
            return
        if self.trouble is None and self._seconds() - self._wrote_at < FRESH_SECONDS:
            done(Probed())
            return
        if committer.seconds_busy > PROBE_SECONDS:
            done(Probed(is_late=True))
            return
        self._asked.append(done)
        committer.later(PROBE_SECONDS, lambda: self._give_up(done))
        self.begin()

    def begin(self) -> None:
        """A probe joins the next commit, unless one is under way."""
        if not self._is_under_way:
            self._is_under_way = True
            self._committer.submit(self.write, self._done)

    def write(self, transaction: Transaction) -> None:
        write_probe(transaction, self._committer.now_ms())
        self.is_written = True

    def _done(self, value: Any, error: QueueError | None) -> None:
        self._is_under_way = False
        self.error = error
        asked, self._asked = self._asked, []
        for done in asked:
            done(Probed(error))

    def _give_up(self, done: Callable[[Probed], None]) -> None:
        if done in self._asked:
            self._asked.remove(done)
            done(Probed(is_late=True))


def write_probe(transaction: Transaction, now_ms: int) -> None:
    transaction.set_note(NOTE, str(now_ms))
