"""Prints ``docs/errors.md`` from the classes of ``yirangmq.core.errors`` and the tables of protocols;
``python tools/errors_docs.py`` writes it, a test compares it with the program."""

from pathlib import Path

from yirangmq.cli import output
from yirangmq.core.errors import QueueError, every_error
from yirangmq.protocols.http.v1.rendering import STATUS_OF

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
INTRO = """# Errors

Every error has a code that does not change between releases, and a text for people. The same code comes from Python
(`error.code`), the command line (`--json`: member `code`), HTTP (`error.code`), the socket protocol and STOMP (header
`code`). Test the code, not the text.

*Printed from the program by `python tools/errors_docs.py`.*

| code | HTTP | exit | Python | meaning | what to do |
|---|---|---|---|---|---|
"""
MEANING = {
    "internal_error": "a fault in yirangmq itself",
    "too_large": "a message, a request or a list is larger than a limit; the text names the limit",
    "bad_policy": "the policy has an unknown member or a value out of range",
    "bad_filter": "the filter expression is malformed; the text points at the place",
    "lease_expired": "the lease is over: its time ended, the message was acknowledged, nacked, released or dropped, "
    "or it was leased again",
    "lease_mismatch": "the lease belongs to another consumer than the one that the call names",
    "lease_lost": "base class of `LeaseExpired` and `LeaseMismatch` "
    "([leases](concepts/leases.md#when-a-lease-is-no-longer-valid)); no call answers with this code itself",
    "store_full": "the disk, the reserve or etcd's quota is full; nothing was stored",
    "store_read_only": "the store cannot be written: a read-only file system, or files of another user",
    "store_damaged": "the store's files are damaged",
    "store_too_new": "a newer version wrote the store",
}
"""Meanings of errors whose class has no docstring, or one for programmers only."""
ADVICE = {
    "internal_error": "report it with the text; the request may be repeated",
    "bad_input": "correct the field that the error names",
    "too_large": "send less at once, or raise the limit that the text names",
    "packed_body": "send the body without `Content-Encoding`",
    "bad_policy": "correct the member that the error names ([policy](policy.md))",
    "bad_filter": "correct the expression ([filter](filter.md))",
    "unfit": "correct the message; `yirangmq processor check` shows what is wrong without storing it",
    "hook_failed": "retry; if it stays, read the hook's log ([processor](processor.md))",
    "payload_damaged": "quarantine the message, run `yirangmq check`, examine the disk",
    "not_found": "nothing to do if the message was finished earlier; else check the id and the queue's name",
    "retired": "continue from the sequence that the error names; the records before it are gone",
    "wrong_state": "`yirangmq show --queue QUEUE ID` prints the message with its state",
    "lease_lost": "as for these two; `except LeaseLost` handles both",
    "lease_expired": "drop the result; if the time ended, use a longer `visibilityTimeoutSec`, "
    "or `extend` during the work",
    "lease_mismatch": "settle it as the consumer that leased it",
    "not_allowed": "use a token with the scope that the text names ([security](security.md))",
    "tls_failed": "change the setting or option that the text names; a retry does not help",
    "misdirected": "use a host name of the setting `http_hosts`, or give the server a token",
    "unavailable": "retry with backoff",
    "cannot_listen": "stop the process that the text names, or use another address",
    "not_active": "connect to the node that the error names; a client with both addresses does it by itself",
    "replaced": "another process uses this subscriber's name: stop one of them, or name it differently",
    "unreachable": "check address, network and `yirangmq health`; the last request may have been executed",
    "timed_out": "retry; requests with an id or a deduplication key are stored once",
    "quota_exceeded": "consume messages, or raise the quota; HTTP says when to retry in `retryAfterSec`",
    "store_error": "read the server's log: `store_commit_failed` ([log events](log-events.md))",
    "store_full": "free disk space; acked messages are removed earlier meanwhile",
    "store_read_only": "mount it writable, or run as the user that owns the files",
    "store_damaged": "`yirangmq check`, then `yirangmq repair`; keep a copy first",
    "store_too_new": "use the newer version",
    "store_busy": "retry; end the other program's transaction if it stays",
    "wrong_epoch": "start again from the new epoch's first record ([topics](topics.md))",
    "missing_extra": "install the extra that the text names",
}
"""What a user can do about each error."""


def page() -> str:
    return INTRO + "".join(_row(kind) for kind in sorted(every_error(), key=lambda kind: kind.code))


def _row(kind: type[QueueError]) -> str:
    code = kind.code
    meaning = MEANING.get(code) or _first_sentences(kind)
    exit_code = output.exit_code(code)
    return f"| `{code}` | {STATUS_OF[code]} | {exit_code} | `{kind.__name__}` | {meaning} | {ADVICE[code]} |\n"


def _first_sentences(kind: type[QueueError]) -> str:
    text = " ".join((kind.__doc__ or "").split())
    return text.rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
