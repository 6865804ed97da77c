"""Command ``top``: the first 1000 queues live, as ``htop`` shows processes.

On a terminal the view is redrawn every second, and keys sort, filter and scroll it. Elsewhere the table is printed
once, and with ``--json`` one document each second. Without a server, rates are computed since the previous read."""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output, queue_rows
from yirangmq.cli.arguments import count_text, format_duration
from yirangmq.cli.command import Command
from yirangmq.cli.live import Keyboard, LineEditor, live_terminal
from yirangmq.cli.output import Screen
from yirangmq.cli.queue_rows import Row, age_text, rate_text
from yirangmq.cli.table import BOLD, TableColumn, cut, measure, paint, render, safe
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.format.envelope import iso

COLUMNS = (
    TableColumn("queue"),
    TableColumn("ready", right=True),
    TableColumn("leased", right=True),
    TableColumn("delayed", right=True, rank=1),
    TableColumn("dead", right=True, alarms=True),
    TableColumn("oldest", right=True, rank=2),
    TableColumn("in/s", right=True, rank=2),
    TableColumn("out/s", right=True, rank=2),
    TableColumn("consumers", right=True, rank=3),
    TableColumn("failed/s", right=True, rank=4),
    TableColumn("failing", right=True, rank=5),
    TableColumn("works", right=True, rank=6),
    TableColumn("waits", right=True, rank=6),
)
MAX_NAME = 40
"""Maximum width of a name in the live view, in columns; the table that is printed once has whole names."""
MIN_INTERVAL, MAX_INTERVAL = 0.1, 3600.0
HELP = "q quit  ? help  < > sort  r reverse  / filter  space pause  + - interval"
KEYS = (
    ("q, Ctrl-C", "quit"),
    ("<, >, ←, →", "sort by the previous or the next column"),
    ("n, d, a", "sort by name, dead letters, or age of the oldest message"),
    ("r", "reverse the order"),
    ("/", "show only names with a text; Enter keeps it, Esc ends it"),
    ("↑, ↓, Page Up, Page Down", "scroll; also Home and End"),
    ("space", "pause and continue"),
    ("+, -", "halve or double the interval"),
    ("?, h", "this help; any key closes it"),
)
ABOUT_COLUMNS = (
    "oldest: age of the first ready message. in/s, out/s, failed/s: messages published, acked",
    "and failed per second. failing: share of the attempts that failed. works: mean time",
    "from lease to ack. waits: mean time from ready to lease.",
)


def top_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="this one only")
    parser.add_argument("--once", action="store_true", help="print the table once and end")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="time between two reads (default: 1)"
    )
    arguments.store(parser)


def run_top(args: argparse.Namespace, screen: Screen) -> int:
    if not MIN_INTERVAL <= args.interval <= MAX_INTERVAL:
        raise BadInput("must be from 0.1 to 3600 seconds", field="--interval")
    queue = None if args.queue is None else validation.check_queue(args.queue)
    is_live = screen.is_terminal and not args.once and not screen.json
    with connection.open_read_only(args, screen) as queues:
        snapshots = _snapshots(queues, queue, is_live=is_live)
        if screen.json:
            return _print_documents(args, screen, snapshots)
        if is_live:
            return _run_live(args, screen, snapshots)
        found = next(snapshots)
        screen.report(_title(found))
        screen.table(COLUMNS, [cells(row) for row in found["queues"]])
        return output.OK


def _print_documents(args: argparse.Namespace, screen: Screen, snapshots: Iterator[Row]) -> int:
    for snapshot in snapshots:
        screen.document({"ok": True, **snapshot})
        screen.flush()
        if args.once:
            break
        time.sleep(args.interval)
    return output.OK


# -- snapshots ---------------------------------------------------------------------------------------------------------


def _snapshots(queues: Queues, queue: str | None, *, is_live: bool) -> Iterator[Row]:
    """Yield snapshots. A server reports its rates; without one they are computed since the previous snapshot."""
    address = connection.address_of(queues)
    before: dict[str, Any] = {}
    seen_at = time.monotonic()
    while True:
        now = time.monotonic()
        found = queue_rows.page(queues, queue=queue)
        if address is not None:
            yield {"at": iso(queues.wall_ms()), **found}
            continue
        rows = found["queues"]
        for row in rows:
            row["rates"] = _rates_since(before.get(row["queue"]), row["totals"], now - seen_at)
        before, seen_at = {row["queue"]: row["totals"] for row in rows}, now
        snapshot = {"at": iso(queues.wall_ms()), "server": None, "durability": queues.durability(), "queues": rows}
        yield {**snapshot, "all": found["all"]} if is_live else snapshot


def _rates_since(before: Row | None, totals: Row, seconds: float) -> Row | None:
    if before is None or seconds <= 0:
        return None
    done, failed = totals["acked"] - before["acked"], totals["failed"] - before["failed"]
    return {
        "publishedPerSec": round((totals["published"] - before["published"]) / seconds, 3),
        "ackedPerSec": round(done / seconds, 3),
        "failedPerSec": round(failed / seconds, 3),
        "failureRate": round(failed / (done + failed), 6) if done + failed > 0 else None,
        "meanProcessingSec": None,
        "meanWaitSec": None,
    }


def _title(snapshot: Row) -> str:
    where = (
        f"{snapshot['server']}  node {snapshot['node']}  up {format_duration(snapshot['uptimeSec'])}"
        if snapshot["server"]
        else "no server"
    )
    clients = f"  {count_text(snapshot['connections'], 'client')}" if snapshot["server"] else ""
    return f"{where}  durability {snapshot['durability']}{clients}  {snapshot['at'][11:19]}Z"


def values(row: Row) -> list[Any]:
    """Return the values of a row, in the order of ``COLUMNS``: what is sorted."""
    rates = row["rates"] or {}
    counts = [row[name] for name in ("ready", "leased", "delayed", "dead")]
    per_second = [rates.get(name) for name in ("publishedPerSec", "ackedPerSec")]
    others = [rates.get(name) for name in ("failedPerSec", "failureRate", "meanProcessingSec", "meanWaitSec")]
    return [row["queue"], *counts, row["headAgeSec"], *per_second, row.get("consumers"), *others]


def cells(row: Row) -> list[object]:
    name, *counts, age, published, acked, consumers, failed, share, works, waits = values(row)
    return [
        f"{name} (paused)" if row["paused"] else name,
        *counts,
        age_text(age),
        rate_text(published),
        rate_text(acked),
        consumers,
        rate_text(failed),
        None if share is None else f"{share:.1%}",
        _short(works),
        _short(waits),
    ]


def _short(seconds: float | None) -> str | None:
    """Format a duration, from milliseconds to hours."""
    if seconds is None:
        return None
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


# -- live view ---------------------------------------------------------------------------------------------------------


class TopView:
    """State of the live view: order, filter, scroll position. Keys change it, ``lines`` draws it."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.is_paused = False
        self._sorted_by = 0
        self._is_reversed = False
        self._filter = ""
        self._editor: LineEditor | None = None
        self._shows_help = False
        self._offset = 0
        self._page = 1

    def press(self, key: str) -> bool:
        """Handle a key. Return False to quit."""
        if self._editor is not None:
            self._editor = self._editor.press(key)
            self._filter = "" if key == "escape" else self._filter if self._editor is None else self._editor.text
            self._offset = 0
        elif self._shows_help:
            self._shows_help = False
        elif key in ("q", "ctrl-c"):
            return False
        else:
            self._change(key)
        return True

    def _change(self, key: str) -> None:
        match key:
            case "<" | "left" | ">" | "right":
                self._sort((self._sorted_by + (1 if key in (">", "right") else -1)) % len(COLUMNS))
            case "n" | "d" | "a":
                self._sort({"n": 0, "d": 4, "a": 5}[key])
            case "r":
                self._is_reversed = not self._is_reversed
            case "/":
                self._editor = LineEditor(self._filter)
            case "escape":
                self._filter = ""
            case "?" | "h":
                self._shows_help = True
            case " ":
                self.is_paused = not self.is_paused
            case "+" | "-":
                self.interval = min(MAX_INTERVAL, max(MIN_INTERVAL, self.interval * (0.5 if key == "+" else 2)))
            case "up" | "down" | "page-up" | "page-down" | "home" | "end":
                steps = {"up": -1, "down": 1, "page-up": -self._page, "page-down": self._page, "end": 10**9}
                self._offset = max(0, self._offset + steps.get(key, -(10**9)))

    def _sort(self, column: int) -> None:
        self._sorted_by, self._is_reversed, self._offset = column, False, 0

    def lines(self, snapshot: Row, width: int, height: int, *, colour: bool) -> list[str]:
        """Return the lines of the screen, exactly ``height``, the help as the last one."""
        if self._shows_help:
            body = [f"{keys:26}{meaning}" for keys, meaning in KEYS]
            whole = ["keys of yirangmq top", "", *body, "", *ABOUT_COLUMNS]
            return _filled([cut(line, width) for line in whole], height)
        rows = self._chosen(snapshot["queues"])
        self._page = max(1, height - 5)
        self._offset = min(self._offset, max(0, len(rows) - self._page))
        shown = rows[self._offset : self._offset + self._page]
        columns = [self._column(at, column) for at, column in enumerate(COLUMNS)]
        table = render(columns, [_clipped(cells(row)) for row in shown], width, colour=colour)
        head = [cut(_title(snapshot), width), cut(self._summary(snapshot, rows), width), ""]
        if not rows:
            hint = "no queue matches the filter" if self._filter else "no queues yet; publishing to one creates it"
            return [*_filled([*head, hint], height - 1), self._status(width, colour)]
        return [*_filled([*head, *table], height - 1), self._status(width, colour)]

    def _column(self, at: int, column: TableColumn) -> TableColumn:
        """Mark the column that is sorted by, and keep it on the screen."""
        if at != self._sorted_by:
            return column
        is_down = (at == 0) == self._is_reversed
        return column._replace(title=f"{column.title}{'↓' if is_down else '↑'}", rank=0)

    def _chosen(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that match the filter, sorted: names up, figures down, unknown figures last."""
        wanted = self._filter.lower()
        found = sorted((row for row in rows if wanted in row["queue"].lower()), key=lambda row: str(row["queue"]))
        if self._sorted_by == 0:
            return found[::-1] if self._is_reversed else found
        known = [row for row in found if values(row)[self._sorted_by] is not None]
        known.sort(key=lambda row: values(row)[self._sorted_by], reverse=not self._is_reversed)
        return known + [row for row in found if values(row)[self._sorted_by] is None]

    def _summary(self, snapshot: Row, rows: Sequence[Row]) -> str:
        total = snapshot.get("all", {}).get("queues", len(snapshot["queues"]))
        number = count_text(len(rows), "queue") if len(rows) == total else f"{len(rows):,} of {total:,} queues"
        counts = "  ".join(
            f"{name} {sum(row[name] for row in rows):,}" for name in ("ready", "leased", "delayed", "dead")
        )
        rates = [row["rates"] for row in rows if row["rates"]]
        per_second = [rate_text(sum(rate[name] or 0 for rate in rates)) for name in ("publishedPerSec", "ackedPerSec")]
        speed = f"  in {per_second[0]}/s  out {per_second[1]}/s" if rates else ""
        return f"{number}  {counts}{speed}"

    def _status(self, width: int, colour: bool) -> str:
        paused = "PAUSED  " if self.is_paused else ""
        wanted = f"filter {self._filter}  " if self._filter else ""
        every = f"every {self.interval:g} s  " if self.interval != 1 else ""
        text = f"filter: {self._editor.text}_" if self._editor is not None else f"{paused}{every}{wanted}{HELP}"
        text = safe(text) if measure(text) < width else cut(safe(text), width - 1)
        return paint(text, BOLD) if colour else text


def _clipped(row: list[object]) -> list[object]:
    return [cut(safe(str(row[0])), MAX_NAME), *row[1:]]


def _filled(lines: list[str], height: int) -> list[str]:
    return (lines + [""] * height)[:height]


def _run_live(args: argparse.Namespace, screen: Screen, snapshots: Iterator[Row]) -> int:
    """Redraw the view after each interval, key and change of the size, until ``q`` or Ctrl-C."""
    view = TopView(args.interval)
    try:
        with Keyboard(is_used=True) as keyboard, live_terminal(screen, keyboard, whole=True) as terminal:
            snapshot, due = next(snapshots), time.monotonic() + view.interval
            while True:
                terminal.draw(view.lines(snapshot, *terminal.size, colour=screen.has_colour))
                keyboard.wait(due - time.monotonic() if not view.is_paused else MAX_INTERVAL)
                if not all(view.press(key) for key in keyboard.pressed()):
                    return output.OK
                if time.monotonic() >= due and not view.is_paused:
                    snapshot, due = next(snapshots), time.monotonic() + view.interval
    except KeyboardInterrupt:
        return output.OK


COMMANDS = {
    "top": Command(
        about="Show all queues live: how many messages are in which state, and the rates of the last minute.\n\n"
        "On a terminal, < and > choose the column to sort by, r reverses the order, / filters by name, the arrow keys "
        "scroll, the space bar pauses, ? lists all keys, q quits. Elsewhere the table is printed once.\n\n"
        "oldest is the age of the first ready message, failing the share of attempts that failed, works the mean time "
        "from lease to ack, waits the mean time from ready to lease. Without a server there are counts, and the rates "
        "since the previous read.",
        examples=(
            ("until q is pressed", "yirangmq top"),
            ("one queue, twice a second", "yirangmq top telemetry --interval 0.5"),
            ("once, for programs", "yirangmq top --once --json"),
        ),
        options=top_options,
        run=run_top,
    ),
}
