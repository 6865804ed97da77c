"""The one table from what happened to the exit code; ``docs/cli.md`` is printed from it. Codes are a promise."""

OK = 0
EMPTY = 6
REFUSED = 7
UNWELL = 11
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

MEANING: dict[int, str] = {
    OK: "it worked",
    1: "a fault in yirangmq itself, please report it; of `torture`: something was lost; of `pipeline`: Spark, "
    "or a step, failed while it ran",
    2: "bad input: a wrong option, name, document, policy or filter, or a message that the queue's processor refuses; "
    "nothing was changed",
    3: "there is no such message, queue, record or store",
    4: "the message is in another state, or the lease is no longer in force",
    5: "the store refused: full, read-only, damaged, newer than this version, busy, another feed, or a payload that is "
    "not what was sent",
    EMPTY: "there was nothing to consume (only with `consume --fail-empty`)",
    REFUSED: "published, but refused by its schema: it lies among the dead letters",
    8: "an optional package is missing; the text says which",
    9: "not allowed: a wrong or missing token, or a host name that is not in `http_hosts`; or TLS failed: a "
    "certificate that does not verify, or only one side speaks TLS",
    10: "the server cannot be reached (of `health`: down), is the standby of a pair, or takes no more now, or a hook "
    "failed; try again later",
    UNWELL: "the server or the store is not well (of `health`), or a sink did not take a notice (of `alert test`)",
    12: "a server cannot listen: an address is in use, or not to be had; the text names the setting, and who has it",
    INTERRUPTED: "interrupted with Ctrl-C",
    PIPE_CLOSED: "whoever read the output has gone, as with `| head`",
    TERMINATED: "stopped by SIGTERM",
}

EXIT_OF: dict[str, int] = {
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
"""From ``QueueError.code``; a test sees that every error has its line."""


def exit_code(code: str) -> int:
    return EXIT_OF.get(code, 1)
