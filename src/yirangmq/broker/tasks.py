"""Consumers that wait for messages, as the committer sees them. Jobs are in ``broker.commit_jobs``."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from yirangmq.core.ports import Transaction

Serve = Callable[[Transaction, int], list[Any]]


class Taker(Protocol):
    """A consumer that waits: a subscription with credit left, or a lease that found nothing yet."""

    queue: str
    consumer: str
    span_ms: int | None

    @property
    def serve(self) -> Serve | None:
        """How so many takers, all with this very ``serve``, take one message each, if they do not lease them."""

    def wants(self) -> int:
        """How many messages it can take now; 0: none."""

    def take(self, deliveries: Sequence[Any]) -> bool:
        """Hand over what it leased, or what ``serve`` gave; False if it is gone, and the leases go back."""
