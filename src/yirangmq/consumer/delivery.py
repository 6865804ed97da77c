"""What a handler is handed. Knows: the leased message, whether the lease is still in force."""

from typing import Any

from yirangmq.consumer.holdings import Holding
from yirangmq.format.envelope import as_json


class Delivery:
    """What a handler is handed: the message, and whether it is still its own."""

    __slots__ = ("_header", "_holding", "_taken", "_value")

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._taken = holding.taken
        self._header: dict[str, Any] | None = None
        self._value: tuple[Any] | None = None

    @property
    def id(self) -> str:
        return self._taken.id

    @property
    def queue(self) -> str:
        return self._taken.queue

    @property
    def attempt(self) -> int:
        """1 for the first delivery; more, and somebody may have worked on it before."""
        return self._taken.attempt

    @property
    def lease_id(self) -> str:
        return self._taken.lease_id

    @property
    def payload(self) -> bytes:
        """The payload's bytes, exactly as sent."""
        return self._taken.payload

    @property
    def header(self) -> dict[str, Any]:
        """The envelope without its payload: messageId, timestamp, type, attributes, traceId …"""
        if self._header is None:
            self._header = self._taken.header
        return self._header

    @property
    def policy(self) -> dict[str, Any]:
        return self._taken.policy

    @property
    def lost(self) -> bool:
        """The lease is lost: another consumer may have the message by now, and what this handler says no longer
        counts. A long handler looks at it now and then."""
        return self._holding.lost

    def value(self) -> Any:
        """The payload decoded from JSON, or its bytes if it is not JSON."""
        if self._value is None:
            self._value = (self._taken.value(),)
        return self._value[0]

    def envelope_json(self) -> bytes:
        """The envelope as JSON text, the payload's own text inside it; a payload that is not JSON as Base64."""
        return as_json(self._taken.envelope)
