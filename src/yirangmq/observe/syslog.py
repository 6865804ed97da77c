"""The same log lines for the system's log. Loaded only where they are to go there."""

import logging
from logging.handlers import SysLogHandler

from yirangmq.core.errors import BadInput
from yirangmq.observe.logs import NAME, JsonLines


class SysLog(SysLogHandler):
    """The same lines for the system's log. Nobody waits for it: what it does not take at once is not told there."""

    def __init__(self, place: str) -> None:
        kind, _, where = place.partition(":")
        host, _, port = where.rpartition(":")
        try:
            super().__init__(where if kind == "unix" else (host, int(port)), SysLogHandler.LOG_DAEMON)
            self.socket.setblocking(False)  # type: ignore[attr-defined]  # typeshed does not know it
        except (OSError, OverflowError) as error:
            raise BadInput(f"{place} cannot be reached: {error}", field="syslog") from None
        self.ident = f"{NAME}: "
        self.append_nul = False
        self.setFormatter(JsonLines())

    def handleError(self, record: logging.LogRecord) -> None:
        """Every line stands in our own log."""
