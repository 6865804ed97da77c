"""What a server has beside its queues, on the screen: its feed, its bridges, its place in a pair, its alerts.
Knows: what a server tells of them. Does not know: how it was asked."""

from typing import Any

from yirangmq.cli.feedview import feed_line, show_subscribers
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column
from yirangmq.cli.values import counted, span

BRIDGE_COLUMNS = (
    Column("bridge", shrinks=True),
    Column("to queue", shrinks=True),
    Column("state"),
    Column("lag", right=True),
)


def show_site(screen: Screen, value: dict[str, Any]) -> None:
    feed, following = value["topics"], value["following"]
    if feed is not None and (following or "epoch" in feed or feed["reason"]):
        screen.say()
        screen.say(feed_line(feed))
        if following:
            show_subscribers(screen, following)
    if value["bridges"]:
        screen.say()
        names = ("name", "queue", "state", "lag")
        screen.table(BRIDGE_COLUMNS, [[row[name] for name in names] for row in value["bridges"]])
    if value["pair"] is not None:
        screen.say()
        for line in pair_lines(value["pair"]):
            screen.say(line)
    if value["alerts"] is not None and value["alerts"]["open"]:
        screen.note(f"{_alerts(value['alerts'])}; 'yirangmq alert list' shows them")


def pair_lines(about: dict[str, Any]) -> list[str]:
    works = "works" if about["works"] else "does not work"
    lines = [f"pair: {about['node']} {about['role']}, {about['status']}, term {about['term']}, {works}"]
    peer = about["peer"]
    if peer is None:
        return [*lines, "peer: never heard"]
    heard = f"heard {span(peer['heardSec'])} ago" + (", SILENT" if peer["silent"] else "")
    return [*lines, f"peer: {peer['node']} {peer['role']}, {peer['status']}, term {peer['term']}, {heard}"]


def _alerts(about: dict[str, int]) -> str:
    critical = f", {about['critical']} critical" if about["critical"] else ""
    return f"{counted(about['open'], 'alert')} open{critical}"
