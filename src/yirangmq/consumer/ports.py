"""What a consumer needs of queues, embedded or at the other end of a socket: some of the verbs of ``broker.queues``."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.message import Envelope

Results = list[QueueError | None]
"""For each lease None, or why not."""


class Taken(Protocol):
    """One leased message, as ``lease`` returns it."""

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


class Queues(Protocol):
    """Each method may be called from any thread."""

    @property
    def consumer(self) -> str: ...

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Sequence[Taken]: ...

    def ack_many(self, leases: Sequence[str]) -> Results: ...

    def nack_many(
        self, leases: Sequence[str], reason: str = ..., text: str = "", *, delay: float | None = None
    ) -> Results: ...

    def extend_many(self, leases: Sequence[str], seconds: float | None = None) -> Results: ...

    def release_many(self, leases: Sequence[str]) -> Results: ...

    def consumer_beat(self, values: Mapping[str, Any]) -> str: ...

    def close(self) -> None: ...
