"""``cluster roles``: who may do what in etcd."""

import argparse
from typing import TYPE_CHECKING

from yirangmq.cli import exits
from yirangmq.cli.cluster_options import etcd_options, run_with
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.core import validation
from yirangmq.core.errors import BadInput

if TYPE_CHECKING:
    from yirangmq.cluster.admin import Role
    from yirangmq.cluster.etcd.address import Address
    from yirangmq.cluster.etcd.client import Etcd

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
    for name, what in (("--producer", "sends"), ("--consumer", "takes")):
        parser.add_argument(name, metavar="NAME", action="append", default=[], help=f"a client that {what}; repeat it")


def _chosen(args: argparse.Namespace) -> "list[Role]":
    from yirangmq.cluster.admin import roles_of, server_role

    roles = [server_role(validation.check_queue(name, "--server")) for name in args.server]
    clients = (*args.producer, *args.consumer)
    if args.queue is None:
        if not roles or clients:
            raise BadInput("name a queue, or with --server a served store", field="QUEUE")
        return roles
    for client in clients:
        validation.check_consumer(client, "--producer/--consumer")
    return roles + roles_of(validation.check_queue(args.queue, "QUEUE"), args.producer, args.consumer)


def run(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.admin import apply, as_commands

    roles = _chosen(args)
    if args.act == "print":
        lines = as_commands(roles)
        screen.answer({"commands": lines}, "\n".join(lines))
        return exits.OK

    async def make(etcd: "Etcd", _: "Address") -> int:
        made = await apply(etcd, roles)
        known = [role.name for role in roles]
        screen.answer({"roles": known, "made": made}, "\n".join(known))
        return exits.OK

    return run_with(args, make)


VERBS: dict[str, tuple[str, Command]] = {
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
