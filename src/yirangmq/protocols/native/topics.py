"""Topic side of one native session: publish, subscribe, recover and confirm; records in the native format.

Frames become calls of the publisher, like those of queues in ``protocols.native.consumers``. Stored records are sent
byte for byte as they are in the log; all other frames are encoded by ``wire.messages``."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from yirangmq.core.errors import BadInput, QueueError, WrongState
from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import Gap, NewRecord
from yirangmq.topics.cursors import MAX_PROGRESS_SECONDS, SubscriptionParameters, read_start
from yirangmq.topics.ports import EncodedRecords, Recovering, Subscribed
from yirangmq.topics.publisher import Publisher
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.messages import MAX_GAPS, frame

if TYPE_CHECKING:
    from yirangmq.topics.live import PublishResult, Subscriber
    from yirangmq.topics.ports import SubscriberConnection


# -- topics of a session -----------------------------------------------------------------------------------------------

_new_record: Callable[[tuple[str, bytes, str | None, dict[str, str]]], NewRecord] = partial(tuple.__new__, NewRecord)
MAX_EPOCH_CHARS = 64


class TopicSession(Protocol):
    """Session as its topic side sees it."""

    def answer(self, kind: FrameKind, request: int, body: Any) -> None: ...

    def done_callback(
        self, request: int, reply: Callable[[Any], None], weight: int
    ) -> Callable[[Any, QueueError | None], None]: ...

    def check_capacity(self) -> None:
        """Raise the error for publishers if the disk is low or the store is full."""


class TopicSide:
    """Topic side of a session: publish, subscribe, recover, confirm. Loop thread only.

    ``topics`` is None if the server has no topics. ``line`` is None if the connection cannot carry records."""

    def __init__(self, session: TopicSession, topics: Publisher | None, line: "SubscriberConnection | None") -> None:
        self._session = session
        self._topics = topics
        self._line = line
        self._subscriber: Subscriber | None = None

    @property
    def is_waiting(self) -> bool:
        return self._subscriber is not None and self._subscriber.is_following

    def _publisher(self) -> Publisher:
        if self._topics is None:
            raise BadInput("this server has no topics", field="kind")
        return self._topics

    # -- publishing -----------------------------------------------------------------------------------------------

    def publish(self, request: int, body: messages.TopicPublish) -> None:
        topics = self._publisher()
        self._session.check_capacity()
        records = [_new_record((one.topic, one.payload, one.key, one.headers)) for one in body.records]
        done = self._session.done_callback(request, partial(self._stored, request), 1)
        try:
            topics.publish(records, done)
        except QueueError as error:
            done(None, error)

    def _stored(self, request: int, stored: "PublishResult") -> None:
        self._session.answer(FrameKind.TOPIC_STORED, request, messages.TopicStored(*stored))

    # -- subscription --------------------------------------------------------------------------------------------------

    def subscribe(self, request: int, body: messages.TopicSubscribe) -> None:
        topics = self._publisher()
        if self._line is None:
            raise BadInput("records cannot be sent over this connection", field="kind")
        if not 0 <= body.progress_ms <= MAX_PROGRESS_SECONDS * 1000:
            raise BadInput(f"must be from 0 to {MAX_PROGRESS_SECONDS * 1000:.0f}", field="progress_ms")
        start = SubscriptionParameters(
            make_filter(body.topics, body.mask, topics.settings.masked),
            body.name,
            read_start(body.start),
            body.at,
            body.epoch[:MAX_EPOCH_CHARS],
            body.resume,
            body.progress_ms / 1000,
        )
        if self._subscriber is None:
            self._subscriber = topics.connect(self._line, NATIVE)
        done = self._session.done_callback(request, _already_answered, 1)
        try:
            topics.subscribe(self._subscriber, start, request, partial(done, None))
        except QueueError as error:
            done(None, error)

    def recover(self, request: int, body: messages.TopicRecoveryRequest) -> None:
        self._publisher().recover(self._require_subscriber(), body.after, body.epoch[:MAX_EPOCH_CHARS], request)

    def confirm(self, request: int, body: messages.Confirm) -> None:
        subscriber = self._require_subscriber()
        done = self._session.done_callback(request, partial(self._confirmed, request), 1)
        try:
            self._publisher().confirm(subscriber, body.sequence, done)
        except QueueError as error:
            done(None, error)

    def _confirmed(self, request: int, sequence: int) -> None:
        self._session.answer(FrameKind.CONFIRMED, request, messages.Confirmed(sequence))

    def unsubscribe(self, request: int, body: messages.Unsubscribe) -> None:
        subscriber = self._subscriber
        on_unsubscribed = partial(self._session.answer, FrameKind.RESULT, request, messages.Result(True))
        if subscriber is None or not self._publisher().unsubscribe(subscriber, on_unsubscribed):
            self._session.answer(FrameKind.RESULT, request, messages.Result(False))

    def _require_subscriber(self) -> "Subscriber":
        if self._subscriber is None or not self._subscriber.is_following:
            raise WrongState("this connection follows nothing; send TOPIC_SUBSCRIBE first")
        return self._subscriber

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None and self._topics is not None:
            self._topics.remove(subscriber)

    def describe(self) -> dict[str, Any]:
        subscriber = self._subscriber
        if subscriber is None:
            return {}
        return {"topics": {"state": str(subscriber.state), "name": subscriber.name, "sequence": subscriber.reached}}


def _already_answered(value: object) -> None:
    """Ignore the value: the publisher has sent the answer to the subscriber itself."""


# -- native format -----------------------------------------------------------------------------------------------------


class NativeDialect:
    """Native dialect of topic delivery (``topics.ports.Dialect``)."""

    sends_stored = True
    needs_count = False

    def subscribed(self, request: int, about: Subscribed) -> bytes:
        body = messages.TopicSubscribed(
            about.epoch, about.next, about.first, about.last, _pairs(about.gaps), about.resumed
        )
        return frame(FrameKind.TOPIC_SUBSCRIBED, request, body)

    def recovering(self, request: int, about: Recovering) -> bytes:
        body = messages.TopicRecoveryResponse(about.start, about.end, about.total, _pairs(about.gaps))
        return frame(FrameKind.RECOVERY_RESPONSE, request, body)

    def complete(self, request: int, sequence: int, sent: int, at_ns: int) -> bytes:
        return frame(FrameKind.RECOVERY_COMPLETE, request, messages.TopicRecoveryComplete(sequence, sent, at_ns))

    def refused(self, request: int, error: QueueError) -> bytes:
        return frame(FrameKind.ERROR, request, messages.failed(error))

    def progress(self, sequence: int, sent: int, last: int, at_ns: int) -> bytes:
        return frame(FrameKind.PROGRESS, 0, messages.TopicProgress(sequence, sent, last, at_ns))

    def records(self, batch: EncodedRecords) -> bytes:
        return batch.data


NATIVE = NativeDialect()


def _pairs(gaps: Sequence[Gap]) -> list[tuple[int, int]]:
    return [(gap.first, gap.last) for gap in gaps[-MAX_GAPS:]]
