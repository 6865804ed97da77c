"""Topic subscription of one STOMP client: live records, catch-up from the log, acks, durable cursors.

Sans-IO. The server keeps a sequence for each subscription, and the sequences of the records that are not acked. A
subscription that is at the head and has credit gets the records of a commit directly. Otherwise it reads pages of the
log in the background thread when the client can take them.

A nack counts as an ack, because the record stays in the log. The cursor of a durable subscriber is the last sequence
that is confirmed without gaps. It is written again every ``FRESH_NS``, so that the log keeps its records."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial

from yirangmq.core.errors import QueueError, Replaced
from yirangmq.core.topics import Cursor, Log, Record
from yirangmq.protocols.stomp.codec import record_message
from yirangmq.protocols.stomp.queue_subscriptions import AckMode
from yirangmq.protocols.stomp.topic_hub import Client, Terms
from yirangmq.topics.adapters import FOLLOW_SPAN, PageLimits, RecordPage, page_after
from yirangmq.topics.cursors import resumed
from yirangmq.topics.live import Live
from yirangmq.topics.publisher import Publisher
from yirangmq.wire.records import decode, read_head

PAGE_RECORDS = 256
PAGE_BYTES = 512 * 1024
FRESH_NS = 600 * 10**9
"""Interval in ns at which the cursor of a durable subscriber is written again if nothing is confirmed."""
Told = Callable[[QueueError | None], None]


def _ignore(error: QueueError | None) -> None:
    """Ignore the error: the next write contains this position."""


class Following:
    """Topic subscription of a STOMP client. Loop thread only.

    ``seen``: every record up to this sequence is sent, or does not match the filter. ``_out``: sequences that are sent
    and not acked, in order."""

    def __init__(self, topics: Publisher, terms: Terms, client: Client) -> None:
        parts = topics.opened()
        self._topics = topics
        self._ledger = parts.ledger
        self._log: Log = parts.feed.log
        self._now_ns = parts.feed.loop.now_ns
        self.terms = terms
        self._client = client
        self._out: list[int] = []
        self._is_reading = self._is_over = False
        self._told_ns = 0
        cursor = self._ledger.get(terms.name) if terms.name else None
        self.seen = self._log.last if cursor is None else max(resumed(self._log, cursor), self._log.first) - 1
        self._confirmed = self.seen

    @property
    def unsettled(self) -> int:
        return len(self._out)

    # -- sending ------------------------------------------------------------------------------------------------------

    def hear(self, live: Live, records: "Lazy") -> None:
        """Send the records of a commit directly if all earlier ones are sent and credit suffices.

        Otherwise read the log when the client can take records."""
        appended = live.appended
        if self._is_over or self._is_reading or appended.last <= self.seen:
            return
        wants = self.terms.filter.wants
        count = sum(map(wants, live.topics))
        if self.seen == appended.first - 1 and count <= self._room():
            if count:
                self._push([one for one in records.get() if wants(one.topic)])
            self._reach(appended.last)
        else:
            self.wake()

    def wake(self) -> None:
        """Read the next page of the log, if there are records and credit, and no read is running."""
        room = min(self._room(), PAGE_RECORDS)
        if self._is_over or self._is_reading or room <= 0 or self._log.last <= self.seen:
            return
        self._is_reading = True
        limits = PageLimits(room, PAGE_BYTES, FOLLOW_SPAN)
        self._topics.aside.run(partial(page_after, self._log, self.terms.filter, self.seen, limits), self._read)

    def _room(self) -> int:
        if not self._client.has_room():
            return 0
        return PAGE_RECORDS if self.terms.mode is AckMode.AUTO else self.terms.credit - len(self._out)

    def _read(self, page: RecordPage | None, error: QueueError | None) -> None:
        self._is_reading = False
        if self._is_over:
            return
        if page is None:
            self._client.fail(error or QueueError("the log cannot be read"))
            return
        self._push(page.records)
        self._reach(page.last)
        self.wake()

    def _push(self, records: Iterable[Record]) -> None:
        epoch = self._log.epoch
        for one in records:
            self._client.send(record_message(self.terms.address, f"{epoch}-{one.sequence}", one))
            if self.terms.mode is not AckMode.AUTO:
                self._out.append(one.sequence)

    # -- acks and cursor -----------------------------------------------------------------------------------------------

    def begin(self, done: Told) -> None:
        """Start the subscription. ``done`` is called when the cursor of a durable one is written, else immediately."""
        if self.terms.name:
            self._put(done)
        else:
            done(None)

    def holds(self, id: str) -> bool:
        """True if the record with this message id was sent over this subscription, and is not acked."""
        epoch, _, number = id.rpartition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) < 20
        return is_number and epoch == self._log.epoch and int(number) in self._out

    def settle(self, id: str, done: Told) -> None:
        """Ack or nack a record that ``holds`` accepts. Both are the same: the record stays in the log."""
        sequence = int(id.rpartition("-")[2])
        if self.terms.mode is AckMode.CLIENT:
            del self._out[: bisect_right(self._out, sequence)]
        else:
            self._out.remove(sequence)
        self._reach(self.seen, done)
        self.wake()

    def _reach(self, seen: int, done: Told = _ignore) -> None:
        self.seen = seen
        confirmed = self._out[0] - 1 if self._out else seen
        if self.terms.name and confirmed > self._confirmed:
            self._confirmed = confirmed
            self._put(done)
        else:
            done(None)

    def _put(self, done: Told) -> None:
        self._told_ns = self._now_ns()
        cursor = Cursor(self.terms.name, self._log.epoch, self._confirmed, self.terms.filter.text, self._told_ns)
        self._ledger.put(cursor, done)

    def look(self) -> None:
        """Write the cursor again if it is older than ``FRESH_NS``. Called periodically.

        So a connected durable subscriber keeps its records in the log, also if no records are published."""
        if self.terms.name and self._now_ns() - self._told_ns > FRESH_NS:
            self._put(_ignore)

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        self._is_over = True

    def replace(self) -> None:
        """End the subscription with an error: another connection subscribes with its durable name."""
        self.end()
        self._client.fail(Replaced(f"{self.terms.name!r} follows over another connection now"))

    def forget(self, done: Told) -> None:
        """Delete the durable subscriber's cursor."""
        self._ledger.drop(self.terms.name, lambda was_there, error: done(error))


class Lazy:
    """Records of a commit, decoded at the first call of ``get``."""

    def __init__(self, live: Live) -> None:
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
