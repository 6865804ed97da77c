"""Blocking client of queues and topics, derived from the coroutines of the asyncio client.

The module contains no operation. One line per operation turns a coroutine into a blocking method with its arguments
and docstring, and runs it to its end over blocking sockets. Thread-safe, except that a topic subscription is for one
thread at a time."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from yirangmq.client.admin_calls import AsyncDeadLetters
from yirangmq.client.async_client import AsyncClient
from yirangmq.client.blocking_transport import run
from yirangmq.client.producer import AsyncClientSender
from yirangmq.client.subscription import AsyncClientSubscription
from yirangmq.client.topic_subscription import AsyncTopicSubscription
from yirangmq.client.topics import AsyncTopics
from yirangmq.client.values import Delivery, TopicRecord
from yirangmq.core.ports import AddResult
from yirangmq.core.topics import SubscriberState

# -- blocking methods from coroutines ----------------------------------------------------------------------------------

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Core = TypeVar("Core")
Core_co = TypeVar("Core_co", covariant=True)


class BlockingFacade(Protocol[Core_co]):
    """A blocking facade: it runs the coroutines of the asyncio object in ``_core``."""

    @property
    def _core(self) -> Core_co: ...


def blocking(
    operation: Callable[Concatenate[Core, Given], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate[BlockingFacade[Core], Given], Answer]:
    @wraps(operation)
    def method(facade: BlockingFacade[Core], /, *given: Given.args, **named: Given.kwargs) -> Answer:
        return run(operation(facade._core, *given, **named))

    return method


def iterating(
    walk: Callable[Concatenate[Core, Given], AsyncGenerator[Answer, None]],
) -> Callable[Concatenate[BlockingFacade[Core], Given], Iterator[Answer]]:
    @wraps(walk)
    def method(facade: BlockingFacade[Core], /, *given: Given.args, **named: Given.kwargs) -> Iterator[Answer]:
        steps = walk(facade._core, *given, **named)
        try:
            while True:
                yield run(steps.__anext__())
        except StopAsyncIteration:
            return
        finally:
            run(steps.aclose())

    return method


# -- topics ------------------------------------------------------------------------------------------------------------


def _opening_subscription(
    operation: Callable[Concatenate[AsyncTopics, Given], AsyncTopicSubscription],
) -> "Callable[Concatenate[BlockingFacade[AsyncTopics], Given], TopicSubscription]":
    @wraps(operation)
    def method(
        facade: BlockingFacade[AsyncTopics], /, *given: Given.args, **named: Given.kwargs
    ) -> "TopicSubscription":
        return TopicSubscription(operation(facade._core, *given, **named))

    return method


class ClientTopics:
    """Topics of a server. Thread-safe. The effect of an operation is durable when it returns."""

    def __init__(self, core: AsyncTopics) -> None:
        self._core = core

    publish = blocking(AsyncTopics.publish)
    publish_many = blocking(AsyncTopics.publish_many)
    subscribe = _opening_subscription(AsyncTopics.subscribe)
    list = blocking(AsyncTopics.list)
    show = blocking(AsyncTopics.show)
    read = blocking(AsyncTopics.read)
    subscribers = blocking(AsyncTopics.subscribers)
    drop_subscriber = blocking(AsyncTopics.drop_subscriber)
    trim = blocking(AsyncTopics.trim)
    tune = blocking(AsyncTopics.tune)


class TopicSubscription:
    """Blocking topic subscription: ``for record in subscription``.

    The iteration ends when the subscription is closed, or when no record arrived for ``idle`` seconds. For one
    thread; another thread may close it."""

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
    def state(self) -> SubscriberState:
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


# -- dead letters ------------------------------------------------------------------------------------------------------


class ClientDeadLetters:
    """Dead letters of a server. Thread-safe. The effect of an operation is durable when it returns."""

    def __init__(self, core: AsyncDeadLetters) -> None:
        self._core = core

    sources = blocking(AsyncDeadLetters.sources)
    list = iterating(AsyncDeadLetters.list)
    show = blocking(AsyncDeadLetters.show)
    stats = blocking(AsyncDeadLetters.stats)
    redrive = blocking(AsyncDeadLetters.redrive)
    quarantine = blocking(AsyncDeadLetters.quarantine)
    purge = blocking(AsyncDeadLetters.purge)


# -- queues ------------------------------------------------------------------------------------------------------------


class Client:
    """Blocking client for the queues of a server. Thread-safe. The effect of an operation is durable when it
    returns."""

    def __init__(self, core: AsyncClient) -> None:
        self._core = core

    publish = blocking(AsyncClient.publish)
    publish_many = blocking(AsyncClient.publish_many)
    publish_text = blocking(AsyncClient.publish_text)
    lease = blocking(AsyncClient.lease)
    ack = blocking(AsyncClient.ack)
    ack_many = blocking(AsyncClient.ack_many)
    nack = blocking(AsyncClient.nack)
    nack_many = blocking(AsyncClient.nack_many)
    release = blocking(AsyncClient.release)
    release_many = blocking(AsyncClient.release_many)
    extend = blocking(AsyncClient.extend)
    extend_many = blocking(AsyncClient.extend_many)
    peek = blocking(AsyncClient.peek)
    walk = iterating(AsyncClient.walk)
    show = blocking(AsyncClient.show)
    queues = blocking(AsyncClient.queues)
    counts = blocking(AsyncClient.counts)
    policy = blocking(AsyncClient.policy)
    check_policy = blocking(AsyncClient.check_policy)
    set_policy = blocking(AsyncClient.set_policy)
    try_out = blocking(AsyncClient.try_out)
    pause = blocking(AsyncClient.pause)
    dispatch = blocking(AsyncClient.dispatch)
    set_dispatch = blocking(AsyncClient.set_dispatch)
    register = blocking(AsyncClient.register)
    deregister = blocking(AsyncClient.deregister)
    deliveries = blocking(AsyncClient.deliveries)
    resume = blocking(AsyncClient.resume)
    schedules = blocking(AsyncClient.schedules)
    drop = blocking(AsyncClient.drop)
    purge = blocking(AsyncClient.purge)
    delete_queue = blocking(AsyncClient.delete_queue)
    sweep = blocking(AsyncClient.sweep)
    consumer_beat = blocking(AsyncClient.consumer_beat)
    consumer_list = blocking(AsyncClient.consumer_list)
    consumer_wish = blocking(AsyncClient.consumer_wish)
    durability = blocking(AsyncClient.durability)
    ping = blocking(AsyncClient.ping)
    call = blocking(AsyncClient.call)
    close = blocking(AsyncClient.close)

    @property
    def consumer(self) -> str:
        return self._core.consumer

    @property
    def dead_letters(self) -> ClientDeadLetters:
        """Dead letters of all queues: list, show, count, redrive, quarantine, purge."""
        return ClientDeadLetters(self._core.dead_letters)

    @property
    def topics(self) -> ClientTopics:
        """Publish to topics and subscribe to them."""
        return ClientTopics(self._core.topics)

    def sender(
        self, queue: str, window: int = 64, *, on_receipt: Callable[[AddResult], object] | None = None
    ) -> "ClientSender":
        return ClientSender(self._core.sender(queue, window, on_receipt=on_receipt))

    sender.__doc__ = AsyncClient.sender.__doc__

    def subscribe(
        self,
        queue: str,
        credit: int = 64,
        *,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle: float | None = None,
    ) -> "ClientSubscription":
        made = self._core.subscribe(queue, credit, lease_seconds=lease_seconds, consumer=consumer, idle=idle)
        return ClientSubscription(made)

    subscribe.__doc__ = AsyncClient.subscribe.__doc__

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ClientSubscription:
    """Blocking queue subscription: ``for delivery in subscription``.

    The iteration ends when the subscription is closed, or when no message arrived for ``idle`` seconds."""

    def __init__(self, core: AsyncClientSubscription) -> None:
        self._core = core
        self._ready = core.ready

    batches = iterating(AsyncClientSubscription.batches)
    next = blocking(AsyncClientSubscription.next)
    next_batch = blocking(AsyncClientSubscription.next_batch)
    ack_nowait = blocking(AsyncClientSubscription.ack_nowait)
    settle = blocking(AsyncClientSubscription.settle)
    close = blocking(AsyncClientSubscription.close)

    def __iter__(self) -> "ClientSubscription":
        return self

    def __next__(self) -> Delivery:
        try:
            return self._ready.popleft()
        except IndexError:
            delivery = run(self._core.next())
        if delivery is None:
            raise StopIteration
        return delivery

    def __enter__(self) -> "ClientSubscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ClientSender:
    """Blocking pipelined sender: ``with client.sender(queue) as sender``. Leaving the block waits until every
    message is durable."""

    def __init__(self, core: AsyncClientSender) -> None:
        self._core = core

    send = blocking(AsyncClientSender.send)
    settle = blocking(AsyncClientSender.settle)
    close = blocking(AsyncClientSender.close)

    def __enter__(self) -> "ClientSender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._core.__aexit__(kind, error, trace))
