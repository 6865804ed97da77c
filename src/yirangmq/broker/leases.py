"""Lease ids as callers give them, and what becomes of each. Knows: their form. Does not know: stores, verbs."""

from collections.abc import Sequence

from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import lease_span, split_lease_id

MOST_PER_CALL = 10_000
"""Messages in one call; a larger batch gains nothing and holds the lane."""

Results = list[QueueError | None]
"""For each message None, or why not."""


class Leases:
    """Lease ids of one call, read and checked: how many, each well formed, none twice. ``queue``: where all of them
    must be from, if the caller says so. ``span``: if it is known already."""

    def __init__(
        self, leases: Sequence[str], queue: str | None = None, span: tuple[int, int, int] | None = None
    ) -> None:
        if len(leases) > MOST_PER_CALL:
            raise BadInput(f"{len(leases)} in one call, at most {MOST_PER_CALL}", field="leases")
        self.texts = leases
        self.queue = queue
        self.span = lease_span(leases) if span is None else span
        """First, last and fence, if their numbers follow each other and all have the same fence, as is usual."""
        self._keys = None if self.span else [_checked_lease(lease) for lease in leases]
        if self._keys is not None and len(set(self._keys)) != len(self._keys):
            raise BadInput("the same lease twice in one call", field="leases")

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Number and fence of each."""
        if self._keys is None and self.span is not None:
            first, last, fence = self.span
            self._keys = [(seq, fence) for seq in range(first, last + 1)]
        return self._keys or []


def _checked_lease(lease: object) -> tuple[int, int]:
    key = split_lease_id(lease) if isinstance(lease, str) else None
    if key is None:
        raise BadInput(f"{lease!r} is not a lease id", field="leaseId")
    return key
