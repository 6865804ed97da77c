"""Messages for a RESULT frame, a page at a time: bounded by count and by bytes, with a cursor for the rest."""

from collections.abc import Callable

from yirangmq.format.delivery import Look

PAGE_BYTES = 1024 * 1024
"""Payload bytes of a page, but for a single message that is larger."""
MOST_PER_STEP = 50
"""Messages loaded at once, so that one step holds nobody up."""

Step = Callable[[int, str], tuple[str, list[Look]]]
"""(how many to look at, cursor) → (cursor, those found)."""


def gather(step: Step, limit: int, cursor: str) -> tuple[list[Look], str]:
    """Steps until there are ``limit``, or enough bytes, or no more. The size so far tells how many to load next."""
    looks: list[Look] = []
    size, count = 0, 1
    while True:
        ahead, found = step(count, cursor)
        if len(found) > limit - len(looks):
            count = limit - len(looks)
            continue
        cursor = ahead
        looks += found
        size += sum(len(look.envelope.payload) for look in found if look.envelope is not None)
        if not cursor or len(looks) >= limit or size >= PAGE_BYTES:
            return looks, cursor
        affordable = (PAGE_BYTES - size) * len(looks) // size if size else MOST_PER_STEP
        count = max(1, min(count * 4, MOST_PER_STEP, affordable))
