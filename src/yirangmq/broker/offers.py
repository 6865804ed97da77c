"""What of a queue may be handed out next: alive, fit for its schema, as it was sent, and not more than somebody can
carry.

Knows: transactions, what was affordable before. Does not know: leases."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from yirangmq.broker.gate import Gate
from yirangmq.broker.happenings import Happenings
from yirangmq.broker.integrity import Damage, damaged
from yirangmq.broker.strict_order import StrictOrder
from yirangmq.broker.validate import Schemas
from yirangmq.core import transitions
from yirangmq.core.message import Envelope, Message, Run, sizes_of
from yirangmq.core.ports import Change, Transaction

Head = tuple[Message, Envelope]
MOST_SWEEPS = 20
"""Sweeps one lease may do before it takes what is left; the rest is due at the next call."""


class Deeds(Protocol):
    """What is done to messages on the way (``broker.verbs.Verbs``)."""

    schemas: Schemas
    gate: Gate
    happened: Happenings
    touched: set[str]
    strict: StrictOrder

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...

    def sweep_once(self, transaction: Transaction, now: int) -> int: ...


class Offers:
    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds
        self._damage = Damage(deeds)
        self._fit: dict[str, int] = {}
        """How many messages of a queue were affordable when its messages are large."""

    def affordable(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int | None, now: int
    ) -> list[Head]:
        """As many as the bytes allow. How many that were last time is how many are loaded, so that large payloads are
        not read again and again for nothing; a queue that may have more is marked as touched."""
        asked = self._asked(queue, limit, most_bytes)
        heads = self.live(transaction, queue, asked, target, now)
        kept = self._kept(queue, limit, asked, [envelope.size for _, envelope in heads], most_bytes)
        return heads[:kept]

    def affordable_runs(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int | None
    ) -> list[tuple[Run, list[Envelope]]] | None:
        """The same of messages that can be treated as one; None where some must be looked at by themselves."""
        runs = transaction.in_runs()
        if runs is None:
            return None
        policy = transaction.policy(queue)
        if policy.schemas or policy.is_ordered:
            return None
        asked = self._asked(queue, limit, most_bytes)
        found = runs.head_runs(queue, asked, target)
        if not found:
            return found
        if self._damage.is_looked_for(transaction, queue) and any(damaged(envelopes) for _, envelopes in found):
            return None
        sizes = [size for _, envelopes in found for size in sizes_of(envelopes)]
        left = self._kept(queue, limit, asked, sizes, most_bytes)
        kept = []
        for run, envelopes in found:
            if left > 0:
                kept.append((run._replace(length=min(run.length, left)), envelopes[:left]))
            left -= run.length
        return kept

    def _asked(self, queue: str, limit: int, most_bytes: int | None) -> int:
        return limit if most_bytes is None else min(limit, self._fit.get(queue, limit))

    def _kept(self, queue: str, limit: int, asked: int, sizes: Sequence[int], most_bytes: int | None) -> int:
        """How many of those found, with these sizes, are affordable."""
        count = len(sizes)
        if most_bytes is None:
            return count
        kept = count if sum(sizes) <= most_bytes else max(1, bisect_right(list(accumulate(sizes)), most_bytes))
        if kept < count:
            self._fit[queue] = kept
        elif asked < limit:
            self._fit[queue] = asked * 2
        else:
            return kept
        if kept < count or count == asked:
            self._deeds.touched.add(queue)
        return kept

    def live(self, transaction: Transaction, queue: str, limit: int, target: int, now: int) -> list[Head]:
        """Whose time ran out is not handed out, however much is due at once; nor what does not fit its schema."""
        for _ in range(MOST_SWEEPS):
            heads = self._heads(transaction, queue, limit, target)
            if any(0 < message.expires_at <= now for message, _ in heads):
                self._deeds.sweep_once(transaction, now)
            elif not self._bury_unfit(transaction, queue, heads, now) and not self._damage.set_aside(
                transaction, queue, heads, now
            ):
                return heads
        return []

    def sound(self, transaction: Transaction, queue: str, heads: list[Head], now: int) -> list[Head]:
        """These, if nothing is wrong with any; else what is wrong is set aside, and the others come the next time."""
        if self._bury_unfit(transaction, queue, heads, now) or self._damage.set_aside(transaction, queue, heads, now):
            self._deeds.touched.add(queue)
            return []
        return heads

    def _heads(self, transaction: Transaction, queue: str, limit: int, target: int) -> list[Head]:
        """In strict order, first what was begun before."""
        policy = transaction.policy(queue)
        again = self._deeds.strict.again(transaction, queue, policy, target) if policy.is_ordered else None
        return transaction.heads(queue, limit, target) if again is None else [again]

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
                outcome = transitions.refuse(message, policy, now, complaint)
                changes.append(Change(message, outcome.message, outcome.failure))
        self._deeds.swap(transaction, changes, now)
        self._deeds.happened.refused(changes, now)
        return bool(changes)
