"""Why a message failed: a closed list, so that counts and filters mean the same everywhere."""

from enum import StrEnum

from yirangmq.core.errors import BadInput

MAX_MESSAGE = 2000
"""Characters of free text kept with a failure; a stack trace belongs in a log."""


class Reason(StrEnum):
    VALIDATION_ERROR = "VALIDATION_ERROR"
    HANDLER_ERROR = "HANDLER_ERROR"
    TIMEOUT = "TIMEOUT"
    RETRY_LIMIT = "RETRY_LIMIT"
    POISON = "POISON"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    CORRUPT = "CORRUPT"


MEANING: dict[Reason, str] = {
    Reason.VALIDATION_ERROR: "the message does not fit its schema, or its envelope is broken",
    Reason.HANDLER_ERROR: "the consumer said that its work failed",
    Reason.TIMEOUT: "it took too long: its lease lapsed, or the consumer said so",
    Reason.RETRY_LIMIT: "given up by count without a better reason",
    Reason.POISON: "failed again and again for the same reason",
    Reason.REJECTED: "the consumer said never to try again",
    Reason.EXPIRED: "its time to live ran out before it was taken",
    Reason.CORRUPT: "its stored bytes could not be read back, or are not those that were sent",
}


def check_reason(value: object, field: str = "reasonCode") -> Reason:
    try:
        return Reason(str(value))
    except ValueError:
        known = ", ".join(Reason)
        raise BadInput(f"{value!r} is not one of {known}", field=field) from None
