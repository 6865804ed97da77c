"""Session of one native client, sans-IO: frames in, answers out, and the request between them.

A request is answered when it is on disk. Answers come in any order, and each names its request. Requests have weights
by the size of their answers. Backpressure: reading pauses while the unanswered weight reaches ``most_pending`` or the
client does not read.

The first frame must be HELLO with a token, unless the client is trusted. A frame that cannot be read, or that the
client is not allowed to send, is answered with its error, and the connection is closed."""

import hmac
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from yirangmq.admin.registry import verb_of
from yirangmq.broker.settle import MOST_PER_CALL, Leases
from yirangmq.core import validation
from yirangmq.core.access import ANYWHERE, CONSUME, GREET, PUBLISH, Grant
from yirangmq.core.active_guard import check
from yirangmq.core.errors import BadInput, NotAllowed, QueueError, Stranger
from yirangmq.core.ports import Transaction
from yirangmq.protocols import context
from yirangmq.protocols.context import House
from yirangmq.protocols.native import codec
from yirangmq.protocols.native.consumers import Consuming
from yirangmq.protocols.native.topics import Following
from yirangmq.wire import messages
from yirangmq.wire.frames import Frame, FrameReader, Kind

if TYPE_CHECKING:
    from yirangmq.topics.ports import Line


# -- requests ----------------------------------------------------------------------------------------------------------


class Asker(Protocol):
    """Session as its requests see it."""

    pending: int

    def answer(self, kind: Kind, request: int, body: Any) -> None: ...


class Asked:
    """Request of a session: a job of the group committer (``broker.commit_jobs.Task``).

    ``work`` runs in the next commit; ``reply`` gets its value when that is on disk. The weight counts as pending from
    construction until ``done``. The class is the job itself, so that a request costs one object instead of three."""

    __slots__ = ("_asker", "_reply", "_request", "_weight", "error", "requests", "value", "work")

    def __init__(
        self,
        asker: Asker,
        request: int,
        work: Callable[[Transaction], Any],
        reply: Callable[[Any], None],
        weight: int,
    ) -> None:
        self._asker = asker
        self._request = request
        self._reply = reply
        self._weight = weight
        self.work = work
        self.value: Any = None
        self.error: QueueError | None = None
        self.requests = 1
        asker.pending += weight

    def done(self, value: Any, error: QueueError | None) -> None:
        self._asker.pending -= self._weight
        if error is not None:
            self._asker.answer(Kind.ERROR, self._request, messages.failed(error))
        else:
            self._reply(value)


def elsewhere(transaction: Transaction) -> NoReturn:
    """Placeholder for ``work`` of requests that do not run in the committer; never called."""
    raise AssertionError


# -- session -----------------------------------------------------------------------------------------------------------

MOST_PENDING = 256
LARGEST_GREETING = 8192
"""Upper bound of the first frame of a client that has not sent its token yet, in bytes."""
NOT_OURS = "this is not the token of this server"
NO_TOKEN = "this server wants one; show it behind the address: ?token=TOKEN"
CALL_WEIGHT = 16
"""Weight of a call among pending requests: its answer may be 16 times as large as that to a publish (weight 1)."""


class Session:
    """Session of one client of the native protocol, sans-IO. Loop thread only.

    ``send`` passes bytes to the client; ``close`` closes the connection after they are sent. ``line`` is the
    connection for records of topics, or None if it cannot carry them."""

    def __init__(
        self,
        house: House,
        trusted: bool,
        send: Callable[[bytes | bytearray], None],
        close: Callable[[], None],
        line: "Line | None" = None,
        peer: Callable[[], str] = str,
    ) -> None:
        self._house = house
        self._peer = peer
        self.grant: Grant | None = None
        """Grant of the client's program, or None if the client may do everything."""
        self._desk = house.desk
        self._send = send
        self._close = close
        self.is_greeted = trusted or not (house.token or not house.authenticator.is_open)
        """The client may send requests: it has sent its token, or needs none."""
        self._was_delayed = False
        """The HELLO is delayed because of earlier wrong tokens, or was; a second HELLO is refused."""
        self._reader = FrameReader(house.welcome.max_frame if self.is_greeted else LARGEST_GREETING)
        self.consuming: Consuming = Consuming(self, house.desk, house.clock, house.consumers)
        self.following: Following = Following(self, house.topics, line)
        self.client = ""
        self.closed = False
        self.frames = 0
        self.pending = 0
        """Weight of the received requests that are not answered yet; reading pauses at ``most_pending``."""
        self.most_pending = MOST_PENDING
        self.is_clogged = False
        """The client does not read: no messages are pushed to it and no bytes are read from it."""

    # -- bytes in -------------------------------------------------------------------------------------------------

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes, or None if the caller may use any buffer."""
        return self._reader.room()

    def filled(self, count: int) -> None:
        """Process ``count`` bytes that were read into the buffer of ``room``."""
        if not self.closed:
            self._take(self._reader.filled(count))

    def receive(self, data: bytes | memoryview) -> None:
        """Process bytes from the client. TLS may deliver more while the connection is being closed; these are
        ignored."""
        if not self.closed:
            self._take(self._reader.feed(data))

    def _take(self, frames: Generator[Frame, None, None]) -> None:
        """Handle frames until the session is full or closed. A malformed stream is answered once and closed."""
        try:
            for frame in frames:
                self.frames += 1
                self._handle(frame)
                if self.closed or self.is_full:
                    break
        except QueueError as error:
            if isinstance(error, NotAllowed):
                self._count(error)
            self.refuse(error)
        finally:
            frames.close()  # unprocessed bytes stay in the reader

    @property
    def is_full(self) -> bool:
        return self.pending >= self.most_pending or self.is_clogged

    @property
    def held(self) -> int:
        """Bytes received that are not a whole frame yet."""
        return self._reader.held

    @property
    def is_waiting(self) -> bool:
        """The client waits for messages, records or answers, so its silence is expected."""
        return self.consuming.is_waiting or self.following.is_waiting or self.pending > 0

    def refuse(self, error: QueueError, request: int = 0) -> None:
        """Send the error and close the connection."""
        self.answer(Kind.ERROR, request, messages.failed(error))
        self.end()
        self._close()

    def _handle(self, frame: Frame) -> None:
        if not self.is_greeted and (self._was_delayed or frame.kind != Kind.HELLO):
            raise NotAllowed("the first frame must be HELLO with the token", field="token")
        try:
            act = _ACTS.get(frame.kind)
            if act is None:
                raise BadInput(f"a client does not send frames of kind {frame.kind}", field="kind")
            if frame.kind in _WORK:
                check(self._desk.duty)
            if self.grant is not None:
                context.check(self.grant, FRAMES[frame.kind], None if frame.kind in OF_TOPICS else ANYWHERE, "kind")
            act(self, frame.request, messages.read(frame.kind, frame.body))
        except NotAllowed as error:
            self._count(error)
            self.refuse(error, frame.request)
        except QueueError as error:
            self.answer(Kind.ERROR, frame.request, messages.failed(error))

    def _count(self, error: NotAllowed) -> None:
        if self._house.refusing is not None:
            self._house.refusing.add("socket", self._peer(), error, "" if self.grant is None else self.grant.name)

    def allow(self, verb: str, name: str) -> None:
        """Raise ``NotAllowed`` unless the client may exercise the verb in this queue."""
        context.check(self.grant, verb, name, "queue")

    def allow_leases(self, transaction: Transaction, leases: Leases) -> None:
        """Raise ``NotAllowed`` unless the client may consume from the queues of all these leases.

        A program may settle the leases of any consumer in the queues that it may consume from. Knowing a lease id of
        another queue does not suffice."""
        if self.grant is None:
            return
        for message in transaction.by_seq([seq for seq, _ in leases.keys]):
            if message is not None:
                try:
                    self.allow(CONSUME, message.queue)
                except NotAllowed as error:
                    self._count(error)
                    raise

    def stop(self) -> None:
        """Answer waiting leases with no messages and stop pushing: the server stops."""
        self.consuming.stop()

    def move(self, why: QueueError) -> None:
        """Fail waiting leases and subscriptions with ``why``: another node is active now. Other requests still work."""
        self.consuming.move(why)

    def say_bye(self) -> None:
        """Send BYE, the last frame of a stopping server, after all requests are answered."""
        self.answer(Kind.BYE, 0, messages.Empty())

    def end(self) -> None:
        """Close the session: cancel waiting leases and subscriptions; later bytes are ignored."""
        self.closed = True
        self.consuming.end()
        self.following.close()

    def unclog(self) -> None:
        """End the backpressure: the client reads again."""
        self.is_clogged = False
        self.consuming.wake()

    def describe(self) -> dict[str, Any]:
        """Return the facts of the session that operators see."""
        about = {"client": self.client, "pending": self.pending, "clogged": self.is_clogged}
        return about | self.consuming.describe() | self.following.describe()

    # -- bytes out ------------------------------------------------------------------------------------------------

    def answer(self, kind: Kind, request: int, body: Any) -> None:
        if not self.closed:
            self._send(messages.frame(kind, request, body))

    def deliver(self, request: int, body: messages.Deliver) -> None:
        if not self.closed:
            self._send(messages.large_frame(Kind.DELIVER, request, body, codec.size_of(body)))

    def submit(self, request: int, work: Callable[[Any], Any], reply: Callable[[Any], None], weight: int = 1) -> None:
        self._desk.enlist(Asked(self, request, work, reply, weight))

    def answering(
        self, request: int, reply: Callable[[Any], None], weight: int
    ) -> Callable[[Any, QueueError | None], None]:
        """Return the ``done`` callback of a pending request whose work does not run in the committer."""
        return Asked(self, request, elsewhere, reply, weight).done

    def check_room(self) -> None:
        self._house.check_room()

    # -- frames: greeting and publishing -------------------------------------------------------------------------------

    def _hello(self, request: int, body: messages.Hello) -> None:
        if not self.is_greeted:
            delay = 0.0 if self._was_delayed else self._house.authenticator.delay(body.token, self._peer())
            if delay:
                self._was_delayed = True
                self._house.authenticator.wait(delay, lambda: self._hello_late(request, body))
                return
            self._identify(body.token)
        self.is_greeted = True
        self._reader.max_frame = self._house.welcome.max_frame
        self.client = body.client[:64]
        greet, welcome = self._house.greet, self._house.welcome
        self.answer(Kind.WELCOME, request, messages.Welcome(*(welcome if greet is None else greet(welcome))))

    def _hello_late(self, request: int, body: messages.Hello) -> None:
        """Handle a HELLO that was delayed, because too many wrong tokens came from its address."""
        if self.closed:
            return
        try:
            self._hello(request, body)
        except NotAllowed as error:
            self._count(error)
            self.refuse(error, request)

    def _identify(self, token: str) -> None:
        """Raise ``Stranger`` unless the token is the server's or that of a program, whose grant is then set."""
        gate, peer = self._house.authenticator, self._peer()
        if self._house.token and _same(token, self._house.token):
            gate.tried(token, peer, is_right=True)
            return
        self.grant = gate.find(token, peer)
        if self.grant is None:
            raise Stranger(NOT_OURS if token else NO_TOKEN, field="token")

    def _publish(self, request: int, body: messages.Publish) -> None:
        queue = validation.check_queue(body.queue)
        if self.grant is not None:
            self.allow(PUBLISH, queue)
        if not 0 < len(body.messages) <= MOST_PER_CALL:
            raise BadInput(f"from 1 to {MOST_PER_CALL} in one frame, not {len(body.messages)}", field="messages")
        self._house.check_room()
        now = self._house.clock.now_ms()
        envelopes = codec.envelopes(queue, body.messages, self._house.ids, now)
        self.submit(
            request,
            lambda transaction: self._desk.verbs.publish(transaction, queue, envelopes),
            lambda stored: self.answer(Kind.STORED, request, codec.stored(stored)),
        )

    # -- frames: the rest -----------------------------------------------------------------------------------------

    def _call(self, request: int, body: messages.Call) -> None:
        if self.grant is not None and not self.grant.allows(*verb_of(body.method, body.values)):
            raise NotAllowed(f"program {self.grant.name!r} may not call {body.method[:60]!r}", field="method")
        begin = self._house.methods.find(body.method)
        done = self.answering(
            request, lambda value: self.answer(Kind.RESULT, request, messages.Result(value)), CALL_WEIGHT
        )
        try:
            begin(self._desk, body.values, done)
        except QueueError as error:
            done(None, error)

    def _ping(self, request: int, body: messages.Empty) -> None:
        self.answer(Kind.PONG, request, body)

    def _bye(self, request: int, body: messages.Empty) -> None:
        self.end()
        self._close()


_ACTS: dict[int, Callable[[Session, int, Any], None]] = {
    Kind.HELLO: Session._hello,
    Kind.PUBLISH: Session._publish,
    Kind.LEASE: lambda session, request, body: session.consuming.lease(request, body),
    Kind.SUBSCRIBE: lambda session, request, body: session.consuming.subscribe(request, body),
    Kind.CANCEL: lambda session, request, body: session.consuming.cancel(request, body),
    Kind.ACK: lambda session, request, body: session.consuming.ack(request, body),
    Kind.NACK: lambda session, request, body: session.consuming.nack(request, body),
    Kind.EXTEND: lambda session, request, body: session.consuming.extend(request, body),
    Kind.RELEASE: lambda session, request, body: session.consuming.release(request, body),
    Kind.TOPIC_PUBLISH: lambda session, request, body: session.following.publish(request, body),
    Kind.TOPIC_SUBSCRIBE: lambda session, request, body: session.following.subscribe(request, body),
    Kind.RECOVERY_REQUEST: lambda session, request, body: session.following.recover(request, body),
    Kind.CONFIRM: lambda session, request, body: session.following.confirm(request, body),
    Kind.UNSUBSCRIBE: lambda session, request, body: session.following.unsubscribe(request, body),
    Kind.CALL: Session._call,
    Kind.PING: Session._ping,
    Kind.BYE: Session._bye,
}


_WORK = frozenset(
    {
        Kind.PUBLISH,
        Kind.LEASE,
        Kind.SUBSCRIBE,
        Kind.ACK,
        Kind.NACK,
        Kind.EXTEND,
        Kind.RELEASE,
        Kind.TOPIC_PUBLISH,
        Kind.TOPIC_SUBSCRIBE,
        Kind.RECOVERY_REQUEST,
        Kind.CONFIRM,
    }
)
"""Frames that a standby refuses on arrival. A CALL is refused later, when it would change something."""


FRAMES: dict[int, str] = {
    Kind.HELLO: GREET,
    Kind.PUBLISH: PUBLISH,
    Kind.LEASE: CONSUME,
    Kind.SUBSCRIBE: CONSUME,
    Kind.CANCEL: GREET,
    Kind.ACK: CONSUME,
    Kind.NACK: CONSUME,
    Kind.EXTEND: CONSUME,
    Kind.RELEASE: CONSUME,
    Kind.TOPIC_PUBLISH: PUBLISH,
    Kind.TOPIC_SUBSCRIBE: CONSUME,
    Kind.RECOVERY_REQUEST: CONSUME,
    Kind.CONFIRM: CONSUME,
    Kind.UNSUBSCRIBE: CONSUME,
    Kind.CALL: GREET,
    Kind.PING: GREET,
    Kind.BYE: GREET,
}
"""Verb of every frame in the table of ``core.access``. A CALL is checked by its method (``verb_of``). A CANCEL ends a
subscription of the same connection, so it needs no more than GREET."""
OF_TOPICS = frozenset({Kind.TOPIC_PUBLISH, Kind.TOPIC_SUBSCRIBE, Kind.RECOVERY_REQUEST, Kind.CONFIRM, Kind.UNSUBSCRIBE})
"""Frames of the topic log, which all topics share: their verb is needed on the whole server."""


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), wanted.encode())
