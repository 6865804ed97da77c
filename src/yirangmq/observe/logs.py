"""Log lines: one JSON document per line, or text for people.

The message of a log call is the identifier of its event, and everything variable is in named values::

    log.error("store_commit_failed", extra=values(error="disk I/O error"))
    {"at": "2026-01-13T09:21:00.000Z", "level": "error", "event": "store_commit_failed", "error": "disk I/O error"}

``observe.log_events`` is the table of all events, printed as docs/log-events.md."""

import logging
from datetime import UTC, datetime
from typing import Any, TextIO

from yirangmq.core.errors import BadInput
from yirangmq.format.json_codec import dumps

NAME = "yirangmq"
log = logging.getLogger(NAME)


def values(**named: Any) -> dict[str, dict[str, Any]]:
    """Build the argument ``extra`` of a log call from the named values of an event."""
    return {"values": named}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {"at": _at(record), "level": record.levelname.lower(), "event": record.getMessage()}
        if record.name != NAME:
            document["logger"] = record.name
        document |= getattr(record, "values", {})
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        try:
            return dumps(document).decode()
        except BadInput:
            return dumps({name: str(value) for name, value in document.items()}).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        named = "".join(f"  {name}={value}" for name, value in getattr(record, "values", {}).items())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{_at(record)} {record.levelname.lower():<7} {record.getMessage()}{named}{trace}"


def _at(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def start_syslog(place: str) -> logging.Handler:
    """Also send the log of this process to syslog."""
    from yirangmq.observe.syslog import SysLog

    handler = SysLog(place)
    logging.getLogger().addHandler(handler)
    return handler


FORMATS = ("auto", "json", "text")
"""``auto``: text on a terminal, JSON otherwise."""


def start_log(level: str, form: str, stream: TextIO) -> logging.Handler:
    """Send the log of this process to ``stream``, in one of ``FORMATS``."""
    handler = logging.StreamHandler(stream)
    is_text = form == "text" or (form == "auto" and stream.isatty())
    handler.setFormatter(TextFormatter() if is_text else JsonLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler
