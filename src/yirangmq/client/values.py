"""Values that the client returns: deliveries, records, receipts, and events of a topic subscription.

A delivery has the members of the embedded API's; its header and policy are decoded when they are read."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.topics import ClientState, Record
from yirangmq.format.envelope import as_json, header_of, iso, payload_value
from yirangmq.format.json_codec import dumps, loads
from yirangmq.wire.messages import Incoming

# -- deliveries --------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """What the deliveries of one frame share. ``policy`` is JSON text."""

    queue: str
    consumer: str
    policy: str


class Delivery(NamedTuple):
    """One message in a consumer's hands. ``lease_id`` is what ack, nack and extend want."""

    incoming: Incoming
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
        """Seconds since 1970, by the server's clock."""
        return self.incoming.until / 1000

    @property
    def consumer(self) -> str:
        return self.batch.consumer

    @property
    def envelope(self) -> Envelope:
        """What the producer sent, as far as it is told to consumers."""
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
        """The payload decoded from JSON, or its bytes if it is not JSON."""
        return payload_value(self.envelope)

    def as_json(self) -> bytes:
        """Envelope, lease and policy in one document, as the command line prints it."""
        lease = {
            "leaseId": self.lease_id,
            "leaseUntil": iso(self.incoming.until),
            "consumerId": self.consumer,
            "attempt": self.attempt,
        }
        message, policy = as_json(self.envelope), self.batch.policy.encode()
        return b'{"message":%s,"lease":%s,"policy":%s}' % (message, dumps(lease), policy)


new_delivery = cast("Callable[[tuple[Incoming, Batch]], Delivery]", partial(tuple.__new__, Delivery))


# -- records and events of topics --------------------------------------------------------------------------------------


class TopicRecord(Record):
    """One record: ``sequence`` in the log, ``topic_sequence`` in its topic, ``at_ns`` since 1970, ``topic``, ``key``,
    ``headers`` and ``payload``, its bytes exactly as published."""

    __slots__ = ()

    def value(self) -> Any:
        """The payload decoded from JSON, or its bytes if it is not JSON."""
        try:
            return loads(self.payload)
        except BadInput:
            return self.payload


new_topic_record = cast("Callable[[tuple[Any, ...]], TopicRecord]", partial(tuple.__new__, TopicRecord))


class Receipt(NamedTuple):
    """The record is on disk under these numbers. ``resent``: the answer to an earlier sending was lost, so that it may
    stand in the log twice."""

    epoch: str
    sequence: int
    topic_sequence: int
    at_ns: int
    resent: bool = False


class Moved(NamedTuple):
    """A subscription is in another state. ``why``: of one that is OFFLINE."""

    before: ClientState
    after: ClientState
    why: str = ""


class NewEpoch(NamedTuple):
    """The feed began anew: no sequence of ``before`` means anything in ``after``."""

    before: str
    after: str


class LostRecords(NamedTuple):
    """Records that the log has lost, first to last: told once, and not to be had any more."""

    first: int
    last: int


class Missing(NamedTuple):
    """Something did not arrive after ``after``; it is asked for again."""

    after: int
    why: str


Event = Moved | NewEpoch | LostRecords | Missing
