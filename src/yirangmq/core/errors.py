"""Errors: each has a stable code, and a text for people.

Protocols translate codes through one table each and never invent their own. Some errors carry values in their text
(``retry_after``, ``active``, ``addresses``) and read them from there, because only code, text and field pass through
every protocol."""

import re
from typing import Any


class QueueError(Exception):
    """Base class of all errors. ``code`` never changes between releases; ``field`` names the input at fault, or is
    None."""

    code = "internal_error"

    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {text}" if field else text)
        self.field = field
        self.receipts: list[Any] = []
        """Receipts of a ``publish_many`` that failed in the middle, in the order of the messages; None for a message
        that was not stored, or with unknown result."""
        self.refused: dict[str, QueueError] = {}
        """Errors of a sender's earlier messages that were refused, by message id. This error is the first of them."""


class BadInput(QueueError):
    """The input is malformed. Nothing was stored."""

    code = "bad_input"


class TooLarge(BadInput):
    code = "too_large"


class CompressedBody(BadInput):
    """The body of a request is compressed (gzip), and only plain bodies are accepted."""

    code = "packed_body"


class BadPolicy(BadInput):
    code = "bad_policy"


class BadFilter(BadInput):
    code = "bad_filter"


class Unfit(BadInput):
    """The queue's processor refused the message: a check failed, or a hook refused it. Nothing was stored."""

    code = "unfit"


class HookFailed(QueueError):
    """A hook of the queue's processor timed out, failed, or its process ended. Nothing was stored."""

    code = "hook_failed"


class PayloadDamaged(QueueError):
    """The stored payload is not the one that was published: its SHA-256 differs. It is never delivered."""

    code = "payload_damaged"


class NotFound(QueueError):
    """The message does not exist, and none with this id finished within the tombstone window."""

    code = "not_found"


class Retired(NotFound):
    """The log no longer holds the requested sequence. ``asked``: the requested sequence; ``first``: the first one that
    the log holds."""

    code = "retired"

    def __init__(self, text: str, *, field: str | None = None, asked: int = 0, first: int = 0) -> None:
        super().__init__(text, field=field)
        found = re.search(r"sequence (\d+) .* begins at (\d+)", text)  # protocols pass the text, not the numbers
        self.asked = asked or (int(found[1]) if found else 0)
        self.first = first or (int(found[2]) if found else 0)


class WrongState(QueueError):
    """The message exists, but the verb does not apply to its state."""

    code = "wrong_state"


class LeaseLost(QueueError):
    """Base class of the errors of a lease that is not in force. Calls raise one of the two below."""

    code = "lease_lost"


class LeaseExpired(LeaseLost):
    """The lease is over: its time ended, the message was settled or dropped, or it was leased again."""

    code = "lease_expired"


class LeaseMismatch(LeaseLost):
    """The lease is in force, but belongs to another consumer than the one that the call names."""

    code = "lease_mismatch"


class NotAllowed(QueueError):
    """The token is wrong or missing, or the client lacks the right."""

    code = "not_allowed"


class UnknownClient(NotAllowed):
    """The client is unknown: neither its token nor its address matches a grant."""


class TlsFailed(QueueError):
    """TLS between a client and a server cannot be set up: a certificate does not verify, or one side does not use TLS.
    Permanent: the client does not retry. The text says which setting or option to change."""

    code = "tls_failed"


class Misdirected(NotAllowed):
    """The request names another host than this server's, as a request after DNS rebinding does."""

    code = "misdirected"


class Unavailable(QueueError):
    """The server cannot be reached, has too many clients, or is stopping. A later retry may succeed."""

    code = "unavailable"


class CannotListen(QueueError):
    """An address of a server is in use, or cannot be bound. The text says which process has it and what to do."""

    code = "cannot_listen"


class NotActive(Unavailable):
    """This node is not the active one of its pair or cluster. The text names the active node and its client
    addresses, if they are known."""

    code = "not_active"

    @property
    def active(self) -> str:
        """Name of the active node; "" if it is not known. Parsed from the text, which every protocol passes."""
        found = re.search(r"the active node is (\S+?)(?: at |$)", str(self))
        return found[1] if found else ""

    @property
    def addresses(self) -> list[str]:
        found = re.search(r"the active node is \S+ at (.+)$", str(self))
        return found[1].split(", ") if found else []


class Replaced(Unavailable):
    """Another connection took over this durable subscriber's name. A reconnect would take it back, in a loop."""

    code = "replaced"


class Unreachable(Unavailable):
    """The client tried every address up to its retry limit. Its last request may or may not have been executed."""

    code = "unreachable"


class TimedOut(Unavailable):
    """Nothing, or too little, was received within the timeout."""

    code = "timed_out"


def _parse_retry_seconds(error: QueueError) -> float | None:
    found = re.search(r"try again in ([0-9.]+) s", str(error))
    return float(found[1]) if found else None


class QuotaExceeded(QueueError):
    """The queue or the store has reached its quota. Nothing of the batch was stored."""

    code = "quota_exceeded"

    @property
    def retry_after(self) -> float | None:
        """Seconds after which a retry may succeed; None: it never will. Parsed from the text, which every protocol
        passes."""
        return _parse_retry_seconds(self)


class StoreError(QueueError):
    """The store failed or refused. Nothing of the failed batch was confirmed."""

    code = "store_error"


class StoreFull(StoreError):
    code = "store_full"


class StoreReadOnly(StoreError):
    code = "store_read_only"


class StoreDamaged(StoreError):
    code = "store_damaged"


class StoreTooNew(StoreError):
    code = "store_too_new"


class WrongEpoch(StoreError):
    """The log has another epoch than the request: it was lost or reset, and its sequences started again."""

    code = "wrong_epoch"


class StoreBusy(StoreError):
    """Another process holds the store's lock. Nothing was stored; the same request may be sent again."""

    code = "store_busy"

    @property
    def retry_after(self) -> float:
        """Seconds after which to retry. Parsed from the text, which every protocol passes; 1 s if it says nothing."""
        return _parse_retry_seconds(self) or 1.0


class MissingExtra(QueueError):
    """A feature needs an optional package; the text says which to install."""

    code = "missing_extra"


def every_error() -> list[type[QueueError]]:
    """Return all error classes that define a code, for the tables of protocols and documentation."""
    found: list[type[QueueError]] = []
    todo: list[type[QueueError]] = [QueueError]
    while todo:
        kind = todo.pop(0)
        if "code" in vars(kind):
            found.append(kind)
        todo.extend(kind.__subclasses__())
    return found
