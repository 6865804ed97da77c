"""Event buffer of the open transaction, and the log of deliveries of queues with a dispatch strategy.

Operations add events (``core.events``) during the transaction. The committer publishes them to the listeners after a
durable commit and drops them after a failed commit. Without listeners nothing is collected. Listeners run on the
committing thread.

The delivery log holds deliveries in flight and the latest ended deliveries, in memory and bounded. What must outlive
the process goes out as an event, or to a queue of outcomes (``broker.dispatch.fan_out``). The committing thread writes
the log, any thread reads it."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from yirangmq.core import events as rules
from yirangmq.core.events import (
    Committed,
    DeliveriesEnded,
    DeliveryRecord,
    Died,
    Dropped,
    Event,
    Lapsed,
    Leased,
    OfQueue,
    Parked,
    Published,
    Redriven,
    Settled,
    Status,
    Traced,
    moved,
)
from yirangmq.core.message import Envelope, Message, Run
from yirangmq.core.ports import Change, Stored
from yirangmq.core.states import State

# -- delivery log ------------------------------------------------------------------------------------------------------

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


# -- event buffer ------------------------------------------------------------------------------------------------------

Hear = Callable[[Sequence[Event]], None]
MOST_BEGUN = 100_000
"""Leases of which more is remembered than is on their cards, at some 200 bytes each; the longest known make room."""
_is_duplicate = attrgetter("duplicate")
GIVEN_UP = (State.DEAD, State.PARKED)


class Happenings:
    """Used by one thread at a time, the one that commits."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Hear, frozenset[type] | None]] = []
        self._events: list[Event] = []
        self._true: list[Event] = []
        self._begun: dict[tuple[int, int], int] = {}
        self._traced: dict[tuple[int, int], Traced] = {}
        self.deliveries = DeliveryLog()
        """Of queues that are dispatched by a strategy."""
        self.is_watched = False
        self.is_traced = False
        """Somebody collects traces; to be set together with a listener."""

    def listen(self, hear: Hear, kinds: Iterable[type] | None = None) -> None:
        """``hear`` is called after each commit that changed something, by the thread that committed: be brief. With
        ``kinds``, only where there is an event of one of them; it is told all there were."""
        self._listeners.append((hear, None if kinds is None else frozenset(kinds)))
        self.is_watched = True

    # -- the commit -----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """The commit failed: none of it happened."""
        self._events.clear()
        self.deliveries.forget()

    def committed(self, requests: int, work_seconds: float, sync_seconds: float) -> bool:
        """It is on disk, to be told as soon as those who asked for it have their answers; whether messages changed."""
        self._true += self.deliveries.committed()
        if not self._events:
            return False
        self._true += self._events
        self._true.append(Committed(requests, moved(self._events), work_seconds, sync_seconds))
        self._events = []
        return True

    def tell(self) -> None:
        """A listener that fails harms neither the others nor the commit."""
        if not self._true:
            return
        events, self._true = self._true, []
        there = set(map(type, events))
        for hear, kinds in self._listeners:
            if kinds is not None and kinds.isdisjoint(there):
                continue
            try:
                hear(events)
            except Exception:
                import logging

                logging.getLogger("yirangmq").exception("a listener failed")

    # -- what happened --------------------------------------------------------------------------------------------

    def add(self, event: OfQueue) -> None:
        if self.is_watched:
            self._events.append(event)

    def published(
        self, queue: str, envelopes: Sequence[Envelope], sizes: Sequence[int], stored: Sequence[Stored], now: int
    ) -> None:
        """``sizes``: of their payloads. ``stored``: what became of each, where some may be duplicates."""
        if not self.is_watched:
            return
        if any(map(_is_duplicate, stored)):
            envelopes = [sent for sent, receipt in zip(envelopes, stored, strict=True) if not receipt.duplicate]
            sizes = [len(sent.payload) for sent in envelopes]
        if envelopes:
            self._events.append(Published(queue, len(envelopes), sum(sizes)))
        if self.is_traced:
            self._events += [
                Traced(queue, sent.id, sent.header, "publish", 0, sent.published_at, now)
                for sent in envelopes
                if '"trace' in sent.header
            ]

    def refused(self, changes: Sequence[Change], now: int) -> None:
        """Published, and at once among the dead letters or gone."""
        if self.is_watched:
            self._given_up(changes, now)

    def leased(self, queue: str, heads: Sequence[tuple[Message, Envelope]], now: int) -> None:
        """The wait of a first attempt counts from the moment it was to be available, that of another from when the
        message came back."""
        if self.is_watched:
            waited = [now - (envelope[4] if message[6] == 0 else message[10]) for message, envelope in heads]
            self._events.append(Leased(queue, len(waited), waited))
            if self.is_traced:
                self._begin_traces(heads, now)

    def leased_run(self, run: Run, envelopes: Sequence[Envelope], now: int) -> None:
        """For the first time, all of them."""
        if self.is_traced:
            self.leased(run.card.queue, list(zip(run.cards(envelopes), envelopes, strict=True)), now)
        elif self.is_watched:
            self._events.append(Leased(run.card.queue, run.length, [now - sent[4] for sent in envelopes]))

    def claimed(self, queue: str, messages: Sequence[Message], now: int) -> None:
        """Leased as well, in two steps; the wait counts from the moment at which it came into line."""
        if self.is_watched:
            self._events.append(Leased(queue, len(messages), [now - message[10] for message in messages]))

    def _begin_traces(self, heads: Sequence[tuple[Message, Envelope]], now: int) -> None:
        """What is leased is told when it is settled; until then its header is kept here."""
        for message, sent in heads:
            if '"trace' in sent.header:
                key = message.seq, message.leases + 1
                self._traced[key] = Traced(
                    message.queue, message.id, sent.header, "process", message.attempt + 1, now, now
                )
        while len(self._traced) > MOST_BEGUN:
            del self._traced[next(iter(self._traced))]

    def _end_traces(self, changes: Sequence[Change], now: int, outcome: str) -> None:
        for before, _, _ in changes:
            begun = self._traced.pop((before[0], before[7]), None)
            if begun is not None:
                self._events.append(replace(begun, ended_at=now, outcome=outcome))

    def settled(self, verb: str, changes: Sequence[Change], now: int, reason: str = "") -> None:
        if not self.is_watched or not changes:
            return
        if verb == "extend":
            self._extended(changes)
            return
        for queue, held in self._worked(changes, now).items():
            self._events.append(Settled(queue, verb, len(held), held, reason))
        if verb == "nack":
            self._given_up(changes, now)
        if self._traced:
            self._end_traces(changes, now, "ok" if verb == "ack" else reason or verb)

    def settled_run(self, verb: str, run: Run, now: int) -> None:
        if not self.is_watched:
            return
        card, count = run
        if self._begun or self._traced:
            cards = [card._replace(seq=card.seq + n) for n in range(count)]
            self.settled(verb, [Change(one, one) for one in cards], now)
        else:
            self._events.append(Settled(card.queue, verb, count, [now - card.changed_at] * count))

    def _worked(self, changes: Sequence[Change], now: int) -> dict[str, list[int]]:
        """By queue, how long each was held; most batches are of one queue, and of leases never extended."""
        queue = changes[0][0][1]
        if not self._begun:
            held = [now - change[0][10] for change in changes if change[0][1] is queue]
            if len(held) == len(changes):
                return {queue: held}
        worked: dict[str, list[int]] = {}
        for before, _, _ in changes:
            begun = self._begun.pop((before[0], before[7]), before[10])
            worked.setdefault(before[1], []).append(now - begun)
        return worked

    def _extended(self, changes: Sequence[Change]) -> None:
        """A lease that is extended begins anew on its card; here its first beginning is remembered."""
        for before, _, _ in changes:
            self._begun.setdefault((before[0], before[7]), before[10])
        while len(self._begun) > MOST_BEGUN:
            del self._begun[next(iter(self._begun))]
        queues = Counter(before[1] for before, _, _ in changes)
        self._events += [Settled(queue, "extend", count) for queue, count in queues.items()]

    def swept(self, changes: Sequence[Change], now: int) -> None:
        if not self.is_watched or not changes:
            return
        lapsed: Counter[str] = Counter()
        aged: Counter[str] = Counter()
        for before, after, _ in changes:
            if before[3] in (State.LEASED, State.CLAIMED):
                lapsed[before[1]] += 1
                self._begun.pop((before[0], before[7]), None)
            elif before[3] in (State.DEAD, State.DRAFT) and after[3] is State.DROPPED:
                aged[before[1]] += 1
        self._events += [Lapsed(queue, count) for queue, count in lapsed.items()]
        if self._traced:
            self._end_traces(changes, now, "lapsed")
        self._events += [Dropped(queue, "retention", count) for queue, count in aged.items()]
        self._given_up([change for change in changes if change[0][3] not in (State.DEAD, State.DRAFT)], now)

    def dropped(self, why: str, changes: Sequence[Change]) -> None:
        if self.is_watched and changes:
            for before, _, _ in changes:
                self._begun.pop((before[0], before[7]), None)
                self._traced.pop((before[0], before[7]), None)
            counts = Counter(before[1] for before, _, _ in changes)
            self._events += [Dropped(queue, why, count) for queue, count in counts.items()]

    def moved(self, goal: State, messages: Sequence[Message]) -> None:
        """Dead letters that an operator moved."""
        kinds: dict[State, Callable[[str, int], OfQueue]] = {
            State.READY: Redriven,
            State.PARKED: Parked,
            State.DROPPED: lambda queue, count: Dropped(queue, "asked", count),
        }
        if self.is_watched:
            counts = Counter(message.queue for message in messages)
            self._events += [kinds[goal](queue, count) for queue, count in counts.items()]

    def _given_up(self, changes: Sequence[Change], now: int) -> None:
        died: Counter[tuple[str, str]] = Counter()
        gone: Counter[tuple[str, str]] = Counter()
        for before, after, _ in changes:
            if after[3] in GIVEN_UP:
                died[after[1], str(after[12])] += 1
            elif after[3] is State.DROPPED:
                gone[after[1], "expired" if 0 < before[9] <= now else "given_up"] += 1
        self._events += [Died(queue, reason, count) for (queue, reason), count in died.items()]
        self._events += [Dropped(queue, why, count) for (queue, why), count in gone.items()]
