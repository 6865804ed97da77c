"""What an answer means for its message. Knows: statuses, ``Retry-After``. Does not know: how the answer came."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from yirangmq.core.message import Reason

AGAIN = frozenset({408, 425, 429})
"""Of 4xx, those that say: not now."""
HOLDING = frozenset({429, 503})
"""Those whose ``Retry-After`` is about all messages, not about this one."""
LONGEST_HOLD = 86_400.0
SHOWN = 200
"""Characters of an answer that are kept with a failure."""


class Outcome(NamedTuple):
    """``reason`` is empty if it worked. ``delay``: seconds after which to try again, where the endpoint said so;
    ``hold``: nothing at all is sent for so long."""

    reason: str = ""
    text: str = ""
    delay: float | None = None
    hold: float = 0

    @property
    def is_trouble(self) -> bool:
        """The endpoint is not well: it is not this message's fault."""
        return self.reason not in ("", Reason.REJECTED)


def judged(status: int, headers: dict[str, str], body: bytes, now: float) -> Outcome:
    if 200 <= status < 300:
        return Outcome()
    text = f"the webhook answered {status}"
    said = body[:SHOWN].decode("utf-8", "replace").strip()
    if said:
        text = f"{text}: {said}"
    if 400 <= status < 500 and status not in AGAIN:
        return Outcome(Reason.REJECTED.value, text)
    after = retry_after(headers.get("retry-after", ""), now) if status in HOLDING else None
    return Outcome(Reason.HANDLER_ERROR.value, text, after, after or 0)


def retry_after(given: str, now: float) -> float | None:
    """Seconds: a number of them, or until a date."""
    if given.isascii() and given.isdigit():
        return min(float(given[:10]), LONGEST_HOLD)
    try:
        moment = parsedate_to_datetime(given)
    except (ValueError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, min((moment - datetime.fromtimestamp(now, UTC)).total_seconds(), LONGEST_HOLD))
