"""Errors: each has a code that never changes, and a text for people.

Protocols translate codes through one table each and never invent their own. Some errors carry values in their text
(``retry_after``, ``active``, ``addresses``) and read them from there, because only code, text and field pass through
every protocol."""

import re
from typing import Any


class QueueError(Exception):
    """The one parent. ``code`` never changes between releases; ``field`` names the input at fault, if one is."""

    code = "internal_error"

    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {text}" if field else text)
        self.field = field
        self.receipts: list[Any] = []
        """Of a ``publish_many`` that was stopped in the middle: what became of the messages sent, in their order;
        None for one that was not stored, or of which nothing is known."""
        self.refused: dict[str, QueueError] = {}
        """Of a sender: why messages were refused that had been sent before, by their ids; this is the first of them."""


class BadInput(QueueError):
    """What was said to us is malformed; nothing was stored."""

    code = "bad_input"


class TooLarge(BadInput):
    code = "too_large"


class PackedBody(BadInput):
    """A body that is packed, as gzip does it, where only plain ones are read."""

    code = "packed_body"


class BadPolicy(BadInput):
    code = "bad_policy"


class BadFilter(BadInput):
    code = "bad_filter"


class Unfit(BadInput):
    """The queue's processor refused the message: a check, or a hook that said no. Nothing was stored."""

    code = "unfit"


class HookFailed(QueueError):
    """A hook of the queue's processor took too long, failed or died; nothing was stored."""

    code = "hook_failed"


class PayloadDamaged(QueueError):
    """The stored payload is not the one that was sent: its SHA-256 is another. It is never handed out."""

    code = "payload_damaged"


class NotFound(QueueError):
    """No such message, and none that finished within the tombstone window."""

    code = "not_found"


class Retired(NotFound):
    """The log no longer holds the sequence asked for: ``asked`` is the one, ``first`` where it begins now."""

    code = "retired"

    def __init__(self, text: str, *, field: str | None = None, asked: int = 0, first: int = 0) -> None:
        super().__init__(text, field=field)
        found = re.search(r"sequence (\d+) .* begins at (\d+)", text)  # the text passes every door, the numbers do not
        self.asked = asked or (int(found[1]) if found else 0)
        self.first = first or (int(found[2]) if found else 0)


class WrongState(QueueError):
    """The message exists, but this verb does not apply to the state it is in."""

    code = "wrong_state"


class LeaseLost(QueueError):
    """The lease named is not the one in force. Never a silent success."""

    code = "lease_lost"


class LeaseExpired(LeaseLost):
    code = "lease_expired"


class LeaseMismatch(LeaseLost):
    code = "lease_mismatch"


class NotAllowed(QueueError):
    """Wrong or missing token, or a thing this client may not do."""

    code = "not_allowed"


class Stranger(NotAllowed):
    """Nobody that is known here, by token or by address."""


class TlsFailed(QueueError):
    """TLS between a client and a server cannot be set up: a certificate that does not verify, or only one side speaks
    TLS. Permanent: the client does not retry. The text says which setting or option to change."""

    code = "tls_failed"


class Misdirected(NotAllowed):
    """The request names another host than this server's, as one does that reached it by DNS rebinding."""

    code = "misdirected"


class Unavailable(QueueError):
    """The server cannot be reached, has too many clients, or is stopping. Asking again later may help."""

    code = "unavailable"


class CannotListen(QueueError):
    """An address of a server is in use, or cannot be had at all; the text says who has it and what to do."""

    code = "cannot_listen"


class NotActive(Unavailable):
    """Of a pair of nodes: this is the standby. Its answer names the active one, and where clients reach it."""

    code = "not_active"

    @property
    def active(self) -> str:
        """The name of the active node; "" if it is not known. It stands in the text, which passes every door."""
        found = re.search(r"the active node is (\S+?)(?: at |$)", str(self))
        return found[1] if found else ""

    @property
    def addresses(self) -> list[str]:
        found = re.search(r"the active node is \S+ at (.+)$", str(self))
        return found[1].split(", ") if found else []


class Replaced(Unavailable):
    """Of a durable subscriber: its name follows over another connection now. Coming again would be a fight."""

    code = "replaced"


class Unreachable(Unavailable):
    """A client tried every address as often as it may. What it asked last may or may not have been done."""

    code = "unreachable"


class TimedOut(Unavailable):
    """Nothing, or not enough, was heard for too long."""

    code = "timed_out"


def _told_seconds(error: QueueError) -> float | None:
    found = re.search(r"try again in ([0-9.]+) s", str(error))
    return float(found[1]) if found else None


class QuotaExceeded(QueueError):
    """The queue, or the store, is as full as it may be; nothing of the batch was stored."""

    code = "quota_exceeded"

    @property
    def retry_after(self) -> float | None:
        """Seconds after which asking again may help; None: never. It stands in the text, which passes every door."""
        return _told_seconds(self)


class StoreError(QueueError):
    """The place where messages are kept refused. Nothing of the failed batch was confirmed."""

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
    """This is another feed than the one meant: it was lost or reset, and its sequences began anew."""

    code = "wrong_epoch"


class StoreBusy(StoreError):
    """Another process holds the store's lock. Nothing was stored; the same request may be sent again."""

    code = "store_busy"

    @property
    def retry_after(self) -> float:
        """Seconds after which to try again. It stands in the text, which passes every protocol; else 1 s."""
        return _told_seconds(self) or 1.0


class MissingExtra(QueueError):
    """A feature needs an optional package; the text says which to install."""

    code = "missing_extra"


def every_error() -> list[type[QueueError]]:
    """All error classes with a code of their own, for the tables of doors and documents."""
    found: list[type[QueueError]] = []
    todo: list[type[QueueError]] = [QueueError]
    while todo:
        kind = todo.pop(0)
        if "code" in vars(kind):
            found.append(kind)
        todo.extend(kind.__subclasses__())
    return found
