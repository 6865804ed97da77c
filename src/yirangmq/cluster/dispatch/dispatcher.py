"""Dispatcher of one queue in etcd: watches its keys, plans, and commits one fenced transaction at a time.

Leading ends with ``Deposed``, or with ``Idle`` when there was nothing to do for long enough. After a lost answer or a
compacted watch the dispatcher does not guess: it proves that it still leads, and reads everything again
(``cluster.dispatch.recovery``). It runs in one event loop.

Most changes are the dispatcher's own writes, and their events carry the messages. So the inbox is watched for puts
only; a message that its producer withdrew is found missing when it is to be moved. The copies of each consumer are
watched for deletes only, for up to ``MOST_APART`` consumers. For that, the key range of the consumers is split at
each registration: one watch for that consumer's copies, and one for the keys in between. Events of one watch come in
order, events of different watches do not."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from yirangmq.cluster.dispatch import planner
from yirangmq.cluster.dispatch.messages import sweep_dead
from yirangmq.cluster.dispatch.planner import MOST_BYTES, MOST_MOVES, Batch, Most
from yirangmq.cluster.dispatch.recovery import Deposed, Recovery, policy_of
from yirangmq.cluster.dispatch.state import WINDOW, Arrival, Ledger, Waiting
from yirangmq.cluster.etcd.channel import Compacted
from yirangmq.cluster.etcd.client import Etcd, get
from yirangmq.cluster.etcd.quota import Room
from yirangmq.cluster.keys import Definition, Delivery, InboxKey, Keys, Refusal, Registration
from yirangmq.core.errors import NotAllowed, StoreFull, TooLarge, Unavailable
from yirangmq.core.ports import Clock, Ids

# -- watches -----------------------------------------------------------------------------------------------------------

PUT, DELETE = 0, 1
MOST_APART = 32
"""Maximum number of consumers with a separate watch of their copies. Copies of further consumers are watched together
with the rest, for puts and deletes."""


class Hearing:
    """Set of watches of one queue. ``hear`` is called with each event, ``stir`` after each batch of events, and with
    the error that ended a watch.

    Events of one watch come in order. Registration and departure of a consumer come by one watch, its acks by
    another."""

    def __init__(
        self, etcd: Etcd, keys: Keys, hear: Callable[[Any], None], stir: Callable[[Exception | None], None]
    ) -> None:
        self._etcd = etcd
        self._keys = keys
        self._hear = hear
        self._stir = stir
        self._apart: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, revision: int, homes: Iterable[bytes]) -> None:
        keys = self._keys
        self._watch(keys.leader, b"", revision)
        self._watch(*keys.policy_and_rest(), revision)
        for start, end in keys.inboxes():
            self._watch(start, end, revision, deletes=False)
        known = sorted(homes)
        for start, end in keys.consumers():
            self._part(start, end, revision, [home for home in known if start <= home < end])

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _part(self, start: bytes, end: bytes, revision: int, homes: list[bytes]) -> None:
        """Watch the range from ``start`` to ``end``, and the copies of each consumer in it by a separate watch."""
        for home in homes[: MOST_APART - len(self._apart)]:
            first, after = home + b"0", home + b":"
            self._apart.add(home)
            self._watch(start, first, revision, parts=True)
            self._watch(first, after, revision, puts=False)
            start = after
        self._watch(start, end, revision, parts=True)

    def _watch(self, start: bytes, end: bytes, revision: int, *, parts: bool = False, **how: bool) -> None:
        task = asyncio.ensure_future(self._listen(start, end, revision, parts, how))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, start: bytes, end: bytes, revision: int, parts: bool, how: dict[str, bool]) -> None:
        watch = self._etcd.watch(start, end, revision=revision, **how)
        try:
            async with aclosing(aiter(watch)) as heard:
                async for events in heard:
                    for event in events:
                        self._hear(event)
                    self._stir(None)
                    if parts and (homes := self._new(events)):
                        self._part(start, end, watch.revision, homes)
                        return
        except (Compacted, NotAllowed, Deposed) as error:
            self._stir(error)

    def _new(self, events: list[Any]) -> list[bytes]:
        """Return newly registered consumers that are to get a separate watch; none once the limit is reached."""
        if len(self._apart) >= MOST_APART:
            return []
        found = {self._keys.meaning(event.kv.key) for event in events if event.type == PUT}
        return sorted({one.home for one in found if isinstance(one, Registration)} - self._apart)


# -- dispatcher --------------------------------------------------------------------------------------------------------

PAUSE_SECONDS = 0.05
FULL_SECONDS = 0.5
LONGEST_WAIT = 1.0
READ_AT_ONCE = 32
READ_BYTES = 1_000_000
"""Target size of one read of the inbox, in bytes. The number of keys follows from the mean size of the last batch."""
SWEEP_MS = 60_000
FULLER = 0.05
"""Change of etcd's fullness, as a fraction of the quota, that is written to the state key even without other work.
Producers stop and resume by that value."""
READ_AHEAD = 50
log = logging.getLogger("yirangmq.cluster")


class Idle(Exception):
    """The queue was idle for ``idle_ms``, so it needs no leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """Options of a dispatcher.

    ``window`` is the number of unacked messages per consumer. ``idle_ms`` is the time without a message or a consumer
    after which the dispatcher steps down."""

    window: int = WINDOW
    idle_ms: int = 600_000


class Dispatcher:
    """Dispatcher of one queue while this node leads it. Owns the queue's in-memory state; runs in one event loop."""

    def __init__(self, etcd: Etcd, queue: str, node: str, clock: Clock, ids: Ids, room: Room, manner: Manner) -> None:
        self._etcd = etcd
        self._keys = Keys(queue)
        self._clock = clock
        self._ids = ids
        self._room = room
        self._manner = manner
        self._recovery = Recovery(etcd, queue, node, clock, manner.window)
        self._stir = asyncio.Event()
        self._trouble: Exception | None = None
        self._most = MOST_MOVES
        self._size = MOST_BYTES // READ_AT_ONCE
        self._wrote_at = clock.now_ms()
        self._swept_at = 0
        self._said_full = 0.0
        self.ledger: Ledger | None = None

    async def lead(self, fence: int) -> None:
        """Dispatch until ``Deposed`` or ``Idle`` is raised."""
        while True:
            try:
                await self._lead(fence)
            except (Unavailable, Compacted) as error:
                log.info("dispatcher_restarted", extra={"values": {"queue": self._keys.queue, "error": str(error)}})
                await asyncio.sleep(PAUSE_SECONDS)

    async def _lead(self, fence: int) -> None:
        self._trouble = None
        ledger, revision = await self._recovery.read(fence)
        self.ledger = ledger
        hearing = Hearing(self._etcd, self._keys, lambda event: self._hear(event, fence), self._stirred)
        hearing.begin(revision + 1, ledger.consumers)
        try:
            while True:
                if self._trouble is not None:
                    raise self._trouble
                self._stir.clear()
                await self._step(ledger, fence)
        finally:
            await hearing.end()

    async def _step(self, ledger: Ledger, fence: int) -> None:
        ledger.tick(self._clock.now_ms())
        await self._read_what_is_needed(ledger)
        now = self._clock.now_ms()
        full = self._room.full
        batch = planner.plan(ledger, fence, now, full, Most(self._most, self._room.left))
        is_late = bool(ledger.inbox) and now - self._wrote_at >= planner.HEARTBEAT_MS
        has_news = ledger.unsaid or abs(full - self._said_full) >= FULLER
        if batch.is_empty and is_late:
            await self._look_after(ledger)
        if batch.is_empty and (is_late or has_news):
            batch = planner.heartbeat(ledger, fence, now, full)
        if batch.was_short:
            self._room.ask()
        if not batch.is_empty:
            self._room.take(batch.bytes)
            await self._commit(ledger, batch, fence, full)
        elif batch.was_short:
            await self._room.wait(FULL_SECONDS)
        elif ledger.is_idle() and now - self._wrote_at >= self._manner.idle_ms:
            raise Idle
        elif now - self._swept_at >= SWEEP_MS:
            self._swept_at = now
            await sweep_dead(self._etcd, self._keys, fence, now)
        else:
            await self._wait(ledger, now)

    async def _wait(self, ledger: Ledger, now: int) -> None:
        due = ledger.next_due()
        seconds = LONGEST_WAIT if due is None else min(LONGEST_WAIT, max(0.001, (due - now) / 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for loses a cancellation that comes together with the event
                await self._stir.wait()

    async def _commit(self, ledger: Ledger, batch: Batch, fence: int, full: float) -> None:
        try:
            answer = await self._etcd.send(batch.packing.request)
        except TooLarge:
            planner.undo(ledger, batch)
            self._make_smaller(ledger, batch)
            return
        except StoreFull:
            planner.undo(ledger, batch)
            await self._remove_only(ledger, fence)
            return
        self._wrote_at = self._clock.now_ms()
        if answer.succeeded:
            planner.settle(ledger, batch, answer.responses, int(answer.header.revision))
            self._most, self._said_full = MOST_MOVES, full
            self._size = batch.bytes // max(1, len(batch.moves)) if batch.moves else self._size
            return
        planner.undo(ledger, batch)
        leader = answer.responses[0].response_range.kvs
        if not leader or leader[0].create_revision != fence:
            raise Deposed(self._keys.queue)
        looks = [get(one.key, keys_only=True) for one in batch.moves]
        found = await self._etcd.txn([], looks, repeat=True)
        planner.drop_changed(ledger, batch, found.responses)

    def _make_smaller(self, ledger: Ledger, batch: Batch) -> None:
        """After ``TooLarge``: retry with one move per transaction. A single message that is still too large is marked
        as stuck, and the others are moved without it."""
        if len(batch.moves) > 1:
            self._most = 1
        elif batch.moves:
            ledger.inbox.stuck.add(batch.moves[0].key)
            key = batch.moves[0].key.decode("utf-8", "backslashreplace")
            log.error("inbox_message_too_large", extra={"values": {"queue": self._keys.queue, "key": key}})

    async def _remove_only(self, ledger: Ledger, fence: int) -> None:
        """Remove acked messages only: a full etcd still accepts deletes."""
        batch = planner.plan_removals(ledger, fence)
        if batch.is_empty:
            log.warning("etcd_full", extra={"values": {"queue": self._keys.queue}})
            await asyncio.sleep(FULL_SECONDS)
            return
        answer = await self._etcd.send(batch.packing.request)
        if not answer.succeeded:
            raise Deposed(self._keys.queue)
        planner.settle(ledger, batch, answer.responses, int(answer.header.revision))

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def _read_what_is_needed(self, ledger: Ledger) -> None:
        await self._read_inbox(ledger)
        wanted = ledger.wanted_bodies(READ_AT_ONCE)
        if wanted:
            await self._read_bodies(ledger, wanted)
        if not ledger.ahead and ledger.assigned + 1 < ledger.next and ledger.has_room():
            await self._read_ahead(ledger)

    async def _read_inbox(self, ledger: Ledger) -> None:
        wanted = ledger.inbox.unread(self._most, max(1, min(MOST_MOVES, READ_BYTES // max(1, self._size))))
        if not wanted:
            return
        found = await self._etcd.txn([], [get(one.key) for one in wanted], repeat=True)
        for arrival, answer in zip(wanted, found.responses, strict=True):
            kvs = answer.response_range.kvs
            if kvs and kvs[0].mod_revision == arrival.revision:
                ledger.inbox.fill(arrival, kvs[0].value)
            else:  # rewritten or deleted meanwhile; the watch delivers its new content
                ledger.inbox.leave(arrival)

    async def _look_after(self, ledger: Ledger) -> None:
        """Forget stuck messages that their producer has withdrawn. The inbox is watched for puts only, so the watch
        does not report it."""
        if wanted := ledger.inbox.held_up(READ_AT_ONCE):
            found = await self._etcd.txn([], [get(one.key, keys_only=True) for one in wanted], repeat=True)
            for arrival, answer in zip(wanted, found.responses, strict=True):
                if not answer.response_range.kvs:
                    ledger.inbox.leave(arrival)

    async def _read_bodies(self, ledger: Ledger, wanted: list[tuple[int, bytes]]) -> None:
        found = await self._etcd.txn([], [get(self._keys.ordered(*one)) for one in wanted], repeat=True)
        for (index, _), answer in zip(wanted, found.responses, strict=True):
            kvs = answer.response_range.kvs
            if kvs:
                ledger.bodies[index] = kvs[0].value
            elif index in ledger.back:  # removed from the line by hand
                ledger.leave_again(index)
                ledger.loose.append(self._keys.retry(index))
            else:
                ledger.bodies[index] = b""

    async def _read_ahead(self, ledger: Ledger) -> None:
        start, end = self._keys.from_index(ledger.assigned + 1), self._keys.from_index(ledger.next)
        while not ledger.ahead:
            found = await self._etcd.range(start, end, limit=READ_AHEAD)
            for kv in found.kvs:
                if (stands := self._keys.in_line(kv.key)) is not None:
                    ledger.ahead.append(Waiting(*stands, kv.value))
                    ledger.ahead_bytes += len(kv.value)
            if not found.more:
                break
            start = found.kvs[-1].key + b"\0"
        if not ledger.ahead:  # all of them were removed from the line by hand
            ledger.assigned = ledger.next - 1

    # -- events --------------------------------------------------------------------------------------------------------

    def _stirred(self, trouble: Exception | None) -> None:
        self._trouble = self._trouble or trouble
        self._stir.set()

    def _hear(self, event: Any, fence: int) -> None:
        kv, ledger, now = event.kv, self.ledger, self._clock.now_ms()
        assert ledger is not None
        if kv.key == self._keys.leader:
            if event.type == DELETE or kv.create_revision != fence:
                raise Deposed(self._keys.queue)
            return
        match self._keys.meaning(kv.key):
            case InboxKey(sender, name) if event.type == PUT:
                ledger.inbox.arrive(Arrival(kv.key, sender, name, kv.mod_revision, kv.value))
            case Registration(home, _) if event.type == PUT:
                ledger.register(home, kv)
            case Registration(home, _):
                ledger.unregister(home, kv.key, now)
            case Delivery(home, index, _) if event.type == DELETE:
                ledger.settle_delivery(home, index, kv.mod_revision, now)
            case Refusal(home, index) if event.type == PUT:
                ledger.refuse(home, index, kv.key, kv.value, now, self._ids.fraction())
            case Definition():
                ledger.policy = policy_of(self._keys.queue, kv.value if event.type == PUT else b"")
