"""The record of deliveries: those under way, and the latest that ended. In memory and bounded: what must outlive the
process is told as an event, or to a queue of outcomes.

Knows: records. Does not know: transactions; it is told when a commit is on disk, and when it failed."""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice

from yirangmq.core import events as rules
from yirangmq.core.events import DeliveriesEnded, DeliveryRecord, Status
from yirangmq.core.message import Message
from yirangmq.core.ports import Change

MOST_KEPT = 20_000
"""Deliveries that ended, of all queues, at some 400 bytes each."""
MOST_OPEN = 100_000
"""Deliveries under way; past them the longest known are not recorded any more."""


class DeliveryLog:
    """Written by the thread that commits; read by any."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[tuple[int, int], DeliveryRecord] = {}
        self._ended: deque[DeliveryRecord] = deque(maxlen=MOST_KEPT)
        self._in_flight: Counter[tuple[str, str]] = Counter()
        self._beginning: list[DeliveryRecord] = []
        self._ending: list[DeliveryRecord] = []
        self.totals: Counter[tuple[str, str]] = Counter()
        """How many ended, by queue and status, since the start."""

    # -- inside a transaction -------------------------------------------------------------------------------------

    def begun(self, cards: Iterable[Message]) -> None:
        self._beginning += map(rules.begun, cards)

    def ended(self, changes: Sequence[Change], now: int) -> list[DeliveryRecord]:
        """The records of those that leave a consumer's hand with these changes."""
        found = []
        for before, after, failure in changes:
            if rules.leaves_hand(before, after):
                record = self._open.get((before.seq, before.leases)) or rules.begun(before)
                found.append(rules.ended(record, after, failure, now))
        self._ending += found
        return found

    # -- the commit -----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """The commit failed: none of it happened."""
        self._beginning.clear()
        self._ending.clear()

    def committed(self) -> list[DeliveriesEnded]:
        """It is on disk; what is to be told of it."""
        if not self._beginning and not self._ending:
            return []
        with self._guard:
            for record in self._beginning:
                self._add(record)
            for record in self._ending:
                self._close(record)
            while len(self._open) > MOST_OPEN:
                self._less(self._open.pop(next(iter(self._open))))
        by_queue: dict[str, list[DeliveryRecord]] = {}
        for record in self._ending:
            by_queue.setdefault(record.queue, []).append(record)
        self._beginning, self._ending = [], []
        return [DeliveriesEnded(queue, len(records), records) for queue, records in by_queue.items()]

    def adopt(self, cards: Iterable[Message]) -> None:
        """These are in consumers' hands since before this process began."""
        with self._guard:
            for card in cards:
                self._add(rules.begun(card))

    def _add(self, record: DeliveryRecord) -> None:
        if (record.seq, record.fence) not in self._open:
            self._open[record.seq, record.fence] = record
            self._in_flight[record.queue, record.consumer] += 1

    def _close(self, record: DeliveryRecord) -> None:
        known = self._open.pop((record.seq, record.fence), None)
        if known is not None:
            self._less(known)
        self._ended.append(record)
        self.totals[record.queue, record.status.value] += 1

    def _less(self, record: DeliveryRecord) -> None:
        key = record.queue, record.consumer
        self._in_flight[key] -= 1
        if self._in_flight[key] <= 0:
            del self._in_flight[key]

    # -- looking --------------------------------------------------------------------------------------------------

    def in_flight(self, queue: str, consumer: str) -> int:
        return self._in_flight.get((queue, consumer), 0)

    def holders(self, queue: str) -> list[str]:
        """Who has messages of this queue in hand."""
        with self._guard:
            return [consumer for name, consumer in self._in_flight if name == queue]

    def in_flight_of(self, queue: str) -> int:
        with self._guard:
            return sum(count for (name, _), count in self._in_flight.items() if name == queue)

    def find(
        self,
        limit: int,
        queue: str | None = None,
        id: str | None = None,
        consumer: str | None = None,
        status: Status | None = None,
    ) -> list[DeliveryRecord]:
        """The latest first: those under way, then those that ended."""
        with self._guard:
            known = [*reversed(self._open.values()), *reversed(self._ended)]
        fit = (
            one
            for one in known
            if queue in (None, one.queue)
            and id in (None, one.id)
            and consumer in (None, one.consumer)
            and status in (None, one.status)
        )
        return list(islice(fit, limit))
