"""The way of a subscription to its server: connected, subscribed, lost and found again, as often as it takes.

Written once, as coroutines. Knows: one connection at a time, where the feed is to go on. Does not know: who takes the
records, or when they are done with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from yirangmq.client.core import Lost
from yirangmq.client.courier import Courier
from yirangmq.client.feed import Feed
from yirangmq.client.keeping import Keeping
from yirangmq.client.topic_values import Event, Moved
from yirangmq.client.tracking import Tracker
from yirangmq.client.wires import Line
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
from yirangmq.core.topics import ClientState, ClientVerb, Start, client_after
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind

LISTEN_SECONDS = 10.0
"""After this long without a word the server is asked whether it is still there."""
NAP_SECONDS = 0.1
"""How often one who waits to connect again looks whether it is still wanted."""
MOST_FAULTS = 3
"""Times that the same place of the feed may be asked for again in vain."""
Confirming = Literal["after", "before", "manual"]
Hear = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is followed, where it begins, and how."""

    topics: tuple[str, ...]
    mask: int
    name: str
    start: Start
    at: int
    epoch: str
    resume: bool
    confirm: Confirming
    reconnect: float
    follows_new_epoch: bool
    idle: float
    progress: float

    @property
    def is_all(self) -> bool:
        return "*" in self.topics or not (self.topics or self.mask)


class Way:
    """``feed`` is filled, ``tracker`` knows how far it is."""

    def __init__(self, courier: Courier, terms: Terms, keeping: Keeping, hear: Hear) -> None:
        self._courier = courier
        self._terms = terms
        self._keeping = keeping
        self._hear = hear
        self._line: Line | None = None
        self._heard_at = 0.0
        """When the server last said something."""
        self._is_asked = False
        """What is missing was asked for again, and has not begun to come."""
        self._faults, self._fault_at = 0, -1
        self.feed = Feed()
        self.tracker = Tracker(is_all=terms.is_all, tell=hear)
        self.state: ClientState = ClientState.OFFLINE
        self.is_over = False

    @property
    def line(self) -> Line | None:
        """None: it is gone, or was never there."""
        return self._line if self._line is not None and self._line.is_alive else None

    # -- coming -----------------------------------------------------------------------------------------------------

    async def connected(self) -> Line:
        """One that has broken since tells why to whoever uses it."""
        return self._line if self._line is not None else await self._begin()

    async def listen(self, seconds: float) -> None:
        """Until something came, or for so long."""
        line = await self.connected()
        needed = None if self._is_asked else self.tracker.needed
        if needed is not None and not await self._ask_again(line, needed):
            seconds = min(seconds, NAP_SECONDS)
        line.taken()
        patience = self._courier.attention(LISTEN_SECONDS)
        if not await line.listen(self.feed, min(seconds, patience)):
            if time.monotonic() - self._heard_at < patience:
                return
            slot = await line.ask(Kind.PING, messages.Empty())
            await line.answer(slot, self._courier.quiet)
        self._heard_at = time.monotonic()

    async def _begin(self) -> Line:
        """Connect, and say what is wanted: to each address in turn, where some of them do not serve."""
        for _ in self._courier.terms.addresses[1:]:
            try:
                return await self._begin_here()
            except Lost as lost:
                if not isinstance(lost.__cause__, NotActive):
                    raise
        return await self._begin_here()

    async def _begin_here(self) -> Line:
        self.feed.clear()
        self._keeping.forget()
        self._is_asked = False
        line = await self._courier.line()
        try:
            self._become(ClientState.CONNECTED)
            line.follow(self.feed)
            await self._follow(line)
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, Lost) else None
            await self.drop(str(error), onward=isinstance(cause, NotActive))
            raise
        self._line = line
        self._heard_at = time.monotonic()
        return line

    async def _follow(self, line: Line) -> None:
        try:
            await self._subscribe(line, self._wanted())
        except WrongEpoch:
            if not self._terms.follows_new_epoch:
                raise
            anew = messages.TopicSubscribe(start=Start.BEGINNING, resume=False, **self._whom())
            await self._subscribe(line, anew)

    async def _subscribe(self, line: Line, body: messages.TopicSubscribe) -> None:
        slot = await line.ask(Kind.TOPIC_SUBSCRIBE, body)
        try:
            (await line.answer(slot, self._courier.terms.timeout)).wanted(Kind.TOPIC_SUBSCRIBED)
        except WrongEpoch:
            raise
        except (Unavailable, StoreError) as error:  # asking later may help
            raise Lost(str(error)) from error

    def _whom(self) -> dict[str, Any]:
        terms = self._terms
        about = {"topics": [*terms.topics], "mask": terms.mask, "name": terms.name}
        return {**about, "progress_ms": round(terms.progress * 1000)}

    def _wanted(self) -> messages.TopicSubscribe:
        """The first time as the program said; later where it was. (A name goes on where it confirmed, which is before
        that: what comes again is dropped.)"""
        terms, tracker = self._terms, self.tracker
        if tracker.epoch and terms.name:
            return messages.TopicSubscribe(epoch=tracker.epoch, **self._whom())
        if tracker.epoch:
            at = tracker.go_on_after + 1
            return messages.TopicSubscribe(start=Start.SEQUENCE, at=at, epoch=tracker.epoch, **self._whom())
        return messages.TopicSubscribe(
            start=terms.start, at=terms.at, epoch=terms.epoch, resume=terms.resume, **self._whom()
        )

    async def _ask_again(self, line: Line, after: int) -> bool:
        """Something is missing: everything after that is to come again. False: the server is sending something from
        before already, and must be asked later."""
        if self.state is ClientState.RECOVERING:
            return False
        slot = await line.ask(Kind.RECOVERY_REQUEST, messages.RecoveryRequest(after, self.tracker.epoch))
        try:
            (await line.answer(slot, self._courier.terms.timeout)).wanted(Kind.RECOVERY_RESPONSE)
        except WrongState:
            return False
        self._is_asked = True
        self._count_fault(after, StoreDamaged(f"what follows sequence {after} is sent and does not arrive"))
        return True

    # -- what is said -----------------------------------------------------------------------------------------------

    def hear(self, said: Any) -> bool:
        """One word about the records; True: they are of another feed from now on."""
        tracker, is_new = self.tracker, False
        if isinstance(said, messages.TopicSubscribed):
            is_new = tracker.subscribed(said)
            self._move(ClientVerb.SUBSCRIBE)
        elif isinstance(said, messages.RecoveryResponse):
            self._is_asked = False
            tracker.response(said)
            self._move(ClientVerb.RECOVER)
        elif isinstance(said, messages.RecoveryComplete):
            tracker.complete(said)
            self._move(ClientVerb.ARRIVE)
        else:
            tracker.progress(said)
        return is_new

    def _move(self, verb: ClientVerb) -> None:
        after = client_after(self.state, verb)
        if after is not None:
            self._become(after)

    def _become(self, state: ClientState, why: str = "") -> None:
        before, self.state = self.state, state
        if before is not state:
            self._hear(Moved(before, state, why))

    # -- losses -----------------------------------------------------------------------------------------------------

    async def come_again(self, error: Lost | Unreachable, until: float) -> None:
        """After a while, and again and again; what no coming again would mend is raised."""
        await self._give_up_or_not(error)
        while await self._nap(self._courier.around(self._terms.reconnect), until):
            try:
                await self._begin()
                return
            except (Unreachable, Lost) as another:
                await self._give_up_or_not(another)

    async def _give_up_or_not(self, error: Lost | Unreachable) -> None:
        why = reason(error) if isinstance(error, Lost) else error
        await self.drop(str(why))
        if isinstance(why, Replaced):
            self.is_over = True
            raise why
        if not self.tracker.epoch:  # it has never been there
            raise why
        if not isinstance(why, Unavailable):
            self._count_fault(self.tracker.last, why)

    def _count_fault(self, at: int, why: QueueError) -> None:
        self._faults = self._faults + 1 if at == self._fault_at else 1
        self._fault_at = at
        if self._faults > MOST_FAULTS:
            raise why

    async def _nap(self, seconds: float, until: float) -> bool:
        """False: nobody wants it any more, or not so long."""
        end = time.monotonic() + seconds
        while not self.is_over and (now := time.monotonic()) < until:
            if now >= end:
                return True
            await self._courier.sleep(min(end - now, until - now, NAP_SECONDS))
        return False

    async def drop(self, why: str, *, onward: bool = False) -> None:
        self._line = None
        self.feed.clear()
        await self._courier.hang_up(onward=onward)
        self._become(ClientState.OFFLINE, why)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Whoever waits for a record looks up as soon as the server says anything."""
        self.is_over = self.feed.is_over = True
        line = self.line
        if line is not None:
            try:
                line.taken()
                await line.ask(Kind.PING, messages.Empty())
            except Lost:
                return

    async def close(self) -> None:
        self._line = None
        await self._courier.close()
        self._become(ClientState.OFFLINE, "closed")


def reason(lost: Lost) -> QueueError:
    cause = lost.__cause__
    return cause if isinstance(cause, QueueError) else Unavailable(str(lost))
