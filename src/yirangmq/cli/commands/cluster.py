"""Commands ``cluster serve | create | roles``: a node on etcd, queues with their policy, roles of etcd's users.

The other ``cluster`` commands are in ``cli.commands.cluster_status``. grpcio is loaded only when a command runs."""

import argparse
import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from yirangmq.cli import output
from yirangmq.cli.arguments import read_input
from yirangmq.cli.command import Command
from yirangmq.cli.commands import cluster_status
from yirangmq.cli.commands.cluster_status import etcd_options, run_with
from yirangmq.cli.output import Screen
from yirangmq.clock import SystemClock, TimeOrderedIds, default_consumer
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.observe import logs

if TYPE_CHECKING:
    from yirangmq.cluster.admin import EtcdRole
    from yirangmq.cluster.etcd.address import EtcdAddress
    from yirangmq.cluster.etcd.client import Etcd


# -- roles -------------------------------------------------------------------------------------------------------------

ABOUT = (
    "Roles of etcd that fit the keys of a queue: a producer writes into its own inbox, a consumer reads and "
    "deletes under its own path, a node does all; with --server a server has a served store. 'print' shows "
    "the commands of etcdctl, 'apply' makes the roles; users and their passwords are yours to make (etcdctl user "
    "add, user grant-role, auth enable). With etcd below 3.5.30 (3.6: 3.6.11; 3.4: 3.4.44) users can pass by their "
    "roles."
)


def options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    parser.add_argument("act", choices=("print", "apply"), help="show the commands of etcdctl, or make the roles")
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="of which queue")
    parser.add_argument(
        "--server", metavar="STORE", action="append", default=[],
        help="for servers (yirangmq serve --store etcd://…?name=STORE) before this store; main: the one without name",
    )  # fmt: skip
    parser.add_argument(
        "--references", action="store_true",
        help="consumers may read the messages in line, as those with copies='reference' do",
    )  # fmt: skip
    for name, what in (("--producer", "sends"), ("--consumer", "takes")):
        parser.add_argument(name, metavar="NAME", action="append", default=[], help=f"a client that {what}; repeat it")


def _chosen(args: argparse.Namespace) -> "list[EtcdRole]":
    from yirangmq.cluster.admin import roles_of, server_role

    roles = [server_role(validation.check_queue(name, "--server")) for name in args.server]
    clients = (*args.producer, *args.consumer)
    if args.queue is None:
        if not roles or clients:
            raise BadInput("name a queue, or with --server a served store", field="QUEUE")
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
        "who may do what in etcd",
        Command(
            about=ABOUT,
            examples=(
                ("the commands", "yirangmq cluster roles print jobs --producer ann --consumer bob"),
                ("for the servers before a store in etcd", "yirangmq cluster roles print --server main"),
                ("make them", "yirangmq cluster roles apply jobs --producer ann --store 'etcd://h1?user=root'"),
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
    parser.add_argument("--node", metavar="NAME", help="the name of this node (default: host and process)")
    parser.add_argument("--lease", metavar="SECONDS", type=int, default=5, help="how soon others may lead (default: 5)")
    parser.add_argument(
        "--window", metavar="N", type=int, default=256, help="messages a consumer has unacked at once (default: 256)"
    )
    parser.add_argument(
        "--watchdog", metavar="SECONDS", type=float, default=10.0,
        help="depose a leader that leaves its inbox alone for so long (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--compact", metavar="SECONDS", type=float, default=30.0,
        help="throw etcd's history away that is older than this; 0: leave it to etcd (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--quota", metavar="BYTES", type=int, default=2 * 1024**3,
        help="etcd's --quota-backend-bytes, where its members do not tell it (default: 2 GiB)",
    )  # fmt: skip
    parser.add_argument("--idle", metavar="SECONDS", type=float, default=600.0, help="rest after (default: 600)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(info)")
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, default="auto", help="log lines (default: text on a terminal, else JSON)"
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
    parser.add_argument("queue", metavar="QUEUE", help="its name")
    parser.add_argument("--policy", metavar="FILE", help="JSON file with its policy, '-' for stdin (docs/policy.md)")
    parser.add_argument(
        "--long-keys", action=argparse.BooleanOptionalAction,
        help="put each message in line under /queue/QUEUE/ too, for clients that watch there (default: as it is; a new "
        "queue has no such copies)",
    )  # fmt: skip


def run_create(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.keys import set_long_keys, write_policy

    queue = validation.check_dispatched_queue(args.queue, "QUEUE")
    text = read_input(args.policy, MAX_POLICY_BYTES) if args.policy else b"{}"

    async def create(etcd: "Etcd", _: "EtcdAddress") -> int:
        was_new = await write_policy(etcd, queue, text)
        if args.long_keys is not None:
            await set_long_keys(etcd, queue, on=args.long_keys)
        done = "created" if was_new else "defined anew"
        screen.answer({"queue": queue, "created": was_new}, f"{queue}: {done}")
        return output.OK

    return run_with(args, create)


COMMANDS = {
    "cluster": Command(
        about="The same queues on an etcd cluster, where any etcd client is a producer or a consumer. See "
        "docs/cluster.md for when to use it and when not. Needs yirangmq[etcd].",
        examples=(
            ("serve the queues of three members", "yirangmq cluster serve --store etcd://h1,h2,h3"),
            ("how the cluster is", "yirangmq cluster status --store etcd://h1,h2,h3"),
        ),
        subcommands={
            "serve": (
                "run a node: it dispatches the queues it leads",
                Command(
                    about="Run a node. It stands for every queue found in etcd and dispatches those it leads: out of "
                    "the inbox, into line, to the consumers. Run two or more, on any machines; when one dies another "
                    "leads after the lease has ended. SIGTERM hands over at once.",
                    examples=(
                        ("a node for a cluster of three", "yirangmq cluster serve --store etcd://h1,h2,h3"),
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
                "create a queue, or define it anew",
                Command(
                    about="Create a queue before its first message, with a policy or without; the policy of a queue "
                    "that is there is replaced. Members of a policy that a cluster does not act on are refused.",
                    examples=(
                        ("with the usual numbers", "yirangmq cluster create jobs --store etcd://h1,h2,h3"),
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
