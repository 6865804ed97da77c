"""Messages published and leases settled together or not at all: what other queues call a transaction.

Knows: the verbs and what can stop them. Does not know: who asks, or for how long it was gathered. Everything is
checked before anything is written, because a verb that is refused does not undo those before it."""

from dataclasses import dataclass, field

from yirangmq.broker.leases import MOST_PER_CALL, Leases
from yirangmq.broker.room import check_new_queues, make_room, newcomers
from yirangmq.broker.verbs import Verbs
from yirangmq.core import transitions
from yirangmq.core.errors import TooLarge
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Transaction


@dataclass(slots=True)
class Bundle:
    """``nacked`` fail for one reason."""

    envelopes: list[Envelope] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)
    nacked: list[str] = field(default_factory=list)
    cause: transitions.Cause | None = None

    @property
    def size(self) -> int:
        return len(self.envelopes) + len(self.acked) + len(self.nacked)

    def add(self, envelope: Envelope) -> None:
        self._check_size(1)
        self.envelopes.append(envelope)

    def settle(self, leases: list[str], cause: transitions.Cause | None) -> None:
        """Ack them, or nack them for a cause."""
        self._check_size(len(leases))
        if cause is None:
            self.acked += leases
        else:
            self.nacked += leases
            self.cause = cause

    def _check_size(self, more: int) -> None:
        if self.size + more > MOST_PER_CALL:
            raise TooLarge(f"more than {MOST_PER_CALL} messages and acks; commit earlier", field="transaction")

    def queues(self) -> dict[str, list[Envelope]]:
        found: dict[str, list[Envelope]] = {}
        for envelope in self.envelopes:
            found.setdefault(envelope.queue, []).append(envelope)
        return found

    def perform(self, verbs: Verbs, transaction: Transaction, now: int) -> None:
        """All of it; or it raises, and none of it happened."""
        self._check_leases(transaction, now)
        queues = self.queues()
        check_new_queues(transaction, queues, verbs.defaults.max_queues)
        for queue, envelopes in queues.items():
            _check_room(transaction, queue, envelopes, now)
        verbs.gate.check_all(transaction, queues, now)
        for queue, envelopes in queues.items():
            verbs.publish(transaction, queue, envelopes)
        if self.acked:
            verbs.ack(transaction, Leases(self.acked), None)
        if self.nacked and self.cause is not None:
            verbs.nack(transaction, Leases(self.nacked), None, self.cause)

    def _check_leases(self, transaction: Transaction, now: int) -> None:
        leases = Leases([*self.acked, *self.nacked])
        found = transaction.by_seq([seq for seq, _ in leases.keys])
        for message, (_, fence), lease in zip(found, leases.keys, leases.texts, strict=True):
            transitions.held(message, fence, None, now, lease)


def _check_room(transaction: Transaction, queue: str, envelopes: list[Envelope], now: int) -> None:
    policy = transaction.policy(queue)
    largest = max(len(envelope.payload) for envelope in envelopes)
    if largest > policy.max_body:
        raise TooLarge(f"{largest} bytes, queue {queue!r} takes {policy.max_body}", field="payload")
    if policy.quota.is_set:
        coming = newcomers(transaction, policy, queue, envelopes)
        if coming.messages:
            make_room(transaction, policy, queue, coming, now)
