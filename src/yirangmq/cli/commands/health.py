"""Commands ``health``, ``connections`` and ``programs``: state of a server, its clients and its programs.

``health`` says ``down`` where a server is expected and does not answer. A store without a server is checked itself:
whether it can be written, and whether other users of the machine can reach it."""

import argparse
from typing import Any

from yirangmq.admin.health import ServerHealth
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import format_duration
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn
from yirangmq.clock import SystemClock
from yirangmq.core.errors import BadInput, NotActive, NotFound, Unavailable, Unreachable
from yirangmq.core.health import DOWN, FAIL, HealthReason, health_reason
from yirangmq.stores.lock import find_holder
from yirangmq.stores.open import find_wide_permissions

# -- programs ----------------------------------------------------------------------------------------------------------

PROGRAMS = (
    TableColumn("program", shrinks=True),
    TableColumn("addresses", shrinks=True),
    TableColumn("token"),
    TableColumn("takes from", shrinks=True),
    TableColumn("sends to", shrinks=True),
)
REFUSED = (
    TableColumn("at"),
    TableColumn("door"),
    TableColumn("address"),
    TableColumn("program"),
    TableColumn("reason"),
    TableColumn("times", right=True),
    TableColumn("what was said", shrinks=True),
)


def run(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        if connection.address_of(queues) is None:
            raise Unavailable("programs are known to a server: run it beside one, or name it with --store")
        found: dict[str, Any] = connection.call(queues, "programs")
    if screen.json:
        screen.document({"ok": True, **found})
        return output.OK
    if found["programs"]:
        screen.table(PROGRAMS, [_program(row) for row in found["programs"]])
    else:
        screen.note("no programs are listed: whoever can reach the server, with its token, may use it")
    if found["refused"]["latest"]:
        screen.report()
        screen.table(REFUSED, [_refused(row) for row in found["refused"]["latest"]])
    return output.OK


def _program(row: dict[str, Any]) -> tuple[object, ...]:
    addresses = ", ".join(row["addresses"]) or "any"
    token = "yes" if row["hasToken"] else "-"
    return row["name"], addresses, token, ", ".join(row["queues"]), ", ".join(row["sendsTo"]) or "-"


def _refused(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["at"], row["door"], row["address"], row["program"] or "-", row["reason"], row["count"], row["text"],
    )  # fmt: skip


PROGRAM_COMMANDS = {
    "programs": Command(
        about="The programs that may use the server over TCP, HTTP and STOMP, with the addresses they come from, the "
        "queues they take from and the programs they may send to; and whoever was refused lately. They stand in the "
        "settings programs and routes (docs/dispatch.md).",
        examples=(
            ("who may send to whom, and who was refused?", "yirangmq programs"),
            ("for programs", "yirangmq programs --json"),
        ),
        options=arguments.store,
        run=run,
    ),
}


# -- health and connections --------------------------------------------------------------------------------------------

COLUMNS = (
    TableColumn("peer"),
    TableColumn("client", shrinks=True),
    TableColumn("connected", right=True),
    TableColumn("silent", right=True),
    TableColumn("pending", right=True),
    TableColumn("held", right=True),
    TableColumn("waits for", shrinks=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)


def add_health_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--data", metavar="FOLDER", help="the data folder of a server, as `serve --data` has it")


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
            health = ServerHealth(SystemClock(), None, extra_checks=(lambda: _loose(where.url),))
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
            raise Unavailable("no server holds this store, so nobody is connected to it")
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
