"""Fault injection run: all cases of each target, run in order, and their summary.

The run executes each operation once without a fault and counts its I/O calls. Each call is a case for every error that
applies to it: failing once, and failing from there on. ``Plan`` limits a run by a seeded sample, one case, time, or the
number of failures. ``crashtest.faults.case`` runs and verifies one case."""

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from yirangmq.crashtest.faults.case import LIFE, ONCE, WAITS, WHILE, Bench, Case
from yirangmq.crashtest.faults.injector import LOCKED
from yirangmq.crashtest.faults.targets import StartServer

ONCE_ONLY = frozenset(("CORRUPT",))
"""Errors that fail only one call. SQLite reads pages during a rollback and does not expect SQLITE_CORRUPT there."""
MANY = 200
"""Upper bound of tried calls per operation. No operation comes near it."""
MOST_FAILURES = 20


class Failure(NamedTuple):
    case: str
    call: str
    complaints: list[str]


class Plan(NamedTuple):
    targets: Sequence[str]
    seed: int = 1
    sample: int | None = None
    """Number of cases per target, chosen by the seed; None: all."""
    only: str | None = None
    """Printed name of a case, or a prefix of it."""
    seconds: float | None = None
    """Time limit in seconds; None: no limit."""
    enough: int = MOST_FAILURES


class Report(NamedTuple):
    cases: int
    fired: int
    refused: int
    """Cases in which the caller got an error."""
    is_complete: bool
    failures: list[Failure]


def inject(
    plan: Plan, start_server: StartServer, progress: Callable[[int, int], None] = lambda done, total: None
) -> Report:
    return _Run(plan, start_server, progress).run()


class _Run:
    def __init__(self, plan: Plan, start_server: StartServer, progress: Callable[[int, int], None]) -> None:
        self._plan = plan
        self._start_server = start_server
        self._progress = progress
        self._until = None if plan.seconds is None else time.monotonic() + plan.seconds
        self.cases = self.fired = self.refused = 0
        self.failures: list[Failure] = []
        self._tokens = 0

    def run(self) -> Report:
        for name in self._plan.targets:
            if not self._is_over:
                self._run_target(name)
        return Report(self.cases, self.fired, self.refused, not self._is_over, self.failures)

    @property
    def _is_over(self) -> bool:
        late = self._until is not None and time.monotonic() > self._until
        return late or len(self.failures) >= self._plan.enough

    def _run_target(self, name: str) -> None:
        with Bench(name, self._start_server) as bench:
            cases = self._cases(bench)
            group = ""
            for number, case in enumerate(cases):
                if self._is_over:
                    break
                if f"{case.protocol}/{case.operation}" != group:
                    self._close_group(bench, case)
                    group = f"{case.protocol}/{case.operation}"
                self._run_case(bench, case)
                self._progress(number + 1, len(cases))
            if cases:
                self._close_group(bench, cases[-1])

    def _cases(self, bench: Bench) -> list[Case]:
        """Return a case per I/O call of every operation. Each operation runs once without faults to count its calls."""
        found: list[Case] = []
        for protocol, operation in bench.pairs():
            counts = bench.calls(protocol, operation)
            for error in bench.target.errors:
                if error == LOCKED:
                    if operation not in LIFE and not (operation == "lease" and protocol in WAITS):
                        found.append(Case(bench.target.name, protocol, operation, WHILE, LOCKED, 1))
                    continue
                count = counts[error]
                found += [
                    Case(bench.target.name, protocol, operation, mode, error, call + 1)
                    for mode in ((ONCE,) if error in ONCE_ONLY else (ONCE, WHILE))
                    for call in range(min(count, MANY))
                ]
        if self._plan.only is not None:
            return [case for case in found if str(case).startswith(self._plan.only)]
        if self._plan.sample is not None and len(found) > self._plan.sample:
            chosen = Random(f"faults {self._plan.seed}").sample(range(len(found)), self._plan.sample)
            return [found[number] for number in sorted(chosen)]
        return found

    def _run_case(self, bench: Bench, case: Case) -> None:
        self.cases += 1
        outcome = bench.play(case)
        self.fired += bool(outcome.fired)
        self.refused += outcome.is_refused
        if outcome.complaints:
            self.failures.append(Failure(str(case), outcome.fired, outcome.complaints))
            bench.renew()

    def _close_group(self, bench: Bench, case: Case) -> None:
        complaints = bench.look_at_copy()
        if complaints:
            self.failures.append(Failure(f"before {case}", "", complaints))
            bench.renew()
