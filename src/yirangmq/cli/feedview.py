"""A feed and those who follow it, on the screen.
Knows: what a server tells of them. Does not know: how it was asked."""

from typing import Any

from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column

SUBSCRIBER_COLUMNS = (
    Column("subscriber", shrinks=True),
    Column("state"),
    Column("filter", shrinks=True),
    Column("sequence", right=True),
    Column("confirmed", right=True),
    Column("lag", right=True),
    Column("peer", shrinks=True),
)


def feed_line(about: dict[str, Any]) -> str:
    """The publisher and its log, in a line."""
    state = about["state"] or about["reason"]
    if about["state"] and about["reason"]:
        state += f" ({about['reason']})"
    if "epoch" not in about:
        return f"feed {state}, nothing published yet"
    held = f"{about['first']} to {about['last']}" if about["first"] <= about["last"] else "nothing"
    return f"feed {state}, epoch {about['epoch']}, holds {held}"


def show_subscribers(screen: Screen, rows: list[dict[str, Any]]) -> None:
    names = ("subscriber", "state", "filter", "sequence", "confirmed", "lag", "peer")
    screen.table(SUBSCRIBER_COLUMNS, [[row.get(name) for name in names] for row in rows])
