"""Event buffer of the open transaction, and the log of deliveries of queues with a dispatch strategy.

Operations add events (``core.events``) during the transaction. The committer publishes them to the listeners after a
durable commit and drops them after a failed commit. Without listeners nothing is collected. Listeners run on the
committing thread.

The delivery log holds deliveries in flight and the latest ended deliveries, in memory and bounded. Facts that must
outlive the process go out as an event, or to a queue of outcomes (``broker.dispatch.fan_out``). The committing thread
writes the log, any thread reads it."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from yirangmq.core import events as rules
from yirangmq.core.events import (
    DeliveriesEnded,
    DeliveryRecord,
    DeliveryStatus,
    Event,
    GroupCommitted,
    LeasesExpired,
    LeasesSettled,
    MessagesDied,
    MessagesDropped,
    MessagesLeased,
    MessagesParked,
    MessagesPublished,
    MessagesRedriven,
    QueueEvent,
    TraceStep,
    moved,
)
from yirangmq.core.message import Envelope, Message, MessageRun, queue_of
from yirangmq.core.ports import AddResult, Change, before_of
from yirangmq.core.states import State

# -- delivery log ------------------------------------------------------------------------------------------------------

MAX_ENDED = 20_000
"""Upper bound of remembered ended deliveries, of all queues, at about 400 bytes each."""
MAX_IN_FLIGHT = 100_000
"""Upper bound of remembered deliveries in flight; beyond it the oldest are forgotten."""


class DeliveryLog:
    """Bounded log of deliveries, in flight and ended, of queues with a dispatch strategy.

    A delivery is recorded if its queue had a strategy when it began; its end is recorded even if the strategy has been
    removed meanwhile. Written by the committing thread, read by any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[tuple[int, int], DeliveryRecord] = {}
        self._ended: deque[DeliveryRecord] = deque(maxlen=MAX_ENDED)
        self._in_flight: Counter[tuple[str, str]] = Counter()
        self._open_in: Counter[str] = Counter()
        self._beginning: dict[tuple[int, int], DeliveryRecord] = {}
        self._beginning_in: set[str] = set()
        self._ending: list[DeliveryRecord] = []
        self.is_changed = False
        """True if the open transaction has begun or ended deliveries."""
        self.totals: Counter[tuple[str, str]] = Counter()
        """Number of ended deliveries by (queue, status) since the start of the process."""

    # -- inside a transaction -------------------------------------------------------------------------------------

    def delivery_started(self, rows: Iterable[Message]) -> None:
        """Buffer the start of deliveries until the commit."""
        self.is_changed = True
        for record in map(rules.delivery_started, rows):
            self._beginning[record.seq, record.fence] = record
            self._beginning_in.add(record.queue)

    def has_open(self, queue: str) -> bool:
        """Return True if the log has deliveries in flight of this queue, so that their ends must be recorded."""
        return queue in self._open_in or queue in self._beginning_in

    def ended(self, changes: Sequence[Change], now: int, *, only_open: bool = False) -> list[DeliveryRecord]:
        """Buffer the deliveries that end with these changes, until the commit; return their records.

        ``only_open``: record no end of a delivery whose begin is not in the log."""
        found = []
        for before, after, failure in changes:
            if rules.ends_delivery(before, after):
                key = before.seq, before.leases
                record = self._open.get(key) or self._beginning.get(key)
                if record is not None or not only_open:
                    found.append(rules.ended(record or rules.delivery_started(before), after, failure, now))
        self._ending += found
        self.is_changed = self.is_changed or bool(found)
        return found

    def queue_emptied(self, queue: str, now: int) -> None:
        """Buffer the end of all deliveries of a queue whose messages are removed, until the commit."""
        if self.has_open(queue):
            self.is_changed = True
            over = {(record.seq, record.fence) for record in self._ending}
            known = {key: record for key, record in {**self._open, **self._beginning}.items() if key not in over}
            self._ending += [rules.removed(record, now) for record in known.values() if record.queue == queue]

    # -- the commit -----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop the buffered changes after a failed commit."""
        self.is_changed = False
        self._beginning.clear()
        self._beginning_in.clear()
        self._ending.clear()

    def committed(self) -> list[DeliveriesEnded]:
        """Apply the buffered changes after a durable commit; return the events to publish."""
        self.is_changed = False
        with self._guard:
            for record in self._beginning.values():
                self._add(record)
            for record in self._ending:
                self._close(record)
            while len(self._open) > MAX_IN_FLIGHT:
                self._less(self._open.pop(next(iter(self._open))))
        by_queue: dict[str, list[DeliveryRecord]] = {}
        for record in self._ending:
            by_queue.setdefault(record.queue, []).append(record)
        self._beginning, self._beginning_in, self._ending = {}, set(), []
        return [DeliveriesEnded(queue, len(records), records) for queue, records in by_queue.items()]

    def adopt(self, rows: Iterable[Message]) -> None:
        """Add messages that were leased before this process started."""
        with self._guard:
            for row in rows:
                self._add(rules.delivery_started(row))

    def _add(self, record: DeliveryRecord) -> None:
        if (record.seq, record.fence) not in self._open:
            self._open[record.seq, record.fence] = record
            self._in_flight[record.queue, record.consumer] += 1
            self._open_in[record.queue] += 1

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
        self._open_in[record.queue] -= 1
        if self._open_in[record.queue] <= 0:
            del self._open_in[record.queue]

    # -- queries --------------------------------------------------------------------------------------------------

    def in_flight(self, queue: str, consumer: str) -> int:
        return self._in_flight.get((queue, consumer), 0)

    def holders(self, queue: str) -> list[str]:
        """Return the consumers that hold leases of this queue."""
        with self._guard:
            return [consumer for name, consumer in self._in_flight if name == queue]

    def in_flight_of(self, queue: str) -> int:
        with self._guard:
            return self._open_in.get(queue, 0)

    def find(
        self,
        limit: int,
        queue: str | None = None,
        id: str | None = None,
        consumer: str | None = None,
        status: DeliveryStatus | None = None,
    ) -> list[DeliveryRecord]:
        """Return matching records, latest first: deliveries in flight, then ended ones."""
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

EventBufferListener = Callable[[Sequence[Event]], None]
MAX_REMEMBERED_LEASES = 100_000
"""Upper bound of leases with extra data in memory (first start, trace), at about 200 bytes each. Beyond it the oldest
are forgotten."""
_is_duplicate = attrgetter("duplicate")
FAILED_STATES = (State.DEAD, State.PARKED)


class EventBuffer:
    """Event buffer of the open transaction. Listeners get the events after a durable commit.

    Used by one thread at a time, the committing thread."""

    def __init__(self) -> None:
        self._listeners: list[tuple[EventBufferListener, frozenset[type] | None]] = []
        self._events: list[Event] = []
        self._durable: list[Event] = []
        self._begun: dict[tuple[int, int], int] = {}
        self._traced: dict[tuple[int, int], TraceStep] = {}
        self.deliveries = DeliveryLog()
        """Deliveries of queues with a dispatch strategy."""
        self.is_watched = False
        self.is_traced = False
        """True if traces are collected. Set it together with a listener."""

    def add_listener(self, listener: EventBufferListener, kinds: Iterable[type] | None = None) -> None:
        """Call ``listener`` with the events of each commit that changed something. It runs on the committing thread and
        must be fast.

        With ``kinds`` it is called only if one of the events is of these types, then with all events of the commit."""
        self._listeners.append((listener, None if kinds is None else frozenset(kinds)))
        self.is_watched = True

    # -- the commit -----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop the events after a failed commit."""
        self._events.clear()
        self.deliveries.forget()

    def committed(self, requests: int, work_seconds: float, sync_seconds: float) -> bool:
        """Mark the events as durable, for ``publish`` after the jobs are answered. Return True if messages changed."""
        if self.deliveries.is_changed:
            self._durable += self.deliveries.committed()
        if not self._events:
            return False
        self._durable += self._events
        self._durable.append(GroupCommitted(requests, moved(self._events), work_seconds, sync_seconds))
        self._events = []
        return True

    def publish(self) -> None:
        """Publish the durable events. An error in a listener affects neither the other listeners nor the commit."""
        if not self._durable:
            return
        events, self._durable = self._durable, []
        there = set(map(type, events))
        for listener, kinds in self._listeners:
            if kinds is not None and kinds.isdisjoint(there):
                continue
            try:
                listener(events)
            except Exception:
                import logging

                logging.getLogger("yirangmq").exception("event_listener_failed")

    # -- events ---------------------------------------------------------------------------------------------------

    def add(self, event: QueueEvent) -> None:
        if self.is_watched:
            self._events.append(event)

    def published(
        self, queue: str, envelopes: Sequence[Envelope], sizes: Sequence[int], stored: Sequence[AddResult], now: int
    ) -> None:
        """Add published messages. ``sizes``: payload bytes. ``stored``: the receipts; duplicates are not counted."""
        if not self.is_watched:
            return
        if any(map(_is_duplicate, stored)):
            envelopes = [sent for sent, receipt in zip(envelopes, stored, strict=True) if not receipt.duplicate]
            sizes = [len(sent.payload) for sent in envelopes]
        if envelopes:
            self._events.append(MessagesPublished(queue, len(envelopes), sum(sizes)))
        if self.is_traced:
            self._events += [
                TraceStep(queue, sent.id, sent.header, "publish", 0, sent.published_at, now)
                for sent in envelopes
                if '"trace' in sent.header
            ]

    def refused(self, changes: Sequence[Change], now: int) -> None:
        """Add messages that were refused when published or selected: dead-lettered, parked or dropped."""
        if self.is_watched:
            self._given_up(changes, now)

    def leased(self, queue: str, heads: Sequence[tuple[Message, Envelope]], now: int) -> None:
        """Add leased messages. The wait of a first attempt counts from the time it was to be available, that of a
        later attempt from the time the message was returned."""
        if self.is_watched:
            waited = [
                now - (envelope.available_at if message.attempt == 0 else message.changed_at)
                for message, envelope in heads
            ]
            self._events.append(MessagesLeased(queue, len(waited), waited))
            if self.is_traced:
                self._begin_traces(heads, now)

    def leased_run(self, run: MessageRun, envelopes: Sequence[Envelope], now: int) -> None:
        """Add a leased run; all of its messages are leased for the first time."""
        if self.is_traced:
            self.leased(run.row.queue, list(zip(run.rows(envelopes), envelopes, strict=True)), now)
        elif self.is_watched:
            self._events.append(
                MessagesLeased(run.row.queue, run.length, [now - sent.available_at for sent in envelopes])
            )

    def claimed(self, queue: str, messages: Sequence[Message], now: int) -> None:
        """Add claimed messages (two-step leases) as leased. Their wait counts from the time they became ready."""
        if self.is_watched:
            self._events.append(
                MessagesLeased(queue, len(messages), [now - message.changed_at for message in messages])
            )

    def _begin_traces(self, heads: Sequence[tuple[Message, Envelope]], now: int) -> None:
        """Keep the headers of leased messages with a trace; the trace event is added when they are settled."""
        for message, sent in heads:
            if '"trace' in sent.header:
                key = message.seq, message.leases + 1
                self._traced[key] = TraceStep(
                    message.queue, message.id, sent.header, "process", message.attempt + 1, now, now
                )
        while len(self._traced) > MAX_REMEMBERED_LEASES:
            del self._traced[next(iter(self._traced))]

    def _end_traces(self, changes: Sequence[Change], now: int, outcome: str) -> None:
        for before in map(before_of, changes):
            delivery_started = self._traced.pop((before.seq, before.leases), None)
            if delivery_started is not None:
                self._events.append(replace(delivery_started, ended_at=now, outcome=outcome))

    def settled(self, verb: str, changes: Sequence[Change], now: int, reason: str = "") -> None:
        if not self.is_watched or not changes:
            return
        if verb == "extend":
            self._extended(changes)
            return
        for queue, held in self._worked(changes, now).items():
            self._events.append(LeasesSettled(queue, verb, len(held), held, reason))
        if verb == "nack":
            self._given_up(changes, now)
        if self._traced:
            self._end_traces(changes, now, "ok" if verb == "ack" else reason or verb)

    def settled_run(self, verb: str, run: MessageRun, now: int) -> None:
        if not self.is_watched:
            return
        row, count = run
        if self._begun or self._traced:
            rows = [row._replace(seq=row.seq + n) for n in range(count)]
            self.settled(verb, [Change(one, one) for one in rows], now)
        else:
            self._events.append(LeasesSettled(row.queue, verb, count, [now - row.changed_at] * count))

    def _worked(self, changes: Sequence[Change], now: int) -> dict[str, list[int]]:
        """Return the lease durations in ms by queue. Most batches are of one queue and of leases never extended."""
        befores = [change.before for change in changes]
        queue = befores[0].queue
        if not self._begun:
            held = [now - before.changed_at for before in befores if before.queue is queue]
            if len(held) == len(befores):
                return {queue: held}
        worked: dict[str, list[int]] = {}
        for before in befores:
            delivery_started = self._begun.pop((before.seq, before.leases), before.changed_at)
            worked.setdefault(before.queue, []).append(now - delivery_started)
        return worked

    def _extended(self, changes: Sequence[Change]) -> None:
        """Add extended leases. The message holds the time of the extension, so the first start is remembered here."""
        for before in map(before_of, changes):
            self._begun.setdefault((before.seq, before.leases), before.changed_at)
        while len(self._begun) > MAX_REMEMBERED_LEASES:
            del self._begun[next(iter(self._begun))]
        queues = Counter(map(queue_of, map(before_of, changes)))
        self._events += [LeasesSettled(queue, "extend", count) for queue, count in queues.items()]

    def swept(self, changes: Sequence[Change], now: int) -> None:
        if not self.is_watched or not changes:
            return
        lapsed: Counter[str] = Counter()
        aged: Counter[str] = Counter()
        for before, after, _ in changes:
            if before.state in (State.LEASED, State.CLAIMED):
                lapsed[before.queue] += 1
                self._begun.pop((before.seq, before.leases), None)
            elif before.state in (State.DEAD, State.DRAFT) and after.state is State.DROPPED:
                aged[before.queue] += 1
        self._events += [LeasesExpired(queue, count) for queue, count in lapsed.items()]
        if self._traced:
            self._end_traces(changes, now, "lapsed")
        self._events += [MessagesDropped(queue, "retention", count) for queue, count in aged.items()]
        self._given_up([change for change in changes if change.before.state not in (State.DEAD, State.DRAFT)], now)

    def dropped(self, why: str, changes: Sequence[Change], now: int) -> None:
        if self.is_watched and changes:
            for before in map(before_of, changes):
                self._begun.pop((before.seq, before.leases), None)
                self._traced.pop((before.seq, before.leases), None)
            counts = Counter(map(queue_of, map(before_of, changes)))
            self._events += [MessagesDropped(queue, why, count) for queue, count in counts.items()]

    def moved(self, goal: State, changes: Sequence[Change], now: int) -> None:
        """Add dead letters that an operator moved to ``goal``."""
        kinds: dict[State, Callable[[str, int], QueueEvent]] = {
            State.READY: MessagesRedriven,
            State.PARKED: MessagesParked,
            State.DROPPED: lambda queue, count: MessagesDropped(queue, "asked", count),
        }
        if self.is_watched:
            counts = Counter(map(queue_of, map(before_of, changes)))
            self._events += [kinds[goal](queue, count) for queue, count in counts.items()]

    def _given_up(self, changes: Sequence[Change], now: int) -> None:
        died: Counter[tuple[str, str]] = Counter()
        gone: Counter[tuple[str, str]] = Counter()
        for before, after, _ in changes:
            if after.state in FAILED_STATES:
                died[after.queue, str(after.reason)] += 1
            elif after.state is State.DROPPED:
                gone[after.queue, "expired" if 0 < before.expires_at <= now else "given_up"] += 1
        self._events += [MessagesDied(queue, reason, count) for (queue, reason), count in died.items()]
        self._events += [MessagesDropped(queue, why, count) for (queue, why), count in gone.items()]
