"""What a consumer writes into the log. Each line about a message carries its names, for logs that are JSON."""

import logging
from typing import Any

from yirangmq.consumer.ports import Taken

log = logging.getLogger("yirangmq.consumer")


def about(taken: Taken) -> dict[str, dict[str, Any]]:
    """Named values for ``extra``: which message it is, and the trace it belongs to."""
    named: dict[str, Any] = {"queue": taken.queue, "messageId": taken.id, "attempt": taken.attempt}
    try:
        trace = taken.header.get("traceId")
    except Exception:  # an envelope that cannot be read has no trace
        trace = None
    if trace:
        named["traceId"] = trace
    return {"values": named}
