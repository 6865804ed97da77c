"""Commands ``cluster serve | create | roles``: a node on etcd, queues with their policy, roles of etcd's users.

The other ``cluster`` commands are in ``cli.commands.cluster_status``. grpcio is loaded only when a command runs."""

import argparse
import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from yirangmq.cli import arguments, output
from yirangmq.cli.command import Command
from yirangmq.cli.commands import cluster_status
from yirangmq.cli.commands.cluster_status import etcd_options, run_with
from yirangmq.cli.output import Screen
from yirangmq.clock import SystemClock, TimeOrderedIds, default_consumer
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.fsio.input_file import read_input
from yirangmq.observe import logs

if TYPE_CHECKING:
    from yirangmq.cluster.admin import EtcdRole
    from yirangmq.cluster.etcd.address import EtcdAddress
    from yirangmq.cluster.etcd.client import Etcd


# -- roles -------------------------------------------------------------------------------------------------------------

ABOUT = (
    "Show or create roles in etcd for the clients of a queue. A producer may write to its own inbox, a consumer may "
    "read and delete under its own path, and a node may do both for all clients. With --server the role is for the "
    "servers of a served store. 'print' shows the commands of etcdctl, 'apply' creates the roles. Create users and "
    "passwords yourself (etcdctl user add, user grant-role, auth enable). With etcd below 3.5.30 (3.6: 3.6.11; 3.4: "
    "3.4.44) users can bypass their roles."
)


def options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    parser.add_argument("act", choices=("print", "apply"), help="show the commands of etcdctl, or create the roles")
    arguments.queue(parser, needed=False, what="name of the queue")
    parser.add_argument(
        "--server", metavar="STORE", action="append", default=[],
        help="a role for the servers (yirangmq serve --store etcd://…?name=STORE) of this store; main: the store "
        "without a name; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--references", action="store_true",
        help="consumers may also read the line of the queue, as copies='reference' needs",
    )  # fmt: skip
    for name, what in (("--producer", "producer"), ("--consumer", "consumer")):
        parser.add_argument(name, metavar="NAME", action="append", default=[], help=f"name of a {what}; repeatable")


def _chosen(args: argparse.Namespace) -> "list[EtcdRole]":
    from yirangmq.cluster.admin import roles_of, server_role

    roles = [server_role(validation.check_queue(name, "--server")) for name in args.server]
    clients = (*args.producer, *args.consumer)
    if args.queue is None:
        if not roles or clients:
            raise BadInput("name a queue, or a served store with --server", field="QUEUE")
        return roles
    for client in clients:
        validation.check_consumer(client, "--producer/--consumer")
    queue = validation.check_dispatched_queue(args.queue, "QUEUE")
    return roles + roles_of(queue, args.producer, args.consumer, references=args.references)


def run(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.admin import as_commands, create_roles

    roles = _chosen(args)
    if args.act == "print":
        lines = as_commands(roles)
        screen.answer({"commands": lines}, "\n".join(lines))
        return output.OK

    async def make(etcd: "Etcd", _: "EtcdAddress") -> int:
        made = await create_roles(etcd, roles)
        known = [role.name for role in roles]
        screen.answer({"roles": known, "made": made}, "\n".join(known))
        return output.OK

    return run_with(args, make)


SUBCOMMANDS: dict[str, tuple[str, Command]] = {
    "roles": (
        "show or create roles for the clients in etcd",
        Command(
            about=ABOUT,
            examples=(
                (
                    "show the commands for a producer and a consumer",
                    "yirangmq cluster roles print jobs --producer ann --consumer bob",
                ),
                ("show the commands for the servers of a store", "yirangmq cluster roles print --server main"),
                (
                    "create the role of a producer",
                    "yirangmq cluster roles apply jobs --producer ann --store 'etcd://h1?user=root'",
                ),
            ),
            options=options,
            run=run,
        ),
    ),
}


# -- serve and create --------------------------------------------------------------------------------------------------

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
MAX_POLICY_BYTES = 1024 * 1024


def serve_options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    parser.add_argument("--node", metavar="NAME", help="name of this node (default: host and process)")
    parser.add_argument(
        "--lease", metavar="SECONDS", type=int, default=5,
        help="time after the failure of this node until another may lead (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--window", metavar="N", type=int, default=256, help="maximum of unacked messages of a consumer (default: 256)"
    )
    parser.add_argument(
        "--watchdog", metavar="SECONDS", type=float, default=10.0,
        help="depose a leader that does not process its inbox for this time (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--compact", metavar="SECONDS", type=float, default=30.0,
        help="age above which the node compacts etcd's history; 0: never (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--quota", metavar="BYTES", type=int, default=2 * 1024**3,
        help="etcd's --quota-backend-bytes, if its members do not report it (default: 2 GiB)",
    )  # fmt: skip
    parser.add_argument(
        "--idle", metavar="SECONDS", type=float, default=600.0,
        help="release the lead of a queue that is idle for this time (default: 600)",
    )  # fmt: skip
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="level of log lines (default: info)",
    )
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, default="auto", help="format (default: text on a terminal, else JSON)"
    )


def run_serve(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.dispatch.dispatcher import DispatcherOptions
    from yirangmq.cluster.node import ClusterNode, ClusterNodeSettings

    for name, least in (("lease", 1), ("window", 1), ("watchdog", 1), ("compact", 0), ("quota", 1), ("idle", 1)):
        if getattr(args, name) < least:
            raise BadInput(f"must be {least} or more", field=f"--{name}")
    name = validation.check_consumer(args.node or default_consumer(), "--node")
    logs.start_log(args.log_level, args.log_format, sys.stderr)
    settings = ClusterNodeSettings(
        name=name,
        lease=args.lease,
        watchdog=args.watchdog,
        compact=args.compact,
        quota=args.quota,
        dispatcher_options=DispatcherOptions(window=args.window, idle_ms=round(args.idle * 1000)),
    )

    async def serve(etcd: "Etcd", address: "EtcdAddress") -> int:
        stop, caught = asyncio.Event(), []

        def end(number: int) -> None:
            caught.append(number)
            stop.set()

        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        node = ClusterNode(etcd, address, SystemClock(), TimeOrderedIds(), settings)
        await node.check_free()
        screen.answer({"node": name, "etcd": list(address.endpoints)}, f"node {name} serves the queues of the cluster")
        screen.flush()
        await node.run(stop)
        return output.INTERRUPTED if caught == [signal.SIGINT] else output.OK

    return run_with(args, serve)


def create_options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    arguments.queue(parser, what="name of the queue")
    parser.add_argument("--policy", metavar="FILE", help="JSON file with the policy, '-' for stdin (docs/policy.md)")
    parser.add_argument(
        "--long-keys", action=argparse.BooleanOptionalAction,
        help="keep a second copy of the queue's line under /queue/QUEUE/, for clients that watch there (default: no "
        "change; a new queue has no second copy)",
    )  # fmt: skip


def run_create(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.keys import set_long_keys, write_policy

    queue = validation.check_dispatched_queue(args.queue, "QUEUE")
    text = read_input(args.policy, MAX_POLICY_BYTES) if args.policy else b"{}"

    async def create(etcd: "Etcd", _: "EtcdAddress") -> int:
        was_new = await write_policy(etcd, queue, text)
        if args.long_keys is not None:
            await set_long_keys(etcd, queue, on=args.long_keys)
        done = "created" if was_new else "policy replaced"
        screen.answer({"queue": queue, "created": was_new}, f"{queue}: {done}")
        return output.OK

    return run_with(args, create)


COMMANDS = {
    "cluster": Command(
        about="Run and inspect queues on an etcd cluster, in which any etcd client can be a producer or a consumer. "
        "docs/cluster.md says when to use it. Needs yirangmq[etcd].",
        examples=(
            ("run a node on an etcd of three members", "yirangmq cluster serve --store etcd://h1,h2,h3"),
            ("show the state of the queues", "yirangmq cluster status --store etcd://h1,h2,h3"),
        ),
        subcommands={
            "serve": (
                "run a node: it dispatches the queues it leads",
                Command(
                    about="Run a node. It competes for the lead of every queue in etcd and dispatches the queues that "
                    "it leads: it moves messages from the inbox into the line and assigns them to consumers. Run two "
                    "or more nodes, on any machines. If a node fails, another leads after its lease has ended. A node "
                    "that gets SIGTERM hands over at once.",
                    examples=(
                        ("a node on an etcd of three members", "yirangmq cluster serve --store etcd://h1,h2,h3"),
                        (
                            "with TLS and a user; the password in YIRANGMQ_ETCD_PASSWORD",
                            "yirangmq cluster serve --store 'etcd://h1?ca=ca.pem&user=dispatcher' --node alpha",
                        ),
                    ),
                    options=serve_options,
                    run=run_serve,
                ),
            ),
            "create": (
                "create a queue, or replace its policy",
                Command(
                    about="Create a queue before its first message, with or without a policy. If the queue exists, "
                    "the command replaces its policy. Members of a policy that dispatched queues do not support are "
                    "refused.",
                    examples=(
                        ("with the default policy", "yirangmq cluster create jobs --store etcd://h1,h2,h3"),
                        ("with a policy", "yirangmq cluster create jobs --policy jobs.json --store etcd://h1"),
                        ("for clients that watch /queue/jobs/", "yirangmq cluster create jobs --long-keys"),
                    ),
                    options=create_options,
                    run=run_create,
                ),
            ),
            **cluster_status.SUBCOMMANDS,
            **SUBCOMMANDS,
        },
    ),
}
