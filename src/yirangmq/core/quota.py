"""How full a queue may be, and what happens when it is. Pure: what is there, what comes, the limits in; how many must
go, or the refusal, out.

What counts is what is not finished: ready, delayed, held, claimed and leased. Bytes are those of payloads and of the
envelopes' other members."""

from dataclasses import dataclass
from typing import NamedTuple

from yirangmq.core.errors import QuotaExceeded
from yirangmq.core.message import Counts

REJECT, DROP_OLDEST = "reject", "dropOldest"
RESERVE_BYTES = 16 * 1024 * 1024
"""Disk space reserved for draining a full store: twice the WAL of SQLite at its checkpoint, so that all of it can be
copied into the database."""
RETRY_AFTER = 5.0
"""Seconds after which a producer may ask again: time for consumers to make room, and not yet a pause."""


@dataclass(frozen=True, slots=True)
class Quota:
    """0 is no limit."""

    max_messages: int = 0
    max_bytes: int = 0
    on_full: str = REJECT

    @property
    def is_set(self) -> bool:
        return self.max_messages > 0 or self.max_bytes > 0


class Load(NamedTuple):
    """Messages, and their bytes together."""

    messages: int
    bytes: int


def unfinished(counts: Counts) -> int:
    return counts.ready + counts.delayed + counts.held + counts.claimed + counts.leased


def surplus(quota: Quota, held: Load, coming: Load) -> Load:
    """How much of what is held must go before ``coming`` fits."""
    messages = held.messages + coming.messages - quota.max_messages if quota.max_messages else 0
    size = held.bytes + coming.bytes - quota.max_bytes if quota.max_bytes else 0
    return Load(max(0, messages), max(0, size))


def refusal(quota: Quota, queue: str, held: Load, coming: Load) -> QuotaExceeded | None:
    """Why ``coming`` is refused while all of ``held`` stays; None: it fits."""
    for most, have, add, what in (
        (quota.max_messages, held.messages, coming.messages, "messages"),
        (quota.max_bytes, held.bytes, coming.bytes, "bytes"),
    ):
        if most and add > most:
            return QuotaExceeded(f"queue {queue!r} takes {most} {what} in all, and this is {add}; that never fits")
        if most and have + add > most:
            return QuotaExceeded(
                f"queue {queue!r} takes {most} {what} and has {have} unfinished; try again in {RETRY_AFTER:g} s"
            )
    return None


def queues_refusal(most: int, have: int, coming: list[str]) -> QuotaExceeded | None:
    """Why these new queues are refused; None: there may be so many."""
    if have + len(coming) <= most:
        return None
    which = f"queue {coming[0]!r}" if len(coming) == 1 else f"{len(coming)} new queues"
    return QuotaExceeded(
        f"{which}: this server has {have} queues and allows {most}; delete queues that are not used, or raise the "
        "setting max_queues",
        field="max_queues",
    )


def store_refusal(most: int, used: int | None) -> QuotaExceeded | None:
    """Why nothing more is published to a store that has grown as large as it may; None: it has not, or cannot tell."""
    if not most or used is None or used < most:
        return None
    return QuotaExceeded(
        f"the store has {used >> 20} MiB in use, and this server allows {most >> 20}; consuming goes on, "
        f"try again in {RETRY_AFTER:g} s"
    )
