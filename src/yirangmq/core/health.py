"""Health of a server: levels, the table of reason codes, and the status that follows from the reasons.

The parts of the server report reasons (``HealthReason``); this module decides the status. To add a reason: one row in
``REASONS``, one part that reports it, one test that causes it. Then run ``python tools/health_docs.py``, which prints
the table into docs/guarantees.md. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

OK = "ok"
"""No reason is reported."""
DEGRADED = "degraded"
"""The server works; an operator should examine the reasons."""
FAIL = "fail"
"""The server does not work: publishing, or every request, is refused."""
DOWN = "down"
"""Reported by a client if a server is expected and does not answer (``cli.connection.expects_server``); a server never
reports it."""
LEVELS = (OK, DEGRADED, FAIL)
"""Statuses on the wire, best first."""


class ReasonCode(NamedTuple):
    """One row of the table: the levels it is reported with (the first is the default), its meaning, and an action."""

    levels: tuple[str, ...]
    meaning: str
    action: str
    """Action of an operator."""


REASONS: dict[str, ReasonCode] = {
    "store_error": ReasonCode(
        (FAIL,),
        "the latest write to the store failed, for example with an I/O error",
        "check the system log and the disk; the server retries every second",
    ),
    "store_full": ReasonCode(
        (FAIL, DEGRADED),
        "the store had no space for a message; degraded if that was over 60 s ago and nothing was published since",
        "free disk space, or consume messages; publishing then works again without a restart",
    ),
    "reserve_used": ReasonCode(
        (DEGRADED,),
        "the disk is full, and consuming uses the space of `reserve_bytes`; publishing may be rejected",
        "free disk space, or consume messages; the server then allocates the reserve again",
    ),
    "store_read_only": ReasonCode(
        (FAIL,),
        "the store is not writable: permissions, or a read-only file system",
        "give the server's user the right to write, or mount the file system read-write",
    ),
    "store_damaged": ReasonCode(
        (FAIL,),
        "the store's files are damaged",
        "stop the server, run `yirangmq check`, then `yirangmq repair`",
    ),
    "store_busy": ReasonCode(
        (DEGRADED, FAIL),
        "another process, or a long commit of this server, holds the store's lock; fail once requests were rejected",
        "find the process that holds the lock (`fuser`, `lslocks`) and end its transaction",
    ),
    "store_slow": ReasonCode(
        (DEGRADED,),
        "a write to the store did not finish within 500 ms: a long commit is running, or the disk is slow",
        "check `yirangmq_commit_sync_seconds` and the disk",
    ),
    "loop_stalled": ReasonCode(
        (DEGRADED,),
        "the event loop was blocked for 5 s or more within the last minute; the server answered no request meanwhile",
        "the log event `loop_stalled` has the stack; `yirangmq_commit_sync_seconds` shows a slow disk",
    ),
    "internal_error": ReasonCode(
        (FAIL,), "the latest write failed for a reason that has no code", "read the log, and report the error"
    ),
    "overdue": ReasonCode(
        (DEGRADED,),
        "delays and leases end more than 10 s late",
        "check whether the server lacks processor time, or commits are slow (`yirangmq_commit_sync_seconds`)",
    ),
    "backlog": ReasonCode(
        (DEGRADED,), "a queue has a backlog above `backlog_limit`", "add consumers, or raise `backlog_limit`"
    ),
    "disk": ReasonCode((FAIL,), "the folder of the store cannot be read", "check that the file system is mounted"),
    "disk_low": ReasonCode(
        (FAIL, DEGRADED),
        "free space is below `disk_low_bytes`, and publishing is rejected; degraded below twice that",
        "free disk space, or consume messages; publishing then works again without a restart",
    ),
    "quota_exceeded": ReasonCode(
        (DEGRADED,),
        "the store has reached `max_store_bytes`, and publishing is rejected",
        "consume messages, or raise the limit",
    ),
    "topics": ReasonCode(
        (DEGRADED,), "the log of the topics cannot be used", "read the reason in the text and the log"
    ),
    "lag": ReasonCode(
        (DEGRADED,),
        "a subscriber or a bridge is more than `topic_lag_limit` records behind",
        "check whether the subscriber runs: `yirangmq topic subscribers`",
    ),
    "bridge": ReasonCode((DEGRADED,), "a bridge waits or was stopped", "run `yirangmq bridge list` for the reason"),
    "no_active_node": ReasonCode(
        (FAIL,),
        "this node is the standby of a pair or a follower of a cluster, and knows no active node or leader",
        "run `yirangmq pair status`, or check whether etcd runs and has a leader",
    ),
    "permissions": ReasonCode(
        (DEGRADED,),
        "other users can access the data folder or a secret file; or `file_access` is `group` and the group cannot",
        "run the `chmod` that the text names, or set `file_access` (docs/security.md)",
    ),
    "pair_keys_differ": ReasonCode(
        (DEGRADED,),
        "heartbeats from the address of the other node of the pair are signed with another key",
        "set the same `pair_key` on both nodes, and restart the one that had the wrong key",
    ),
    "peer_silent": ReasonCode(
        (DEGRADED,), "the other node of the pair does not answer", "run `yirangmq pair status` on both nodes"
    ),
}


class HealthReason(NamedTuple):
    """One reason for which a server is not ``ok``."""

    level: str
    code: str
    text: str
    """Description for people: which queue, how much, since when."""


def health_reason(code: str, text: str, level: str = "") -> HealthReason:
    """Build a reason from the table, at its default level or at another of its levels."""
    levels = REASONS[code].levels
    if level and level not in levels:
        raise ValueError(f"{code} is never {level}")
    return HealthReason(level or levels[0], code, text)


def status_of(reasons: Iterable[HealthReason]) -> str:
    """Return the worst level of the reasons; ``ok`` if there are none."""
    return max((reason.level for reason in reasons), key=LEVELS.index, default=OK)
