"""What was stored is handed out as it was sent, or not at all: where a queue keeps the SHA-256 of its payloads, each is
looked at before it leaves. One that does not fit is set aside, counted and told.

Knows: digests, transactions. Does not know: leases, doors."""

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from yirangmq.broker.gate import Gate
from yirangmq.broker.happenings import Happenings
from yirangmq.core import transitions
from yirangmq.core.errors import PayloadDamaged, QueueError
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import Change, Transaction
from yirangmq.format.envelope import damage

log = logging.getLogger("yirangmq")


class IntegrityDeeds(Protocol):
    """What goes with it (``broker.verbs.Verbs``)."""

    gate: Gate
    happened: Happenings

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...


def damaged(envelopes: Iterable[Envelope]) -> bool:
    return any(map(damage, envelopes))


class Damage:
    def __init__(self, deeds: IntegrityDeeds) -> None:
        self._deeds = deeds

    def is_looked_for(self, transaction: Transaction, queue: str) -> bool:
        chain = self._deeds.gate.chain_of(transaction, queue)
        return chain is not None and chain.integrity

    def set_aside(
        self, transaction: Transaction, queue: str, found: Sequence[tuple[Message, Envelope]], now: int
    ) -> bool:
        """Those that are not what was sent go to the dead letters, or are parked. True if there was one."""
        if not self.is_looked_for(transaction, queue):
            return False
        policy = transaction.policy(queue)
        changes = []
        for message, envelope in found:
            text = damage(envelope)
            if text:
                outcome = transitions.set_aside(message, policy, now, text)
                changes.append(Change(message, outcome.message, outcome.failure))
                about = {"queue": queue, "messageId": message.id, "state": outcome.message.state, "why": text}
                log.error("a stored payload is damaged", extra={"values": about})
        self._deeds.swap(transaction, changes, now)
        self._deeds.happened.refused(changes, now)
        return bool(changes)

    def error_of(self, transaction: Transaction, message: Message, envelope: Envelope) -> QueueError | None:
        """For one that is asked for by its name."""
        text = damage(envelope) if self.is_looked_for(transaction, message.queue) else ""
        return PayloadDamaged(f"message {message.id} is not handed out: {text}") if text else None
