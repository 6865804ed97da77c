"""Delivery as a handler receives it, the errors ``Retry`` and ``Reject``, and the outcome of a handler.

The delivery is the leased message and whether the lease is still in force. An outcome is a value for each way in
which a handler can end. Its ``kind`` is equal for equal faults; poison detection compares it."""

import inspect
from typing import Any, NamedTuple

from yirangmq.consumer.lease_table import HeldLease
from yirangmq.core import validation
from yirangmq.core.message import MAX_FAILURE_TEXT, MAX_TRACEBACK, Reason, bounded_failure_text, with_traceback
from yirangmq.format.envelope import as_json

# -- delivery ----------------------------------------------------------------------------------------------------------


class HandlerDelivery:
    """Argument of a handler: the leased message, and whether its lease is still valid."""

    __slots__ = ("_header", "_held", "_taken", "_value")

    def __init__(self, held: HeldLease) -> None:
        self._held = held
        self._taken = held.taken
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
        """Number of the delivery, from 1. Above 1 another consumer may have processed the message before."""
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
        """True if the lease is lost: another consumer may have the message, and this handler's result no longer
        counts. A long handler should check it now and then."""
        return self._held.lost

    def value(self) -> Any:
        """Return the payload decoded from JSON, or its bytes if it is not JSON."""
        if self._value is None:
            self._value = (self._taken.value(),)
        return self._value[0]

    def envelope_json(self) -> bytes:
        """Return the envelope as JSON text with the payload's JSON text inside; a payload that is not JSON is in
        Base64."""
        return as_json(self._taken.envelope)


# -- outcome -----------------------------------------------------------------------------------------------------------


class Retry(Exception):
    """Raise or return it from a handler to retry the message in ``after`` seconds (None: as the queue's policy
    says).

    It counts as an attempt. Past the policy's limit the message becomes a dead letter."""

    def __init__(self, after: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler requested a retry")
        self.after = None if after is None else validation.check_milliseconds(after, "after") / 1000


class Reject(Exception):
    """Raise or return it from a handler if the message can never succeed: it becomes a dead letter immediately."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected it")


MAX_FRAMES = 100
"""Maximum number of frames of a traceback, the innermost ones: a deep recursion has thousands."""


class HandlerOutcome(NamedTuple):
    """Outcome of a handler. ``reason`` is None on success.

    ``kind`` is a word for the fault, equal for equal faults. It is "" if the handler requested the failure."""

    reason: Reason | None = None
    text: str = ""
    delay: float | None = None
    kind: str = ""


DONE = HandlerOutcome()


def of_value(value: Any) -> HandlerOutcome:
    """Return the outcome for a handler's return value. Internal handlers may return an ``HandlerOutcome`` directly."""
    if isinstance(value, HandlerOutcome):
        return value
    if isinstance(value, Retry | Reject):
        return of_error(value)
    if hasattr(value, "__await__"):
        if inspect.iscoroutine(value):
            value.close()
        return HandlerOutcome(
            Reason.HANDLER_ERROR, "the handler returned something to await and did no work", kind="await"
        )
    return DONE


def of_error(error: BaseException) -> HandlerOutcome:
    """Return the outcome for an error that a handler raised."""
    text = _error_text(error)
    if isinstance(error, Retry):
        return HandlerOutcome(Reason.HANDLER_ERROR, text, error.after)
    if isinstance(error, Reject):
        return HandlerOutcome(Reason.REJECTED, text)
    name = type(error).__name__
    whole = with_traceback(f"{name}: {text}"[:MAX_FAILURE_TEXT], _traceback_of(error))
    return HandlerOutcome(Reason.HANDLER_ERROR, bounded_failure_text(whole, MAX_TRACEBACK), kind=name)


def _traceback_of(error: BaseException) -> str:
    """Return the traceback of a handler's error, without the frames of the consumer itself; "" if there is none."""
    import traceback  # loaded only when a handler fails

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("yirangmq.consumer."):
        frames = frames.tb_next
    if frames is None:
        return ""
    try:
        return "".join(traceback.format_exception(type(error), error, frames, limit=-MAX_FRAMES))
    except Exception:  # a foreign __str__ may raise
        return ""


def _error_text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_FAILURE_TEXT]
    except Exception:  # a foreign __str__ may raise
        return "an error that cannot be printed"


def invalid(complaint: str) -> HandlerOutcome:
    return HandlerOutcome(Reason.VALIDATION_ERROR, complaint[:MAX_FAILURE_TEXT])


def timed_out(text: str) -> HandlerOutcome:
    return HandlerOutcome(Reason.TIMEOUT, text[:MAX_FAILURE_TEXT], kind="timeout")
