"""One client of the socket door: its frames in, its answers out. Sans-IO: the socket hands bytes in and takes bytes.

Requests are answered when they are on disk, in whatever order that happens; each answer names its request."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from yirangmq.broker.desk import Desk
from yirangmq.broker.verbs import MOST_PER_CALL, Leases, Results
from yirangmq.core import decide, names
from yirangmq.core.errors import BadInput, NotAllowed, QueueError
from yirangmq.core.message import RANK_LAST, Envelope, new_envelope
from yirangmq.core.ports import Clock, Ids, Stored
from yirangmq.core.reasons import check_reason
from yirangmq.doors.calls import Calls
from yirangmq.doors.takers import Subscription, Waiting
from yirangmq.format.delivery import Delivery
from yirangmq.format.envelope import check_header, check_header_text
from yirangmq.format.jsontext import dumps, loads
from yirangmq.wire import calls
from yirangmq.wire.frames import Frame, FrameReader, Kind

MOST_SUBSCRIPTIONS = 64


@dataclass(frozen=True, slots=True)
class House:
    """What every session of a door shares."""

    desk: Desk
    clock: Clock
    ids: Ids
    methods: Calls
    welcome: calls.Welcome
    token: str = ""


class Session:
    """``send`` takes bytes to the client and says how many are still on their way; ``close`` ends the connection."""

    def __init__(self, house: House, trusted: bool, send: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self._house = house
        self._desk = house.desk
        self._send = send
        self._close = close
        self._reader = FrameReader(house.welcome.max_frame)
        self._greeted = trusted or not house.token
        self._subscriptions: dict[int, Subscription] = {}
        self._waiting: dict[int, Waiting] = {}
        self.client = ""
        self.closed = False
        self.pending = 0
        """Requests taken in and not yet answered; the socket stops reading when there are too many."""

    # -- bytes in -------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the client. A broken stream is answered once and closed."""
        try:
            for frame in self._reader.feed(data):
                self._handle(frame)
        except QueueError as error:
            self._answer(Kind.ERROR, 0, calls.failed(error))
            self._close()

    def _handle(self, frame: Frame) -> None:
        if not self._greeted and frame.kind != Kind.HELLO:
            raise NotAllowed("the first frame must be HELLO with the token", field="token")
        try:
            act = _ACTS.get(frame.kind)
            if act is None:
                raise BadInput(f"a client does not send frames of kind {frame.kind}", field="kind")
            act(self, frame.request, calls.read(frame.kind, frame.body))
        except NotAllowed:
            raise
        except QueueError as error:
            self._answer(Kind.ERROR, frame.request, calls.failed(error))

    def end(self) -> None:
        """The client is gone: it waits for nothing any more."""
        self.closed = True
        for subscription in self._subscriptions.values():
            self._desk.leave(subscription)
        for waiting in self._waiting.values():
            self._desk.leave(waiting)
        self._subscriptions.clear()
        self._waiting.clear()

    # -- bytes out ------------------------------------------------------------------------------------------------

    def _answer(self, kind: Kind, request: int, body: Any) -> None:
        if not self.closed:
            self._send(calls.frame(kind, request, body))

    def _submit(self, request: int, work: Callable[[Any], Any], reply: Callable[[Any], None]) -> None:
        def done(value: Any, error: QueueError | None) -> None:
            self.pending -= 1
            if error is not None:
                self._answer(Kind.ERROR, request, calls.failed(error))
            else:
                reply(value)

        self.pending += 1
        self._desk.submit(work, done)

    # -- frames ---------------------------------------------------------------------------------------------------

    def _hello(self, request: int, body: calls.Hello) -> None:
        if self._house.token and not self._greeted and not _same(body.token, self._house.token):
            raise NotAllowed("this is not the token of this server", field="token")
        self._greeted = True
        self.client = body.client[:64]
        self._answer(Kind.WELCOME, request, self._house.welcome)

    def _publish(self, request: int, body: calls.Publish) -> None:
        queue = names.check_queue(body.queue)
        if not 0 < len(body.messages) <= MOST_PER_CALL:
            raise BadInput(f"from 1 to {MOST_PER_CALL} in one frame, not {len(body.messages)}", field="messages")
        now = self._house.clock.now_ms()
        ids = self._house.ids.new(len(body.messages))
        envelopes = [_envelope(queue, new, id, now) for new, id in zip(body.messages, ids, strict=True)]
        self._submit(
            request,
            lambda transaction: self._desk.verbs.publish(transaction, queue, envelopes),
            lambda stored: self._answer(Kind.STORED, request, _stored(stored)),
        )

    def _lease(self, request: int, body: calls.Lease) -> None:
        queue, who = names.check_queue(body.queue), self._consumer(body.consumer)
        names.check_count(body.limit, "limit", most=MOST_PER_CALL)
        waiting = Waiting(queue, who, body.span_ms, body.limit, lambda got: self._leased(request, got))
        if body.wait_ms > 0:
            self._waiting[request] = waiting
            self._desk.wait(waiting)
            self._desk.later(body.wait_ms / 1000, lambda: self._give_up(request, waiting))
            return
        self._submit(
            request,
            lambda transaction: self._desk.verbs.lease(transaction, queue, body.limit, body.span_ms, who),
            lambda got: self._deliver(request, queue, got),
        )

    def _leased(self, request: int, deliveries: list[Delivery]) -> bool:
        waiting = self._waiting.pop(request, None)
        if waiting is None or self.closed:
            return False
        self._desk.leave(waiting)
        self._deliver(request, waiting.queue, deliveries)
        return True

    def _give_up(self, request: int, waiting: Waiting) -> None:
        if self._waiting.get(request) is waiting:
            del self._waiting[request]
            self._desk.leave(waiting)
            self._deliver(request, waiting.queue, [])

    def _deliver(self, request: int, queue: str, deliveries: list[Delivery]) -> None:
        policy = dumps(deliveries[0].policy).decode() if deliveries else ""
        self._answer(Kind.DELIVER, request, calls.Deliver(queue, [_incoming(one) for one in deliveries], policy))

    def _subscribe(self, request: int, body: calls.Subscribe) -> None:
        queue, who = names.check_queue(body.queue), self._consumer(body.consumer)
        names.check_count(body.credit, "credit", most=MOST_PER_CALL)
        if request in self._subscriptions or len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise BadInput(f"{request} is in use, or there are {MOST_SUBSCRIPTIONS} already", field="request")
        subscription = Subscription(
            queue, who, body.span_ms, body.credit, self._house.clock, lambda got: self._pushed(request, got)
        )
        self._subscriptions[request] = subscription
        self._desk.wait(subscription)

    def _pushed(self, request: int, deliveries: list[Delivery]) -> bool:
        subscription = self._subscriptions.get(request)
        if subscription is None or self.closed:
            return False
        policy = deliveries[0].rules
        text = "" if subscription.policy is policy else dumps(deliveries[0].policy).decode()
        subscription.policy = policy
        messages = [_incoming(one) for one in deliveries]
        self._answer(Kind.DELIVER, request, calls.Deliver(subscription.queue, messages, text))
        return True

    def _cancel(self, request: int, body: calls.Cancel) -> None:
        subscription = self._subscriptions.pop(body.subscription, None)
        if subscription is not None:
            self._desk.leave(subscription)
        self._answer(Kind.RESULT, request, calls.Result(subscription is not None))

    def _ack(self, request: int, body: calls.Settle) -> None:
        self._settle(request, body.leases, lambda work, leases: self._desk.verbs.ack(work, leases, body.consumer))

    def _release(self, request: int, body: calls.Settle) -> None:
        self._settle(request, body.leases, lambda work, leases: self._desk.verbs.release(work, leases, body.consumer))

    def _nack(self, request: int, body: calls.Nack) -> None:
        cause = decide.Cause(check_reason(body.reason), body.text, _span(body.delay_ms, "delay"))
        self._settle(
            request, body.leases, lambda work, leases: self._desk.verbs.nack(work, leases, body.consumer, cause)
        )

    def _extend(self, request: int, body: calls.Extend) -> None:
        span = _span(body.span_ms, "seconds")
        self._settle(
            request,
            body.leases,
            lambda work, leases: self._desk.verbs.extend(work, leases, body.consumer, span),
            over=False,
        )

    def _settle(
        self, request: int, texts: list[str], verb: Callable[[Any, Leases], Results], *, over: bool = True
    ) -> None:
        leases = Leases(texts)

        def reply(results: Results) -> None:
            failures = {n: (error.code, str(error)) for n, error in enumerate(results) if error is not None}
            self._answer(Kind.SETTLED, request, calls.Settled(failures))
            if over:
                self._settled(texts)

        self._submit(request, lambda transaction: verb(transaction, leases), reply)

    def _settled(self, leases: list[str]) -> None:
        """Settled messages give their credit back."""
        for subscription in self._subscriptions.values():
            if subscription.settled(leases):
                self._desk.hungry(subscription.queue)

    def _call(self, request: int, body: calls.Call) -> None:
        method = self._house.methods.find(body.method)
        self._submit(
            request,
            lambda transaction: method(transaction, body.values),
            lambda value: self._answer(Kind.RESULT, request, calls.Result(value)),
        )

    def _ping(self, request: int, body: calls.Empty) -> None:
        self._answer(Kind.PONG, request, body)

    def _bye(self, request: int, body: calls.Empty) -> None:
        self._close()

    def _consumer(self, name: str) -> str:
        return names.check_consumer(name or self.client or "anonymous")


_ACTS: dict[int, Callable[[Session, int, Any], None]] = {
    Kind.HELLO: Session._hello,
    Kind.PUBLISH: Session._publish,
    Kind.LEASE: Session._lease,
    Kind.SUBSCRIBE: Session._subscribe,
    Kind.CANCEL: Session._cancel,
    Kind.ACK: Session._ack,
    Kind.NACK: Session._nack,
    Kind.EXTEND: Session._extend,
    Kind.RELEASE: Session._release,
    Kind.CALL: Session._call,
    Kind.PING: Session._ping,
    Kind.BYE: Session._bye,
}


def _envelope(queue: str, new: calls.Outgoing, fallback: str, now: int) -> Envelope:
    id = names.check_id(new.id) if new.id else fallback
    delay = _span(new.delay_ms, "delay") or 0
    ttl = _span(new.ttl_ms, "ttl") or 0
    if new.is_json:
        loads(new.payload)
    rank, key = RANK_LAST, None
    if new.header:
        header = check_header_text(new.header)
        rank, key = check_header(header), header.get("deduplicationKey")
    expires = now + ttl if ttl else 0
    return new_envelope((queue, id, rank, now, now + delay, expires, key, new.header, new.payload, new.is_json))


def _span(milliseconds: int | None, field: str) -> int | None:
    if milliseconds is not None and not 0 <= milliseconds <= names.MAX_SECONDS * 1000:
        raise BadInput(f"must be from 0 to {names.MAX_SECONDS} seconds", field=field)
    return milliseconds


def _stored(stored: list[Stored]) -> calls.Stored:
    ids = [one[1] for one in stored]
    duplicates = [n for n, one in enumerate(stored) if one[2]]
    refused = {n: one[3] for n, one in enumerate(stored) if one[3]}
    return calls.Stored(ids, duplicates, refused)


def _incoming(delivery: Delivery) -> calls.Incoming:
    message, envelope, _ = delivery
    lease = f"{message[0]}-{message[7]}"
    return calls.Incoming(lease, message[2], message[6], message[8], envelope[3], envelope[7], envelope[8], envelope[9])


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
