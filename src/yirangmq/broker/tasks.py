"""What a desk is given: work for its next commit, and consumers that wait.

Knows: values and shapes. Does not know: when anything is done."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction

Serve = Callable[[Transaction, int], list[Any]]
Done = Callable[[Any, QueueError | None], None]
Aside = Callable[[Callable[[], Any], Done], None]
"""Work off the loop's thread; ``done(value, error)`` on it."""


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


class Task(Protocol):
    """What to do inside the transaction, and whom to tell when it is on disk. ``requests``, where it is several that
    are done as one."""

    value: Any
    error: QueueError | None
    requests: int

    def work(self, transaction: Transaction, /) -> Any: ...

    def done(self, value: Any, error: QueueError | None, /) -> None: ...


class Job:
    """One request."""

    __slots__ = ("done", "error", "requests", "value", "work")

    def __init__(self, work: Callable[[Transaction], Any], done: Callable[[Any, QueueError | None], None]) -> None:
        self.work = work
        self.done = done
        self.value: Any = None
        self.error: QueueError | None = None
        self.requests = 1


class Long(Job):
    """One request that takes long, and whose thread it is done on."""

    __slots__ = ("aside",)

    def __init__(self, work: Callable[[Transaction], Any], done: Done, aside: Aside) -> None:
        super().__init__(work, done)
        self.aside = aside
