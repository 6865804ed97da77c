"""The blocking face of topics: the coroutines of ``client.topics`` and ``client.following``, each run to its end over
sockets that block. No verb is written here."""

from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Concatenate

from yirangmq.client.blocking import run
from yirangmq.client.following import AsyncTopicSubscription
from yirangmq.client.table import Face, Given, blocking, iterating
from yirangmq.client.topic_values import TopicRecord
from yirangmq.client.topics import AsyncTopics
from yirangmq.core.topics import ClientState


def _opening(
    verb: Callable[Concatenate[AsyncTopics, Given], AsyncTopicSubscription],
) -> "Callable[Concatenate[Face[AsyncTopics], Given], TopicSubscription]":
    @wraps(verb)
    def method(face: Face[AsyncTopics], /, *given: Given.args, **named: Given.kwargs) -> "TopicSubscription":
        return TopicSubscription(verb(face._core, *given, **named))

    return method


class Topics:
    """The topics of a server. Safe to share between threads; what a method returned is on disk."""

    def __init__(self, core: AsyncTopics) -> None:
        self._core = core

    publish = blocking(AsyncTopics.publish)
    publish_many = blocking(AsyncTopics.publish_many)
    subscribe = _opening(AsyncTopics.subscribe)
    list = blocking(AsyncTopics.list)
    show = blocking(AsyncTopics.show)
    read = blocking(AsyncTopics.read)
    subscribers = blocking(AsyncTopics.subscribers)
    drop_subscriber = blocking(AsyncTopics.drop_subscriber)
    trim = blocking(AsyncTopics.trim)
    tune = blocking(AsyncTopics.tune)


class TopicSubscription:
    """``for record in subscription``; ends when closed, or when nothing came for its ``idle`` seconds. For one thread;
    another may close it."""

    def __init__(self, core: AsyncTopicSubscription) -> None:
        self._core = core

    connect = blocking(AsyncTopicSubscription.connect)
    batches = iterating(AsyncTopicSubscription.batches)
    next = blocking(AsyncTopicSubscription.next)
    next_batch = blocking(AsyncTopicSubscription.next_batch)
    run = blocking(AsyncTopicSubscription.run)
    confirm = blocking(AsyncTopicSubscription.confirm)
    close = blocking(AsyncTopicSubscription.close)

    @property
    def state(self) -> ClientState:
        """CONNECTED, ONLINE, RECOVERING or OFFLINE."""
        return self._core.state

    @property
    def epoch(self) -> str:
        return self._core.epoch

    @property
    def sequence(self) -> int:
        return self._core.sequence

    @property
    def lag(self) -> int:
        return self._core.lag

    @property
    def duplicates(self) -> int:
        return self._core.duplicates

    @property
    def lost(self) -> "list[tuple[int, int]]":
        return self._core.lost

    def __iter__(self) -> "Iterator[TopicRecord]":
        return self

    def __next__(self) -> TopicRecord:
        record = self._core.next_now() or run(self._core.next())
        if record is None:
            raise StopIteration
        return record

    def __enter__(self) -> "TopicSubscription":
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
