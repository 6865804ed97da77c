"""A busy little day, the same for the same seed: every verb on a few queues, through two openings of one store, with
closing and opening in between. Knows: the broker. Does not know: disks; it only tells the journal when it calls."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from yirangmq.broker import selection
from yirangmq.broker.queues import Queues
from yirangmq.core import transitions
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Change, Store
from yirangmq.core.states import State
from yirangmq.format.delivery import Delivery
from yirangmq.format.envelope import NewMessage
from yirangmq.torture.backends import Backend, OpenStore
from yirangmq.torture.journal import Called, Journal, Returned
from yirangmq.torture.ledger import Ledger
from yirangmq.torture.snapshot import NOTHING, take

START_MS = 1_768_296_060_000
"""2026-01-13T09:21:00Z: any instant will do, if it is always the same."""
QUEUES = ("orders", "mail", "scratch")
MAIL_POLICY = {"retry": {"limit": 1}, "archive": {"enabled": False}, "tombstoneSec": 60, "requeue": "front"}
"""Few attempts, so that messages die; no history, so that contents are removed."""
CONSUMERS = ("torturer", "other")
"""Who takes messages; some are for one of them alone."""
GROUPS = ("ann", "bob")
OPENINGS = 2
LONGEST_LEASE = 40
DRAFT_MS = 300_000
"""How long a message may be a draft; longer than most days here last."""
MORNING = ("publish many", "publish to groups", "publish", "lease", "ack")
"""How each day begins: with something to do."""


class Call(NamedTuple):
    """One call of the workload: what it was, when, and everything the store knew after it (of a store of queues a
    ``Snapshot``)."""

    text: str
    now_ms: int
    after: Any


class Story(NamedTuple):
    journal: Journal
    calls: list[Call]
    complaints: list[str]
    """What was wrong without any cut: then there is no point in cutting."""


class StillClock:
    """Moves when told."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now

    def ahead_ms(self) -> int:
        return 0


class NumberedIds:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._given = 0

    def new(self, count: int) -> list[str]:
        self._given += count
        return [f"{self._prefix}-{number}" for number in range(self._given - count + 1, self._given + 1)]

    def fraction(self) -> float:
        return 0.5


def tell(backend: Backend, top: Path, seed: int, steps: int) -> Story:
    """Live through the day below ``top``, an empty folder, and keep the journal of it."""
    journal = Journal(top)
    with backend.recorded(top, journal) as open_store:
        day = _Day(open_store, journal, Random(f"workload {seed}"))
        try:
            day.run(steps)
        finally:
            day.close()
    return Story(journal, day.calls, day.complaints)


class _Day:
    def __init__(self, open_store: OpenStore, journal: Journal, chance: Random) -> None:
        self._open_store = open_store
        self._journal = journal
        self._chance = chance
        self._clock = StillClock()
        self._ids = NumberedIds("m")
        self._stores: list[Store] = []
        self._queues: list[Queues] = []
        self._held: list[Delivery] = []
        self._ledger = Ledger()
        self.calls: list[Call] = []
        self.complaints: list[str] = []

    def run(self, steps: int) -> None:
        self._call("open", self._open)
        self._call("set a policy", lambda: self._any().set_policy("mail", MAIL_POLICY))
        verbs: dict[str, tuple[int, Callable[[], object]]] = {
            "publish": (5, self._publish),
            "publish many": (4, self._publish_many),
            "publish with a key": (1, self._publish_keyed),
            "publish to groups": (3, self._publish_grouped),
            "lease": (5, self._lease),
            "ack": (4, self._ack),
            "nack": (3, self._nack),
            "extend": (1, self._extend),
            "drop": (1, self._drop),
            "redrive": (2, self._redrive),
            "draft": (1, self._draft),
            "set": (2, self._set),
            "sweep": (2, self._sweep),
            "set a policy": (1, self._set_policy),
            "delete a queue": (1, lambda: self._delete("scratch")),
            "open again": (1, self._open),
        }
        drawn_verbs = self._chance.choices(list(verbs), [weight for weight, _ in verbs.values()], k=steps)
        for drawn in [*MORNING, *drawn_verbs][:steps]:
            self._clock.now += self._chance.choice((0, 1, 300, 300, 2_000, 2_000, 2_000, 35_000))
            text = "lease" if drawn in ("ack", "nack", "extend") and not self._held else drawn
            self._call(text, verbs[text][1])
            if self.complaints:
                return

    def _call(self, text: str, work: Callable[[], object]) -> None:
        number = len(self.calls)
        self._journal.add(Called(number))
        work()
        self._journal.add(Returned(number))
        after = take(self._chance.choice(self._stores)) if self._stores else NOTHING
        self.calls.append(Call(text, self._clock.now, after))
        self.complaints = [f"after call {number} ({text}): {what}" for what in self._ledger.complaints(after)]

    def close(self) -> None:
        with ExitStack() as stack:
            for queues in self._queues:
                stack.callback(queues.close)
        self._queues, self._stores = [], []

    def _open(self) -> None:
        self.close()
        for _ in range(OPENINGS):
            store = self._open_store()
            self._stores.append(store)
            self._queues.append(Queues(store, self._clock, self._ids, CONSUMERS[0]))

    def _any(self) -> Queues:
        return self._chance.choice(self._queues)

    # -- verbs ----------------------------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        size = self._chance.choice((1, 40, 300, 2_000, 2_000, 20_000))
        return self._chance.randbytes(size)

    def _publish(self) -> None:
        queue, payload = self._chance.choice(QUEUES), self._payload()
        delay, priority = self._chance.choice((0, 0, 0, 5)), self._chance.choice((None, None, 0, 3))
        target = self._chance.choice((None, None, *CONSUMERS))
        message = NewMessage(payload=payload, delay=delay, priority=priority, target=target)
        self._ledger.published((queue, self._any().publish(queue, message).id), payload)

    def _publish_many(self) -> None:
        queue = self._chance.choice(QUEUES)
        payloads = [b'{"text":"%s"}' % self._payload().hex().encode() for _ in range(self._chance.choice((2, 4, 9)))]
        for receipt, payload in zip(self._any().publish_text(queue, payloads), payloads, strict=True):
            self._ledger.published((queue, receipt.id), payload)

    def _publish_keyed(self) -> None:
        queue, key, payload = self._chance.choice(QUEUES), self._chance.choice("abc"), self._payload()
        receipt = self._any().publish(queue, NewMessage(payload=payload, deduplication_key=key))
        if not receipt.duplicate:
            self._ledger.published((queue, receipt.id), payload)

    def _publish_grouped(self) -> None:
        queue = self._chance.choice(QUEUES)
        payloads = [self._payload() for _ in range(self._chance.choice((1, 2, 5)))]
        messages = [
            NewMessage(payload=payload, group=self._chance.choice(GROUPS), delay=self._chance.choice((0, 0, 5)))
            for payload in payloads
        ]
        for receipt, payload in zip(self._any().publish_many(queue, messages), payloads, strict=True):
            self._ledger.published((queue, receipt.id), payload)

    def _lease(self) -> None:
        span = self._chance.choice((None, 5, LONGEST_LEASE))
        busy = sorted({queue for queue, _ in self._ledger.owed}) or QUEUES
        queue, limit, who = self._chance.choice(busy), self._chance.randint(1, 5), self._chance.choice(CONSUMERS)
        self._held += self._any().lease(queue, limit, lease_seconds=span, consumer=who)

    def _some_held(self) -> list[Delivery]:
        self._chance.shuffle(self._held)
        count = self._chance.randint(1, 4)
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _ack(self) -> None:
        taken = self._some_held()
        errors = self._any().ack_many([delivery.lease_id for delivery in taken])
        for delivery, error in zip(taken, errors, strict=True):
            if error is None:
                self._ledger.done((delivery.queue, delivery.id))

    def _nack(self) -> None:
        taken, delay = self._some_held(), self._chance.choice((None, None, 0))
        reason = self._chance.choice(("HANDLER_ERROR", "HANDLER_ERROR", "REJECTED"))
        self._any().nack_many([delivery.lease_id for delivery in taken], reason, "it did not work", delay=delay)

    def _extend(self) -> None:
        self._any().extend_many([delivery.lease_id for delivery in self._held], LONGEST_LEASE)

    def _drop(self) -> None:
        owed = sorted(self._ledger.owed)
        if owed:
            queue, id = self._chance.choice(owed)
            if self._any().drop(queue, [id]) == [None]:
                self._ledger.done((queue, id))

    def _redrive(self) -> None:
        with self._chance.choice(self._stores).transaction() as transaction:
            for queue in QUEUES:
                dead = transaction.scan(queue, State.DEAD, 10).messages
                place = transaction.places(len(dead))
                now = self._clock.now
                again = [transitions.redrive(message, now, place + offset) for offset, message in enumerate(dead)]
                selection.swap(transaction, [Change(*pair) for pair in zip(dead, again, strict=True)], now, set())

    def _draft(self) -> None:
        """A message whose content is still to come."""
        queue, now, [id] = self._chance.choice(QUEUES), self._clock.now, self._ids.new(1)
        begun = Envelope(queue, id, 3, now, now, 0, None, "", b"", is_json=False)
        with self._chance.choice(self._stores).transaction() as transaction:
            transaction.add([begun], now, now, now + DRAFT_MS)

    def _set(self) -> None:
        """Give a draft its content, or a message in line another one."""
        payload = self._payload()
        with self._chance.choice(self._stores).transaction() as transaction:
            found = [
                message
                for state in (State.DRAFT, State.READY)
                for queue in QUEUES
                for message in transaction.scan(queue, state, 5).messages
            ]
            if not found:
                return
            message = found[0] if found[0].state is State.DRAFT else self._chance.choice(found)
            [old] = transaction.envelopes([message])
            if old is None:
                raise ValueError(f"message {message.id} has no content")
            new = old._replace(payload=payload, is_json=False)
            transaction.rewrite([message], [new])
            if message.state is State.DRAFT:
                filled, policy = message._replace(size=new.size), transaction.policy(message.queue)
                ready = transitions.set_content(filled, policy, self._clock.now, transaction.places(1))
                transaction.swap([Change(filled, ready)])
        self._ledger.published((message.queue, message.id), payload)

    def _sweep(self) -> None:
        self._clock.now += self._chance.choice((0, 0, 61_000))
        self._any().sweep()

    def _set_policy(self) -> None:
        self._any().set_policy("orders", {"retry": {"limit": self._chance.randint(1, 5)}})

    def _delete(self, queue: str) -> None:
        self._any().delete_queue(queue)
        self._held = [delivery for delivery in self._held if delivery.queue != queue]
        self._ledger.forget_queue(queue)
