"""Commands ``watch`` and ``metrics``: events as they happen, and the text that Prometheus reads.

Events come from a server, or from the changes between two reads of the counts. On a terminal, keys filter and pause
the list."""

import argparse
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from yirangmq.admin.queue_lists import PAGE
from yirangmq.broker import queries
from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output, queue_rows
from yirangmq.cli.command import Command
from yirangmq.cli.live import Keyboard, LineEditor, live_terminal
from yirangmq.cli.output import Screen
from yirangmq.cli.queue_rows import Row
from yirangmq.cli.table import BOLD, DIM, RED, YELLOW, cut, measure, paint, safe
from yirangmq.clock import SystemClock
from yirangmq.core import validation
from yirangmq.core.ports import Transaction
from yirangmq.format.envelope import iso
from yirangmq.observe import prometheus
from yirangmq.observe.metrics import Metrics

POLL_SECONDS = 0.5
"""Poll interval of a store without a server."""
WAIT_SECONDS = 10.0
"""Long-poll timeout of one request to a server."""
KEY_SECONDS = 0.25
"""Long-poll timeout on a terminal: keys are read between two requests."""
EVENT_COLOURS = {"failed": YELLOW, "died": RED, "expired": YELLOW, "timed_out": YELLOW, "refused": RED}
MAX_HELD = 10_000
"""Maximum number of events that are kept while paused."""
HELP = "q quit  / filter  space pause  c clear"


def watch_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="this one only")
    arguments.limit(parser, "end after this many lines")
    arguments.store(parser)


def metrics_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)


# -- watch ------------------------------------------------------------------------------------------------------------


def run_watch(args: argparse.Namespace, screen: Screen) -> int:
    queue = None if args.queue is None else validation.check_queue(args.queue)
    left = sys.maxsize if args.limit is None else validation.check_count(args.limit, "--limit")
    with connection.open_read_only(args, screen) as queues:
        is_served = connection.address_of(queues) is not None
        if not is_served:
            screen.note("no server: what changed in the counts, which are read twice a second")
        try:
            with Keyboard(is_used=screen.is_terminal and not screen.json) as keyboard:
                events = (
                    _server_events(queues, queue, screen, keyboard) if is_served else _polled(queues, queue, keyboard)
                )
                if keyboard.is_active:
                    return _follow(screen, keyboard, events, left)
                for event in events:
                    if event is None:
                        continue
                    screen.document(event) if screen.json else screen.report(event_line(event))
                    screen.flush()
                    left -= 1
                    if left <= 0:
                        break
        except KeyboardInterrupt:
            return output.OK
    return output.OK


def _server_events(queues: Queues, queue: str | None, screen: Screen, keyboard: Keyboard) -> Iterator[Row | None]:
    """Yield events of a server, and None after each request without one."""
    last: int | None = None
    wait = KEY_SECONDS if keyboard.is_active else WAIT_SECONDS
    while True:
        part = queues.call("watch", queue=queue, after=last, wait=wait)  # type: ignore[attr-defined]
        last = part["last"]
        if part["missed"]:
            screen.note(f"{part['missed']} events were missed")
        yield from part["events"]
        yield None


def _polled(queues: Queues, queue: str | None, keyboard: Keyboard) -> Iterator[Row | None]:
    """Yield the changes of the counts as events, and None after each read."""
    before: dict[str, Any] | None = None
    while True:
        at, totals = iso(queues.wall_ms()), counts_of_all(queues, queue)
        for name, counts in totals.items() if before is not None else ():
            known = (before or {}).get(name, {})
            for what, count in counts.items():
                if count > known.get(what, 0):
                    yield {"at": at, "event": what, "queue": name, "count": count - known.get(what, 0)}
        before = totals
        yield None
        keyboard.wait(POLL_SECONDS)


def counts_of_all(queues: Queues, queue: str | None) -> dict[str, dict[str, int]]:
    """Return the totals of each queue. They are read in pages, so that no other process waits for long."""
    found: dict[str, dict[str, int]] = {}
    chosen = queues.queues() if queue is None else [queue]
    for begin in range(0, len(chosen), PAGE):
        found |= queues.read(partial(_totals, some=chosen[begin : begin + PAGE]))
    return found


def _totals(transaction: Transaction, some: Sequence[str]) -> dict[str, dict[str, int]]:
    queue_counts = ((name, transaction.counts(name)) for name in some)
    return {name: {what: getattr(counts, what) for what in queries.TOTALS} for name, counts in queue_counts}


def event_line(event: Row, *, colour: bool = False) -> str:
    """Format an event, such as ``09:21:00.000Z  mail  leased 3  meanWaitSec=0.002``."""
    rest = "".join(
        f"  {name}={value}" for name, value in event.items() if name not in ("at", "event", "queue", "count")
    )
    count = f" {event['count']}" if "count" in event else ""
    at, what, rest = f"{event['at'][11:23]}Z", f"{event['event']}{count}", safe(rest)
    if colour:
        at, rest = paint(at, DIM), paint(rest, DIM) if rest else ""
        what = paint(what, EVENT_COLOURS[event["event"]]) if event["event"] in EVENT_COLOURS else what
    return f"{at}  {event['queue']}  {what}{rest}"


# -- watch on a terminal ----------------------------------------------------------------------------------------------


class EventList:
    """Events on a terminal, above a line of help: what is printed, held back while paused, and filtered."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._held: deque[str] = deque(maxlen=MAX_HELD)
        self._editor: LineEditor | None = None
        self._is_paused = False
        self._drawn = ""
        self.filter = ""

    def add(self, event: Row) -> bool:
        """Print an event, or hold it back while paused. Return False if the filter does not match it."""
        if self.filter.lower() not in event_line(event).lower():
            return False
        line = event_line(event, colour=self._screen.has_colour)
        if self._is_paused:
            self._held.append(line)
        else:
            self._report(line)
        return True

    def _report(self, text: str) -> None:
        self._screen.report(f"\r\x1b[K{text}")
        self._drawn = ""

    def press(self, key: str) -> bool:
        """Handle a key. Return False to quit."""
        if self._editor is not None:
            self._editor = self._editor.press(key)
            self.filter = "" if key == "escape" else self.filter if self._editor is None else self._editor.text
        elif key in ("q", "ctrl-c"):
            return False
        elif key == "/":
            self._editor = LineEditor(self.filter)
        elif key == "escape":
            self.filter = ""
        elif key == "c":
            self._screen.write(b"\x1b[2J\x1b[H")
            self._drawn = ""
        elif key == "enter":
            self._report("")
        elif key == " ":
            self._is_paused = not self._is_paused
            if not self._is_paused and self._held:
                self._report("\n".join(self._held))
                self._held.clear()
        return True

    def draw(self, width: int) -> None:
        """Draw the line of help below the events."""
        state = f"PAUSED, {len(self._held)} events  " if self._is_paused else ""
        shown = f"filter {self.filter}  " if self.filter else ""
        text = f"filter: {self._editor.text}_" if self._editor is not None else f"{state}{shown}{HELP}"
        text = cut(text, width - 1) if measure(text) >= width else text
        if text != self._drawn:
            self._drawn = text
            self._screen.write(b"\r\x1b[K" + (paint(text, BOLD) if self._screen.has_colour else text).encode())
        self._screen.flush()


def _follow(screen: Screen, keyboard: Keyboard, events: Iterator[Row | None], left: int) -> int:
    shown = EventList(screen)
    with live_terminal(screen, keyboard, whole=False) as terminal:
        shown.draw(terminal.size[0])
        for event in events:
            if event is not None:
                left -= shown.add(event)
            is_open = all(shown.press(key) for key in keyboard.pressed())
            shown.draw(terminal.size[0])
            if left <= 0 or not is_open:
                return output.OK
    return output.OK


# -- metrics ----------------------------------------------------------------------------------------------------------


def run_metrics(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        if connection.address_of(queues) is not None:
            text = queues.call("metrics")  # type: ignore[attr-defined]  # a server's
        else:
            screen.note("no server: only the figures of the store")
            found = queue_rows.page(queues)
            text = prometheus.page(Metrics(SystemClock()), found["queues"], {}, found["all"])
    screen.answer({"metrics": text}, text.rstrip("\n"))
    return output.OK


COMMANDS = {
    "watch": Command(
        about="Print events as they happen: a line for each batch of messages that was published, leased, acked, "
        "failed or moved, from now on.\n\n"
        "On a terminal: q quits, / filters the lines by a text, Esc ends the filter, the space bar pauses and "
        "continues, c clears the screen. Elsewhere the command runs until it is stopped.",
        examples=(
            ("one queue", "yirangmq watch telemetry"),
            ("all queues, the next ten events, for programs", "yirangmq watch --limit 10 --json"),
        ),
        options=watch_options,
        run=run_watch,
    ),
    "metrics": Command(
        about="Print all metrics in the text format that Prometheus reads (docs/metrics.md).",
        examples=(
            ("of the server of this folder", "yirangmq metrics"),
            ("of another server", "yirangmq metrics --store unix:/run/yirangmq.sock"),
        ),
        options=metrics_options,
        run=run_metrics,
    ),
}
