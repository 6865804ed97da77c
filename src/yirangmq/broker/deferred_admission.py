"""Admission control outside of the transaction, for jobs of the committer on the event loop.

A job whose messages need hooks or long checks stops with ``Uncleared``. It waits here while the workers
(``broker.lines``) check the messages, then runs again from the beginning, with the verdicts. Loop thread only."""

from functools import partial
from typing import Protocol

from yirangmq.broker.commit_jobs import MOST_ROUNDS, JobRunner, Task, no_processor
from yirangmq.broker.gate import Gate, Uncleared, Verdicts
from yirangmq.broker.lines import Cleared, Clearing
from yirangmq.core.errors import HookFailed, QueueError


class Committer(Protocol):
    """What is needed of ``broker.desk.Desk``."""

    def enlist(self, job: Task, /) -> None:
        """It joins the next commit."""

    def answer(self, job: Task, /) -> None:
        """Its caller gets the value or the error."""

    def flush(self) -> None:
        """Answers leave."""

    def report(self, error: Exception, /) -> None:
        """An error that no caller is told."""


class DeferredAdmission:
    def __init__(self, gate: Gate, runner: JobRunner, committer: Committer) -> None:
        self._gate = gate
        self._runner = runner
        self._committer = committer
        self._workers: Clearing | None = None
        self.rounds: dict[Task, int] = {}
        """Jobs whose messages are being checked, or were, and how often."""

    def use(self, workers: Clearing) -> None:
        """Without workers, jobs that need them are refused."""
        self._workers = workers
        self._gate.can_wait = True
        self._gate.is_busy = workers.is_busy

    def defer(self, job: Task, needed: Uncleared) -> None:
        """The job waits until its messages are checked; where they cannot be, it is answered with the error."""
        self.rounds[job] = self.rounds.get(job, 0) + 1
        if self._workers is None or self.rounds[job] > MOST_ROUNDS:
            job.error = no_processor(needed)
            self._committer.answer(job)
            return
        try:
            self._workers.clear(needed, partial(self._checked, job))
        except Exception as error:
            self._committer.report(error)
            job.error = HookFailed(f"the processor of queue {needed.queue!r} failed: {error}", field="processor")
            self._committer.answer(job)

    def _checked(self, job: Task, verdicts: Verdicts, error: QueueError | None) -> None:
        if error is not None:
            job.error = error
            self._committer.answer(job)
            self._committer.flush()
            return
        self._runner.cleared.setdefault(job, {}).update(verdicts)
        self._committer.enlist(job)

    def forget(self, job: Task) -> None:
        """It is answered."""
        self.rounds.pop(job, None)
        self._runner.cleared.pop(job, None)

    def dry_run(self, needed: Uncleared, done: Cleared) -> None:
        """Check messages that are not to be stored."""
        if self._workers is None:
            if needed.chain.hooks:
                raise HookFailed("hooks cannot be run here", field="processor")
            done(self._gate.looked_at(needed), None)
            return

        def checked(verdicts: Verdicts, error: QueueError | None) -> None:
            done(verdicts, error)
            self._committer.flush()

        self._workers.clear(needed, checked)
