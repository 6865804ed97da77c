"""The blocking face: the coroutines of ``client.verbs`` and ``client.subscription``, each run to its end over sockets
that block. No verb is written here: a line of a table gives each its blocking form, with its arguments and its text."""

from collections.abc import Callable
from types import TracebackType

from yirangmq.client.blocking import run
from yirangmq.client.sender import AsyncSender
from yirangmq.client.subscription import AsyncSubscription
from yirangmq.client.table import blocking, iterating
from yirangmq.client.topic_faces import Topics
from yirangmq.client.values import Delivery
from yirangmq.client.verbs import AsyncClient
from yirangmq.core.ports import Stored


class Client:
    """The queues of a server. Safe to share between threads; what a method returned is on disk."""

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
    def topics(self) -> Topics:
        """Publish to topics, and follow them."""
        return Topics(self._core.topics)

    def sender(self, queue: str, window: int = 64, *, told: Callable[[Stored], object] | None = None) -> "Sender":
        return Sender(self._core.sender(queue, window, told=told))

    sender.__doc__ = AsyncClient.sender.__doc__

    def subscribe(
        self,
        queue: str,
        credit: int = 64,
        *,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle: float | None = None,
    ) -> "Subscription":
        made = self._core.subscribe(queue, credit, lease_seconds=lease_seconds, consumer=consumer, idle=idle)
        return Subscription(made)

    subscribe.__doc__ = AsyncClient.subscribe.__doc__

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Subscription:
    """``for delivery in subscription``; ends when closed, or when nothing came for its ``idle`` seconds."""

    def __init__(self, core: AsyncSubscription) -> None:
        self._core = core
        self._ready = core.ready

    batches = iterating(AsyncSubscription.batches)
    next = blocking(AsyncSubscription.next)
    next_batch = blocking(AsyncSubscription.next_batch)
    ack_nowait = blocking(AsyncSubscription.ack_nowait)
    settle = blocking(AsyncSubscription.settle)
    close = blocking(AsyncSubscription.close)

    def __iter__(self) -> "Subscription":
        return self

    def __next__(self) -> Delivery:
        try:
            return self._ready.popleft()
        except IndexError:
            delivery = run(self._core.next())
        if delivery is None:
            raise StopIteration
        return delivery

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sender:
    """``with client.sender(queue) as sender``; leaving waits until everything is on disk."""

    def __init__(self, core: AsyncSender) -> None:
        self._core = core

    send = blocking(AsyncSender.send)
    settle = blocking(AsyncSender.settle)
    close = blocking(AsyncSender.close)

    def __enter__(self) -> "Sender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._core.__aexit__(kind, error, trace))
