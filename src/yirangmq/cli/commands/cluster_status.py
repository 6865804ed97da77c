"""Commands ``cluster status | members | leader | move-leader | doctor | repair``; shared options.

All ``cluster`` commands use its options. The shared part reads the etcd address from options and environment, and runs
a coroutine with a client in a new event loop. It uses uvloop if that is installed: about a third more messages/s."""

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from yirangmq.cli import arguments, output
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.table import TableColumn
from yirangmq.clock import SystemClock
from yirangmq.core import validation
from yirangmq.core.errors import NotFound, QueueError, TimedOut
from yirangmq.observe import prometheus

if TYPE_CHECKING:
    from yirangmq.cluster.admin import DispatchedQueueStatus
    from yirangmq.cluster.etcd.address import EtcdAddress
    from yirangmq.cluster.etcd.client import Etcd
    from yirangmq.cluster.etcd.diagnostics import Repair
    from yirangmq.observe.prometheus import MetricValue


# -- shared options and the etcd client --------------------------------------------------------------------------------

Answer = TypeVar("Answer")
DEFAULT = "etcd://127.0.0.1:2379"
FILES = {
    "ca": "certificate authority of etcd's certificates",
    "cert": "client certificate for etcd",
    "key": "private key of the client certificate",
}


def etcd_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--store",
        metavar="URL",
        default=None,
        help="etcd://HOST:PORT,HOST:PORT,… with ?user=…&password-file=…&ca=…&cert=…&key=… "
        f"(default: $YIRANGMQ_ETCD or {DEFAULT})",
    )
    for name, what in FILES.items():
        variable = f"$YIRANGMQ_ETCD_{name.upper()}"
        group.add_argument(
            f"--{name}", metavar="FILE", help=f"{what}, a PEM file (or {variable}, or {name}=… in the URL)"
        )


def run_with(args: argparse.Namespace, act: Callable[["Etcd", "EtcdAddress"], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run ``act`` with an etcd client, in a new event loop."""
    from yirangmq.cluster.etcd.address import read_address
    from yirangmq.cluster.etcd.client import Etcd

    address = read_address(with_files(args, os.environ), os.environ)

    async def whole() -> Answer:
        async with Etcd(address) as etcd:
            return await act(etcd, address)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(whole())


def with_files(args: argparse.Namespace, env: Mapping[str, str]) -> str:
    """Return the URL of etcd. TLS files that it does not name are added from the options or the environment."""
    url = str(args.store or env.get("YIRANGMQ_ETCD") or DEFAULT)
    named = {name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    files = {name: getattr(args, name) or env.get(f"YIRANGMQ_ETCD_{name.upper()}", "") for name in FILES}
    added = urlencode({name: file for name, file in files.items() if file and name not in named})
    return f"{url}{'&' if '?' in url else '?'}{added}" if added else url


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop, or None if it is not installed. uvloop gives about a third more messages/s."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


# -- commands ----------------------------------------------------------------------------------------------------------

QUEUES = (
    TableColumn("queue"),
    TableColumn("leader"),
    TableColumn("inbox", right=True),
    TableColumn("line", right=True),
    TableColumn("waiting", right=True, rank=2),
    TableColumn("leased", right=True, rank=1),
    TableColumn("returned", right=True, rank=3),
    TableColumn("dead", right=True, alarms=True),
    TableColumn("consumers", right=True, rank=1),
    TableColumn("moved", right=True, rank=5),
    TableColumn("acked", right=True, rank=4),
)
CLUSTER_METRICS = {
    "inbox": "inbox", "line": "line", "waiting": "waiting", "leased": "given", "returned": "again", "dead": "dead",
    "consumers": "consumers", "moved_total": "moved", "acked_total": "acked",
}  # fmt: skip
"""Metrics of a queue in etcd, and the member of its status that each shows."""
MEMBERS = (
    TableColumn("member"),
    TableColumn("endpoint"),
    TableColumn("version", rank=1),
    TableColumn("role"),
    TableColumn("MiB", right=True, rank=2),
    TableColumn("in use", right=True, rank=3),
    TableColumn("term", right=True, rank=4),
    TableColumn("errors", shrinks=True),
)
TIMEOUT_SECONDS = 15.0
QUOTA = 2 * 1024**3


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.admin import queue_statuses
    from yirangmq.cluster.discovery import find_ignored_keys, is_served

    async def collect(etcd: "Etcd", _: "EtcdAddress") -> int:
        found = await queue_statuses(etcd)
        ignored = await find_ignored_keys(etcd, served=await is_served(etcd))
        if args.metrics:
            text = prometheus.samples_page(status_samples(found, len(ignored)))
            screen.answer({"metrics": text}, text.rstrip("\n"))
        elif screen.json:
            keys = [one._asdict() for one in ignored]
            screen.document({"ok": True, "queues": [one._asdict() for one in found], "ignored": keys})
        else:
            screen.table(QUEUES, [one[: len(QUEUES)] for one in found])
            for one in ignored:
                screen.report(f"ignored: {one.key}: {one.reason}")
        return output.OK

    return run_with(args, collect)


def status_samples(queues: "Sequence[DispatchedQueueStatus]", ignored: int) -> "dict[str, MetricValue]":
    """Return the metrics of the queues in etcd."""
    found: dict[str, MetricValue] = {
        f"yirangmq_cluster_{metric}": [({"queue": one.queue}, getattr(one, name)) for one in queues]
        for metric, name in CLUSTER_METRICS.items()
    }
    return found | {"yirangmq_cluster_ignored_keys": [({}, ignored)]}


async def _members(etcd: "Etcd", address: "EtcdAddress") -> list[dict[str, Any]]:
    from yirangmq.cluster.etcd.maintenance import Maintenance

    upkeep = Maintenance(address, etcd.connection)
    known = {one.ID: one.name for one in await upkeep.members()}
    found: list[dict[str, Any]] = []
    for endpoint in address.endpoints:
        try:
            found.append((await upkeep.health(endpoint, known))._asdict())
        except QueueError as error:
            found.append({"endpoint": endpoint, "errors": (str(error),)})
    return found


def run_members(args: argparse.Namespace, screen: Screen) -> int:
    found = run_with(args, _members)
    if screen.json:
        screen.document({"ok": True, "members": found})
    else:
        screen.table(MEMBERS, [_member_row(one) for one in found])
    return output.OK


def _member_row(one: dict[str, Any]) -> tuple[object, ...]:
    if "version" not in one:
        return None, one["endpoint"], None, None, None, None, None, one["errors"][0]
    role = "leader" if one["leads"] else "learner" if one["learner"] else "follower"
    sizes = (one["size"] >> 20, one["in_use"] >> 20)
    return one["name"], one["endpoint"], one["version"], role, *sizes, one["term"], ", ".join(one["errors"]) or None


def run_leader(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.admin import queue_status, queue_statuses
    from yirangmq.cluster.leadership import find_leader

    async def collect(etcd: "Etcd", address: "EtcdAddress") -> int:
        queue = validation.check_dispatched_queue(args.queue) if args.queue else ""
        chosen = [await queue_status(etcd, queue)] if queue else await queue_statuses(etcd)
        leads = {one.queue: one.leader or None for one in chosen}
        if queue and leads[queue] is None:
            raise NotFound(f"no node leads {queue}", field="queue")
        head = [one for one in await _members(etcd, address) if one.get("leads")]
        name = head[0]["name"] if head else None
        serves = await find_leader(etcd, address.name)
        node = None if serves is None else serves.node
        if screen.json:
            at = [] if serves is None else list(serves.addresses)
            served = {"store": address.name, "leader": node, "addresses": at}
            screen.document({"ok": True, "etcd": name, "served": served, "queues": leads})
        else:
            served_row = (f"the served store {address.name}", node)
            screen.table(
                (TableColumn("queue"), TableColumn("leader")), [("etcd itself", name), served_row, *leads.items()]
            )
        return output.OK

    return run_with(args, collect)


def run_move_leader(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.admin import depose, next_leader

    queue = validation.check_dispatched_queue(args.queue)

    async def move(etcd: "Etcd", _: "EtcdAddress") -> int:
        before = await depose(etcd, queue)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                after = await next_leader(etcd, queue)
        except TimeoutError:
            raise TimedOut(
                f"{before} no longer leads {queue}, and no node became its leader within {TIMEOUT_SECONDS:g} s"
            ) from None
        screen.answer({"queue": queue, "before": before, "after": after}, f"{queue}: {before} → {after}")
        return output.OK

    return run_with(args, move)


def run_doctor(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.etcd.diagnostics import FAIL, run_checks

    async def collect(etcd: "Etcd", address: "EtcdAddress") -> int:
        signs = await run_checks(etcd, address, args.quota, SystemClock().now_ms())
        is_well = all(sign.level != FAIL for sign in signs)
        if screen.json:
            screen.document({"ok": is_well, "signs": [sign._asdict() for sign in signs]})
        else:
            for sign in signs:
                screen.report(f"{sign.level}: {sign.code}: {sign.text}")
        return output.OK if is_well else output.UNHEALTHY

    return run_with(args, collect)


STILL_FULL = (
    "etcd is still full: all its data is in use. Delete keys that are not needed (those of other programs, or of an "
    "inbox), or start its members with a larger --quota-backend-bytes, and repair again"
)


def run_repair(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.cluster.etcd.diagnostics import repair

    async def mend(etcd: "Etcd", address: "EtcdAddress") -> int:
        with ProgressBar("repairing etcd", shown=screen.shows_progress) as show:
            done = await repair(etcd, address, lambda text: show.print(lambda: screen.note(text)))
        document = done._asdict()
        document["leftOut"] = list(document.pop("left_out"))
        screen.answer(document | {"freed": done.freed}, repair_text(done))
        return output.UNHEALTHY if done.full else output.OK

    return run_with(args, mend)


def repair_text(done: "Repair") -> str:
    """Format the result of a repair: a line for each member, then what an operator has left to do."""
    lines = []
    for endpoint, freed in done.freed.items():
        sizes = [size / 1024**2 for size in (done.before[endpoint], done.after[endpoint], freed)]
        lines.append("{}: {:.1f} MiB before, {:.1f} MiB after, {:.1f} MiB freed".format(endpoint, *sizes))
    if done.left_out:
        lines.append(f"not repaired, because --store does not name them: {', '.join(done.left_out)}")
    number = f"{done.lifted} alarm{'s' if done.lifted > 1 else ''} lifted" if done.lifted else "no alarm was raised"
    lines.append(f"{number}; {STILL_FULL}" if done.full else number)
    return "\n".join(lines)


def _status_options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    parser.add_argument(
        "--metrics", action="store_true", help="print metrics in the text format of Prometheus (docs/metrics.md)"
    )


def _queue_option(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    arguments.queue(parser, what="name of the queue")


def _leader_options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    arguments.queue(parser, needed=False, what="show this queue only")


def _doctor_options(parser: argparse.ArgumentParser) -> None:
    etcd_options(parser)
    parser.add_argument(
        "--quota", metavar="BYTES", type=int, default=QUOTA,
        help="etcd's --quota-backend-bytes, if its members do not report it (default: 2 GiB)",
    )  # fmt: skip


SUBCOMMANDS: dict[str, tuple[str, Command]] = {
    "status": (
        "show leader and message counts of each queue",
        Command(
            about="Show each queue in etcd with its leader and counts: messages in the inbox and in the line; of "
            "these, messages that were never delivered, are leased, or were returned after a delivery; dead letters; "
            "consumers. Then list the keys of clients that no node acts on, each with the reason.",
            examples=(
                ("an etcd of three members", "yirangmq cluster status --store etcd://h1,h2,h3"),
                ("for programs", "yirangmq cluster status --json"),
                ("for Prometheus", "yirangmq cluster status --metrics"),
            ),
            options=_status_options,
            run=run_status,
        ),
    ),
    "members": (
        "list the members of etcd",
        Command(
            about="Show version, role, size and errors of each member of etcd that --store names. If etcd has users, "
            "version 3.5.28 and later require the role root.",
            examples=(
                ("an etcd of three members", "yirangmq cluster members --store etcd://h1,h2,h3"),
                ("for programs", "yirangmq cluster members --json"),
            ),
            options=etcd_options,
            run=run_members,
        ),
    ),
    "leader": (
        "show which node leads which queue",
        Command(
            about="Show which node dispatches each queue, which node leads the served store, and which member leads "
            "etcd itself.",
            examples=(
                ("all queues", "yirangmq cluster leader --store etcd://h1,h2,h3"),
                ("one queue", "yirangmq cluster leader jobs --json"),
            ),
            options=_leader_options,
            run=run_leader,
        ),
    ),
    "move-leader": (
        "move the lead of a queue to another node",
        Command(
            about="End the lead of the node that leads a queue. Another node leads within a moment, or the same node "
            "if there is no other. The command is safe at any time: further writes of the old leader are rejected.",
            examples=(
                ("move the lead of jobs", "yirangmq cluster move-leader jobs --store etcd://h1,h2,h3"),
                ("for programs", "yirangmq cluster move-leader jobs --json"),
            ),
            options=_queue_option,
            run=run_move_leader,
        ),
    ),
    "doctor": (
        "check that etcd is fit for queues",
        Command(
            about="Check etcd for problems: releases with known faults, roles that users can bypass, a member that "
            "does not answer, two members where three are needed, a database near its quota, alarms, history that is "
            "never compacted, slow disks, clocks that differ, keys that no node acts on. The exit code is 11 if a "
            "check fails.",
            examples=(
                ("an etcd of three members", "yirangmq cluster doctor --store etcd://h1,h2,h3"),
                ("with its quota, for programs", "yirangmq cluster doctor --quota 8589934592 --json"),
            ),
            options=_doctor_options,
            run=run_doctor,
        ),
    ),
    "repair": (
        "free space when etcd is full",
        Command(
            about="An etcd that has reached its quota accepts no more writes. The command compacts its history, "
            "defragments one member after the other, the leader last, and lifts the alarm. A member does not answer "
            "while it is defragmented. Let consumers of dispatched queues ack their messages first; this still works. "
            "The exit code is 11 if etcd is still full, because all its data is in use. If etcd has users, the "
            "command needs the role root.",
            examples=(
                ("an etcd of three members", "yirangmq cluster repair --store etcd://h1,h2,h3"),
                ("for programs", "yirangmq cluster repair --json"),
            ),
            options=etcd_options,
            run=run_repair,
        ),
    ),
}
