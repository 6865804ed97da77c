"""The verb of every named method, and where it is exercised: the rows of named calls in the table of ``core.access``.

A method that is not listed needs ``admin`` on the whole server; a test sees to it that all are listed."""

from collections.abc import Mapping
from typing import Any

from yirangmq.core.access import ADMIN, ANYWHERE, CONSUME, LIST, LOOK, OPERATE, PUBLISH

QUEUE, SERVER, NOWHERE = "queue", "server", "nowhere"
"""Where: in the queue that the call names, or in all of them if it names none; in the server; in no queue at all."""

METHODS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("counts", "status", "trends"), (LIST, QUEUE)),
    **dict.fromkeys(("queues", "next_due", "topics"), (LIST, SERVER)),
    "processor_check": (PUBLISH, QUEUE),
    "consumer_beat": (CONSUME, NOWHERE),
    **dict.fromkeys(
        (
            "peek", "show", "by_id", "search", "policy", "policy_text", "processors", "schedules", "dispatch",
            "deliveries", "dlq_find", "dlq_show", "dlq_stats",
        ),
        (LOOK, QUEUE),
    ),
    **dict.fromkeys(
        (
            "alert_rules", "alert_show", "alerts", "bridge_show", "bridges", "consumer_list", "due", "files_status",
            "health", "metrics", "pair_history", "pair_status", "rates", "topic_cursors", "topic_read",
            "topic_subscribers", "watch", "webhooks",
        ),
        (LOOK, SERVER),
    ),
    **dict.fromkeys(
        (
            "queue_pause", "queue_resume", "dlq_requeue", "dlq_quarantine", "failed_renew", "dispatch_register",
            "dispatch_deregister",
        ),
        (OPERATE, QUEUE),
    ),
    **dict.fromkeys(
        ("alert_ack", "alert_test", "bridge_pause", "bridge_resume", "consumer_wish", "sweep"), (OPERATE, SERVER)
    ),
    **dict.fromkeys(
        (
            "check_policy", "set_policy", "processor_set", "queue_configure", "dispatch_set", "delete_queue",
            "queue_clear", "drop", "dlq_purge", "failed_abandon",
        ),
        (ADMIN, QUEUE),
    ),
    **dict.fromkeys(
        (
            "bridge_add", "bridge_remove", "connections", "pair_adopt", "pair_switch", "programs", "topic_cursor_drop",
            "topic_trim", "topic_tune",
        ),
        (ADMIN, SERVER),
    ),
}  # fmt: skip


def verb_of(method: str, values: Mapping[str, Any]) -> tuple[str, str | None]:
    """The verb of a call, and the queue in which it is exercised, as ``Grant.allows`` takes them."""
    verb, where = METHODS.get(method, (ADMIN, SERVER))
    if where == NOWHERE:
        return verb, ANYWHERE
    queue = values.get("queue") if where == QUEUE else None
    return verb, queue if isinstance(queue, str) and queue else None
