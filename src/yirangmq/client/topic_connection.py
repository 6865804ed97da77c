"""Connection of a topic subscription: subscribe, reconnect, resume.

It asks for missing records again as soon as ``client.topic_tracker`` detects them.

After a loss the connection is retried every ``reconnect`` seconds, ±50 % jitter, as long as a record is awaited. If
the same position fails more than ``MAX_FAULTS`` times, the error is raised. Coroutines; one connection at a time."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from yirangmq.client.connection import ReconnectingConnection
from yirangmq.client.cursors import CursorKeeper
from yirangmq.client.session import ConnectionLost, TopicInbox
from yirangmq.client.topic_tracker import Tracker
from yirangmq.client.transport import Transport
from yirangmq.client.values import Event, Moved
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
