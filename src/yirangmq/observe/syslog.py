"""Log lines to syslog. Loaded only if the setting ``syslog`` is on."""

import logging
from logging.handlers import SysLogHandler

from yirangmq.core.errors import BadInput
from yirangmq.observe.logs import NAME, JsonLines


class SysLog(SysLogHandler):
    """Log handler that sends the JSON lines to syslog. The socket does not block: a line that it rejects is dropped."""

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
        """Ignore a line that could not be sent. The server's own log has every line."""
