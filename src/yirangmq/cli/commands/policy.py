"""Commands ``policy get | set | validate`` and ``processor set | show | list | check | remove``.

A processor is the admission control of a queue: checks and hooks. It is one member of the policy, and ``processor
set`` leaves the others as they are. ``validate`` and dry runs need no store."""

import argparse
import json
from typing import Any

from yirangmq.broker import policies
from yirangmq.broker.admission import dry_run
from yirangmq.broker.admission.admission import Schemas
from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import attribute, count_text
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.policy import MAX_BODY, show_policy
from yirangmq.core.processor import read_chain, show_chain
from yirangmq.format.envelope import NewMessage
from yirangmq.format.json_codec import loads
from yirangmq.fsio.input_file import read_input

# -- policy ------------------------------------------------------------------------------------------------------------

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""Maximum size of a policy document, in bytes. A policy may carry schemas."""


def get_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    arguments.store(parser)


def set_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    _document_options(parser)
    parser.add_argument("--defaults", action="store_true", help="restore the defaults")
    arguments.dry_run(parser)
    arguments.store(parser)


def validate_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="the queue that it is for (default: any)")
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
    policy = _checked(args.queue or "queue", _document(args))
    screen.answer({"policy": policy}, f"a good policy; with its defaults spelled out:\n{_pretty(policy)}")
    return output.OK


def _checked(queue: str, document: object) -> dict[str, Any]:
    """Check a policy like ``Queues.check_policy``, without a store."""
    return show_policy(policies.checked(document, queue, Schemas()))


def _pretty(policy: dict[str, Any]) -> str:
    return json.dumps(policy, indent=2, ensure_ascii=False)


POLICY_COMMANDS = {
    "policy": Command(
        about="The settings of a queue: lease time, retries, dead letters, history, limits, schemas.",
        examples=(
            ("the effective policy", "yirangmq policy get --queue telemetry"),
            ("two retries instead of five", 'yirangmq policy set --queue telemetry \'{"retry": {"limit": 2}}\''),
            ("check a file", "yirangmq policy validate --file policy.json"),
        ),
        subcommands={
            "get": (
                "print the effective policy with all members",
                Command(
                    about="Print the effective policy of a queue, with all members.",
                    examples=(
                        ("for people", "yirangmq policy get --queue telemetry"),
                        ("for programs", "yirangmq policy get --queue telemetry --json"),
                    ),
                    options=get_options,
                    run=run_get,
                ),
            ),
            "set": (
                "set a policy",
                Command(
                    about="Check a policy and set it. It replaces the whole policy; members that it does not name "
                    "get their defaults.",
                    examples=(
                        ("from a file", "yirangmq policy set --queue telemetry --file policy.json"),
                        ("as text", "yirangmq policy set --queue telemetry '{\"visibilityTimeoutSec\": 60}'"),
                        ("restore the defaults", "yirangmq policy set --queue telemetry --defaults"),
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
    TableColumn("queue"),
    TableColumn("from", rank=2),
    TableColumn("integrity", rank=1),
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
    parser.add_argument("files", nargs="+", metavar="FILE", help="payloads, one per file; - is stdin")
    parser.add_argument("--type", metavar="NAME", help="message type")
    parser.add_argument("--content-type", metavar="TYPE", help="media type, such as application/json")
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


def _put(queues: Queues, queue: str, document: Any) -> dict[str, Any] | None:
    if connection.address_of(queues) is not None:
        found: dict[str, Any] | None = connection.call(queues, "processor_set", queue=queue, document=document)
        return found
    validation.check_queue(queue)
    return queues.run(lambda transaction: dry_run.put(transaction, queues.operations, queue, document))


def run_remove(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        _put(queues, args.queue, None)
    screen.answer({"queue": args.queue}, f"{args.queue} has no processor of its own any more")
    return output.OK


def _rows(queues: Queues, queue: str | None) -> list[dict[str, Any]]:
    if connection.address_of(queues) is not None:
        return [*connection.call(queues, "processors", **({} if queue is None else {"queue": queue}))]
    return queues.read(lambda transaction: dry_run.processor_rows(transaction, queues.operations, queue))


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
            made = "".join(f", {one['hook']} produces one for {one['queue']}" for one in row["produces"])
            screen.report(f"{row['file']}: fits, {count_text(row['bytes'], 'byte')}, SHA-256 {row['sha256']}{made}")
        else:
            field = f"{row['field']}: " if row["field"] else ""
            screen.report(f"{row['file']}: {row['code']}: {field}{row['error']}")


def _pretty_processor(chain: dict[str, Any] | None) -> str:
    return json.dumps(chain, indent=2, ensure_ascii=False)


COMMANDS = {
    **POLICY_COMMANDS,
    "processor": Command(
        about="The processor of a queue: what a message must pass before the queue stores it. It consists of "
              "checks of headers, length, encoding, records, JSON and schemas, and of hooks of your own; it also "
              "says whether the SHA-256 of each payload is kept and compared on delivery. No check changes a "
              "byte. The sender of a rejected message gets an error with the check and the field, and nothing of "
              "the message is stored.\n\n"
              "A processor is the member 'processor' of the queue's policy, or of the server's setting "
              "'processors'.",
        examples=(
            ("EUC-KR text of at most 2000 bytes, its SHA-256 kept",
             "yirangmq processor set --queue atmh '{\"integrity\": \"sha256\", \"checks\": [{\"check\": \"length\", "
             "\"max\": 2000}, {\"check\": \"encoding\", \"encoding\": \"euc-kr\"}]}'"),
            ("check a file without storing it", "yirangmq processor check --queue atmh message.dat"),
            ("the queues with a processor", "yirangmq processor list"),
        ),
        subcommands={
            "set": (
                "set a processor; the rest of the policy stays",
                Command(
                    about="Check a processor and set it for the messages that come from now on. It replaces the "
                          "former one; the rest of the queue's policy stays.",
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
                "print the effective processor with all members",
                Command(
                    about="Print the effective processor of a queue with all members, and whether it comes from "
                          "the queue's policy or from the server's settings.",
                    examples=(
                        ("for people", "yirangmq processor show --queue atmh"),
                        ("for programs", "yirangmq processor show --queue atmh --json"),
                    ),
                    options=queue_options,
                    run=run_show,
                ),
            ),
            "list": (
                "list the queues with a processor",
                Command(
                    about="List every queue that has a processor; * is the processor that the server's settings "
                          "give to all others.",
                    examples=(
                        ("for people", "yirangmq processor list"),
                        ("for programs", "yirangmq processor list --json"),
                    ),
                    options=arguments.store,
                    run=run_list,
                ),
            ),
            "check": (
                "check files against a processor without storing them",
                Command(
                    about="Report for each file whether the queue would store it as a payload, and otherwise the "
                          "check or hook that rejects it, with the field. Nothing is stored. Hooks do run, in the "
                          "server if one holds the store. The exit code is 2 if a file is rejected.",
                    examples=(
                        ("two files", "yirangmq processor check --queue atmh good.dat bad.dat"),
                        ("with the headers that the checks need",
                         "yirangmq processor check --queue atmh message.dat --attribute bank=012 --type transfer"),
                    ),
                    options=check_options,
                    run=run_check,
                ),
            ),
            "remove": (
                "remove the processor of a queue",
                Command(
                    about="Remove the processor from a queue's policy. The processor of the server's settings, if "
                          "there is one, is then effective.",
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
