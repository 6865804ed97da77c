"""What of a queue may be handed out next: alive, fit for its schema, and not more than somebody can carry.

Knows: transactions, what was affordable before. Does not know: leases."""

from collections.abc import Sequence
from typing import Protocol

from yirangmq.broker.happenings import Happenings
from yirangmq.broker.validate import Schemas
from yirangmq.core import decide
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import Change, Transaction

Head = tuple[Message, Envelope]
MOST_SWEEPS = 20
"""Sweeps one lease may do before it takes what is left; the rest is due at the next call."""


class Deeds(Protocol):
    """What is done to messages on the way (``broker.verbs.Verbs``)."""

    schemas: Schemas
    happened: Happenings
    touched: set[str]

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...

    def sweep_once(self, transaction: Transaction, now: int) -> int: ...


class Offers:
    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds
        self._fit: dict[str, int] = {}
        """How many messages of a queue were affordable when its messages are large."""

    def affordable(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int | None, now: int
    ) -> list[Head]:
        """As many as the bytes allow. How many that were last time is how many are loaded, so that large payloads are
        not read again and again for nothing; a queue that may have more is marked as touched."""
        if most_bytes is None:
            return self.live(transaction, queue, limit, target, now)
        asked = min(limit, self._fit.get(queue, limit))
        heads = self.live(transaction, queue, asked, target, now)
        kept = size = 0
        for _, envelope in heads:
            size += len(envelope[8])
            if size > most_bytes and kept:
                break
            kept += 1
        if kept < len(heads):
            self._fit[queue] = kept
        elif asked < limit:
            self._fit[queue] = asked * 2
        else:
            return heads
        if kept < len(heads) or len(heads) == asked:
            self._deeds.touched.add(queue)
        return heads[:kept]

    def live(self, transaction: Transaction, queue: str, limit: int, target: int, now: int) -> list[Head]:
        """Whose time ran out is not handed out, however much is due at once; nor what does not fit its schema."""
        for _ in range(MOST_SWEEPS):
            heads = transaction.heads(queue, limit, target)
            if any(0 < message.expires_at <= now for message, _ in heads):
                self._deeds.sweep_once(transaction, now)
            elif not self._bury_unfit(transaction, queue, heads, now):
                return heads
        return []

    def _bury_unfit(self, transaction: Transaction, queue: str, heads: Sequence[Head], now: int) -> bool:
        """Publishing has checked what came through it; a file dropped into a folder, or a message older than its
        schema, is checked before it is first handed out. True if there was one."""
        policy = transaction.policy(queue)
        if not policy.schemas:
            return False
        changes = []
        for message, envelope in heads:
            complaint = "" if message.leases else self._deeds.schemas.complaint(envelope, policy)
            if complaint:
                outcome = decide.refuse(message, policy, now, complaint)
                changes.append(Change(message, outcome.message, outcome.failure))
        self._deeds.swap(transaction, changes, now)
        self._deeds.happened.refused(changes, now)
        return bool(changes)
