"""``cluster roles``: who may do what in etcd."""

import argparse
from typing import TYPE_CHECKING

from yirangmq.cli import exits
from yirangmq.cli.cluster_options import etcd_options, run_with
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.core import names

if TYPE_CHECKING:
    from yirangmq.cluster.address import Address
    from yirangmq.cluster.etcd import Etcd

ABOUT = (
    "Roles of etcd that fit the keys of a queue: a producer writes into its own inbox, a consumer reads and "
    "deletes under its own path, a node does all. 'print' shows the commands of etcdctl, 'apply' makes the "
    "roles; users and their passwords are yours to make (etcdctl user add, user grant-role, auth enable). With "
    "etcd below 3.5.28 (3.4: below 3.4.42) users can pass by their roles."
)


def options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    parser.add_argument("act", choices=("print", "apply"), help="show the commands of etcdctl, or make the roles")
    parser.add_argument("queue", metavar="QUEUE", help="of which queue")
    for name, what in (("--producer", "sends"), ("--consumer", "takes")):
        parser.add_argument(name, metavar="NAME", action="append", default=[], help=f"a client that {what}; repeat it")


def run(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.roles import apply, as_commands, roles_of

    queue = names.check_queue(args.queue, "QUEUE")
    for client in (*args.producer, *args.consumer):
        names.check_consumer(client, "--producer/--consumer")
    roles = roles_of(queue, args.producer, args.consumer)
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
                ("make them", "yirangmq cluster roles apply jobs --producer ann --store 'etcd://h1?user=root'"),
            ),
            options=options,
            run=run,
        ),
    ),
}
