"""Deliveries, message views, and the dead-letter record.

A delivery is a message with its lease and policy, as a consumer receives it. A view shows a message without leasing it.
Deliveries of a run share their values: the value of a message is built when the caller first accesses one."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, overload

from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageFailure, MessageRun, lease_id
from yirangmq.core.policy import QueuePolicy, show_policy
from yirangmq.format.envelope import as_json, header_of, iso, payload_value
from yirangmq.format.json_codec import dumps, loads

# -- dead-letter record ------------------------------------------------------------------------------------------------


def failure_document(failure: MessageFailure) -> dict[str, Any]:
    """Return the document of a failure: reason, time, attempt and consumer, and the traceback if there is one. All
    protocols show the same."""
    document = {
        "reasonCode": failure.reason_code,
        "reasonMessage": failure.reason_message,
        "failedAt": iso(failure.failed_at),
        "attempt": failure.attempt,
        "consumerId": failure.consumer or None,
    }
    return document | {"traceback": failure.traceback} if failure.traceback else document


def dead_letter_record(message: Message, envelope: Envelope, failure: MessageFailure, policy: QueuePolicy) -> bytes:
    """Return the dead-letter record. ``originalMessage`` is the envelope with the payload's own text."""
    why = failure_document(failure) | ({"reasonCode": message.reason} if message.reason else {})
    routing = {"sourceQueue": message.queue, "dlqQueue": policy.dlq.queue}
    return b'{"originalMessage":%s,"failure":%s,"routing":%s}' % (as_json(envelope), dumps(why), dumps(routing))


# -- deliveries --------------------------------------------------------------------------------------------------------


class MessageDelivery(NamedTuple):
    """A leased message. ``lease_id`` is the argument of ack, nack and extend."""

    message: Message
    envelope: Envelope
    rules: QueuePolicy

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def queue(self) -> str:
        return self.message.queue

    @property
    def payload(self) -> bytes:
        """The payload bytes exactly as published."""
        return self.envelope.payload

    @property
    def lease_id(self) -> str:
        return lease_id(self.message)

    @property
    def attempt(self) -> int:
        return self.message.attempt

    @property
    def lease_until(self) -> float:
        """End of the lease, in seconds since 1970."""
        return self.message.due_at / 1000

    @property
    def consumer(self) -> str:
        return self.message.consumer

    @property
    def header(self) -> dict[str, Any]:
        """The envelope without its payload: messageId, timestamp, type, attributes, traceId …"""
        return header_of(self.envelope)

    @property
    def policy(self) -> dict[str, Any]:
        return show_policy(self.rules)

    def value(self) -> Any:
        """Return the payload decoded from JSON, or its bytes if it is not JSON."""
        return payload_value(self.envelope)

    def as_json(self) -> bytes:
        """Return envelope, lease and policy as one JSON document, as the command line prints it."""
        lease = {
            "leaseId": self.lease_id,
            "leaseUntil": iso(self.message.due_at),
            "consumerId": self.consumer,
            "attempt": self.attempt,
        }
        return b'{"message":%s,"lease":%s,"policy":%s}' % (as_json(self.envelope), dumps(lease), dumps(self.policy))


class LeasedMessage(Protocol):
    """A leased message, as ``lease`` returns it: ``MessageDelivery``, or ``client.values.Delivery`` from a server."""

    @property
    def id(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def lease_id(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def envelope(self) -> Envelope: ...

    @property
    def payload(self) -> bytes: ...

    @property
    def header(self) -> dict[str, Any]: ...

    @property
    def policy(self) -> dict[str, Any]: ...

    def value(self) -> Any: ...

    def as_json(self) -> bytes: ...


class HasLeaseId(Protocol):
    """Any leased message, in this process or from a server."""

    @property
    def lease_id(self) -> str: ...


def lease_ids(deliveries: HasLeaseId | Sequence[HasLeaseId]) -> list[str]:
    """Return the lease ids of one delivery or of several.

    A delivery is itself a tuple, so the attribute distinguishes one delivery from a sequence."""
    one: str | None = getattr(deliveries, "lease_id", None)
    return [one] if one is not None else [delivery.lease_id for delivery in cast("Sequence[HasLeaseId]", deliveries)]


new_message_delivery = cast(
    "Callable[[tuple[Message, Envelope, QueuePolicy]], MessageDelivery]", partial(tuple.__new__, MessageDelivery)
)


class RunDeliveries(Sequence[MessageDelivery]):
    """Deliveries leased as runs (at least one), all of one queue.

    A caller that only forwards bytes needs no ``MessageDelivery`` per message. They are built on the first access."""

    __slots__ = ("_deliveries", "_leases", "rules", "runs")

    def __init__(self, runs: Sequence[tuple[MessageRun, Sequence[Envelope]]], rules: QueuePolicy) -> None:
        self.runs = runs
        self.rules = rules
        self._leases: list[str] | None = None
        self._deliveries: list[MessageDelivery] | None = None

    @property
    def leases(self) -> list[str]:
        """The lease id of each delivery."""
        if self._leases is None:
            self._leases = []
            for run, _ in self.runs:
                self._leases += run.leases()
        return self._leases

    def _all(self) -> list[MessageDelivery]:
        if self._deliveries is None:
            self._deliveries = [
                new_message_delivery((row, envelope, self.rules))
                for run, sent in self.runs
                for row, envelope in zip(run.rows(sent), sent, strict=True)
            ]
        return self._deliveries

    def __len__(self) -> int:
        length = 0
        for run, _ in self.runs:
            length += run.length
        return length

    def __iter__(self) -> Iterator[MessageDelivery]:
        return iter(self._all())

    @overload
    def __getitem__(self, place: int) -> MessageDelivery: ...

    @overload
    def __getitem__(self, place: slice) -> list[MessageDelivery]: ...

    def __getitem__(self, place: int | slice) -> MessageDelivery | list[MessageDelivery]:
        return self._all()[place]


def rules_of(deliveries: Sequence[MessageDelivery]) -> QueuePolicy:
    """Return the policy of deliveries that were leased together from one queue."""
    return deliveries.rules if isinstance(deliveries, RunDeliveries) else deliveries[0].rules


# -- views without a lease ---------------------------------------------------------------------------------------------


class MessageView(NamedTuple):
    """View of a message without a lease: its state, its envelope if still stored, its latest failure if any."""

    message: Message
    envelope: Envelope | None
    failure: MessageFailure | None
    rules: QueuePolicy

    def row(self) -> dict[str, Any]:
        """Return the state of the message as a document, for listings."""
        message = self.message
        return {
            "messageId": message.id,
            "queue": message.queue,
            "state": message.state.value,
            "priority": None if message.rank == RANK_LAST else message.rank,
            "attempt": message.attempt,
            "changedAt": iso(message.changed_at),
            "dueAt": iso(message.due_at) if message.due_at else None,
            "consumerId": message.consumer or None,
            "reasonCode": message.reason or None,
            "seq": message.seq,
        }

    def record(self) -> dict[str, Any] | None:
        """Return the dead-letter record; None if there is no failure or the envelope is no longer stored."""
        if self.envelope is None or self.failure is None:
            return None
        record: dict[str, Any] = loads(dead_letter_record(self.message, self.envelope, self.failure, self.rules))
        return record
