"""``programs``: which programs may use the server, who sends to whom, and who was refused."""

import argparse
from typing import Any

from yirangmq.cli import exits, options, place, remote
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column
from yirangmq.core.errors import Unavailable

PROGRAMS = (
    Column("program", shrinks=True),
    Column("addresses", shrinks=True),
    Column("token"),
    Column("takes from", shrinks=True),
    Column("sends to", shrinks=True),
)
REFUSED = (
    Column("at"),
    Column("door"),
    Column("address"),
    Column("program"),
    Column("reason"),
    Column("times", right=True),
    Column("what was said", shrinks=True),
)


def run(args: argparse.Namespace, screen: Screen) -> int:
    with place.existing(args) as queues:
        if remote.address_of(queues) is None:
            raise Unavailable("programs are known to a server: run it beside one, or name it with --store")
        found: dict[str, Any] = queues.call("programs")  # type: ignore[attr-defined]  # a server's has it
    if screen.json:
        screen.document({"ok": True, **found})
        return exits.OK
    if found["programs"]:
        screen.table(PROGRAMS, [_program(row) for row in found["programs"]])
    else:
        screen.note("no programs are listed: whoever can reach the server, with its token, may use it")
    if found["refused"]["latest"]:
        screen.say()
        screen.table(REFUSED, [_refused(row) for row in found["refused"]["latest"]])
    return exits.OK


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
        options=options.store,
        run=run,
    ),
}
