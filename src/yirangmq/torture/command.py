"""``yirangmq torture``: the power-cut test as a command. Knows: flags, printing. Does not know: the work itself."""

import argparse
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.crashtest.backends import BACKENDS
from yirangmq.crashtest.runner import Loss, Plan, Report, torture
from yirangmq.observe.progress import Progress

STEPS, SEED, STATES = 60, 1, 8
SURVIVED, LOST = 0, 1
MOST_STEPS = 100_000
LOSSES_SHOWN = 3
"""Losses, and complaints of each, that are printed; the rest is in the folder kept, and in the JSON."""


def power_cut_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags ``run`` understands."""
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="sqlite", help="which store to torture")
    parser.add_argument("--steps", type=int, default=STEPS, help="calls in the recorded workload (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="another seed is another workload (%(default)s)")
    parser.add_argument("--states", type=int, default=STATES, help="disks to try at each point (%(default)s)")
    parser.add_argument("--point", type=int, help="cut at this point only, to replay a loss")
    parser.add_argument("--keep-failures", metavar="DIR", help="where to keep the disks in which something was lost")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_power_cuts(args: argparse.Namespace) -> int:
    """0: everything confirmed survived everywhere. 1: something was lost."""
    started = time.monotonic()
    plan = _power_cut_plan(args)
    with Progress(f"torture {plan.backend.name}", None, shown=sys.stderr.isatty()) as show:
        report = torture(plan, show.part)
    seconds = time.monotonic() - started
    if getattr(args, "json", False):
        print(json.dumps(_power_cuts_as_json(plan, report, seconds)))
    else:
        _print_power_cuts(plan, report, seconds)
    return LOST if report.losses else SURVIVED


def _power_cut_plan(args: argparse.Namespace) -> Plan:
    if args.backend not in BACKENDS:
        raise BadInput(f"{args.backend!r} is not one of {', '.join(BACKENDS)}", field="backend")
    keep = getattr(args, "keep_failures", None)
    point = getattr(args, "point", None)
    return Plan(
        backend=BACKENDS[args.backend](),
        steps=validation.check_count(_given(args, "steps", STEPS), "steps", most=MOST_STEPS),
        seed=_given(args, "seed", SEED),
        states=validation.check_count(_given(args, "states", STATES), "states", most=MOST_STEPS),
        keep=Path(keep) if keep else Path(tempfile.gettempdir()) / f"yirangmq-torture-{time.time_ns()}",
        only=None if point is None else validation.check_count(point, "point", least=0, most=2**53),
    )


def _given(args: argparse.Namespace, name: str, default: int) -> int:
    value: int | None = getattr(args, name, None)
    return default if value is None else value


def _power_cut_replay(plan: Plan, loss: Loss) -> str:
    words = ["yirangmq", "torture", "--backend", plan.backend.name, "--seed", str(plan.seed)]
    words += ["--steps", str(plan.steps), "--states", str(plan.states)]
    return shlex.join([*words, "--point", str(loss.point)] if loss.point >= 0 else words)


def _print_power_cuts(plan: Plan, report: Report, seconds: float) -> None:
    print(
        f"{plan.backend.name}: {report.calls} calls, {report.points} points of power cut, {report.states} disks opened "
        f"({report.second_cuts} after a second cut), {seconds:.1f} s, seed {plan.seed}"
    )
    if report.set_aside:
        print(f"half-written messages found and set aside: {report.set_aside}")
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
    print("result: something was lost" if report.losses else "result: every confirmed message survived every cut")


def _power_cuts_as_json(plan: Plan, report: Report, seconds: float) -> dict[str, Any]:
    return {
        "ok": not report.losses,
        "backend": plan.backend.name,
        "seed": plan.seed,
        "calls": report.calls,
        "points": report.points,
        "states": report.states,
        "secondCuts": report.second_cuts,
        "setAside": report.set_aside,
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
