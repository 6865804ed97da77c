"""Commands ``health``, ``connections`` and ``programs``: state of a server, its clients and its programs.

``health`` says ``down`` where a server is expected and does not answer. A store without a server is checked itself:
whether it can be written, and whether other users of the machine can reach it."""

import argparse
from functools import partial
from typing import Any

from yirangmq.admin.health import ServerHealth
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import format_duration
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn, instant_of
from yirangmq.clock import SystemClock
from yirangmq.core.errors import BadInput, NotActive, NotFound, Unavailable, Unreachable
from yirangmq.core.health import DOWN, FAIL, HealthReason, health_reason
from yirangmq.stores.lock import find_holder
from yirangmq.stores.open import find_wide_permissions

# -- programs ----------------------------------------------------------------------------------------------------------

PROGRAMS = (
    TableColumn("program"),
    TableColumn("addresses", shrinks=True, rank=1),
    TableColumn("token", rank=2),
    TableColumn("takes from", shrinks=True),
    TableColumn("sends to", shrinks=True),
)
REFUSED = (
    TableColumn("at"),
    TableColumn("protocol", rank=3),
    TableColumn("address"),
    TableColumn("program", rank=1),
    TableColumn("reason"),
    TableColumn("times", right=True, rank=2),
    TableColumn("error", shrinks=True, rank=4),
)


def run(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        if connection.address_of(queues) is None:
            raise Unavailable("programs are configured in a server: run this beside one, or name it with --store")
        found: dict[str, Any] = connection.call(queues, "programs")
    if screen.json:
        screen.document({"ok": True, **found})
        return output.OK
    if found["programs"]:
        screen.table(PROGRAMS, [_program(row) for row in found["programs"]])
    else:
        screen.note("no programs are configured: every client with the server's token may use it")
    if found["refused"]["latest"]:
        screen.report()
        screen.table(REFUSED, [_refused(row) for row in found["refused"]["latest"]])
    return output.OK


def _program(row: dict[str, Any]) -> tuple[object, ...]:
    addresses = ", ".join(row["addresses"]) or "any"
    token = "yes" if row["hasToken"] else "-"
    return row["name"], addresses, token, ", ".join(row["queues"]), ", ".join(row["sendsTo"]) or "-"


def _refused(row: dict[str, Any]) -> tuple[object, ...]:
    where = row["door"], row["address"], row["program"] or "-"
    return instant_of(row["at"]), *where, row["reason"], row["count"], row["text"]


PROGRAM_COMMANDS = {
    "programs": Command(
        about="List the programs that may use the server over TCP, HTTP and STOMP, with the addresses they come "
        "from, the queues they lease from and the programs they may send to; and the clients that were "
        "rejected recently. They are configured by the settings programs and routes (docs/dispatch.md).",
        examples=(
            ("the programs, and rejected clients", "yirangmq programs"),
            ("for programs", "yirangmq programs --json"),
        ),
        options=arguments.store,
        run=run,
    ),
}


# -- health and connections --------------------------------------------------------------------------------------------

COLUMNS = (
    TableColumn("peer"),
    TableColumn("client"),
    TableColumn("connected", right=True, rank=1),
    TableColumn("silent", right=True, rank=3),
    TableColumn("pending", right=True, rank=2),
    TableColumn("held", right=True, rank=4),
    TableColumn("waits for", shrinks=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)


def add_health_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--data", metavar="FOLDER", help="the data folder of a server, as in `serve --data`")


def run_health(args: argparse.Namespace, screen: Screen) -> int:
    found = _health(args)
    text = "\n".join([found["status"], *(f"{one['level']}: {one['code']}: {one['text']}" for one in found["reasons"])])
    if screen.json:
        screen.document({"ok": found["status"] not in (FAIL, DOWN), **found})
    else:
        screen.report(text)
    return {FAIL: output.UNHEALTHY, DOWN: output.exit_code(Unreachable.code)}.get(found["status"], output.OK)


def _health(args: argparse.Namespace) -> dict[str, Any]:
    """Return the health document of the server; ``down`` if a server is expected and does not answer.

    For a store without a server, check whether it can be written."""
    if args.data is not None:
        _choose_data(args)
    where = connection.store_location(args)
    if (
        where.exists
        and connection.expects_server(where, args)
        and not (where.is_server or connection.server_of(where, args))
    ):
        return _down(f"no server holds {where.path}; start it, or ask for the store itself with --direct")
    try:
        with connection.open_existing(args) as queues:
            address = connection.address_of(queues)
            if address is not None:
                return {"server": address, **connection.call(queues, "health")}
            health = ServerHealth(SystemClock(), None, extra_check=partial(_loose, where.url))
            return {"server": None, **health.of_store(connection.local_store(queues))}
    except (NotActive, NotFound):
        raise
    except Unavailable as error:
        return _down(str(error))


def _loose(url: str) -> list[HealthReason]:
    return [health_reason("permissions", f"{one.where} {one.text}") for one in find_wide_permissions(url)]


def _choose_data(args: argparse.Namespace) -> None:
    """Set ``args.store`` to the server of the data folder: the holder of its store, or the folder's socket."""
    if any(getattr(args, name) is not None for name in ("store", "backend", "db", "path")):
        raise BadInput("says which server already; give no other store", field="--data")
    holder = find_holder(f"sqlite:{args.data}/queue.db")
    args.store = f"unix:{args.data}/yirangmq.sock" if holder is None else holder.address


def _down(text: str) -> dict[str, Any]:
    return {"server": None, "status": DOWN, "reasons": [{"level": DOWN, "code": Unreachable.code, "text": text}]}


def run_connections(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        if connection.address_of(queues) is None:
            raise Unavailable("no server holds this store, so there are no connections")
        found: list[dict[str, Any]] = connection.call(queues, "connections")
    if screen.json:
        screen.document({"ok": True, "connections": found})
    else:
        screen.table(COLUMNS, [_row(one) for one in found])
    return output.OK


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    waits = [f"{consumer['queue']} ({consumer['unsettled']}/{consumer['credit']})" for consumer in one["subscriptions"]]
    waits += [f"{one['waiting']} leases"] if one["waiting"] else []
    return (
        one["peer"],
        one["client"],
        format_duration(one["connectedSec"]),
        format_duration(one["silentSec"]),
        one["pending"],
        one["bytesHeld"],
        ", ".join(waits) or None,
    )


COMMANDS = {
    **PROGRAM_COMMANDS,
    "health": Command(
        about="Report the health of the server: ok, degraded (it works, but needs the attention of an operator) or "
        "fail, each with its reasons (docs/guarantees.md lists them); or down: a server is expected and "
        "does not answer. A server is expected if its address or its data folder is given, or if one has "
        "served the store before; --direct checks the store itself. The command exits with 11 on fail and "
        "with 10 on down.",
        examples=(
            ("the server of this folder", "yirangmq health"),
            ("another, for programs", "yirangmq health --store tcp://127.0.0.1:7411 --json"),
            ("the store itself", "yirangmq health --direct"),
        ),
        options=add_health_options,
        run=run_health,
    ),
    "connections": Command(
        about="List the clients that are connected to the server, with the time since they connected, their "
        "subscriptions and the bytes held for them.",
        examples=(
            ("the server of this folder", "yirangmq connections"),
            ("another, for programs", "yirangmq connections --store unix:/run/yirangmq/yirangmq.sock --json"),
        ),
        options=add_options,
        run=run_connections,
    ),
}
