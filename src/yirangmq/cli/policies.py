"""``policy get | set | validate``."""

import argparse
import json
from typing import Any

from yirangmq.broker import policies
from yirangmq.broker.admission.admission import Schemas
from yirangmq.cli import exits, options, place
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.cli.values import read_input
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.policy import show_policy
from yirangmq.format.json_codec import loads

LARGEST = 4 * 1024 * 1024
"""A policy may carry schemas, but not more than this."""


def get_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    options.store(parser)


def set_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    _document_options(parser)
    parser.add_argument("--defaults", action="store_true", help="go back to the defaults")
    options.dry_run(parser)
    options.store(parser)


def validate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--queue", metavar="NAME", default="queue", help="for which queue (default: any)")
    _document_options(parser)


def _document_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", nargs="?", metavar="JSON", help="the policy, as JSON text")
    parser.add_argument("--file", metavar="FILE", help="read it from a file, or from stdin with -")


def _document(args: argparse.Namespace) -> Any:
    if (args.document is None) == (args.file is None):
        raise BadInput("give one of: JSON text, --file FILE (or --file -)", field="policy")
    text = args.document.encode() if args.file is None else read_input(args.file, LARGEST)
    try:
        return loads(text)
    except BadInput as error:
        raise BadPolicy(str(error), field="policy") from None


def run_get(args: argparse.Namespace, screen: Screen) -> int:
    with place.seen(args, screen) as queues:
        policy = queues.policy(args.queue)
        own = queues.read(lambda transaction: transaction.policy_text(args.queue)) is not None
    screen.answer({"queue": args.queue, "own": own, "policy": policy}, _pretty(policy))
    return exits.OK


def run_set(args: argparse.Namespace, screen: Screen) -> int:
    if args.defaults and (args.document is not None or args.file is not None):
        raise BadInput("and a document; give one of them", field="--defaults")
    document = None if args.defaults else _document(args)
    if args.dry_run:
        policy = _checked(args.queue, {} if document is None else document)
    else:
        with place.opened(args) as queues:
            policy = queues.set_policy(args.queue, document)
    done = "would be" if args.dry_run else "is"
    value = {"queue": args.queue, "dryRun": args.dry_run, "policy": policy}
    screen.answer(value, f"the policy of {args.queue} {done} now\n{_pretty(policy)}")
    return exits.OK


def run_validate(args: argparse.Namespace, screen: Screen) -> int:
    policy = _checked(args.queue, _document(args))
    screen.answer({"policy": policy}, f"a good policy; with its defaults spelled out:\n{_pretty(policy)}")
    return exits.OK


def _checked(queue: str, document: object) -> dict[str, Any]:
    """As ``Queues.check_policy``, without a store."""
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
        verbs={
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
