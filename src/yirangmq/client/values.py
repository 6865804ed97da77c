"""Values that the client returns: deliveries, records, receipts, and events of a topic subscription.

A delivery has the members of the embedded API's; its header and policy are decoded when they are read."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.topics import Record, SubscriberState
from yirangmq.format.envelope import as_json, header_of, iso, payload_value
from yirangmq.format.json_codec import dumps, loads
from yirangmq.wire.messages import DeliveredMessageBody

# -- deliveries --------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Data shared by the deliveries of one frame. ``policy`` is JSON text."""

    queue: str
    consumer: str
    policy: str


class Delivery(NamedTuple):
    """One leased message. ``ack``, ``nack`` and ``extend`` take its ``lease_id``."""

    incoming: DeliveredMessageBody
    batch: Batch

    @property
    def id(self) -> str:
        return self.incoming.id

    @property
    def queue(self) -> str:
        return self.batch.queue

    @property
    def payload(self) -> bytes:
        """The payload's bytes, exactly as sent."""
        return self.incoming.payload

    @property
    def lease_id(self) -> str:
        return self.incoming.lease

    @property
    def attempt(self) -> int:
        return self.incoming.attempt

    @property
    def lease_until(self) -> float:
        """End of the lease in seconds since 1970, by the server's clock."""
        return self.incoming.until / 1000

    @property
    def consumer(self) -> str:
        return self.batch.consumer

    @property
    def envelope(self) -> Envelope:
        """The producer's envelope, as far as the server sends it to consumers."""
        one, at = self.incoming, self.incoming.published_at
        return Envelope(self.queue, one.id, RANK_LAST, at, at, 0, None, one.header, one.payload, one.is_json)

    @property
    def header(self) -> dict[str, Any]:
        """The envelope without its payload: messageId, timestamp, type, attributes, traceId …"""
        return header_of(self.envelope)

    @property
    def policy(self) -> dict[str, Any]:
        document: dict[str, Any] = loads(self.batch.policy.encode())
        return document

    def value(self) -> Any:
        """Return the payload decoded from JSON, or its bytes if it is not JSON."""
        return payload_value(self.envelope)

    def as_json(self) -> bytes:
        """Return envelope, lease and policy as one JSON document, in the format that the command line prints."""
        lease = {
            "leaseId": self.lease_id,
            "leaseUntil": iso(self.incoming.until),
            "consumerId": self.consumer,
            "attempt": self.attempt,
        }
        message, policy = as_json(self.envelope), self.batch.policy.encode()
        return b'{"message":%s,"lease":%s,"policy":%s}' % (message, dumps(lease), policy)


new_delivery = cast("Callable[[tuple[DeliveredMessageBody, Batch]], Delivery]", partial(tuple.__new__, Delivery))


# -- records and events of topics --------------------------------------------------------------------------------------


class TopicRecord(Record):
    """One record of a topic: ``sequence`` in the log, ``topic_sequence`` in its topic, ``at_ns`` since 1970,
    ``topic``, ``key``, ``headers`` and ``payload``, its bytes exactly as published."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the payload decoded from JSON, or its bytes if it is not JSON."""
        try:
            return loads(self.payload)
        except BadInput:
            return self.payload


new_topic_record = cast("Callable[[tuple[Any, ...]], TopicRecord]", partial(tuple.__new__, TopicRecord))


class Receipt(NamedTuple):
    """Receipt of a published record, which is durable on the server. ``resent``: the reply to an earlier send was
    lost, so the log may hold the record twice."""

    epoch: str
    sequence: int
    topic_sequence: int
    at_ns: int
    resent: bool = False


class Moved(NamedTuple):
    """Event: the subscription changed its state. ``why`` gives the reason if the new state is OFFLINE."""

    before: SubscriberState
    after: SubscriberState
    why: str = ""


class NewEpoch(NamedTuple):
    """Event: the log of topics started again with a new epoch. Sequences of the epoch ``before`` have no meaning in
    ``after``."""

    before: str
    after: str


class LostRecords(NamedTuple):
    """Event: the log has lost the records ``first`` to ``last``. Each gap is reported once; its records cannot be
    recovered."""

    first: int
    last: int


class Missing(NamedTuple):
    """Event: records after sequence ``after`` did not arrive. The client requests them again."""

    after: int
    why: str


Event = Moved | NewEpoch | LostRecords | Missing
