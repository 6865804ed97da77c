"""Commands ``pair status | switch | handover | history | adopt``: a failover pair.

Each calls a method of one of the two servers. ``history --folder`` reads the file of a node that does not run."""

import argparse
from pathlib import Path
from typing import Any

from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import format_duration
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.core.alert_rules import KEYS_DIFFER
from yirangmq.core.errors import QueueError, Unavailable, Unreachable, WrongState
from yirangmq.failover.state_file import read_history

SWITCH_SECONDS = 60
SHOWN = 20


def _call(args: argparse.Namespace, method: str, **values: Any) -> Any:
    with connection.open_existing(args) as queues:
        if connection.address_of(queues) is None:
            raise Unavailable("no server holds this store; a pair is reached through one of its servers")
        return connection.call(queues, method, **values)


# -- status ---------------------------------------------------------------------------------------------------------


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    found = _call(args, "pair_status")
    peer = found["peer"]
    works = "works" if found["works"] else "does not work"
    lines = [f"{found['node']}: {found['role']}, {found['status']}, term {found['term']}, {works}"]
    if peer is None:
        lines.append("no contact with the peer yet")
    else:
        contact_text = f"last contact {format_duration(peer['heardSec'])} ago" + (", SILENT" if peer["silent"] else "")
        lines.append(f"{peer['node']}: {peer['role']}, {peer['status']}, term {peer['term']}, {contact_text}")
    if found.get("keysDiffer"):
        lines.append(KEYS_DIFFER)
    elif found.get("withoutActiveSec", 0) > found["timeoutSec"]:
        lines.append(f"no node is known to be active for {format_duration(found['withoutActiveSec'])}")
    if not found.get("handover", True):
        lines.append("a stop of this node hands nothing over: switched off")
    lines += [f"  {step}: {text}" for step, text in found["evidence"]]
    waiting = sum(found["backlog"].values())
    if waiting and not found["works"]:
        lines.append(f"{waiting} messages wait on this node's disk until it is active again, or they are adopted")
    screen.answer(found, "\n".join(lines))
    return output.OK


# -- switch ---------------------------------------------------------------------------------------------------------


def switch_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)
    parser.add_argument(
        "--seconds", type=int, default=SWITCH_SECONDS, metavar="N", help=f"wait so long (default: {SWITCH_SECONDS})"
    )


def _order_switch(args: argparse.Namespace, target: str) -> Any:
    """Order the switch once: the request itself waits for ``--seconds``, and each retry would wait as long again."""
    try:
        return _call(argparse.Namespace(**vars(args), retries=0), "pair_switch", to=target, seconds=args.seconds)
    except Unreachable as error:
        answer = error.__cause__
        if isinstance(answer, QueueError) and answer.field == "switch":  # the node did answer
            raise answer from None
        raise


def run_switch(args: argparse.Namespace, screen: Screen) -> int:
    now = _call(args, "pair_status")
    peer = now["peer"]
    if now["role"] == "ACTIVE" and peer is None:
        raise WrongState("no contact with the peer yet: there is no standby to hand over to", field="switch")
    target = peer["node"] if now["role"] == "ACTIVE" else now["node"]
    with ProgressBar(f"switching to {target}", shown=screen.shows_progress):
        found = _order_switch(args, target)
    active = found["node"] if found["role"] == "ACTIVE" else found["peer"]["node"]
    text = f"{active} is active in term {found['term']}, after {found['seconds']:g} s"
    for queue, count in found["left"].items():
        text += f"\n{count} messages of {queue} wait on the disk of {found['node']}"
    screen.answer({**found, "active": active}, text)
    return output.OK


# -- hand-over before a stop ----------------------------------------------------------------------------------------


def handover_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)
    parser.add_argument(
        "state", choices=("on", "off"), metavar="STATE", help="on: a stop hands over first; off: it does not"
    )


def run_handover(args: argparse.Namespace, screen: Screen) -> int:
    found = _call(args, "pair_handover", on=args.state == "on")
    effect = "makes the standby active first, if it is ready" if found["handover"] else "hands nothing over"
    screen.answer(found, f"an orderly stop of {found['node']} {effect}, until it is started again")
    return output.OK


# -- history --------------------------------------------------------------------------------------------------------


def history_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)
    arguments.limit(parser, f"the latest N decisions (default: {SHOWN})", default=SHOWN)
    parser.add_argument("--folder", metavar="FOLDER", help="folder of a node that does not run: its DATA/pair")


def run_history(args: argparse.Namespace, screen: Screen) -> int:
    if args.folder:
        found = read_history(Path(args.folder), max(1, args.limit))
    else:
        found = _call(args, "pair_history", limit=max(1, args.limit))
    for line in found:
        if screen.json:
            screen.document(line)
        else:
            screen.report(_history_line(line))
    return output.OK


def _history_line(line: dict[str, Any]) -> str:
    known = ("at", "event", "node", "evidence", "role", "term")
    more = "".join(f", {name} {value}" for name, value in line.items() if name not in known)
    term = f", term {line['term']}" if "term" in line else ""
    head = f"{line['at']}  {line['event']}{term}{more}"
    return "\n".join([head, *(f"    {step}: {text}" for step, text in line.get("evidence", ()))])


# -- adopt ----------------------------------------------------------------------------------------------------------


def adopt_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)
    parser.add_argument("source", metavar="STORE", help="store of the failed node: sqlite:FILE or files:FOLDER")
    parser.add_argument("--node", required=True, metavar="NAME", help="name of the failed node")
    parser.add_argument("--dry-run", action="store_true", help="count the messages and change nothing")


def run_adopt(args: argparse.Namespace, screen: Screen) -> int:
    scheme, _, path = args.source.partition(":")
    source = f"{scheme}:{Path(path).absolute()}" if path else args.source
    with ProgressBar("adopting", shown=screen.shows_progress):
        found = _call(args, "pair_adopt", store=source, node=args.node, dry_run=args.dry_run)
    verb = "would be adopted" if args.dry_run else "adopted"
    text = f"{found['messages']} messages {verb}, {found['known']} were known here"
    screen.answer(found, "\n".join([text, *(f"  {queue}: {count}" for queue, count in found["adopted"].items())]))
    return output.OK


COMMANDS = {
    "pair": Command(
        about="Two servers of which one is active (docs/pair.md). Both servers answer these commands, each from "
        "what it knows.",
        examples=(
            ("the active node, and the evidence", "yirangmq pair status"),
            ("before patching this machine", "yirangmq pair switch"),
        ),
        subcommands={
            "status": (
                "show both nodes, as this one knows them",
                Command(
                    about="Show role, status and term of this node and of its peer, with the evidence for its "
                    "last decision.",
                    examples=(
                        ("this node", "yirangmq pair status"),
                        ("the other node, for programs", "yirangmq pair status --store tcp://10.0.0.2:7411 --json"),
                    ),
                    options=arguments.store,
                    run=run_status,
                ),
            ),
            "switch": (
                "make the standby active",
                Command(
                    about="Make the standby active, and the active node the standby. Either node takes the "
                    "command. Publishers wait while the active node drains; messages that no consumer "
                    "leases stay on its disk and are reported. The command returns when the other node is "
                    "active (exit code 0), or reports why it is not (10; 4 if there is no standby). A "
                    "standby whose peer was stopped by hand takes over.",
                    examples=(
                        ("in a job that patches this machine", "yirangmq pair switch"),
                        ("with a longer wait", "yirangmq pair switch --seconds 300"),
                    ),
                    options=switch_options,
                    run=run_switch,
                ),
            ),
            "handover": (
                "set whether a stop of this node hands over first",
                Command(
                    about="Before an orderly stop (SIGTERM) the active node makes the standby active, if it is "
                    "ready. Turn this off in the active node before both nodes are stopped for maintenance: "
                    "the node then stops without a takeover, and must be started first. The choice lasts "
                    "until that start; the setting pair_handover sets it for every start.",
                    examples=(
                        ("both nodes will be stopped", "yirangmq pair handover off"),
                        ("only this node will be stopped", "yirangmq pair handover on"),
                    ),
                    options=handover_options,
                    run=run_handover,
                ),
            ),
            "history": (
                "print the decisions of this node with the evidence",
                Command(
                    about="Print the decisions of this node, the oldest first: time, term, and each step that led "
                    "to it (docs/pair.md explains them).",
                    examples=(
                        ("the latest twenty", "yirangmq pair history"),
                        ("of a node that does not run", "yirangmq pair history --folder /mnt/old/yirang-data/pair"),
                    ),
                    options=history_options,
                    run=run_history,
                ),
            ),
            "adopt": (
                "adopt messages from the disk of a failed node",
                Command(
                    about="Move the waiting messages from the store of the other node, which must not run, to the "
                    "active node. Each message is stored here and then dropped there; ids are remembered, "
                    "so that no message is delivered by both. An interrupted adoption is repeated: until it "
                    "is complete the other node does not start.",
                    examples=(
                        ("from its disk", "yirangmq pair adopt sqlite:/mnt/old/yirang-data/queue.db --node gateway-1"),
                        (
                            "count the messages without a change",
                            "yirangmq pair adopt sqlite:/mnt/old/queue.db --node gateway-1 --dry-run",
                        ),
                    ),
                    options=adopt_options,
                    run=run_adopt,
                ),
            ),
        },
    )
}
