"""The feed as batches of a pipeline need it (``broker.sink_batches``): where it ends, a way in, and what came since.

Knows: the publisher. Does not know: batches, ledgers."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from yirangmq.core.errors import QueueError
from yirangmq.core.topics import NewRecord, Record

if TYPE_CHECKING:
    from yirangmq.topics.publisher import Publisher


class FeedForBatches:
    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    def last(self) -> int:
        return self._publisher.opened().feed.log.last

    def publish(self, records: Sequence[NewRecord], done: Callable[[Any, QueueError | None], None]) -> None:
        self._publisher.publish(records, done)

    def records_after(self, sequence: int) -> Iterator[Record]:
        """From any thread; what retention took meanwhile was there, and is passed over."""
        reader = self._publisher.opened().feed.log.reader()
        try:
            yield from reader.records(max(sequence + 1, reader.first))
        finally:
            reader.close()
