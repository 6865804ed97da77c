"""Which function works on which queue, and how."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from yirangmq.consumer.delivery import Delivery
from yirangmq.consumer.validation import Validation
from yirangmq.core import validation as names
from yirangmq.core.errors import BadInput

Handle = Callable[[Delivery], Any]
MOST_CONCURRENT = 1_000
"""Threads of one queue; past this they only wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """``timeout`` is in seconds; ``prefetch`` messages are leased beyond those in work, for handlers so quick that
    fetching would hold them up."""

    queue: str
    handle: Handle
    concurrency: int = 1
    timeout: float | None = None
    prefetch: int = 0
    validation: Validation = field(default_factory=Validation)
    cancel: Callable[[bool], None] | None = None
    """Ends what is running, asking for it or, if True, making it; None where that cannot be done."""

    def __post_init__(self) -> None:
        names.check_queue(self.queue)
        names.check_count(self.concurrency, "concurrency", most=MOST_CONCURRENT)
        names.check_count(self.prefetch, "prefetch", least=0, most=10_000)
        if self.timeout is not None:
            names.check_milliseconds(self.timeout, "timeout", least=0.001)
        if not callable(self.handle):
            raise BadInput(f"must be a function, not {type(self.handle).__name__}", field="handler")
        if inspect.iscoroutinefunction(self.handle):
            raise BadInput("is a coroutine function; a handler runs in a thread: use asyncio.run", field="handler")
