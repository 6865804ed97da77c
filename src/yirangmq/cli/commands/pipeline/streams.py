"""Commands ``pipeline process | explain | list | status | stop``: streams from topics to queues and topics.

``process`` runs until it is stopped, and resumes from its checkpoint. ``explain`` builds the same stream without
reading data. ``list`` and ``status`` read the state that runs keep in the folder of pipelines."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.cli import output
from yirangmq.cli.command import Command
from yirangmq.cli.commands.pipeline import common
from yirangmq.cli.commands.pipeline.projects import HOME_HELP
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn
from yirangmq.core.validation import check_count
from yirangmq.pipeline import run_registry
from yirangmq.pipeline.declarative_events import BatchProgress
from yirangmq.pipeline.run_registry import parse_source
from yirangmq.pipeline.spark_errors import SparkLog

if TYPE_CHECKING:
    from yirangmq.pipeline.stream_job import StreamJob

INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")


def stream_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", required=True, metavar="PLACE", help="topic:NAME or topic:PATTERN")
    parser.add_argument(
        "--to", required=True, metavar="TARGET", help="queue:NAME or topic:NAME, for rows that name no target"
    )
    parser.add_argument(
        "--steps",
        metavar="MODULE:FUNCTION",
        help="function from DataFrame to DataFrame; modules of the working folder are found too",
    )
    parser.add_argument(
        "--trigger", default="1 second", metavar="SPAN", help="interval of micro-batches (default: '1 second')"
    )
    parser.add_argument("--once", action="store_true", help="process the records that are there now, then end")
    parser.add_argument("--start", default="latest", metavar="WHERE", help="without a checkpoint: earliest, latest "
                        "(default) or {\"global_seq\": N}")  # fmt: skip
    parser.add_argument("--most", type=int, metavar="N", help="records in one micro-batch at most (default: 100 000)")
    parser.add_argument("--bad-rows", choices=("dlq", "fail"), default="dlq", help="a row that cannot be written: to "
                        "the dead letters (default), or the query fails")  # fmt: skip
    parser.add_argument("--lost-records", choices=("fail", "skip"), default="fail", help="if retention "
                        "removed records before they were read: the query fails (default), or continues")  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="name of the query (default: made from --from and --to)")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="default: the query's own folder")
    parser.add_argument("--home", metavar="FOLDER", help=HOME_HELP)
    common.access_options(parser)
    common.spark_options(parser)


def run_process(args: argparse.Namespace, screen: Screen) -> int:
    common.require_packages()
    name = args.name or _default_name(args)
    folder = run_registry.folder_of(run_registry.home(args.home), name)
    job = _stream_job(args, folder)
    from yirangmq.pipeline import spark_errors, stream_job
    from yirangmq.pipeline.query_monitor import ProgressListener, QueryMonitor, StatusReporter

    transform = stream_job.load_steps(args.steps, Path.cwd(), args.master)
    log = SparkLog(folder / "spark.log")
    show = _ProgressPrinter(screen, log)
    with (
        stream_job.checkpoint_lock(job.checkpoint),
        common.session_of(args, name, log) as spark,
        spark_errors.translated_errors(),
    ):
        run_registry.clear_stop(folder)
        rows = stream_job.build_rows(spark, job, transform)
        start_position = stream_job.start_position(job)
        if args.ui and spark.sparkContext.uiWebUrl:
            screen.note(f"Spark's own page: {spark.sparkContext.uiWebUrl}")
        listener = ProgressListener(folder, show.progress)
        screen.note(f"{name}: {start_position}")
        status = run_registry.new_status(name, "process", " ".join(sys.argv[1:]), os.getpid())
        reporter = StatusReporter(name, job.access.broker, job.access.token)
        monitor = QueryMonitor(folder, status, listener, reporter, show.notes, str(job.source), job.target)
        run_registry.save(folder, status)
        spark.streams.addListener(listener)
        try:
            ended = monitor.run(lambda: stream_job.start_query(rows, job, name))
        finally:
            spark.streams.removeListener(listener)
    value = {
        **monitor.status_document(),
        "name": name,
        "resumedAt": start_position.sequence,
        "batches": listener.batches,
    }
    bad = f", {listener.dead:,} of them to the dead letters" if listener.dead else ""
    late = f", {listener.late:,} came too late for their window" if listener.late else ""
    screen.answer(value, f"{name}: {ended.state}; {listener.rows:,} rows in {listener.batches} batches{bad}{late}")
    return output.OK


class _ProgressPrinter:
    """Prints progress and notes of a stream. With ``--json`` no progress is printed."""

    def __init__(self, screen: Screen, log: SparkLog) -> None:
        self._screen = screen
        self._log = log

    def progress(self, batch_progress: BatchProgress) -> None:
        if not self._screen.json and batch_progress.rows:
            self._screen.report(batch_progress.line())
            self._screen.flush()

    def notes(self) -> None:
        for line in self._log.notes():
            self._screen.note(line)


def _default_name(args: argparse.Namespace) -> str:
    return INVALID_NAME_CHARACTERS.sub("-", f"{args.source}-to-{args.to}").strip("-.")[:100]


def _stream_job(args: argparse.Namespace, folder: Path) -> "StreamJob":
    from yirangmq.pipeline.steps import check_target
    from yirangmq.pipeline.stream_job import StreamJob

    if args.most is not None:
        check_count(args.most, "most", most=10**9)
    return StreamJob(
        source=parse_source(args.source, kinds=("topic",)),
        target=check_target(args.to),
        access=common.access_of(args),
        checkpoint=Path(args.checkpoint or folder / "checkpoint").absolute(),
        trigger=None if args.once else args.trigger,
        start=args.start,
        most=args.most,
        dead_letter_bad_rows=args.bad_rows == "dlq",
        skip_lost=args.lost_records == "skip",
    )


def run_explain(args: argparse.Namespace, screen: Screen) -> int:
    common.require_packages()
    name = args.name or _default_name(args)
    job = _stream_job(args, run_registry.folder_of(run_registry.home(args.home), name))
    from yirangmq.pipeline import stream_job

    transform = stream_job.load_steps(args.steps, Path.cwd(), args.master)
    with common.job_session(args, screen, "explain") as spark:
        rows = stream_job.build_rows(spark, job, transform)
        plan = (
            rows._jdf.queryExecution().analyzed().toString().rstrip()
        )  # the plan of the steps, before Spark optimizes it
        columns = [{"name": field.name, "type": field.dataType.simpleString()} for field in rows.schema.fields]
    start_position = stream_job.start_position(job)
    if screen.json:
        details = {"name": name, "from": str(job.source), "to": job.target, "columns": columns, "plan": plan}
        screen.document(
            {"ok": True, **details, "checkpoint": str(job.checkpoint), "resumesAt": start_position.sequence}
        )
        return output.OK
    screen.report(f"reads       {job.source}")
    screen.report(f"writes      {job.target}, where a row has no target of its own")
    screen.report(f"checkpoint  {job.checkpoint}")
    screen.report(f"begins      {start_position}")
    screen.report("columns     " + ", ".join(f"{one['name']} {one['type']}" for one in columns))
    screen.report(f"\n{plan}")
    return output.OK


# -- list, status and stop ---------------------------------------------------------------------------------------------


def list_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", metavar="FOLDER", help=HOME_HELP)


def one_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name, as 'pipeline list' prints it")
    list_options(parser)


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    home = run_registry.home(args.home)
    documents = [_pipeline_document(home, one.name) for one in run_registry.list_runs(home)]
    if screen.json:
        for status_document in documents:
            screen.document(status_document)
        return output.OK
    if not documents:
        screen.note(f"there are no pipelines in {home}")
        return output.OK
    names = ("name", "kind", "state", "rows", "position", "lag", "started_at", "error")
    columns = [TableColumn(name, right=name in ("rows", "position", "lag"), shrinks=name == "error") for name in names]
    screen.table(columns, [[status_document[name] for name in names] for status_document in documents])
    return output.OK


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    status_document = _pipeline_document(run_registry.home(args.home), args.name)
    if screen.json:
        screen.document({"ok": True, **status_document})
        return output.OK
    for name, value in status_document.items():
        screen.report(f"{name:<16}{'-' if value is None else value}")
    return output.OK


def run_stop(args: argparse.Namespace, screen: Screen) -> int:
    found = run_registry.request_stop(run_registry.folder_of(run_registry.home(args.home), args.name))
    screen.answer({"name": found.name, "pid": found.pid}, f"{found.name} (process {found.pid}) is asked to stop")
    return output.OK


def _pipeline_document(home: Path, name: str) -> dict[str, Any]:
    folder = run_registry.folder_of(home, name)
    status = run_registry.load(folder)
    last = run_registry.last_progress(folder) or {}
    details = {key: last.get(key) for key in ("batch", "batch_ms", "rows_per_second", "position", "lag")}
    return {**run_registry.document(status), **details}


SUBCOMMANDS = {
    "process": (
        "run a stream from a topic to queues and topics",
        Command(
            about="Read a topic as a stream, apply steps, and write to queues and topics: the outcome of each "
            "record exactly once, also after a crash and a restart. The stream continues from its "
            "checkpoint and reports it. Bad rows become dead letters with the reason. Wrong steps, columns "
            "and options are reported before any record is read.",
            examples=(
                (
                    "from the beginning, once a second",
                    "yirangmq pipeline process --from topic:orders --to queue:work --start earliest",
                ),
                (
                    "with steps of your own, once",
                    "yirangmq pipeline process --from topic:orders --to queue:work --steps orders:steps --once",
                ),
            ),
            options=stream_options,
            run=run_process,
        ),
    ),
    "explain": (
        "print the plan of a stream",
        Command(
            about="Print the plan of 'pipeline process' with these options: the columns for the sink, the start "
            "position, and the query plan. An error names its place.",
            examples=(
                ("without steps", "yirangmq pipeline explain --from topic:orders --to queue:work"),
                ("with steps", "yirangmq pipeline explain --from topic:orders --to queue:work --steps orders:steps"),
            ),
            options=stream_options,
            run=run_explain,
        ),
    ),
    "list": (
        "list the pipelines of this machine",
        Command(
            about="List the pipelines that run or ran here: state, rows, position and lag. A pipeline is lost if "
            "its process ended without a report.",
            examples=(
                ("those of this folder", "yirangmq pipeline list"),
                ("for programs", "yirangmq pipeline list --json"),
            ),
            options=list_options,
            run=run_list,
        ),
    ),
    "status": (
        "show a pipeline",
        Command(
            about="Show all details of one pipeline: its command, its process, the last micro-batch, the last error.",
            examples=(
                ("for people", "yirangmq pipeline status orders"),
                ("for programs", "yirangmq pipeline status orders --json"),
            ),
            options=one_options,
            run=run_status,
        ),
    ),
    "stop": (
        "ask a stream to end after its micro-batch",
        Command(
            about="Ask a stream to finish its micro-batch and end; a new start continues at its position.",
            examples=(
                ("one of this folder", "yirangmq pipeline stop orders"),
                ("of another", "yirangmq pipeline stop orders --home /var/lib/pipelines"),
            ),
            options=one_options,
            run=run_stop,
        ),
    ),
}
