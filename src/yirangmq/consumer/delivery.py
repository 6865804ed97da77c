"""Delivery as a handler receives it, the errors ``Retry`` and ``Reject``, and the outcome of a handler.

The delivery is the leased message and whether the lease is still in force. An outcome is a value for each way in which
a handler can end. Its ``kind`` repeats when the fault repeats, for the detection of poison messages."""

import inspect
from typing import Any, NamedTuple

from yirangmq.consumer.lease_table import Holding
from yirangmq.core import validation
from yirangmq.core.message import MAX_MESSAGE, Reason
from yirangmq.format.envelope import as_json

# -- delivery ----------------------------------------------------------------------------------------------------------


class Delivery:
    """What a handler is handed: the message, and whether it is still its own."""

    __slots__ = ("_header", "_holding", "_taken", "_value")

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._taken = holding.taken
        self._header: dict[str, Any] | None = None
        self._value: tuple[Any] | None = None

    @property
    def id(self) -> str:
        return self._taken.id

    @property
    def queue(self) -> str:
        return self._taken.queue

    @property
    def attempt(self) -> int:
        """1 for the first delivery; more, and somebody may have worked on it before."""
        return self._taken.attempt

    @property
    def lease_id(self) -> str:
        return self._taken.lease_id

    @property
    def payload(self) -> bytes:
        """The payload's bytes, exactly as sent."""
        return self._taken.payload

    @property
    def header(self) -> dict[str, Any]:
        """The envelope without its payload: messageId, timestamp, type, attributes, traceId …"""
        if self._header is None:
            self._header = self._taken.header
        return self._header

    @property
    def policy(self) -> dict[str, Any]:
        return self._taken.policy

    @property
    def lost(self) -> bool:
        """The lease is lost: another consumer may have the message by now, and what this handler says no longer
        counts. A long handler looks at it now and then."""
        return self._holding.lost

    def value(self) -> Any:
        """The payload decoded from JSON, or its bytes if it is not JSON."""
        if self._value is None:
            self._value = (self._taken.value(),)
        return self._value[0]

    def envelope_json(self) -> bytes:
        """The envelope as JSON text, the payload's own text inside it; a payload that is not JSON as Base64."""
        return as_json(self._taken.envelope)


# -- outcome -----------------------------------------------------------------------------------------------------------


class Retry(Exception):
    """Raise or return it from a handler: not now, again in ``after`` seconds (None: as the queue's policy says).

    It counts as an attempt: past the policy's limit the message goes to the dead letters."""

    def __init__(self, after: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for another try")
        self.after = None if after is None else validation.check_milliseconds(after, "after") / 1000


class Reject(Exception):
    """Raise or return it from a handler: this will never work, straight to the dead letters."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected it")


class Outcome(NamedTuple):
    """``reason`` is None when it worked. ``kind`` is what went wrong in a word that repeats when the fault repeats;
    "" where a failure was asked for."""

    reason: Reason | None = None
    text: str = ""
    delay: float | None = None
    kind: str = ""


DONE = Outcome()


def of_value(value: Any) -> Outcome:
    """What a handler returned; one of ours may return the outcome itself."""
    if isinstance(value, Outcome):
        return value
    if isinstance(value, Retry | Reject):
        return of_error(value)
    if hasattr(value, "__await__"):
        if inspect.iscoroutine(value):
            value.close()
        return Outcome(Reason.HANDLER_ERROR, "the handler returned something to await and did no work", kind="await")
    return DONE


def of_error(error: BaseException) -> Outcome:
    """What a handler raised."""
    text = _said(error)
    if isinstance(error, Retry):
        return Outcome(Reason.HANDLER_ERROR, text, error.after)
    if isinstance(error, Reject):
        return Outcome(Reason.REJECTED, text)
    name = type(error).__name__
    return Outcome(Reason.HANDLER_ERROR, f"{name}: {text}"[:MAX_MESSAGE], kind=name)


def _said(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE]
    except Exception:  # somebody else's __str__
        return "an error that cannot be printed"


def invalid(complaint: str) -> Outcome:
    return Outcome(Reason.VALIDATION_ERROR, complaint[:MAX_MESSAGE])


def too_slow(text: str) -> Outcome:
    return Outcome(Reason.TIMEOUT, text[:MAX_MESSAGE], kind="timeout")
