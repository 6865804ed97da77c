"""``health`` and ``connections``: how a server is, and who is connected to it."""

import argparse
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.cli import exits, options, place, remote
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column
from yirangmq.cli.values import span
from yirangmq.clock import SystemClock
from yirangmq.core.errors import Unavailable
from yirangmq.doors.health import Health

COLUMNS = (
    Column("peer"),
    Column("client", shrinks=True),
    Column("connected", right=True),
    Column("silent", right=True),
    Column("pending", right=True),
    Column("held", right=True),
    Column("waits for", shrinks=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    options.store(parser)


def run_health(args: argparse.Namespace, screen: Screen) -> int:
    with place.existing(args) as queues:
        found = _health(queues)
        value = {"server": remote.address_of(queues), **found}
    text = "\n".join([found["status"], *(f"{one['level']}: {one['code']}: {one['text']}" for one in found["reasons"])])
    if screen.json:
        screen.document({"ok": found["status"] != "fail", **value})
    else:
        screen.say(text)
    return exits.UNWELL if found["status"] == "fail" else exits.OK


def _health(queues: Queues) -> dict[str, Any]:
    """What the server says of itself; of a store without one, whether it can be written."""
    if remote.address_of(queues) is not None:
        return dict(remote.call(queues, "health"))
    return Health(SystemClock(), None).of_store(queues)


def run_connections(args: argparse.Namespace, screen: Screen) -> int:
    with place.existing(args) as queues:
        if remote.address_of(queues) is None:
            raise Unavailable("no server holds this store, so nobody is connected to it")
        found: list[dict[str, Any]] = remote.call(queues, "connections")
    if screen.json:
        screen.document({"ok": True, "connections": found})
    else:
        screen.table(COLUMNS, [_row(one) for one in found])
    return exits.OK


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    waits = [f"{taker['queue']} ({taker['unsettled']}/{taker['credit']})" for taker in one["subscriptions"]]
    waits += [f"{one['waiting']} leases"] if one["waiting"] else []
    return (
        one["peer"],
        one["client"],
        span(one["connectedSec"]),
        span(one["silentSec"]),
        one["pending"],
        one["bytesHeld"],
        ", ".join(waits) or None,
    )


COMMANDS = {
    "health": Command(
        about="Is the server well? ok, degraded (it works, but somebody should look) or fail, with the reasons: the "
        "store cannot be written, it had no room for the last message, its disk is nearly full, delays and leases end "
        "late, a queue has more waiting than backlog_limit allows. Exits with 11 on fail, with 10 if the server cannot "
        "be reached.",
        examples=(
            ("the server of this folder", "yirangmq health"),
            ("another, for programs", "yirangmq health --store tcp://127.0.0.1:7411 --json"),
        ),
        options=add_options,
        run=run_health,
    ),
    "connections": Command(
        about="Who is connected to the server, since when, what it waits for and what it costs.",
        examples=(
            ("the server of this folder", "yirangmq connections"),
            ("another, for programs", "yirangmq connections --store unix:/run/yirangmq/yirangmq.sock --json"),
        ),
        options=add_options,
        run=run_connections,
    ),
}
