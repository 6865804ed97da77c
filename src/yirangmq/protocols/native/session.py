"""Session of one native client, sans-IO: frames in, answers out, and the request between them.

A request is answered when it is on disk. Answers come in any order, and each names its request. Requests have weights
by the size of their answers. Backpressure: reading pauses while the unanswered weight reaches ``max_pending`` or the
client does not read.

The first frame must be HELLO with a token, unless the client is trusted. A frame that cannot be read, or that the
client is not allowed to send, is answered with its error, and the connection is closed."""

import hmac
from collections.abc import Callable, Generator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from yirangmq.admin.registry import verb_of
from yirangmq.broker import operations
from yirangmq.broker.settle import MAX_PER_CALL, Leases
from yirangmq.core import validation
from yirangmq.core.access import ANYWHERE, CONSUME, GREET, PUBLISH, AccessGrant
from yirangmq.core.errors import BadInput, NotAllowed, QueueError, UnknownClient
from yirangmq.core.ports import Transaction
from yirangmq.protocols import context
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.native import codec
from yirangmq.protocols.native.consumers import ConsumerSide
from yirangmq.protocols.native.topics import TopicSide
from yirangmq.wire import messages
from yirangmq.wire.frames import Frame, FrameKind, FrameReader

if TYPE_CHECKING:
    from yirangmq.topics.ports import SubscriberConnection


# -- requests ----------------------------------------------------------------------------------------------------------


class RequestSession(Protocol):
    """Session as its requests see it."""

    pending: int

    def answer(self, kind: FrameKind, request: int, body: Any) -> None: ...


class RequestJob:
    """Request of a session: a job of the group committer (``broker.commit_jobs.Task``).

    ``work`` runs in the next commit; ``reply`` gets its value when that is on disk. The weight counts as pending from
    construction until ``done``. The class is the job itself, so that a request costs one object instead of three."""

    __slots__ = ("_reply", "_request", "_session", "_weight", "error", "requests", "value", "work")

    def __init__(
        self,
        session: RequestSession,
        request: int,
        work: Callable[[Transaction], Any],
        reply: Callable[[Any], None],
        weight: int,
    ) -> None:
        self._session = session
        self._request = request
        self._reply = reply
        self._weight = weight
        self.work = work
        self.value: Any = None
        self.error: QueueError | None = None
        self.requests = 1
        session.pending += weight

    def done(self, value: Any, error: QueueError | None) -> None:
        self._session.pending -= self._weight
        if error is not None:
            self._session.answer(FrameKind.ERROR, self._request, messages.failed(error))
        else:
            self._reply(value)


def not_in_committer(transaction: Transaction) -> NoReturn:
    """Placeholder for ``work`` of requests that do not run in the committer; never called."""
    raise AssertionError


# -- session -----------------------------------------------------------------------------------------------------------

DEFAULT_MAX_PENDING = 256
MAX_GREETING_BYTES = 8192
"""Upper bound of the first frame of a client that has not sent its token yet, in bytes."""
WRONG_TOKEN = "this is not the token of this server"
MISSING_TOKEN = "this server requires one; set YIRANGMQ_TOKEN for a command, or pass token= to yirangmq.connect"
CALL_WEIGHT = 16
"""Weight of a call among pending requests: its answer may be 16 times as large as that to a publish (weight 1)."""


class NativeSession:
    """Session of one client of the native protocol, sans-IO. Loop thread only.

    ``send`` passes bytes to the client; ``close`` closes the connection after they are sent. ``line`` is the
    connection for records of topics, or None if it cannot carry them."""

    def __init__(
        self,
        server_context: ServerContext,
        trusted: bool,
        send: Callable[[bytes | bytearray], None],
        close: Callable[[], None],
        line: "SubscriberConnection | None" = None,
        peer: Callable[[], str] = str,
    ) -> None:
        self._context = server_context
        self._peer = peer
        self.grant: AccessGrant | None = None
        """Grant of the client's program, or None if the client may do everything."""
        self._committer = server_context.committer
        self._send = send
        self._close = close
        self.is_authenticated = trusted or not (server_context.token or not server_context.authenticator.is_open)
        """The client may send requests: it has sent its token, or needs none."""
        self._is_hello_delayed = False
        """The HELLO is delayed because of earlier wrong tokens, or was; a second HELLO is refused."""
        self._reader = FrameReader(server_context.identity.max_frame if self.is_authenticated else MAX_GREETING_BYTES)
        self.free_space = self._reader.free_space
        """Return the buffer for the next bytes, or None if the caller may use any buffer."""
        self.consumer_side: ConsumerSide = ConsumerSide(
            self, server_context.committer, server_context.clock, server_context.consumers
        )
        self.topic_side: TopicSide = TopicSide(self, server_context.topics, line)
        self.client = ""
        self.closed = False
        self.has_failed = False
        self.frames = 0
        self.pending = 0
        """Weight of the received requests that are not answered yet; reading pauses at ``max_pending``."""
        self.max_pending = DEFAULT_MAX_PENDING
        self.is_write_paused = False
        """The client does not read: no messages are pushed to it and no bytes are read from it."""

    # -- bytes in -------------------------------------------------------------------------------------------------

    def filled(self, count: int) -> None:
        """Process ``count`` bytes that were read into the buffer of ``free_space``."""
        if not self.closed:
            self._handle_all(self._reader.filled(count))

    def receive(self, data: bytes | memoryview) -> None:
        """Process bytes from the client. TLS may deliver more while the connection is being closed; these are
        ignored."""
        if not self.closed:
            self._handle_all(self._reader.feed(data))

    def _handle_all(self, frames: Generator[Frame, None, None]) -> None:
        """Handle frames until the session is full or closed. A malformed stream is answered once and closed."""
        try:
            for frame in frames:
                self.frames += 1
                self._handle(frame)
                if self.closed or self.pending >= self.max_pending or self.is_write_paused:
                    break
        except QueueError as error:
            if isinstance(error, NotAllowed):
                self._count(error)
            self.refuse(error)
        finally:
            frames.close()  # unprocessed bytes stay in the reader

    @property
    def is_full(self) -> bool:
        """A topic subscriber that does not read is still read from: it confirms what it has processed."""
        return self.pending >= self.max_pending or (self.is_write_paused and not self.topic_side.is_waiting)

    @property
    def held(self) -> int:
        """Bytes received that are not a whole frame yet."""
        return len(self._reader.buffer)

    @property
    def is_waiting(self) -> bool:
        """The client waits for messages, records or answers, so its silence is expected."""
        return self.consumer_side.is_waiting or self.topic_side.is_waiting or self.pending > 0

    def refuse(self, error: QueueError, request: int = 0) -> None:
        """Send the error and close the connection."""
        self.has_failed = True
        self.answer(FrameKind.ERROR, request, messages.failed(error))
        self.close()
        self._close()

    def _handle(self, frame: Frame) -> None:
        if not self.is_authenticated and (self._is_hello_delayed or frame.kind != FrameKind.HELLO):
            raise NotAllowed("the first frame must be HELLO with the token", field="token")
        try:
            handler = _HANDLERS.get(frame.kind)
            if handler is None:
                raise BadInput(f"a client does not send frames of kind {frame.kind}", field="kind")
            if frame.kind in _ACTIVE_ONLY:
                guard = self._committer.guard
                if not guard.is_on:
                    raise guard.refusal()
            if self.grant is not None:
                context.check(self.grant, FRAMES[frame.kind], None if frame.kind in TOPIC_FRAMES else ANYWHERE, "kind")
            side, act = handler
            act(self if side is None else side(self), frame.request, messages.read(frame.kind, frame.body))
        except NotAllowed as error:
            self._count(error)
            self.refuse(error, frame.request)
        except QueueError as error:
            self.answer(FrameKind.ERROR, frame.request, messages.failed(error))

    def _count(self, error: NotAllowed) -> None:
        if self._context.refused_clients is not None:
            self._context.refused_clients.add(
                "socket", self._peer(), error, "" if self.grant is None else self.grant.name
            )

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
        self.consumer_side.stop()

    def redirect(self, why: QueueError) -> None:
        """Fail waiting leases and subscriptions with ``why``: another node is active now. Other requests still work."""
        self.consumer_side.redirect(why)

    def send_goodbye(self) -> None:
        """Send BYE, the last frame of a stopping server, after all requests are answered."""
        self.answer(FrameKind.BYE, 0, messages.Empty())

    def close(self) -> None:
        """Close the session: cancel waiting leases and subscriptions; later bytes are ignored."""
        self.closed = True
        self.consumer_side.close()
        self.topic_side.close()

    def on_writable(self) -> None:
        """End the backpressure: the client reads again."""
        self.is_write_paused = False
        self.consumer_side.wake()

    def describe(self) -> dict[str, Any]:
        """Return the facts of the session that operators see."""
        about = {"client": self.client, "pending": self.pending, "clogged": self.is_write_paused}
        return about | self.consumer_side.describe() | self.topic_side.describe()

    # -- bytes out ------------------------------------------------------------------------------------------------

    def answer(self, kind: FrameKind, request: int, body: Any) -> None:
        if not self.closed:
            self._send(messages.frame(kind, request, body))

    def deliver(self, request: int, body: messages.Deliver) -> None:
        if not self.closed:
            self._send(messages.large_frame(FrameKind.DELIVER, request, body, codec.size_of(body)))

    def submit(self, request: int, work: Callable[[Any], Any], reply: Callable[[Any], None], weight: int = 1) -> None:
        self._committer.enlist(RequestJob(self, request, work, reply, weight))

    def done_callback(
        self, request: int, reply: Callable[[Any], None], weight: int
    ) -> Callable[[Any, QueueError | None], None]:
        """Return the ``done`` callback of a pending request whose work does not run in the committer."""
        return RequestJob(self, request, not_in_committer, reply, weight).done

    def check_capacity(self) -> None:
        self._context.check_capacity()

    # -- frames: greeting and publishing -------------------------------------------------------------------------------

    def _hello(self, request: int, body: messages.Hello) -> None:
        if not self.is_authenticated:
            delay = 0.0 if self._is_hello_delayed else self._context.authenticator.delay(body.token, self._peer())
            if delay:
                self._is_hello_delayed = True
                self._context.authenticator.wait(delay, lambda: self._delayed_hello(request, body))
                return
            self._identify(body.token)
        self.is_authenticated = True
        self._reader.max_frame = self._context.identity.max_frame
        self.client = body.client[:64]
        add_role, identity = self._context.add_role, self._context.identity
        self.answer(
            FrameKind.WELCOME, request, messages.Welcome(*(identity if add_role is None else add_role(identity)))
        )

    def _delayed_hello(self, request: int, body: messages.Hello) -> None:
        """Handle a HELLO that was delayed, because too many wrong tokens came from its address."""
        if self.closed:
            return
        try:
            self._hello(request, body)
        except NotAllowed as error:
            self._count(error)
            self.refuse(error, request)

    def _identify(self, token: str) -> None:
        """Raise ``UnknownClient`` unless the token is the server's or that of a program, whose grant is then set."""
        authenticator, peer = self._context.authenticator, self._peer()
        if self._context.token and _same(token, self._context.token):
            authenticator.record_attempt(token, peer, is_right=True)
            return
        self.grant = authenticator.find(token, peer)
        if self.grant is None:
            raise UnknownClient(WRONG_TOKEN if token else MISSING_TOKEN, field="token")

    def _publish(self, request: int, body: messages.Publish) -> None:
        queue = validation.check_queue(body.queue)
        if self.grant is not None:
            self.allow(PUBLISH, queue)
        if not 0 < len(body.messages) <= MAX_PER_CALL:
            raise BadInput(f"from 1 to {MAX_PER_CALL} in one frame, not {len(body.messages)}", field="messages")
        self._context.check_capacity()
        now = self._context.clock.now_ms()
        envelopes = codec.envelopes(queue, body.messages, self._context.ids, now)
        self.submit(
            request,
            partial(operations.publish, self._committer.context, queue=queue, envelopes=envelopes),
            lambda stored: self.answer(FrameKind.STORED, request, codec.stored(stored)),
        )

    # -- frames: the rest -----------------------------------------------------------------------------------------

    def _call(self, request: int, body: messages.Call) -> None:
        if self.grant is not None and not self.grant.allows(*verb_of(body.method, body.values)):
            raise NotAllowed(f"program {self.grant.name!r} may not call {body.method[:60]!r}", field="method")
        start_method = self._context.methods.find(body.method)
        done = self.done_callback(
            request, lambda value: self.answer(FrameKind.RESULT, request, messages.Result(value)), CALL_WEIGHT
        )
        try:
            start_method(self._committer, body.values, done)
        except QueueError as error:
            done(None, error)

    def _ping(self, request: int, body: messages.Empty) -> None:
        self.answer(FrameKind.PONG, request, body)

    def _bye(self, request: int, body: messages.Empty) -> None:
        self.close()
        self._close()


_CONSUMERS, _TOPICS = attrgetter("consumer_side"), attrgetter("topic_side")
_HANDLERS: dict[int, tuple[Callable[[NativeSession], Any] | None, Callable[[Any, int, Any], None]]] = {
    FrameKind.HELLO: (None, NativeSession._hello),
    FrameKind.PUBLISH: (None, NativeSession._publish),
    FrameKind.LEASE: (_CONSUMERS, ConsumerSide.lease),
    FrameKind.SUBSCRIBE: (_CONSUMERS, ConsumerSide.subscribe),
    FrameKind.CANCEL: (_CONSUMERS, ConsumerSide.cancel),
    FrameKind.ACK: (_CONSUMERS, ConsumerSide.ack),
    FrameKind.NACK: (_CONSUMERS, ConsumerSide.nack),
    FrameKind.EXTEND: (_CONSUMERS, ConsumerSide.extend),
    FrameKind.RELEASE: (_CONSUMERS, ConsumerSide.release),
    FrameKind.TOPIC_PUBLISH: (_TOPICS, TopicSide.publish),
    FrameKind.TOPIC_SUBSCRIBE: (_TOPICS, TopicSide.subscribe),
    FrameKind.RECOVERY_REQUEST: (_TOPICS, TopicSide.recover),
    FrameKind.CONFIRM: (_TOPICS, TopicSide.confirm),
    FrameKind.UNSUBSCRIBE: (_TOPICS, TopicSide.unsubscribe),
    FrameKind.CALL: (None, NativeSession._call),
    FrameKind.PING: (None, NativeSession._ping),
    FrameKind.BYE: (None, NativeSession._bye),
}
"""By kind of frame: the side of the session that handles it (None: the session itself), and its method."""


_ACTIVE_ONLY = frozenset(
    {
        FrameKind.PUBLISH,
        FrameKind.LEASE,
        FrameKind.SUBSCRIBE,
        FrameKind.ACK,
        FrameKind.NACK,
        FrameKind.EXTEND,
        FrameKind.RELEASE,
        FrameKind.TOPIC_PUBLISH,
        FrameKind.TOPIC_SUBSCRIBE,
        FrameKind.RECOVERY_REQUEST,
        FrameKind.CONFIRM,
    }
)
"""Frames that a standby refuses on arrival. A CALL is refused later, when it would change something."""


FRAMES: dict[int, str] = {
    FrameKind.HELLO: GREET,
    FrameKind.PUBLISH: PUBLISH,
    FrameKind.LEASE: CONSUME,
    FrameKind.SUBSCRIBE: CONSUME,
    FrameKind.CANCEL: GREET,
    FrameKind.ACK: CONSUME,
    FrameKind.NACK: CONSUME,
    FrameKind.EXTEND: CONSUME,
    FrameKind.RELEASE: CONSUME,
    FrameKind.TOPIC_PUBLISH: PUBLISH,
    FrameKind.TOPIC_SUBSCRIBE: CONSUME,
    FrameKind.RECOVERY_REQUEST: CONSUME,
    FrameKind.CONFIRM: CONSUME,
    FrameKind.UNSUBSCRIBE: CONSUME,
    FrameKind.CALL: GREET,
    FrameKind.PING: GREET,
    FrameKind.BYE: GREET,
}
"""Verb of every frame in the table of ``core.access``. A CALL is checked by its method (``verb_of``). A CANCEL ends a
subscription of the same connection, so it needs no more than GREET."""
TOPIC_FRAMES = frozenset(
    {
        FrameKind.TOPIC_PUBLISH,
        FrameKind.TOPIC_SUBSCRIBE,
        FrameKind.RECOVERY_REQUEST,
        FrameKind.CONFIRM,
        FrameKind.UNSUBSCRIBE,
    }
)
"""Frames of the topic log, which all topics share: their verb is needed on the whole server."""


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), wanted.encode())
