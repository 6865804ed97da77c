"""Connection of a topic subscription: subscribe, reconnect, resume; detection of duplicate and missing records.

The tracker is sans-IO and follows ``docs/wire.md``, "Is anything missing?". Without a filter, sequences have no
holes. With a filter it compares the number of records with the counts that the server sends. When something is
missing, it accepts no record until everything after the last certain sequence is sent again.

After a loss the connection is retried every ``reconnect`` seconds, ±50 % jitter, as long as a record is awaited. If
the same position fails more than ``MAX_FAULTS`` times, the error is raised. Coroutines; one connection at a time."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from yirangmq.client.connection import ReconnectingConnection
from yirangmq.client.cursors import CursorKeeper
from yirangmq.client.session import ConnectionLost, TopicInbox
from yirangmq.client.transport import Transport
from yirangmq.client.values import Event, LostRecords, Missing, Moved, NewEpoch, TopicRecord
from yirangmq.core.errors import (
    NotActive,
    QueueError,
    Replaced,
    StoreDamaged,
    StoreError,
    Unavailable,
    Unreachable,
    WrongEpoch,
    WrongState,
)
from yirangmq.core.topics import Start, SubscriberState, SubscriberVerb, subscriber_after
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

# -- duplicates and missing records ------------------------------------------------------------------------------------

MAX_REMEMBERED = 1_000_000
"""Upper bound of the sequences remembered since the last matching count. Beyond it the tracker can report a wrong
count but cannot repair it."""


class Tracker:
    """Detects duplicate and missing records of one topic subscription.

    ``is_all``: there is no filter, so sequences have no holes. ``report`` receives the events for the program."""

    def __init__(self, *, is_all: bool, report: Callable[[Event], None]) -> None:
        self._is_all = is_all
        self._report = report
        self.epoch = ""
        self.last = 0
        """Sequence of the latest record passed on, or the position before the first one."""
        self.reached = 0
        """All matching records up to this sequence have arrived."""
        self.feed_last = 0
        """Last sequence of the log, as last reported by the server."""
        self.needed: int | None = None
        """If not None, records are missing: the server must send everything after this sequence again. Until then no
        record is accepted."""
        self.duplicates = 0
        self.lost: list[tuple[int, int]] = []
        """Gaps that the server reported, each once."""
        self._count = 0
        self._span_last = 0
        """Since the latest start of a count: the number of records that arrived (``_count``), each once, and the
        last of them."""
        self._topics: dict[str, tuple[int, int]] = {}
        self._checked = 0
        """Sequence of the last matching count. ``_since`` holds the sequences passed on after it, or None if there
        were too many."""
        self._since: set[int] | None = set()

    @property
    def resume_after(self) -> int:
        """Sequence after which a new connection must start. All matching records up to it have arrived for certain."""
        if self.needed is not None:
            return self.needed
        return self.reached if self._is_all or self._since is None else self._checked

    # -- frames about records ------------------------------------------------------------------------------------------

    def subscribed(self, about: messages.TopicSubscribed) -> bool:
        """Process TOPIC_SUBSCRIBED. Return True if the epoch differs from the one before."""
        before, self.epoch = self.epoch, about.epoch
        self.feed_last = about.last
        if before != self.epoch:
            self._restart(about.next - 1)
            self.lost.clear()
            if before:
                self._report(NewEpoch(before, self.epoch))
        elif about.next - 1 > self.reached:  # another process confirmed more under this name
            self._restart(about.next - 1)
        elif about.next - 1 > self.resume_after:  # it is unknown whether the records between them arrived
            self.needed = self.resume_after
        self._start_count(about.next, about.gaps)
        return bool(before) and before != self.epoch

    def response(self, about: messages.TopicRecoveryResponse) -> None:
        self._start_count(about.start, about.gaps)

    def complete(self, about: messages.TopicRecoveryComplete) -> None:
        self._compare(about.sequence, about.sent)

    def progress(self, about: messages.TopicProgress) -> None:
        self.feed_last = about.last
        self._compare(about.sequence, about.sent)

    def _restart(self, last: int) -> None:
        self.last = self.reached = self._checked = last
        self.needed, self._since = None, set()
        self._topics.clear()

    def _start_count(self, start: int, gaps: Iterable[tuple[int, int]]) -> None:
        """Start a count at sequence ``start``, and record the gaps."""
        self._count, self._span_last = 0, start - 1
        for first, last in gaps:
            if (first, last) not in self.lost:
                self.lost.append((first, last))
                self._report(LostRecords(first, last))
        if self.needed is not None:
            if start <= self.needed + 1:
                self.needed = None  # the missing records are sent again
        elif start > self.last:  # else records are repeated and recognised by ``_since``
            self._mark_complete(start - 1)

    def _compare(self, sequence: int, sent: int) -> None:
        if self.needed is not None:
            return
        if self._count == sent:
            self.reached = max(self.reached, sequence)
            self._mark_complete(sequence)
        else:
            self._report_missing(f"{sent} records were sent, {self._count} were received")

    def _mark_complete(self, sequence: int) -> None:
        """Note that all matching records up to ``sequence`` have arrived. Later records may be present as well, and
        arrive again."""
        self._checked = max(sequence, self._checked)
        if self._checked >= self.last:
            self._since = set()
        elif self._since is not None:
            self._since = {one for one in self._since if one > self._checked}

    def _report_missing(self, why: str) -> None:
        """Report missing records and request them again.

        Without a filter the first missing record follows the last one; with a filter it is somewhere after the last
        matching count."""
        is_known = not self._is_all and self._since is not None
        self.needed = self._checked if is_known else self.last
        self._report(Missing(self.needed, why))

    # -- records ------------------------------------------------------------------------------------------------------

    def take(self, records: Sequence[TopicRecord]) -> Sequence[TopicRecord]:
        """Return the new records, each once.

        They are in order, except a record that arrives for the first time on a resend, after later ones were passed
        on."""
        if self.needed is not None:
            return ()
        if self._is_all:
            first, count = records[0].sequence, len(records)
            if first == self.last + 1 and [one.sequence for one in records] == list(range(first, first + count)):
                self._count += count
                self.last = self.reached = self._span_last = first + count - 1
                return records
        return [one for one in records if self._is_new(one)]

    def _is_new(self, record: TopicRecord) -> bool:
        sequence = record.sequence
        if self.needed is not None:
            return False
        if sequence <= self._span_last:
            self.duplicates += 1
            return False
        self._count, self._span_last = self._count + 1, sequence
        if sequence <= self.last:
            return self._is_late(record)
        if not self._follows(record):
            self._report_missing(f"after {self.last} came {sequence}, {record.topic} {record.topic_sequence}")
            return False
        self.last = sequence
        self.reached = max(self.reached, sequence)
        if not self._is_all:
            self._remember(record)
        return True

    def _is_late(self, record: TopicRecord) -> bool:
        """Handle a record before the last one: a duplicate (False), or its first arrival after later records (True)."""
        sequence = record.sequence
        if self._is_all or self._since is None or sequence <= self._checked or sequence in self._since:
            self.duplicates += 1
            return False
        self._remember(record)
        return True

    def _remember(self, record: TopicRecord) -> None:
        sequence = record.sequence
        known = self._topics.get(record.topic)
        if known is None or known[1] < sequence:
            self._topics[record.topic] = record.topic_sequence, sequence
        if self._since is not None:
            self._since.add(sequence)
            if len(self._since) > MAX_REMEMBERED:
                self._since = None

    def _follows(self, record: TopicRecord) -> bool:
        """Return True if no record is missing between this one and the one before it, other than reported gaps."""
        if self._is_all:
            return record.sequence == self.last + 1 or self._is_lost(self.last + 1, record.sequence - 1)
        known = self._topics.get(record.topic)
        if known is None or record.topic_sequence == known[0] + 1:
            return True
        return record.topic_sequence > known[0] and any(
            known[1] < first and last < record.sequence for first, last in self.lost
        )

    def _is_lost(self, first: int, last: int) -> bool:
        """Return True if every sequence of the range is in a reported gap."""
        for low, high in sorted(self.lost):
            if low <= first <= high:
                first = high + 1
        return first > last


# -- connection --------------------------------------------------------------------------------------------------------

LISTEN_SECONDS = 10.0
"""Interval without data, in seconds, after which the server is pinged."""
RECONNECT_POLL_SECONDS = 0.1
"""Interval in seconds at which a pending reconnect checks whether it is still needed."""
MAX_FAULTS = 3
"""Upper bound of failed resend requests for the same position."""
ConfirmMode = Literal["after", "before", "manual"]
TopicEventListener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Options of a topic subscription: filter, start position, confirmation and timing."""

    topics: tuple[str, ...]
    mask: int
    name: str
    start: Start
    at: int
    epoch: str
    resume: bool
    confirm: ConfirmMode
    reconnect: float
    follows_new_epoch: bool
    idle: float
    progress: float

    @property
    def is_all(self) -> bool:
        return "*" in self.topics or not (self.topics or self.mask)


class TopicConnection:
    """Reconnecting connection of a topic subscription.

    The transport fills ``inbox``; ``tracker`` holds the position. After a loss, ``reconnect_until`` reconnects and
    resumes there."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        options: TopicOptions,
        cursor_keeper: CursorKeeper,
        on_event: TopicEventListener,
    ) -> None:
        self._connection = connection
        self._options = options
        self._cursor_keeper = cursor_keeper
        self._on_event = on_event
        self._transport: Transport | None = None
        self._last_data_at = 0.0
        """Monotonic time of the last data from the server."""
        self._is_resend_requested = False
        """True while a resend was requested and has not started."""
        self._faults, self._fault_at = 0, -1
        self._epoch = ""
        """Epoch of the log at the server of the latest connection. The tracker's follows when it takes the frame."""
        self._retry_at = 0.0
        self.inbox = TopicInbox()
        self.tracker = Tracker(is_all=options.is_all, report=on_event)
        self.state: SubscriberState = SubscriberState.OFFLINE
        self.is_over = False

    @property
    def transport(self) -> Transport | None:
        """The open connection, or None if there is none or it is lost."""
        return self._transport if self._transport is not None and self._transport.is_alive else None

    @property
    def latest_transport(self) -> Transport | None:
        """The latest connection, also if it is lost: a request raises the error then. None before the first one, and
        after ``drop``."""
        return self._transport

    @property
    def is_same_epoch(self) -> bool:
        """True if the server has the log whose records were returned. Positions of another log must not be sent."""
        return self._epoch == self.tracker.epoch

    # -- connect and subscribe -----------------------------------------------------------------------------------------

    async def connected(self) -> Transport:
        """Return the connection; connect and subscribe first if there is none. A lost connection raises its error on
        use."""
        return self._transport if self._transport is not None else await self._connect()

    async def wait_for_data(self, seconds: float) -> None:
        """Wait until data arrives, up to ``seconds``."""
        transport = await self.connected()
        needed = None if self._is_resend_requested else self.tracker.needed
        if needed is not None and not await self._request_resend(transport, needed):
            seconds = min(seconds, RECONNECT_POLL_SECONDS)
        transport.notify_taken()
        ping_interval = self._connection.ping_interval(LISTEN_SECONDS)
        if not await transport.wait_for_data(self.inbox, min(seconds, ping_interval)):
            if time.monotonic() - self._last_data_at < ping_interval:
                return
            slot = await transport.request(FrameKind.PING, messages.Empty())
            await transport.answer(slot, self._connection.silence_limit)
        self._last_data_at = time.monotonic()

    async def _connect(self) -> Transport:
        """Connect and subscribe. Try each address in turn if some of them are not active."""
        for _ in self._connection.options.addresses[1:]:
            try:
                return await self._connect_once()
            except ConnectionLost as lost:
                if not isinstance(lost.__cause__, NotActive):
                    raise
        return await self._connect_once()

    async def _connect_once(self) -> Transport:
        self.inbox.clear()
        self._cursor_keeper.reset()
        self._is_resend_requested = False
        transport = await self._connection.transport()
        try:
            self._set_state(SubscriberState.CONNECTED)
            transport.set_topic_inbox(self.inbox)
            await self._subscribe_or_restart(transport)
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, ConnectionLost) else None
            await self.drop(str(error), onward=isinstance(cause, NotActive))
            raise
        self._transport = transport
        self._last_data_at = time.monotonic()
        return transport

    async def _subscribe_or_restart(self, transport: Transport) -> None:
        try:
            await self._subscribe(transport, self._subscribe_request())
        except WrongEpoch:
            if not self._options.follows_new_epoch:
                raise
            subscribe = messages.TopicSubscribe(start=Start.BEGINNING, resume=False, **self._subscription_fields())
            await self._subscribe(transport, subscribe)

    async def _subscribe(self, transport: Transport, body: messages.TopicSubscribe) -> None:
        slot = await transport.request(FrameKind.TOPIC_SUBSCRIBE, body)
        try:
            reply = await transport.answer(slot, self._connection.options.timeout)
            self._epoch = reply.wanted(FrameKind.TOPIC_SUBSCRIBED).epoch
        except WrongEpoch:
            raise
        except (Unavailable, StoreError) as error:  # a retry may succeed
            raise ConnectionLost(str(error)) from error

    def _subscription_fields(self) -> dict[str, Any]:
        options = self._options
        about = {"topics": [*options.topics], "mask": options.mask, "name": options.name}
        return {**about, "progress_ms": round(options.progress * 1000)}

    def _subscribe_request(self) -> messages.TopicSubscribe:
        """Build the subscription request: the first one from the program's options, later ones from the current
        position.

        A named subscription resumes at its confirmed position, which is earlier; repeated records are dropped."""
        options, tracker = self._options, self.tracker
        if tracker.epoch and options.name:
            return messages.TopicSubscribe(epoch=tracker.epoch, **self._subscription_fields())
        if tracker.epoch:
            at = tracker.resume_after + 1
            return messages.TopicSubscribe(
                start=Start.SEQUENCE, at=at, epoch=tracker.epoch, **self._subscription_fields()
            )
        return messages.TopicSubscribe(
            start=options.start,
            at=options.at,
            epoch=options.epoch,
            resume=options.resume,
            **self._subscription_fields(),
        )

    async def _request_resend(self, transport: Transport, after: int) -> bool:
        """Request all records after sequence ``after`` again. Return False if the server is already in a recovery;
        the request must be repeated later."""
        if self.state is SubscriberState.RECOVERING:
            return False
        slot = await transport.request(
            FrameKind.RECOVERY_REQUEST, messages.TopicRecoveryRequest(after, self.tracker.epoch)
        )
        try:
            (await transport.answer(slot, self._connection.options.timeout)).wanted(FrameKind.RECOVERY_RESPONSE)
        except WrongState:
            return False
        self._is_resend_requested = True
        self._count_fault(after, StoreDamaged(f"what follows sequence {after} is sent and does not arrive"))
        return True

    # -- state ---------------------------------------------------------------------------------------------------------

    def on_event(self, control_frame: Any) -> bool:
        """Process one frame about the records. Return True if the following records belong to another epoch."""
        tracker, is_new = self.tracker, False
        if isinstance(control_frame, messages.TopicSubscribed):
            is_new = tracker.subscribed(control_frame)
            self._move(SubscriberVerb.SUBSCRIBE)
        elif isinstance(control_frame, messages.TopicRecoveryResponse):
            self._is_resend_requested = False
            tracker.response(control_frame)
            self._move(SubscriberVerb.RECOVER)
        elif isinstance(control_frame, messages.TopicRecoveryComplete):
            tracker.complete(control_frame)
            self._move(SubscriberVerb.ARRIVE)
        else:
            tracker.progress(control_frame)
        return is_new

    def _move(self, verb: SubscriberVerb) -> None:
        after = subscriber_after(self.state, verb)
        if after is not None:
            self._set_state(after)

    def _set_state(self, state: SubscriberState, why: str = "") -> None:
        before, self.state = self.state, state
        if before is not state:
            self._on_event(Moved(before, state, why))

    # -- losses -----------------------------------------------------------------------------------------------------

    async def reconnect_until(self, error: ConnectionLost | Unreachable, until: float) -> None:
        """Reconnect after a pause, repeatedly until the time ``until``. Errors that a reconnect cannot repair are
        raised."""
        await self._raise_if_permanent(error)
        while await self._sleep_until(self._connection.jittered(self._options.reconnect), until):
            try:
                await self._connect()
                return
            except (Unreachable, ConnectionLost) as another:
                await self._raise_if_permanent(another)

    async def reconnect_once(self, error: ConnectionLost | None = None) -> None:
        """Try once to connect again, without a pause, and at most once in ``reconnect`` seconds.

        Errors that a reconnect cannot repair are raised."""
        if error is not None:
            await self._raise_if_permanent(error)
        now = time.monotonic()
        if self.is_over or now < self._retry_at:
            return
        self._retry_at = now + self._connection.jittered(self._options.reconnect)
        with contextlib.suppress(Unreachable, ConnectionLost):
            await self._connect()

    async def drop_interrupted(self) -> bool:
        """Drop the connection if an exception of a signal handler broke it, for example ``SystemExit``: the server is
        there, and another connection can confirm. Return True if it was dropped."""
        transport = self._transport
        if transport is None or transport.is_alive:
            return False
        try:
            await transport.exchange()
        except ConnectionLost as lost:
            if isinstance(lost.__cause__, InterruptedError):
                await self.drop(str(lost))
                return True
        return False

    async def _raise_if_permanent(self, error: ConnectionLost | Unreachable) -> None:
        why = reason(error) if isinstance(error, ConnectionLost) else error
        await self.drop(str(why))
        if isinstance(why, Replaced):
            self.is_over = True
            raise why
        if not self.tracker.epoch:  # the first connection never succeeded
            raise why
        if not isinstance(why, Unavailable):
            self._count_fault(self.tracker.last, why)

    def _count_fault(self, at: int, why: QueueError) -> None:
        self._faults = self._faults + 1 if at == self._fault_at else 1
        self._fault_at = at
        if self._faults > MAX_FAULTS:
            raise why

    async def _sleep_until(self, seconds: float, until: float) -> bool:
        """Sleep. Return False if the subscription is closed or ``until`` has passed."""
        end = time.monotonic() + seconds
        while not self.is_over and (now := time.monotonic()) < until:
            if now >= end:
                return True
            await self._connection.sleep(min(end - now, until - now, RECONNECT_POLL_SECONDS))
        return False

    async def drop(self, why: str, *, onward: bool = False) -> None:
        self._transport = None
        self.inbox.clear()
        await self._connection.disconnect(onward=onward)
        self._set_state(SubscriberState.OFFLINE, why)

    # -- closing ----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close the subscription. A PING makes the server send data, which wakes a waiting reader."""
        self.is_over = self.inbox.is_over = True
        transport = self.transport
        if transport is not None:
            try:
                transport.notify_taken()
                await transport.request(FrameKind.PING, messages.Empty())
            except ConnectionLost:
                return

    async def close(self) -> None:
        self._transport = None
        await self._connection.close()
        self._set_state(SubscriberState.OFFLINE, "closed")


def reason(lost: ConnectionLost) -> QueueError:
    cause = lost.__cause__
    return cause if isinstance(cause, QueueError) else Unavailable(str(lost))
