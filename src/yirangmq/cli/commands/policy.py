"""Commands ``policy get | set | validate`` and ``processor set | show | list | check | remove``.

A processor is the admission control of a queue: checks and hooks. It is one member of the policy, and ``processor
set`` leaves the others as they are. ``validate`` and dry runs need no store."""

import argparse
import json
from typing import Any

from yirangmq.broker import policies
from yirangmq.broker.admission import dry_run
from yirangmq.broker.admission.admission import Schemas
from yirangmq.broker.queue_api import QueueStore
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import attribute, count_text, read_input
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.policy import MAX_BODY, show_policy
from yirangmq.core.processor import read_chain, show_chain
from yirangmq.format.envelope import NewMessage
from yirangmq.format.json_codec import loads

# -- policy ------------------------------------------------------------------------------------------------------------

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""Maximum size of a policy document, in bytes. A policy may carry schemas."""


def get_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    arguments.store(parser)


def set_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    _document_options(parser)
    parser.add_argument("--defaults", action="store_true", help="go back to the defaults")
    arguments.dry_run(parser)
    arguments.store(parser)


def validate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--queue", metavar="NAME", default="queue", help="for which queue (default: any)")
    _document_options(parser)


def _document_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", nargs="?", metavar="JSON", help="the policy, as JSON text")
    parser.add_argument("--file", metavar="FILE", help="read it from a file, or from stdin with -")


def _document(args: argparse.Namespace) -> Any:
    if (args.document is None) == (args.file is None):
        raise BadInput("give one of: JSON text, --file FILE (or --file -)", field="policy")
    text = args.document.encode() if args.file is None else read_input(args.file, MAX_DOCUMENT_BYTES)
    try:
        return loads(text)
    except BadInput as error:
        raise BadPolicy(str(error), field="policy") from None


def run_get(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        policy = queues.policy(args.queue)
        own = queues.read(lambda transaction: transaction.policy_text(args.queue)) is not None
    screen.answer({"queue": args.queue, "own": own, "policy": policy}, _pretty(policy))
    return output.OK


def run_set(args: argparse.Namespace, screen: Screen) -> int:
    if args.defaults and (args.document is not None or args.file is not None):
        raise BadInput("and a document; give one of them", field="--defaults")
    document = None if args.defaults else _document(args)
    if args.dry_run:
        policy = _checked(args.queue, {} if document is None else document)
    else:
        with connection.open_or_create(args) as queues:
            policy = queues.set_policy(args.queue, document)
    done = "would be" if args.dry_run else "is"
    value = {"queue": args.queue, "dryRun": args.dry_run, "policy": policy}
    screen.answer(value, f"the policy of {args.queue} {done} now\n{_pretty(policy)}")
    return output.OK


def run_validate(args: argparse.Namespace, screen: Screen) -> int:
    policy = _checked(args.queue, _document(args))
    screen.answer({"policy": policy}, f"a good policy; with its defaults spelled out:\n{_pretty(policy)}")
    return output.OK


def _checked(queue: str, document: object) -> dict[str, Any]:
    """Check a policy like ``QueueStore.check_policy``, without a store."""
    return show_policy(policies.checked(document, queue, Schemas()))


def _pretty(policy: dict[str, Any]) -> str:
    return json.dumps(policy, indent=2, ensure_ascii=False)


POLICY_COMMANDS = {
    "policy": Command(
        about="The numbers that govern a queue: lease time, retries, dead letters, history, limits, schemas.",
        examples=(
            ("what is in force", "yirangmq policy get --queue telemetry"),
            ("two retries instead of five", 'yirangmq policy set --queue telemetry \'{"retry": {"limit": 2}}\''),
            ("is this file in order?", "yirangmq policy validate --file policy.json"),
        ),
        subcommands={
            "get": (
                "the policy in force, every member spelled out",
                Command(
                    about="The policy in force for a queue, every member spelled out.",
                    examples=(
                        ("for people", "yirangmq policy get --queue telemetry"),
                        ("for programs", "yirangmq policy get --queue telemetry --json"),
                    ),
                    options=get_options,
                    run=run_get,
                ),
            ),
            "set": (
                "put a policy in force",
                Command(
                    about="Check a policy and put it in force. It replaces the whole one; what it leaves out is "
                    "default.",
                    examples=(
                        ("from a file", "yirangmq policy set --queue telemetry --file policy.json"),
                        ("as text", "yirangmq policy set --queue telemetry '{\"visibilityTimeoutSec\": 60}'"),
                        ("back to the defaults", "yirangmq policy set --queue telemetry --defaults"),
                    ),
                    options=set_options,
                    run=run_set,
                ),
            ),
            "validate": (
                "check a policy without setting it",
                Command(
                    about="Check a policy document, its schemas included, without a store.",
                    examples=(
                        ("a file", "yirangmq policy validate --file policy.json"),
                        ("text", 'yirangmq policy validate \'{"retry": {"backoff": "linear"}}\''),
                    ),
                    options=validate_options,
                    run=run_validate,
                ),
            ),
        },
    )
}


# -- processor ---------------------------------------------------------------------------------------------------------

COLUMNS = (
    TableColumn("queue", shrinks=True),
    TableColumn("from"),
    TableColumn("integrity"),
    TableColumn("checks", shrinks=True),
    TableColumn("hooks", shrinks=True),
)


def processor_set_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument("document", nargs="?", metavar="JSON", help="the processor, as JSON text")
    parser.add_argument("--file", metavar="FILE", help="read it from a file, or from stdin with -")
    arguments.dry_run(parser)
    arguments.store(parser)


def queue_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    arguments.store(parser)


def check_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument("files", nargs="+", metavar="FILE", help="payloads, a file each; - is stdin")
    parser.add_argument("--type", metavar="NAME", help="the type that the messages would say they have")
    parser.add_argument("--content-type", metavar="TYPE", help="their media type, such as application/json")
    parser.add_argument(
        "-a", "--attribute", action="append", default=[], metavar="NAME=VALUE", help="an attribute; may be repeated"
    )
    arguments.store(parser)


def run_processor_set(args: argparse.Namespace, screen: Screen) -> int:
    document = _processor_document(args)
    if args.dry_run:
        chain = show_chain(read_chain(document, validation.check_queue(args.queue)))
    else:
        with connection.open_or_create(args) as queues:
            chain = _put(queues, args.queue, document)
    done = "would be" if args.dry_run else "is"
    value = {"queue": args.queue, "dryRun": args.dry_run, "processor": chain}
    screen.answer(value, f"the processor of {args.queue} {done} now\n{_pretty_processor(chain)}")
    return output.OK


def _processor_document(args: argparse.Namespace) -> Any:
    if (args.document is None) == (args.file is None):
        raise BadInput("give one of: JSON text, --file FILE (or --file -)", field="processor")
    text = args.document.encode() if args.file is None else read_input(args.file, MAX_DOCUMENT_BYTES)
    try:
        document = loads(text)
    except BadInput as error:
        raise BadPolicy(str(error), field="processor") from None
    if document is None:
        raise BadPolicy("must be an object, not null; to take a processor away: yirangmq processor remove")
    return document


def _put(queues: QueueStore, queue: str, document: Any) -> dict[str, Any] | None:
    if connection.address_of(queues) is not None:
        found: dict[str, Any] | None = connection.call(queues, "processor_set", queue=queue, document=document)
        return found
    validation.check_queue(queue)
    store = connection.local_store(queues)
    return store.run(lambda transaction: dry_run.put(transaction, store.context, queue, document))


def run_remove(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        _put(queues, args.queue, None)
    screen.answer({"queue": args.queue}, f"{args.queue} has no processor of its own any more")
    return output.OK


def _rows(queues: QueueStore, queue: str | None) -> list[dict[str, Any]]:
    if connection.address_of(queues) is not None:
        return [*connection.call(queues, "processors", **({} if queue is None else {"queue": queue}))]
    store = connection.local_store(queues)
    return store.read(lambda transaction: dry_run.processor_rows(transaction, store.context, queue))


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    validation.check_queue(args.queue)
    with connection.open_read_only(args, screen) as queues:
        rows = _rows(queues, args.queue)
    row = rows[0] if rows else {"queue": args.queue, "from": None, "processor": None}
    text = f"{args.queue} has no processor: every message is stored as it comes"
    screen.answer(row, _pretty_processor(row["processor"]) if rows else text)
    return output.OK


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        rows = _rows(queues, None)
    if screen.json:
        screen.document({"ok": True, "processors": rows})
    elif rows:
        screen.table(COLUMNS, [_cells(row) for row in rows])
    else:
        screen.report("no queue has a processor")
    return output.OK


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
    with connection.open_read_only(args, screen) as queues:
        report = queues.try_out(args.queue, messages)
    for name, row in zip(args.files, report["messages"], strict=True):
        row["file"] = name
    if screen.json:
        screen.document({"ok": not report["refused"], **report})
    else:
        _print_report(report, screen)
    return output.EXIT_CODES["unfit"] if report["refused"] else output.OK


def _print_report(report: dict[str, Any], screen: Screen) -> None:
    if not report["processor"]:
        screen.note(f"{report['queue']} has no processor")
    for row in report["messages"]:
        if row["ok"]:
            made = "".join(f", {one['hook']} makes one for {one['queue']}" for one in row["produces"])
            screen.report(f"{row['file']}: fits, {count_text(row['bytes'], 'byte')}, SHA-256 {row['sha256']}{made}")
        else:
            field = f"{row['field']}: " if row["field"] else ""
            screen.report(f"{row['file']}: {row['code']}: {field}{row['error']}")


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
        subcommands={
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
                    options=arguments.store,
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
