"""Recovery of a dispatcher: rebuilds its state from the keys of its queue.

All keys are read at one revision, after a transaction that proves this node leads. A new leader recovers in this way,
and so does a leader that lost an answer or a watch.

A message was delivered before if its number is not above ``assigned``. If no consumer has a copy of it, and no note
says that it waits, it was acked, and only its removal is missing. Without a readable state key the numbers are
counted from the line and the dead letters, and such messages are delivered again instead."""

import logging
from typing import Any, NamedTuple

from yirangmq.cluster.dispatch import messages
from yirangmq.cluster.dispatch.state import REMEMBERED, Arrival, Ledger, Removal
from yirangmq.cluster.etcd.client import Etcd, created_at, get
from yirangmq.cluster.keys import Delivery, InboxKey, Keys, Refusal, Registration
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Message as Card
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import Clock
from yirangmq.format.json_codec import loads

MOD, ASCEND, DESCEND = 3, 1, 2
log = logging.getLogger("yirangmq.cluster")


class Deposed(Exception):
    """This node does not lead the queue or store: its leader's key is gone, or belongs to another node."""


class Found(NamedTuple):
    """Keys of the consumers: registrations as (home, key-value), deliveries as (home, name) by number, and nacks."""

    registrations: list[tuple[bytes, Any]]
    deliveries: dict[int, tuple[bytes, bytes]]
    refusals: list[tuple[Refusal, bytes]]


class Recovery:
    """Reads the state of one queue from etcd for a new leader term, or after a lost answer or watch."""

    def __init__(self, etcd: Etcd, queue: str, node: str, clock: Clock, window: int) -> None:
        self._etcd = etcd
        self._keys = Keys(queue)
        self._node = node
        self._clock = clock
        self._window = window

    async def read(self, fence: int) -> tuple[Ledger, int]:
        """Return the recovered state and its revision. Raise ``Deposed`` if this node does not lead."""
        keys = self._keys
        head = await self._etcd.txn([created_at(keys.leader, fence)], [get(keys.state), get(keys.policy)], repeat=True)
        if not head.succeeded:
            raise Deposed(keys.queue)
        revision = int(head.header.revision)
        state, policy = (answer.response_range.kvs for answer in head.responses)
        ledger = Ledger(keys.queue, self._node, policy_of(keys.queue, policy[0].value if policy else b""), self._window)
        is_known = _read_state(ledger, state[0].value if state else b"")
        if not is_known:
            await self._count_anew(ledger, revision)
        await self._take_stock(ledger, revision, is_known)
        await self._find_inbox(ledger, revision)
        return ledger, revision

    async def _count_anew(self, ledger: Ledger, revision: int) -> None:
        """Derive the numbers from the line and the dead letters: the queue is new, or its state key was removed or
        cannot be read."""
        base = self._keys.base
        for first, end in ((base + b"0", self._keys.ordered_end), (base + b"why/", base + b"why0")):
            how: dict[str, Any] = {"limit": 1, "sort_order": DESCEND, "keys_only": True, "revision": revision}
            for kv in (await self._etcd.range(first, end, **how)).kvs:
                text = kv.key.removeprefix(first.removesuffix(b"0")).split(b"/")[0]
                ledger.next = max(ledger.next, int(text) + 1 if text.isdigit() else 1)
        ledger.assigned = ledger.next - 1

    async def _take_stock(self, ledger: Ledger, revision: int, is_known: bool) -> None:
        now, keys = self._clock.now_ms(), self._keys
        found = await self._find_consumers(revision)
        notes = await self._find_notes(revision)
        for home, kv in found.registrations:
            ledger.register(home, kv)
        async for page in self._etcd.pages(keys.base + b"0", keys.ordered_end, revision=revision, keys_only=True):
            for kv in page:
                if (stands := keys.in_line(kv.key)) is None:
                    continue
                index, name = stands
                ledger.find(name)
                if index <= ledger.assigned:
                    self._place(ledger, index, name, found, notes, now, is_known)
            if (stands := keys.in_line(page[-1].key)) and stands[0] > ledger.assigned + REMEMBERED:
                break
        ledger.loose.extend(keys.retry(index) for index in notes)
        for refusal, key in found.refusals:
            kv = await self._etcd.get(key)
            ledger.refuse(refusal.home, refusal.number, key, kv.value if kv else b"", now, 0.5)

    def _place(
        self,
        ledger: Ledger,
        index: int,
        name: bytes,
        found: Found,
        notes: dict[int, tuple[Card, bool]],
        now: int,
        is_known: bool,
    ) -> None:
        """Classify one message that was delivered before: with a consumer, waiting for another delivery, or acked."""
        noted = notes.pop(index, None)
        card, is_out = noted or (messages.fresh(ledger.keys.queue, index, name), True)
        card = card._replace(id=name.decode("latin-1"))
        home, copy = found.deliveries.get(index, (b"", b""))
        if home and copy == name:
            ledger.resume(card, home, now)
        elif (noted and not is_out) or not is_known:
            ledger.come_back(card)
        else:
            ledger.removals.append(Removal(index, name, noted is not None))

    async def _find_consumers(self, revision: int) -> Found:
        found = Found([], {}, [])
        for start, _ in self._keys.watched():
            async for page in self._etcd.pages(start, start[:-1] + b"d", revision=revision, keys_only=True):
                for kv in page:
                    match self._keys.meaning(kv.key):
                        case Registration(home, _):
                            whole = await self._etcd.range(kv.key, revision=revision)
                            found.registrations.extend((home, one) for one in whole.kvs)
                        case Delivery(home, index, name):
                            found.deliveries[index] = (home, name)
                        case Refusal() as refusal:
                            found.refusals.append((refusal, kv.key))
        return found

    async def _find_notes(self, revision: int) -> dict[int, tuple[Card, bool]]:
        start = self._keys.base + b"r/"
        notes: dict[int, tuple[Card, bool]] = {}
        async for page in self._etcd.pages(start, self._keys.base + b"r0", revision=revision):
            for kv in page:
                text = kv.key.removeprefix(start)
                if text.isdigit():
                    notes[int(text)] = messages.read_note(self._keys.queue, int(text), kv.value)
        return notes

    async def _find_inbox(self, ledger: Ledger, revision: int) -> None:
        """List the keys of the inbox in order of arrival; bodies are read when they are needed."""
        found: list[Arrival] = []
        for start, end in self._keys.watched():
            async for page in self._etcd.pages(start[:-1] + b"i", end, revision=revision, keys_only=True):
                for kv in page:
                    if isinstance(one := self._keys.meaning(kv.key), InboxKey):
                        found.append(Arrival(kv.key, one.sender, one.name, kv.mod_revision, None))
        for arrival in sorted(found, key=lambda one: one.revision):
            ledger.inbox.arrive(arrival)


def policy_of(queue: str, text: bytes) -> QueuePolicy:
    """Parse a policy. One that cannot be read is logged, and the defaults apply: the queue keeps working."""
    try:
        return read_policy(loads(text) if text else {}, queue)
    except QueueError as error:
        log.warning("policy_read_failed", extra={"values": {"queue": queue, "error": str(error)}})
        return read_policy({}, queue)


def _read_state(ledger: Ledger, text: bytes) -> bool:
    try:
        kept = loads(text)
        next, assigned = int(kept["next"]), int(kept["assigned"])
        if not 0 <= assigned < next:
            return False
        ledger.next, ledger.assigned = next, assigned
        for name in ("moved", "acked", "returned", "dead"):
            setattr(ledger.tally, name, int(kept.get(name, 0)))
    except (QueueError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True
