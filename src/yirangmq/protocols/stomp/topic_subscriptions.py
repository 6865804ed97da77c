"""Topic subscription of one STOMP client: live records, catch-up from the log, acks, durable cursors.

Sans-IO. The server keeps a sequence for each subscription, and the sequences of the records that are not acked. A
subscription that is at the head and has credit gets the records of a commit directly. Otherwise it reads pages of the
log in the background thread when the client can take them.

A nack counts as an ack, because the record stays in the log. The cursor of a durable subscriber is the last sequence
that is confirmed without gaps. It is written again every ``CURSOR_REFRESH_NS``, so that the log keeps its records."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial

from yirangmq.core.errors import QueueError, Replaced
from yirangmq.core.topics import Cursor, Log, Record
from yirangmq.protocols.stomp.codec import record_message
from yirangmq.protocols.stomp.queue_subscriptions import AckMode
from yirangmq.protocols.stomp.topic_hub import StompTopicOptions, SubscriptionCallbacks
from yirangmq.topics.adapters import FOLLOW_SPAN, PageLimits, RecordPage, page_after
from yirangmq.topics.cursors import resumed
from yirangmq.topics.live import LiveCommit
from yirangmq.topics.publisher import Publisher
from yirangmq.wire.records import decode, read_head

PAGE_RECORDS = 256
PAGE_BYTES = 512 * 1024
CURSOR_REFRESH_NS = 600 * 10**9
"""Interval in ns at which the cursor of a durable subscriber is written again if nothing is confirmed."""
Done = Callable[[QueueError | None], None]


def _ignore(error: QueueError | None) -> None:
    """Ignore the error: the next write contains this position."""


class StompTopicSubscription:
    """Topic subscription of a STOMP client. Loop thread only.

    ``seen``: every record up to this sequence is sent, or does not match the filter. ``_unacked``: sequences that are
    sent and not acked, in order."""

    def __init__(self, topics: Publisher, options: StompTopicOptions, client: SubscriptionCallbacks) -> None:
        parts = topics.ensure_open()
        self._topics = topics
        self._ledger = parts.cursor_committer
        self._log: Log = parts.feed.log
        self._now_ns = parts.feed.loop.now_ns
        self.options = options
        self._client = client
        self._unacked: list[int] = []
        self._is_reading = self._is_ended = False
        self._written_ns = 0
        cursor = self._ledger.get(options.name) if options.name else None
        self.seen = self._log.last if cursor is None else max(resumed(self._log, cursor), self._log.first) - 1
        self._confirmed = self.seen

    @property
    def unsettled(self) -> int:
        return len(self._unacked)

    # -- sending ------------------------------------------------------------------------------------------------------

    def on_commit(self, live: LiveCommit, records: "LazyRecords") -> None:
        """Send the records of a commit directly if all earlier ones are sent and credit suffices.

        Otherwise read the log when the client can take records."""
        appended = live.appended
        if self._is_ended or self._is_reading or appended.last <= self.seen:
            return
        wants = self.options.filter.wants
        count = sum(map(wants, live.topics))
        if self.seen == appended.first - 1 and count <= self._capacity():
            if count:
                self._push([one for one in records.get() if wants(one.topic)])
            self._advance(appended.last)
        else:
            self.wake()

    def wake(self) -> None:
        """Read the next page of the log, if there are records and credit, and no read is running."""
        capacity = min(self._capacity(), PAGE_RECORDS)
        if self._is_ended or self._is_reading or capacity <= 0 or self._log.last <= self.seen:
            return
        self._is_reading = True
        limits = PageLimits(capacity, PAGE_BYTES, FOLLOW_SPAN)
        self._topics.executor.run(partial(page_after, self._log, self.options.filter, self.seen, limits), self._read)

    def _capacity(self) -> int:
        if not self._client.has_capacity():
            return 0
        return PAGE_RECORDS if self.options.mode is AckMode.AUTO else self.options.credit - len(self._unacked)

    def _read(self, page: RecordPage | None, error: QueueError | None) -> None:
        self._is_reading = False
        if self._is_ended:
            return
        if page is None:
            self._client.fail(error or QueueError("the log cannot be read"))
            return
        self._push(page.records)
        self._advance(page.last)
        self.wake()

    def _push(self, records: Iterable[Record]) -> None:
        epoch = self._log.epoch
        for one in records:
            self._client.send(record_message(self.options.address, f"{epoch}-{one.sequence}", one))
            if self.options.mode is not AckMode.AUTO:
                self._unacked.append(one.sequence)

    # -- acks and cursor -----------------------------------------------------------------------------------------------

    def begin(self, done: Done) -> None:
        """Start the subscription. ``done`` is called when the cursor of a durable one is written, else immediately."""
        if self.options.name:
            self._write_cursor(done)
        else:
            done(None)

    def holds(self, id: str) -> bool:
        """True if the record with this message id was sent over this subscription, and is not acked."""
        epoch, _, number = id.rpartition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) < 20
        return is_number and epoch == self._log.epoch and int(number) in self._unacked

    def settle(self, id: str, done: Done) -> None:
        """Ack or nack a record that ``holds`` accepts. Both are the same: the record stays in the log."""
        sequence = int(id.rpartition("-")[2])
        if self.options.mode is AckMode.CLIENT:
            del self._unacked[: bisect_right(self._unacked, sequence)]
        else:
            self._unacked.remove(sequence)
        self._advance(self.seen, done)
        self.wake()

    def _advance(self, seen: int, done: Done = _ignore) -> None:
        self.seen = seen
        confirmed = self._unacked[0] - 1 if self._unacked else seen
        if self.options.name and confirmed > self._confirmed:
            self._confirmed = confirmed
            self._write_cursor(done)
        else:
            done(None)

    def _write_cursor(self, done: Done) -> None:
        self._written_ns = self._now_ns()
        cursor = Cursor(self.options.name, self._log.epoch, self._confirmed, self.options.filter.text, self._written_ns)
        self._ledger.put(cursor, done)

    def refresh_cursor(self) -> None:
        """Write the cursor again if it is older than ``CURSOR_REFRESH_NS``. Called periodically.

        So a connected durable subscriber keeps its records in the log, also if no records are published."""
        if self.options.name and self._now_ns() - self._written_ns > CURSOR_REFRESH_NS:
            self._write_cursor(_ignore)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._is_ended = True

    def replace(self) -> None:
        """End the subscription with an error: another connection subscribes with its durable name."""
        self.close()
        self._client.fail(Replaced(f"{self.options.name!r} follows over another connection now"))

    def forget(self, done: Done) -> None:
        """Delete the durable subscriber's cursor."""
        self._ledger.drop(self.options.name, lambda was_there, error: done(error))


class LazyRecords:
    """Records of a commit, decoded at the first call of ``get``."""

    def __init__(self, live: LiveCommit) -> None:
        self._live = live
        self._records: list[Record] | None = None

    def get(self) -> list[Record]:
        if self._records is None:
            data = self._live.appended.data
            self._records = [
                decode(data, at, head)
                for at in self._live.appended.offsets
                if (head := read_head(data, at)) is not None
            ]
        return self._records
