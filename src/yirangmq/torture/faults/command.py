"""``yirangmq torture --faults``: flags and printing. Does not know: the cases themselves."""

import argparse
import json
import shlex
import sys
import time
from typing import Any

from yirangmq.core import validation
from yirangmq.crashtest.faults import runner as fault_run
from yirangmq.crashtest.faults.targets import TARGETS, StartServer
from yirangmq.observe.progress import Progress

PASSED, FAILED = 0, 1
MOST = 1_000_000
FAILURES_SHOWN = 10
"""Failures that are printed; all of them are in the JSON."""


def fault_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", action="store_true", help="let every I/O call fail in turn, instead of the power")
    parser.add_argument("--sample", type=int, metavar="N", help="with --faults: N cases of each target, by the seed")
    parser.add_argument("--only", metavar="CASE", help="with --faults: this case, or those that begin so")
    parser.add_argument("--seconds", type=float, metavar="S", help="with --faults: stop after so long")


def run_faults(args: argparse.Namespace, start_server: StartServer) -> int:
    """0: every case passed. 1: some failed, or time was over before the last."""
    started = time.monotonic()
    plan = _fault_plan(args)
    with Progress(f"faults {args.backend}", None, shown=sys.stderr.isatty()) as show:
        report = fault_run.inject(plan, start_server, show.part)
    seconds = time.monotonic() - started
    if getattr(args, "json", False):
        print(json.dumps(_faults_as_json(args, report, seconds)))
    else:
        _print_faults(args, report, seconds)
    return PASSED if _is_good(report) else FAILED


def _fault_plan(args: argparse.Namespace) -> fault_run.Plan:
    only: str | None = args.only
    targets = [name for name in TARGETS[args.backend] if only is None or only.startswith(f"{name}/")]
    if not targets:
        targets = [name for names_ in TARGETS.values() for name in names_ if only and only.startswith(f"{name}/")]
    sample = None if args.sample is None else validation.check_count(args.sample, "sample", most=MOST)
    seconds = (
        None if args.seconds is None else validation.check_milliseconds(args.seconds, "seconds", least=0.001) / 1000
    )
    return fault_run.Plan(targets or TARGETS[args.backend], args.seed, sample, only, seconds)


def _is_good(report: fault_run.Report) -> bool:
    return not report.failures and report.is_complete and report.cases > 0


def _fault_replay(args: argparse.Namespace, case: str) -> str:
    return shlex.join(["yirangmq", "torture", "--faults", "--backend", args.backend, "--only", case])


def _print_faults(args: argparse.Namespace, report: fault_run.Report, seconds: float) -> None:
    print(
        f"{args.backend}: {report.cases} cases, {report.fired} with a fault, {report.refused} told to the caller, "
        f"{seconds:.1f} s, seed {args.seed}"
    )
    for failure in report.failures[:FAILURES_SHOWN]:
        print(f"\nFAILED {failure.case}" + (f" ({failure.call})" if failure.call else ""))
        for complaint in failure.complaints:
            print(f"  {complaint}")
        print(f"  again: {_fault_replay(args, failure.case.removeprefix('before '))}")
    if len(report.failures) > FAILURES_SHOWN:
        print(f"\nand {len(report.failures) - FAILURES_SHOWN} more")
    print(f"result: {_verdict(report)}")


def _verdict(report: fault_run.Report) -> str:
    if report.failures:
        return f"{len(report.failures)} of {report.cases} cases failed"
    if not report.is_complete:
        return "time was over before the last case; none failed so far"
    if not report.cases:
        return "no such case"
    return "after every fault nothing was lost, nothing refused appeared, and the next operation worked"


def _faults_as_json(args: argparse.Namespace, report: fault_run.Report, seconds: float) -> dict[str, Any]:
    return {
        "ok": _is_good(report),
        "backend": args.backend,
        "seed": args.seed,
        "cases": report.cases,
        "fired": report.fired,
        "refused": report.refused,
        "complete": report.is_complete,
        "seconds": round(seconds, 3),
        "failures": [
            {
                "case": failure.case,
                "call": failure.call,
                "complaints": failure.complaints,
                "again": _fault_replay(args, failure.case.removeprefix("before ")),
            }
            for failure in report.failures
        ],
    }
