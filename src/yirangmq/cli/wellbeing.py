"""``health`` and ``connections``: how a server is, and who is connected to it."""

import argparse
from typing import Any

from yirangmq.admin.health import Health
from yirangmq.cli import exits, options, place, remote
from yirangmq.cli.command import Command
from yirangmq.cli.programs import PROGRAM_COMMANDS
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column
from yirangmq.cli.values import span
from yirangmq.clock import SystemClock
from yirangmq.core.errors import BadInput, NotActive, NotFound, Unavailable, Unreachable
from yirangmq.core.health import DOWN, FAIL, HealthReason, health_reason
from yirangmq.stores.lock import who_serves
from yirangmq.stores.open import loose_parts

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


def add_health_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--data", metavar="FOLDER", help="the data folder of a server, as `serve --data` has it")


def run_health(args: argparse.Namespace, screen: Screen) -> int:
    found = _health(args)
    text = "\n".join([found["status"], *(f"{one['level']}: {one['code']}: {one['text']}" for one in found["reasons"])])
    if screen.json:
        screen.document({"ok": found["status"] not in (FAIL, DOWN), **found})
    else:
        screen.say(text)
    return {FAIL: exits.UNWELL, DOWN: exits.exit_code(Unreachable.code)}.get(found["status"], exits.OK)


def _health(args: argparse.Namespace) -> dict[str, Any]:
    """What the server says of itself; ``down`` where one is expected and none answers; of a store without a server,
    whether it can be written."""
    if args.data is not None:
        _choose_data(args)
    where = place.of(args)
    if where.exists and place.expects_server(where, args) and not (where.is_server or place.server_of(where, args)):
        return _down(f"no server holds {where.path}; start it, or ask for the store itself with --direct")
    try:
        with place.existing(args) as queues:
            address = remote.address_of(queues)
            if address is not None:
                return {"server": address, **remote.call(queues, "health")}
            health = Health(SystemClock(), None, others=(lambda: _loose(where.url),))
            return {"server": None, **health.of_store(queues)}
    except (NotActive, NotFound):
        raise
    except Unavailable as error:
        return _down(str(error))


def _loose(url: str) -> list[HealthReason]:
    return [health_reason("permissions", f"{one.where} {one.text}") for one in loose_parts(url)]


def _choose_data(args: argparse.Namespace) -> None:
    """The server of this folder: the holder of its store, or at the folder's socket."""
    if any(getattr(args, name) is not None for name in ("store", "backend", "db", "path")):
        raise BadInput("says which server already; give no other store", field="--data")
    holder = who_serves(f"sqlite:{args.data}/queue.db")
    args.store = f"unix:{args.data}/yirangmq.sock" if holder is None else holder.address


def _down(text: str) -> dict[str, Any]:
    return {"server": None, "status": DOWN, "reasons": [{"level": DOWN, "code": Unreachable.code, "text": text}]}


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
    **PROGRAM_COMMANDS,
    "health": Command(
        about="Is the server well? ok, degraded (it works, but an operator should look) or fail, each with its reasons "
        "(docs/guarantees.md lists them); or down: a server is expected and does not answer. One is expected where "
        "its address or its data folder was given, and where one has served the store before; --direct asks for the "
        "store itself, whether it can be written. Exits with 11 on fail, with 10 on down.",
        examples=(
            ("the server of this folder", "yirangmq health"),
            ("another, for programs", "yirangmq health --store tcp://127.0.0.1:7411 --json"),
            ("the store itself", "yirangmq health --direct"),
        ),
        options=add_health_options,
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
