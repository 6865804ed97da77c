"""Output of a command: the table of exit codes, stdout and stderr.

Exit codes are stable; ``docs/cli.md`` is printed from the table. Results go to stdout, notes and errors to stderr.
With ``--json`` every document is one line, and text for people is left out. Progress is shown by ``cli.progress``."""

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from yirangmq.core.errors import QueueError
from yirangmq.format.json_codec import dumps

if TYPE_CHECKING:
    from yirangmq.cli.table import TableColumn


# -- exit codes --------------------------------------------------------------------------------------------------------

OK = 0
EMPTY = 6
REFUSED = 7
UNHEALTHY = 11
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

EXIT_MEANINGS: dict[int, str] = {
    OK: "success",
    1: "internal error, please report it; of `torture`: something was lost, or the time limit was reached; of "
    "`pipeline`: Spark or a step failed",
    2: "bad input: a wrong option, name, document, policy or filter, or a message that the processor of its queue "
    "rejects; nothing was changed",
    3: "no such message, queue, record or store",
    4: "the message is in another state, or the lease is no longer valid",
    5: "the store refused: full, read-only, damaged, newer than this version, busy or of another feed; or a "
    "payload differs from what was sent",
    EMPTY: "nothing to consume (only with `consume --fail-empty`)",
    REFUSED: "published, but rejected by its schema: it is in the dead-letter queue",
    8: "an optional package is missing; the text names it",
    9: "not allowed: a wrong or missing token, or a host name that is not in `http_hosts`; or TLS failed: a "
    "certificate that does not verify, or only one side uses TLS",
    10: "the server cannot be reached (of `health`: down), is the standby of a pair, accepts no more requests "
    "now, or a hook failed; try again later",
    UNHEALTHY: "the server or the store has a fault (of `health`), or a sink rejected a notice (of `alert test`)",
    12: "a server cannot listen: an address is in use or not available; the text names the setting and the "
    "process that uses it",
    INTERRUPTED: "interrupted with Ctrl-C",
    PIPE_CLOSED: "the reader of the output closed it, as with `| head`",
    TERMINATED: "stopped by SIGTERM",
}

EXIT_CODES: dict[str, int] = {
    "internal_error": 1,
    "bad_input": 2,
    "too_large": 2,
    "packed_body": 2,
    "bad_policy": 2,
    "bad_filter": 2,
    "unfit": 2,
    "not_found": 3,
    "retired": 3,
    "wrong_state": 4,
    "lease_lost": 4,
    "lease_expired": 4,
    "lease_mismatch": 4,
    "store_error": 5,
    "store_full": 5,
    "store_read_only": 5,
    "store_damaged": 5,
    "store_too_new": 5,
    "store_busy": 5,
    "payload_damaged": 5,
    "wrong_epoch": 5,
    "missing_extra": 8,
    "not_allowed": 9,
    "tls_failed": 9,
    "misdirected": 9,
    "unavailable": 10,
    "unreachable": 10,
    "timed_out": 10,
    "replaced": 10,
    "not_active": 10,
    "quota_exceeded": 10,
    "hook_failed": 10,
    "cannot_listen": 12,
}
"""Exit code by ``QueueError.code``; a test checks that every error is listed."""


def exit_code(code: str) -> int:
    return EXIT_CODES.get(code, 1)


# -- screen ------------------------------------------------------------------------------------------------------------

PROGRAM = "yirangmq"


def may_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Screen:
    """Output of one command run, to stdout and stderr.

    With ``json`` every document is one line, and texts for people are omitted."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def has_colour(self) -> bool:
        """True if stdout is a terminal that shows colours, and ``NO_COLOR`` does not forbid them (no-color.org)."""
        return self.is_terminal and may_colour()

    @property
    def shows_progress(self) -> bool:
        return not self.json and sys.stderr.isatty()

    def document(self, value: dict[str, Any]) -> None:
        """Print a result for programs, as one line of JSON."""
        self.line(dumps(value))

    def line(self, text: bytes) -> None:
        """Print JSON text as one line. Spaces replace line breaks, which are only whitespace between tokens."""
        self.write(text.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)

    def report(self, text: str = "") -> None:
        """Print a result for people."""
        self.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def table(self, columns: "Sequence[TableColumn]", rows: Sequence[Sequence[object]]) -> None:
        from yirangmq.cli.table import render

        if self.is_terminal:
            width = os.get_terminal_size(sys.stdout.fileno()).columns or None  # 0: unknown
            lines = render(columns, rows, width, now_ms=time.time_ns() // 1_000_000, colour=self.has_colour)
        else:
            lines = render(columns, rows, None)
        for line in lines:
            self.report(line)

    def answer(self, value: dict[str, Any], text: str) -> None:
        """Print one result: ``value`` with ``json``, otherwise ``text``."""
        if self.json:
            self.document({"ok": True, **value})
        else:
            self.report(text)

    def note(self, text: str) -> None:
        """Print a remark for people to stderr. Does nothing with ``json``."""
        if not self.json:
            print(f"{PROGRAM}: note: {text}", file=sys.stderr)

    def problem(self, error: QueueError) -> None:
        if self.json:
            value = {"ok": False, "code": error.code, "error": str(error), "field": error.field}
            print(dumps(value).decode(), file=sys.stderr)
        else:
            head = f"{PROGRAM}: {error.code}"
            head = f"\x1b[31m{head}\x1b[0m" if sys.stderr.isatty() and may_colour() else head
            print(f"{head}: {error}", file=sys.stderr)

    def flush(self) -> None:
        sys.stdout.flush()
