"""A consumer beside the test, and queues that can be watched or held up."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.wait import PATIENCE, until
from yirangmq.broker.queues import Queues
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.delivery import HandlerDelivery
from yirangmq.consumer.lease_table import Results
from yirangmq.consumer.settler import ConsumerSummary
from yirangmq.core.message import Reason
from yirangmq.format import delivery


class Running:
    """A consumer at work in a thread of its own."""

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        self.consumer = consumer
        self.summary: ConsumerSummary | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, kwargs=options)
        self._thread.start()

    def _run(self, **options: Any) -> None:
        try:
            self.summary = self.consumer.run(**options)
        except BaseException as error:
            self.error = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ended(self) -> ConsumerSummary:
        """Its summary, once it has ended by itself."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it does not end"
        if self.error is not None:
            raise self.error
        assert self.summary is not None
        return self.summary


@contextmanager
def running(consumer: Consumer, **options: Any) -> Iterator[Running]:
    run = Running(consumer, **options)
    try:
        yield run
    finally:
        consumer.stop()
        run.ended()


class Blocking:
    """A handler that says when it has begun and ends when it is told to."""

    def __init__(self) -> None:
        self.begun: list[HandlerDelivery] = []
        self.go = threading.Event()

    def __call__(self, delivery: HandlerDelivery) -> None:
        self.begun.append(delivery)
        assert self.go.wait(PATIENCE)

    def wait_begun(self, count: int = 1) -> None:
        until(lambda: len(self.begun) >= count, what=f"{count} messages in work")


class Watched:
    """The same queues, each call noted; ``before`` may hold one up or refuse it."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._guard = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.sizes: dict[str, list[int]] = {}
        self.before: Callable[[str, int], None] = lambda verb, number: None

    def _note(self, verb: str, size: int) -> None:
        with self._guard:
            self.calls[verb] += 1
            self.sizes.setdefault(verb, []).append(size)
            number = self.calls[verb]
        self.before(verb, number)

    @property
    def consumer(self) -> str:
        return self._queues.consumer

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Sequence[delivery.MessageDelivery]:
        self._note("lease", limit)
        return self._queues.lease(queue, limit, wait=wait, lease_seconds=lease_seconds, consumer=consumer)

    def ack_many(self, leases: Sequence[str]) -> Results:
        self._note("ack", len(leases))
        return self._queues.ack_many(leases)

    def nack_many(
        self,
        leases: Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
    ) -> Results:
        self._note("nack", len(leases))
        return self._queues.nack_many(leases, reason, text, delay=delay)

    def extend_many(self, leases: Sequence[str], seconds: float | None = None) -> Results:
        self._note("extend", len(leases))
        return self._queues.extend_many(leases, seconds)

    def release_many(self, leases: Sequence[str]) -> Results:
        self._note("release", len(leases))
        return self._queues.release_many(leases)

    def consumer_beat(self, values: Mapping[str, Any]) -> str:
        self._note("beat", 1)
        return self._queues.consumer_beat(values)

    def close(self) -> None:
        self._queues.close()
