"""``processor set | show | list | check | remove``."""

import argparse
import json
from typing import Any

from yirangmq.broker.admission import dry_run
from yirangmq.broker.queues import Queues
from yirangmq.cli import exits, options, place, remote
from yirangmq.cli.command import Command
from yirangmq.cli.policies import LARGEST, POLICY_COMMANDS
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column
from yirangmq.cli.values import attribute, counted, read_input
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.policy import MAX_BODY
from yirangmq.core.processor import read_chain, show_chain
from yirangmq.format.envelope import NewMessage
from yirangmq.format.json_codec import loads

COLUMNS = (
    Column("queue", shrinks=True),
    Column("from"),
    Column("integrity"),
    Column("checks", shrinks=True),
    Column("hooks", shrinks=True),
)


def processor_set_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    parser.add_argument("document", nargs="?", metavar="JSON", help="the processor, as JSON text")
    parser.add_argument("--file", metavar="FILE", help="read it from a file, or from stdin with -")
    options.dry_run(parser)
    options.store(parser)


def queue_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    options.store(parser)


def check_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    parser.add_argument("files", nargs="+", metavar="FILE", help="payloads, a file each; - is stdin")
    parser.add_argument("--type", metavar="NAME", help="the type that the messages would say they have")
    parser.add_argument("--content-type", metavar="TYPE", help="their media type, such as application/json")
    parser.add_argument(
        "-a", "--attribute", action="append", default=[], metavar="NAME=VALUE", help="an attribute; may be repeated"
    )
    options.store(parser)


def run_processor_set(args: argparse.Namespace, screen: Screen) -> int:
    document = _processor_document(args)
    if args.dry_run:
        chain = show_chain(read_chain(document, validation.check_queue(args.queue)))
    else:
        with place.opened(args) as queues:
            chain = _put(queues, args.queue, document)
    done = "would be" if args.dry_run else "is"
    value = {"queue": args.queue, "dryRun": args.dry_run, "processor": chain}
    screen.answer(value, f"the processor of {args.queue} {done} now\n{_pretty_processor(chain)}")
    return exits.OK


def _processor_document(args: argparse.Namespace) -> Any:
    if (args.document is None) == (args.file is None):
        raise BadInput("give one of: JSON text, --file FILE (or --file -)", field="processor")
    text = args.document.encode() if args.file is None else read_input(args.file, LARGEST)
    try:
        document = loads(text)
    except BadInput as error:
        raise BadPolicy(str(error), field="processor") from None
    if document is None:
        raise BadPolicy("must be an object, not null; to take a processor away: yirangmq processor remove")
    return document


def _put(queues: Queues, queue: str, document: Any) -> dict[str, Any] | None:
    if remote.address_of(queues) is not None:
        found: dict[str, Any] | None = remote.call(queues, "processor_set", queue=queue, document=document)
        return found
    validation.check_queue(queue)
    return queues.run(lambda transaction: dry_run.put(transaction, queues.verbs, queue, document))


def run_remove(args: argparse.Namespace, screen: Screen) -> int:
    with place.existing(args) as queues:
        _put(queues, args.queue, None)
    screen.answer({"queue": args.queue}, f"{args.queue} has no processor of its own any more")
    return exits.OK


def _rows(queues: Queues, queue: str | None) -> list[dict[str, Any]]:
    if remote.address_of(queues) is not None:
        return [*remote.call(queues, "processors", **({} if queue is None else {"queue": queue}))]
    return queues.read(lambda transaction: dry_run.listed(transaction, queues.verbs, queue))


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    validation.check_queue(args.queue)
    with place.seen(args, screen) as queues:
        rows = _rows(queues, args.queue)
    row = rows[0] if rows else {"queue": args.queue, "from": None, "processor": None}
    text = f"{args.queue} has no processor: every message is stored as it comes"
    screen.answer(row, _pretty_processor(row["processor"]) if rows else text)
    return exits.OK


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    with place.seen(args, screen) as queues:
        rows = _rows(queues, None)
    if screen.json:
        screen.document({"ok": True, "processors": rows})
    elif rows:
        screen.table(COLUMNS, [_cells(row) for row in rows])
    else:
        screen.say("no queue has a processor")
    return exits.OK


def _cells(row: dict[str, Any]) -> list[object]:
    chain = row["processor"]
    checks = ", ".join(check["check"] for check in chain["checks"])
    hooks = ", ".join(hook["hook"] for hook in chain["hooks"])
    return [row["queue"], row["from"], chain["integrity"], checks or None, hooks or None]


def run_check(args: argparse.Namespace, screen: Screen) -> int:
    validation.check_queue(args.queue)
    about: dict[str, Any] = {"attributes": dict(attribute(text) for text in args.attribute)}
    about |= {"type": args.type} if args.type is not None else {}
    about |= {"content_type": args.content_type} if args.content_type is not None else {}
    messages = [NewMessage(payload=read_input(name, MAX_BODY), **about) for name in args.files]
    with place.seen(args, screen) as queues:
        report = queues.try_out(args.queue, messages)
    for name, row in zip(args.files, report["messages"], strict=True):
        row["file"] = name
    if screen.json:
        screen.document({"ok": not report["refused"], **report})
    else:
        _tell(report, screen)
    return exits.EXIT_OF["unfit"] if report["refused"] else exits.OK


def _tell(report: dict[str, Any], screen: Screen) -> None:
    if not report["processor"]:
        screen.note(f"{report['queue']} has no processor")
    for row in report["messages"]:
        if row["ok"]:
            made = "".join(f", {one['hook']} makes one for {one['queue']}" for one in row["produces"])
            screen.say(f"{row['file']}: fits, {counted(row['bytes'], 'byte')}, SHA-256 {row['sha256']}{made}")
        else:
            field = f"{row['field']}: " if row["field"] else ""
            screen.say(f"{row['file']}: {row['code']}: {field}{row['error']}")


def _pretty_processor(chain: dict[str, Any] | None) -> str:
    return json.dumps(chain, indent=2, ensure_ascii=False)


COMMANDS = {
    **POLICY_COMMANDS,
    "processor": Command(
        about="What messages must pass before a queue stores them: checks of headers, length, encoding, records, JSON "
        "and schemas, hooks of your own, and whether each payload's SHA-256 is kept and looked at on delivery. No "
        "check changes a byte. What is refused is told to its sender, with the check and the field; nothing of it is "
        "stored.\n\n"
        "It is the member 'processor' of the queue's policy, or of the server's setting 'processors'.",
        examples=(
            ("EUC-KR text of at most 2000 bytes, its SHA-256 kept",
             "yirangmq processor set --queue atmh '{\"integrity\": \"sha256\", \"checks\": [{\"check\": \"length\", "
             "\"max\": 2000}, {\"check\": \"encoding\", \"encoding\": \"euc-kr\"}]}'"),
            ("would this file be taken?", "yirangmq processor check --queue atmh message.dat"),
            ("who has one?", "yirangmq processor list"),
        ),
        verbs={
            "set": (
                "put a processor in force; the rest of the policy stays",
                Command(
                    about="Check a processor and put it in force, for messages that come from now on. It replaces the "
                    "one that is there; the rest of the queue's policy stays.",
                    examples=(
                        ("from a file", "yirangmq processor set --queue atmh --file processor.json"),
                        ("fixed records of 80 bytes",
                         "yirangmq processor set --queue cards "
                         "'{\"checks\": [{\"check\": \"records\", \"length\": 80}]}'"),
                        ("a hook of your own; the server allows it with --hooks bank",
                         "yirangmq processor set --queue atmh '{\"hooks\": [{\"hook\": \"bank.rules:check\"}]}'"),
                    ),
                    options=processor_set_options,
                    run=run_processor_set,
                ),
            ),
            "show": (
                "the processor in force, every member spelled out",
                Command(
                    about="The processor in force for a queue, every member spelled out, and whether it is from the "
                    "queue's policy or from the server's settings.",
                    examples=(
                        ("for people", "yirangmq processor show --queue atmh"),
                        ("for programs", "yirangmq processor show --queue atmh --json"),
                    ),
                    options=queue_options,
                    run=run_show,
                ),
            ),
            "list": (
                "every queue that has one",
                Command(
                    about="Every queue that has a processor; * is what the server's settings say of all others.",
                    examples=(
                        ("for people", "yirangmq processor list"),
                        ("for programs", "yirangmq processor list --json"),
                    ),
                    options=options.store,
                    run=run_list,
                ),
            ),
            "check": (
                "try files against a queue's processor without storing them",
                Command(
                    about="Say of each file whether the queue would store it as a payload, and if not which check or "
                    "hook refuses it and which field is at fault. Nothing is stored. Hooks are really run, by the "
                    "server if one holds the store. Exit code 2 if any file is refused.",
                    examples=(
                        ("two files", "yirangmq processor check --queue atmh good.dat bad.dat"),
                        ("with what the header checks want",
                         "yirangmq processor check --queue atmh message.dat --attribute bank=012 --type transfer"),
                    ),
                    options=check_options,
                    run=run_check,
                ),
            ),
            "remove": (
                "take a queue's processor away",
                Command(
                    about="Take the processor out of a queue's policy. What the server's settings say, if anything, is "
                    "in force then.",
                    examples=(
                        ("of one queue", "yirangmq processor remove --queue atmh"),
                        ("for programs", "yirangmq processor remove --queue atmh --json"),
                    ),
                    options=queue_options,
                    run=run_remove,
                ),
            ),
        },
    )
}  # fmt: skip
