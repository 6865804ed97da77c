"""Commands ``pipeline init | dry-run | run``: projects of Spark's declarative pipelines.

A run processes new data and ends. Its state is in the folder of pipelines and is reported to the server. SIGTERM or
``pipeline stop`` ends it, and the next run resumes."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from yirangmq.cli import output
from yirangmq.cli.command import Command
from yirangmq.cli.commands.pipeline import common
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn
from yirangmq.core.stop_signals import StopSignals, StopStep
from yirangmq.pipeline import project_template, run_registry
from yirangmq.pipeline.declarative_events import Flow
from yirangmq.pipeline.spark_errors import SparkLog

if TYPE_CHECKING:
    from yirangmq.pipeline.declarative import ProjectRunner


def init_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the project and of its new folder")
    parser.add_argument(
        "--in", dest="parent", default=".", metavar="FOLDER", help="parent folder (default: the working folder)"
    )


def run_init(args: argparse.Namespace, screen: Screen) -> int:
    made = project_template.init(args.name, Path(args.parent))
    folder = Path(args.parent) / args.name
    lines = [f"made {folder} with {len(made)} files; next:"]
    lines.append(
        f"  yirangmq pipeline load --table {folder}/sample/orders.jsonl --format text --to topic:orders --name sample"
    )
    lines += [f"  yirangmq pipeline {verb} {folder}" for verb in ("dry-run", "run")]
    screen.answer({"folder": str(folder), "files": [str(path) for path in made]}, "\n".join(lines))
    return output.OK


def project_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "project", metavar="PROJECT", nargs="?", default=".", help="its folder, or its spark-pipeline.yml"
    )
    common.access_options(parser, path=False)
    common.spark_options(parser)


def run_options(parser: argparse.ArgumentParser) -> None:
    project_options(parser)
    parser.add_argument(
        "--refresh", action="append", default=[], metavar="TABLE", help="update only this table; may be repeated"
    )
    parser.add_argument(
        "--afresh",
        action="append",
        default=[],
        metavar="TABLE",
        help="compute this table from the beginning; '*' for all",
    )
    parser.add_argument("--home", metavar="FOLDER", help=HOME_HELP)


HOME_HELP = f"where the state of pipelines is kept (default: $YIRANGMQ_PIPELINES or ./{run_registry.FOLDER})"


def run_dry(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.pipeline.declarative import find_spec, project_lock

    args.refresh, args.afresh = [], []
    runner = _runner(args, screen, is_dry=True)
    with project_lock(find_spec(args.project).parent):
        runner.run()
    elements = [{"kind": one.kind, "name": one.name, "place": one.location} for one in runner.elements]
    if screen.json:
        screen.document({"ok": True, "elements": elements})
        return output.OK
    screen.table(
        [TableColumn("kind"), TableColumn("name"), TableColumn("place")], [[*one.values()] for one in elements]
    )
    screen.report("it fits together; nothing was read or written")
    return output.OK


def run_run(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.pipeline.declarative import find_spec, project_lock

    location = find_spec(args.project).parent
    folder = run_registry.folder_of(run_registry.home(args.home), location.name)
    runner = _runner(args, screen, is_dry=False)
    with project_lock(location):  # first of all: the state of a run in progress must not be replaced
        return _run(args, screen, folder, runner)


def _run(args: argparse.Namespace, screen: Screen, folder: Path, runner: "ProjectRunner") -> int:
    name = folder.name
    reporter = _RunReporter(
        folder, run_registry.new_status(name, "pipeline", " ".join(sys.argv[1:]), os.getpid()), runner, args
    )
    run_registry.clear_stop(folder)
    reporter.report("running", at_once=True)
    try:
        with _raise_on_terminate():
            runner.run(reporter.poll)
    except _Stopped:
        reporter.report("stopped", at_once=True)
        screen.answer({"pipeline": name, "state": "stopped"}, f"{name}: stopped; the next run goes on from here")
        return output.OK
    except BaseException as error:
        reporter.report("failed", str(error)[:1000], at_once=True)
        raise
    reporter.report("done", at_once=True)
    flows = [] if runner.flows is None else [*runner.flows.all.values()]
    value = {"pipeline": name, "state": "done", "flows": [flow.document() for flow in flows]}
    screen.answer(value, f"{name}: {len(flows)} flows are done, {reporter.rows:,} rows came in")
    return output.OK


class _Stopped(BaseException):
    """Raised in the main thread by SIGTERM, which ``pipeline stop`` causes too."""


@contextmanager
def _raise_on_terminate() -> Iterator[None]:
    received = StopSignals()

    def on_signal(*_: object) -> None:
        if received.receive(time.monotonic()) is not StopStep.IGNORE:
            raise _Stopped

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _RunReporter:
    """Reports the state of a run: in its folder, and to the server."""

    def __init__(
        self, folder: Path, status: "run_registry.RunStatus", runner: "ProjectRunner", args: argparse.Namespace
    ) -> None:
        from yirangmq.pipeline.query_monitor import StatusReporter

        access = common.access_of(args)
        self._folder, self._status, self._runner = folder, status, runner
        self._reporter = StatusReporter(status.name, access.broker, access.token)

    @property
    def rows(self) -> int:
        return 0 if self._runner.flows is None else self._runner.flows.rows

    def poll(self) -> None:
        """Report progress, and check for a stop request. Called periodically on a thread of the runner."""
        self._send_report(at_once=False)
        if run_registry.is_stop_requested(self._folder):
            run_registry.clear_stop(self._folder)
            os.kill(os.getpid(), signal.SIGTERM)

    def report(self, state: str, error: str | None = None, *, at_once: bool) -> None:
        self._status = replace(self._status, state=state, error=error, rows=self.rows)
        run_registry.save(self._folder, self._status)
        self._send_report(at_once=at_once)

    def _send_report(self, *, at_once: bool) -> None:
        flows = [] if self._runner.flows is None else [*self._runner.flows.all.values()]
        lags = [flow.last.lag for flow in flows if flow.last is not None and flow.last.lag is not None]
        status_document = {
            "kind": self._status.kind,
            "state": self._status.state,
            "startedAt": self._status.started_at,
            "source": f"{len(flows)} flows" if flows else "",
            "rows": self.rows,
            "lag": max(lags, default=None),
            "error": self._status.error,
        }
        self._reporter.report(status_document, at_once=at_once)


def _runner(args: argparse.Namespace, screen: Screen, *, is_dry: bool) -> "ProjectRunner":
    from yirangmq.pipeline.declarative import STATE, ProjectRunner, RunOptions, find_spec

    spec = find_spec(args.project)
    common.require_packages(pipelines=True)
    os.environ["YIRANGMQ_BROKER"] = common.access_of(args).broker or ""
    options = RunOptions(spec, args.master, common.settings_of(args), is_dry, args.refresh, args.afresh, args.ui)
    shown: dict[str, str] = {}

    def report(flow: Flow) -> None:
        line = flow.line()
        if shown.get(flow.name) != line:
            shown[flow.name] = line
            if not screen.json:
                screen.report(line)
                screen.flush()

    log = SparkLog(spec.parent / STATE / "spark.log")
    return ProjectRunner(options, report, log, lambda page: screen.note(f"Spark's own page: {page}"))


SUBCOMMANDS = {
    "init": (
        "create a project",
        Command(
            about="Create a project of a declarative pipeline: its spec, definitions in Python and SQL, sample "
            "data and a test, as a starting point.",
            examples=(
                ("here", "yirangmq pipeline init shop"),
                ("elsewhere", "yirangmq pipeline init shop --in pipelines"),
            ),
            options=init_options,
            run=run_init,
        ),
    ),
    "dry-run": (
        "check a project without data",
        Command(
            about="Read the definitions of a project and let Spark check that they fit together: names, columns, "
            "types, SQL. Nothing is read or written.",
            examples=(
                ("a project", "yirangmq pipeline dry-run shop"),
                ("with a server elsewhere", "yirangmq pipeline dry-run shop --broker http://10.0.0.7:8080"),
            ),
            options=project_options,
            run=run_dry,
        ),
    ),
    "run": (
        "run a project once",
        Command(
            about="Run a project of a declarative pipeline: every flow reads what is new since the last run, and "
            "the run ends when all are done. A line for each flow shows its progress.",
            examples=(
                ("a project", "yirangmq pipeline run shop"),
                ("one table from the beginning", "yirangmq pipeline run shop --afresh good_orders"),
                ("on a cluster", "yirangmq pipeline run shop --master spark://10.0.0.1:7077"),
            ),
            options=run_options,
            run=run_run,
        ),
    ),
}
