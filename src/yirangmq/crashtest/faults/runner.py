"""Fault injection run: all cases of each target, run in order, and their summary.

The run executes each operation once without a fault and counts its I/O calls. Each call is a case for every error that
applies to it: failing once, and failing from there on. ``FaultPlan`` limits a run by a seeded sample, one case, time,
or the number of failures. ``crashtest.faults.case`` runs and verifies one case."""

import time
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from yirangmq.crashtest.faults.case import BLOCKING_PROTOCOLS, LIFECYCLE, ONCE, WHILE, CaseRunner, FaultCase
from yirangmq.crashtest.faults.injector import LOCKED
from yirangmq.crashtest.faults.targets import StartServer
from yirangmq.crashtest.runner import Progress, no_progress

ONCE_ONLY = frozenset(("CORRUPT",))
"""Errors that fail only one call. SQLite reads pages during a rollback and does not expect SQLITE_CORRUPT there."""
MAX_CALLS = 200
"""Upper bound of tried calls per operation. No operation comes near it."""
MAX_FAILURES = 20


class CaseFailure(NamedTuple):
    case: str
    call: str
    complaints: list[str]


class FaultPlan(NamedTuple):
    targets: Sequence[str]
    seed: int = 1
    sample: int | None = None
    """Number of cases per target, chosen by the seed; None: all."""
    only: str | None = None
    """Printed name of a case, or a prefix of it."""
    seconds: float | None = None
    """Time limit in seconds; None: no limit."""
    max_failures: int = MAX_FAILURES


class FaultReport(NamedTuple):
    cases: int
    fired: int
    refused: int
    """Cases in which the caller got an error."""
    is_complete: bool
    failures: list[CaseFailure]


def inject(plan: FaultPlan, start_server: StartServer, progress: Progress = no_progress) -> FaultReport:
    return _FaultRun(plan, start_server, progress).run()


class _FaultRun:
    def __init__(self, plan: FaultPlan, start_server: StartServer, progress: Progress) -> None:
        self._plan = plan
        self._start_server = start_server
        self._progress = progress
        self._until = None if plan.seconds is None else time.monotonic() + plan.seconds
        self.cases = self.fired = self.refused = 0
        self.failures: list[CaseFailure] = []
        self._tokens = 0

    def run(self) -> FaultReport:
        for name in self._plan.targets:
            if not self._is_over:
                self._run_target(name)
        return FaultReport(self.cases, self.fired, self.refused, not self._is_over, self.failures)

    @property
    def _is_over(self) -> bool:
        late = self._until is not None and time.monotonic() > self._until
        return late or len(self.failures) >= self._plan.max_failures

    def _run_target(self, name: str) -> None:
        with CaseRunner(name, self._start_server) as case_runner:
            cases = self._cases(case_runner)
            group = ""
            for number, case in enumerate(cases):
                if self._is_over:
                    break
                if f"{case.protocol}/{case.operation}" != group:
                    self._close_group(case_runner, case)
                    group = f"{case.protocol}/{case.operation}"
                self._run_case(case_runner, case)
                self._progress(f"cases of {name}", number + 1, len(cases))
            if cases:
                self._close_group(case_runner, cases[-1])

    def _cases(self, case_runner: CaseRunner) -> list[FaultCase]:
        """Return a case per I/O call of every operation. Each operation runs once without faults to count its calls."""
        found: list[FaultCase] = []
        pairs = case_runner.pairs()
        for number, (protocol, operation) in enumerate(pairs):
            self._progress(f"operations of {case_runner.target.name} counted", number, len(pairs))
            if self._is_over:
                break
            counts = case_runner.calls(protocol, operation)
            for error in case_runner.target.errors:
                if error == LOCKED:
                    if operation not in LIFECYCLE and not (operation == "lease" and protocol in BLOCKING_PROTOCOLS):
                        found.append(FaultCase(case_runner.target.name, protocol, operation, WHILE, LOCKED, 1))
                    continue
                count = counts[error]
                found += [
                    FaultCase(case_runner.target.name, protocol, operation, mode, error, call + 1)
                    for mode in ((ONCE,) if error in ONCE_ONLY else (ONCE, WHILE))
                    for call in range(min(count, MAX_CALLS))
                ]
        if self._plan.only is not None:
            return [case for case in found if str(case).startswith(self._plan.only)]
        if self._plan.sample is not None and len(found) > self._plan.sample:
            chosen = Random(f"faults {self._plan.seed}").sample(range(len(found)), self._plan.sample)
            return [found[number] for number in sorted(chosen)]
        return found

    def _run_case(self, case_runner: CaseRunner, case: FaultCase) -> None:
        self.cases += 1
        outcome = case_runner.run_case(case)
        self.fired += bool(outcome.fired)
        self.refused += outcome.is_refused
        if outcome.complaints:
            self.failures.append(CaseFailure(str(case), outcome.fired, outcome.complaints))
            case_runner.restart()

    def _close_group(self, case_runner: CaseRunner, case: FaultCase) -> None:
        complaints = case_runner.check_copy()
        if complaints:
            self.failures.append(CaseFailure(f"before {case}", "", complaints))
            case_runner.restart()
