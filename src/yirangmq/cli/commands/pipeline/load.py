"""Commands ``pipeline replay | redrive | load``: rows into queues and topics, all of them or none.

``replay`` and ``load`` write under a name through ``/v1/batches``; run again under the same name, they write
nothing. ``redrive`` moves dead letters that an SQL condition selects."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from yirangmq.cli import arguments, output
from yirangmq.cli.command import Command
from yirangmq.cli.commands.pipeline import common as sparkwork
from yirangmq.cli.commands.pipeline.common import common, source
from yirangmq.cli.output import Screen
from yirangmq.core.errors import BadInput
from yirangmq.pipeline.run_registry import parse_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("parquet", "csv", "json", "text", "orc")


def _chosen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--where", metavar="SQL", help="only rows for which this condition holds")
    parser.add_argument("--since", metavar="TIME", help="from this time on, such as 2026-03-01T12:00:00Z")
    parser.add_argument("--until", metavar="TIME", help="before this time")
    parser.add_argument("--first", type=int, metavar="N", help="from this sequence on")
    parser.add_argument("--last", type=int, metavar="N", help="up to this sequence")


def replay_options(parser: argparse.ArgumentParser) -> None:
    source(parser, "topic:NAME, done:QUEUE, dlq:QUEUE, archive:FOLDER or files:FOLDER for files by date")
    parser.add_argument("--to", required=True, metavar="TARGET", help="queue:NAME or topic:NAME")
    parser.add_argument("--name", metavar="NAME", help="name of this replay; a replay with a used name does nothing")
    _chosen(parser)
    arguments.dry_run(parser)
    common(parser)


def run_replay(args: argparse.Namespace, screen: Screen) -> int:
    job_source, name = parse_source(args.source), _name(args)
    access = sparkwork.access_of(args)
    with sparkwork.job_session(args, screen, "replay") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs import replay

        frame = run_registry.read(spark, job_source, access)
        found = replay.select_rows(frame, args.where, args.since, args.until, args.first, args.last)
        rows = replay.for_replay(found, args.to)
        count = None if args.dry_run else _known(args, name)
        is_first = count is None
        if count is None:
            count = rows.count() if args.dry_run else _written(args, rows, name)
    return _moved(args, screen, "replayed", count, is_first)


def load_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", required=True, metavar="PATH", help="a file, a folder or a pattern that Spark reads")
    parser.add_argument("--format", choices=FORMATS, default="parquet", help="format of the table (parquet)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="option of the reader, such as header=true"
    )
    parser.add_argument("--to", required=True, metavar="TARGET", help="queue:NAME or topic:NAME")
    parser.add_argument("--where", metavar="SQL", help="only rows for which this condition holds")
    parser.add_argument("--id", metavar="COLUMN", help="column with the message id, unique and never used again")
    parser.add_argument("--name", metavar="NAME", help="name of this load; a load with a used name does nothing")
    arguments.dry_run(parser)
    common(parser)


def run_load(args: argparse.Namespace, screen: Screen) -> int:
    name = _name(args)
    with sparkwork.job_session(args, screen, "load") as spark:
        from yirangmq.pipeline.jobs import replay

        table = spark.read.format(args.format).options(**_options(args.option)).load(_address(args.table))
        table = table if args.where is None else replay.where(table, args.where)
        rows = replay.for_load(table, args.to, args.id)
        count = None if args.dry_run else _known(args, name)
        is_first = count is None
        if count is None:
            count = rows.count() if args.dry_run else _written(args, rows, name)
    return _moved(args, screen, "loaded", count, is_first)


def redrive_options(parser: argparse.ArgumentParser) -> None:
    source(parser, "dlq:QUEUE, or dlq:* for all queues")
    parser.add_argument(
        "--where", required=True, metavar="SQL", help="condition, such as \"failure_reason = 'TIMEOUT'\""
    )
    arguments.dry_run(parser)
    common(parser)


def run_redrive(args: argparse.Namespace, screen: Screen) -> int:
    job_source = parse_source(args.source, kinds=("dlq",))
    access = sparkwork.access_of(args)
    with sparkwork.job_session(args, screen, "redrive") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs import replay

        letters = run_registry.read(spark, job_source, access)
        if args.dry_run:
            count = replay.where(letters, args.where).count()
        else:
            broker = _broker(args)

            def move(queue: str, ids: Any) -> int:
                path = f"/v1/queues/{quote(queue)}/dead-letters/redrive"
                return int(broker.document("POST", path, {"ids": [*ids]})["count"])

            count = replay.redrive(letters, args.where, move)
            broker.close()
    did = "would be redriven" if args.dry_run else "redriven"
    screen.answer({"count": count, "from": str(job_source), "dryRun": args.dry_run}, f"{count:,} dead letters {did}")
    return output.OK


def _name(args: argparse.Namespace) -> str:
    sparkwork.require_packages()
    from yirangmq.pipeline.steps import check_target

    check_target(args.to)
    if not args.name and not args.dry_run:
        raise BadInput("give it one with --name; run again under the same name, it does nothing", field="name")
    return str(args.name or "")


def _broker(args: argparse.Namespace) -> Any:
    from yirangmq.pipeline.source.http_client import HttpBroker

    access = sparkwork.access_of(args)
    return HttpBroker(access.broker or "", access.token, 60)


def _known(args: argparse.Namespace, name: str) -> int | None:
    """Return the number of rows written under this name, or None if the name is new."""
    broker = _broker(args)
    found = broker.document("GET", f"/v1/batches?query={quote(name)}")["batches"]
    broker.close()
    done = [one for one in found if one["step"] == "done"]
    return sum(one["queueRows"] + one["deadRows"] + one["topicRows"] for one in done) if done else None


def _written(args: argparse.Namespace, rows: "DataFrame", name: str) -> int:
    from yirangmq.pipeline.jobs import replay

    access = sparkwork.access_of(args)
    replay.write(rows, access.broker or "", name, access.token)
    return _known(args, name) or 0


def _moved(args: argparse.Namespace, screen: Screen, did: str, count: int, is_first: bool) -> int:
    value = {"count": count, "to": args.to, "name": args.name, "dryRun": args.dry_run, "first": is_first}
    if args.dry_run:
        text = f"{count:,} rows would be {did} to {args.to}"
    elif is_first:
        text = f"{did} {count:,} rows to {args.to} as {args.name}"
    else:
        text = f"{args.name} was {did} already, with {count:,} rows; nothing was written"
    screen.answer(value, text)
    return output.OK


def _address(table: str) -> str:
    """Make a path absolute, because Java may have been started in another folder. URLs are not changed."""
    return table if ":" in table else str(Path(table).absolute())


def _options(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise BadInput(f"{text!r} is not KEY=VALUE", field="option")
        found[name] = value
    return found


SUBCOMMANDS: dict[str, tuple[str, Command]] = {
    "replay": (
        "publish records or messages again",
        Command(
            about="Publish rows again, selected by condition, time and sequence, from the log or from an archive. "
            "They get new ids and a header that names their origin. Either all are published or none; a "
            "name is used once.",
            examples=(
                (
                    "an hour of a topic into a queue",
                    "yirangmq pipeline replay --from topic:orders --to queue:again --since 2026-03-01T10:00:00Z "
                    "--until 2026-03-01T11:00:00Z --name again-1",
                ),
                (
                    "how many it would be",
                    "yirangmq pipeline replay --from archive:old --to queue:again --where \"key = 'k1'\" --dry-run",
                ),
            ),
            options=replay_options,
            run=run_replay,
        ),
    ),
    "redrive": (
        "redrive dead letters by SQL",
        Command(
            about="Redrive dead letters that match an SQL condition on their columns (docs/spark.md).",
            examples=(
                (
                    "those that timed out",
                    "yirangmq pipeline redrive --from dlq:mail --where \"failure_reason = 'TIMEOUT'\"",
                ),
                (
                    "how many failed again and again",
                    "yirangmq pipeline redrive --from 'dlq:*' --where 'attempt >= 3' --dry-run",
                ),
            ),
            options=redrive_options,
            run=run_redrive,
        ),
    ),
    "load": (
        "publish the rows of a table",
        Command(
            about="Publish the rows of a table: its column value, or each row as a JSON object. Either all are "
            "published or none; a name is used once.",
            examples=(
                (
                    "a CSV file",
                    "yirangmq pipeline load --table a.csv --format csv --option header=true --to queue:a --name a-1",
                ),
                ("lines into a topic", "yirangmq pipeline load --table a.jsonl --format text --to topic:a --name a-2"),
            ),
            options=load_options,
            run=run_load,
        ),
    ),
}
