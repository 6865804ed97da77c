"""Command ``torture``: simulated power cuts, and failing I/O calls, with the result as text or JSON.

The tests themselves are in ``crashtest``. ``--faults`` also needs a server in this process, with socket, HTTP and
STOMP open, on a store with injected I/O faults. It is built here, because ``crashtest`` does not import the server."""

import argparse
import asyncio
import contextlib
import json
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar, ProgressLines
from yirangmq.config.config import load
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.ports import Store
from yirangmq.crashtest.backends import BACKENDS
from yirangmq.crashtest.faults import runner as fault_run
from yirangmq.crashtest.faults.protocols import Addresses
from yirangmq.crashtest.faults.targets import TARGETS, StartServer
from yirangmq.crashtest.runner import Loss, PowerCutPlan, PowerCutReport, Progress, no_progress, torture
from yirangmq.server.server import Daemon, Secrets

# -- power cuts --------------------------------------------------------------------------------------------------------

STEPS, SEED, STATES = 60, 1, 8
SURVIVED, LOST = 0, 1
MAX_STEPS = 100_000
LOSSES_SHOWN = 3
"""Maximum number of losses, and of problems per loss, that are printed. The kept folder and the JSON have the rest."""


def power_cut_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run_power_cuts``."""
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="sqlite", help="the store")
    parser.add_argument("--steps", type=int, default=STEPS, help="calls in the recorded workload (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the workload (%(default)s)")
    parser.add_argument("--states", type=int, default=STATES, help="disks to open at each point (%(default)s)")
    parser.add_argument("--point", type=int, help="cut at this point only, to replay a loss")
    parser.add_argument("--keep-failures", metavar="DIR", help="folder for the disks in which something was lost")
    parser.add_argument("--seconds", type=float, metavar="S", help="time limit (default: no limit)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_power_cuts(args: argparse.Namespace) -> int:
    """Simulate power cuts. Return 0 if every confirmed operation survived every cut, 1 if something was lost or time
    ran out before the last point."""
    started = time.monotonic()
    plan = _power_cut_plan(args)
    with _progress(f"torture {plan.backend.name}", args) as progress:
        report = torture(plan, progress)
    seconds = time.monotonic() - started
    if getattr(args, "json", False):
        print(json.dumps(_power_cuts_as_json(plan, report, seconds)))
    else:
        _print_power_cuts(plan, report, seconds)
    return SURVIVED if _is_survived(report) else LOST


def _is_survived(report: PowerCutReport) -> bool:
    return not report.losses and report.is_complete


@contextlib.contextmanager
def _progress(label: str, args: argparse.Namespace) -> Iterator[Progress]:
    """Show progress on stderr: as a bar on a terminal, otherwise as lines, or not at all with --json."""
    if sys.stderr.isatty():
        with ProgressBar(label, shown=True) as bar:
            yield bar.update
    else:
        yield no_progress if getattr(args, "json", False) else ProgressLines(label).update


def _power_cut_plan(args: argparse.Namespace) -> PowerCutPlan:
    if args.backend not in BACKENDS:
        raise BadInput(f"{args.backend!r} is not one of {', '.join(BACKENDS)}", field="backend")
    keep = getattr(args, "keep_failures", None)
    point = getattr(args, "point", None)
    return PowerCutPlan(
        backend=BACKENDS[args.backend](),
        steps=validation.check_count(_given(args, "steps", STEPS), "steps", most=MAX_STEPS),
        seed=_given(args, "seed", SEED),
        states=validation.check_count(_given(args, "states", STATES), "states", most=MAX_STEPS),
        keep=Path(keep) if keep else Path(tempfile.gettempdir()) / f"yirangmq-torture-{time.time_ns()}",
        only=None if point is None else validation.check_count(point, "point", least=0, most=2**53),
        seconds=_seconds(args),
    )


def _seconds(args: argparse.Namespace) -> float | None:
    seconds: float | None = getattr(args, "seconds", None)
    return None if seconds is None else validation.check_milliseconds(seconds, "seconds", least=0.001) / 1000


def _given(args: argparse.Namespace, name: str, default: int) -> int:
    value: int | None = getattr(args, name, None)
    return default if value is None else value


def _power_cut_replay(plan: PowerCutPlan, loss: Loss) -> str:
    words = ["yirangmq", "torture", "--backend", plan.backend.name, "--seed", str(plan.seed)]
    words += ["--steps", str(plan.steps), "--states", str(plan.states)]
    return shlex.join([*words, "--point", str(loss.point)] if loss.point >= 0 else words)


def _print_power_cuts(plan: PowerCutPlan, report: PowerCutReport, seconds: float) -> None:
    print(
        f"{plan.backend.name}: {report.calls} calls, {report.points} points of power cut, {report.states} disks opened "
        f"({report.second_cuts} after a second cut), {seconds:.1f} s, seed {plan.seed}"
    )
    if report.quarantined:
        print(f"half-written messages found and set aside: {report.quarantined}")
    for loss in report.losses[:LOSSES_SHOWN]:
        print(f"\nLOST at point {loss.point}, during: {loss.call}")
        for complaint in loss.complaints[:LOSSES_SHOWN]:
            print(f"  {complaint}")
        print(f"  disk:   {loss.disk[:300]}")
        if loss.kept:
            print(f"  kept:   {loss.kept}")
        print(f"  replay: {_power_cut_replay(plan, loss)}")
    if len(report.losses) > LOSSES_SHOWN:
        print(f"\nand {len(report.losses) - LOSSES_SHOWN} more")
    if report.losses:
        print("result: something was lost")
    elif not report.is_complete:
        print("result: time was over before the last point; nothing was lost so far")
    else:
        print("result: every confirmed message survived every cut")


def _power_cuts_as_json(plan: PowerCutPlan, report: PowerCutReport, seconds: float) -> dict[str, Any]:
    return {
        "ok": _is_survived(report),
        "backend": plan.backend.name,
        "seed": plan.seed,
        "calls": report.calls,
        "points": report.points,
        "states": report.states,
        "secondCuts": report.second_cuts,
        "setAside": report.quarantined,
        "complete": report.is_complete,
        "seconds": round(seconds, 3),
        "losses": [
            {
                "point": loss.point,
                "call": loss.call,
                "disk": loss.disk,
                "complaints": loss.complaints,
                "kept": str(loss.kept) if loss.kept else None,
                "replay": _power_cut_replay(plan, loss),
            }
            for loss in report.losses
        ],
    }


# -- server for fault injection ----------------------------------------------------------------------------------------

TIMEOUT_SECONDS = 30.0
SETTINGS: dict[str, Any] = {
    "http": "127.0.0.1:0",
    "stomp": "127.0.0.1:0",
    "stop_seconds": 1,
    "disk_low_bytes": 0,
}


class FaultServer:
    """Server in a thread, for fault injection. It runs from construction until ``stop``.

    The constructor raises the error of a failed start. ``errors`` holds what reached the exception handler of the
    event loop; it must stay empty."""

    def __init__(self, store: Store, data: Path) -> None:
        settings = {**SETTINGS, "data": str(data), "socket": str(data / "y.sock"), "store": f"sqlite:{data / 'store'}"}
        self._config = load({}, {}, settings)
        self._store = store
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._addresses: Addresses | None = None
        self._daemon: Daemon | None = None
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._main, name="fault-server", daemon=True)
        self._thread.start()
        if not self._started.wait(TIMEOUT_SECONDS):
            raise QueueError(f"the server did not start within {TIMEOUT_SECONDS:g} s")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._thread.join(TIMEOUT_SECONDS)
            raise self._failure

    @property
    def addresses(self) -> Addresses:
        if self._addresses is None:
            raise RuntimeError("not started")
        return self._addresses

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._daemon = Daemon(self._config, self._store, Secrets())
        await self._daemon.run(self._ready)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _ready(self, addresses: list[str]) -> None:
        ports = {one.partition(":")[0]: int(one.rpartition(":")[2]) for one in addresses if not one.startswith("unix")}
        socket = next(one for one in addresses if one.startswith("unix"))
        self._addresses = Addresses(socket, ("127.0.0.1", ports["http"]), ("127.0.0.1", ports["stomp"]))
        self._started.set()

    def stop(self) -> None:
        daemon = self._daemon
        if daemon is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(daemon.stop)
        self._thread.join(TIMEOUT_SECONDS)
        if self._thread.is_alive():
            raise QueueError(f"the server did not stop within {TIMEOUT_SECONDS:g} s")
        self._raise_failure()


# -- fault injection ---------------------------------------------------------------------------------------------------

PASSED, FAILED = 0, 1
MAX_CASES = 1_000_000
FAILURES_SHOWN = 10
"""Maximum number of failures that are printed. The JSON has all of them."""


def fault_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", action="store_true", help="let every I/O call fail in turn, instead of power cuts")
    parser.add_argument("--sample", type=int, metavar="N", help="with --faults: N cases of each target, by the seed")
    parser.add_argument("--only", metavar="CASE", help="with --faults: this case, or those with this prefix")


def run_faults(args: argparse.Namespace, start_server: StartServer) -> int:
    """Inject faults. Return 0 if every case passed, 1 if one failed or time ran out before the last case."""
    started = time.monotonic()
    plan = _fault_plan(args)
    with _progress(f"faults {args.backend}", args) as progress:
        report = fault_run.inject(plan, start_server, progress)
    seconds = time.monotonic() - started
    if getattr(args, "json", False):
        print(json.dumps(_faults_as_json(args, report, seconds)))
    else:
        _print_faults(args, report, seconds)
    return PASSED if _is_good(report) else FAILED


def _fault_plan(args: argparse.Namespace) -> fault_run.FaultPlan:
    only: str | None = args.only
    targets = [name for name in TARGETS[args.backend] if only is None or only.startswith(f"{name}/")]
    if not targets:
        targets = [name for names_ in TARGETS.values() for name in names_ if only and only.startswith(f"{name}/")]
    sample = None if args.sample is None else validation.check_count(args.sample, "sample", most=MAX_CASES)
    return fault_run.FaultPlan(targets or TARGETS[args.backend], args.seed, sample, only, _seconds(args))


def _is_good(report: fault_run.FaultReport) -> bool:
    return not report.failures and report.is_complete and report.cases > 0


def _fault_replay(args: argparse.Namespace, case: str) -> str:
    return shlex.join(["yirangmq", "torture", "--faults", "--backend", args.backend, "--only", case])


def _print_faults(args: argparse.Namespace, report: fault_run.FaultReport, seconds: float) -> None:
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


def _verdict(report: fault_run.FaultReport) -> str:
    if report.failures:
        return f"{len(report.failures)} of {report.cases} cases failed"
    if not report.is_complete:
        return "time was over before the last case; none failed so far"
    if not report.cases:
        return "no such case"
    return "after every fault nothing was lost, nothing refused appeared, and the next operation worked"


def _faults_as_json(args: argparse.Namespace, report: fault_run.FaultReport, seconds: float) -> dict[str, Any]:
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


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    power_cut_arguments(parser)
    fault_arguments(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    if not args.faults:
        return run_power_cuts(args)
    import logging

    logging.getLogger("yirangmq").setLevel(logging.CRITICAL)  # injected faults log thousands of errors
    return run_faults(args, FaultServer)


COMMANDS = {
    "torture": Command(
        about="Run operations on a new store, rebuild every disk that a power cut could have left at every point, "
        "open each and count: confirmed messages must be there, half-written ones must be in quarantine.\n\n"
        "With --faults: let every I/O call of every operation fail in turn, once and then for a while, on "
        "the store itself and below a server through each protocol. The caller must get an error with a "
        "code, no confirmed message may be lost, no rejected one may appear, and the next operation must "
        "work (docs/guarantees.md).",
        examples=(
            ("the SQLite store", "yirangmq torture --backend sqlite --steps 100"),
            ("JSON files, another workload", "yirangmq torture --backend fs --seed 7"),
            ("a log of topics and its cursors", "yirangmq torture --backend log"),
            ("a sample of failing I/O calls", "yirangmq torture --faults --backend served --sample 50"),
        ),
        options=add_arguments,
        run=run,
        has_json=True,
    )
}
