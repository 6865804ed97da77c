"""Asyncio facade of an embedded store: the methods of ``broker.queues`` as coroutines.

Each call runs in a thread of the facade's pool, so that the event loop continues while the disk syncs. A waiting lease
occupies its thread. If the task that awaits a lease is cancelled, the messages it takes are released. A table
wraps the blocking methods; none is written twice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.message_moves import BODIES_PER_PAGE
from yirangmq.broker.queues import NO_TOPICS, Queues
from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.broker.subscription import Subscription
from yirangmq.core import validation
from yirangmq.core.errors import Unavailable
from yirangmq.core.ports import AddResult
from yirangmq.format.delivery import MessageDelivery, MessageView

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Core = TypeVar("Core")
Core_co = TypeVar("Core_co", covariant=True)
MAX_THREADS = 64
"""Upper bound of calls in flight; a waiting lease occupies a thread until it returns."""


class ThreadPoolFacade(Protocol[Core_co]):
    """An asyncio facade: the blocking object and the thread pool that runs its methods."""

    @property
    def _core(self) -> Core_co: ...

    @property
    def _threads(self) -> ThreadPoolExecutor: ...


def threaded(
    verb: Callable[Concatenate[Core, Given], Answer],
) -> Callable[Concatenate[ThreadPoolFacade[Core], Given], Coroutine[Any, Any, Answer]]:
    """Wrap a blocking method as a coroutine that runs it in the facade's thread pool."""

    @wraps(verb)
    async def method(face: ThreadPoolFacade[Core], /, *given: Given.args, **named: Given.kwargs) -> Answer:
        work = partial(verb, face._core, *given, **named)
        return await asyncio.get_running_loop().run_in_executor(face._threads, work)

    return method


class AsyncQueues:
    """Asyncio facade of ``broker.queues.Queues``: each method is a coroutine. Use it with ``async with``."""

    def __init__(self, core: Queues) -> None:
        self._core = core
        self._threads = ThreadPoolExecutor(MAX_THREADS, "yirangmq")

    publish = threaded(Queues.publish)
    publish_many = threaded(Queues.publish_many)
    publish_text = threaded(Queues.publish_text)
    ack = threaded(Queues.ack)
    ack_many = threaded(Queues.ack_many)
    nack = threaded(Queues.nack)
    nack_many = threaded(Queues.nack_many)
    release = threaded(Queues.release)
    release_many = threaded(Queues.release_many)
    extend = threaded(Queues.extend)
    extend_many = threaded(Queues.extend_many)
    peek = threaded(Queues.peek)
    show = threaded(Queues.show)
    queues = threaded(Queues.queues)
    counts = threaded(Queues.counts)
    policy = threaded(Queues.policy)
    check_policy = threaded(Queues.check_policy)
    set_policy = threaded(Queues.set_policy)
    try_out = threaded(Queues.try_out)
    pause = threaded(Queues.pause)
    dispatch = threaded(Queues.dispatch)
    set_dispatch = threaded(Queues.set_dispatch)
    register = threaded(Queues.register)
    deregister = threaded(Queues.deregister)
    deliveries = threaded(Queues.deliveries)
    resume = threaded(Queues.resume)
    schedules = threaded(Queues.schedules)
    drop = threaded(Queues.drop)
    purge = threaded(Queues.purge)
    delete_queue = threaded(Queues.delete_queue)
    sweep = threaded(Queues.sweep)
    consumer_beat = threaded(Queues.consumer_beat)
    consumer_list = threaded(Queues.consumer_list)
    consumer_wish = threaded(Queues.consumer_wish)

    @property
    def dead_letters(self) -> "EmbeddedAsyncDeadLetters":
        """Dead letters of all queues: list, show, count, redrive, quarantine, purge."""
        return EmbeddedAsyncDeadLetters(self._core.dead_letters, self._threads)

    @property
    def topics(self) -> NoReturn:
        raise Unavailable(NO_TOPICS)

    @property
    def consumer(self) -> str:
        return self._core.consumer

    async def durability(self) -> str:
        return self._core.durability()

    async def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> list[MessageDelivery]:
        """Like ``Queues.lease``. If the awaiting task is cancelled, leased messages are released."""
        work = partial(self._core.lease, queue, limit, wait=wait, lease_seconds=lease_seconds, consumer=consumer)
        future = self._threads.submit(work)
        return await _release_if_cancelled(future, self._release_deliveries)

    def _release_deliveries(self, deliveries: list[MessageDelivery]) -> None:
        if deliveries:
            self._core.release_many([delivery.lease_id for delivery in deliveries])

    async def walk(self, queue: str, state: str, batch: int = 500) -> AsyncIterator[MessageView]:
        async for view in _iterate(self._core.walk(queue, state, batch), self._threads, batch):
            yield view

    def sender(
        self, queue: str, window: int = 64, *, on_receipt: Callable[[AddResult], object] | None = None
    ) -> "EmbeddedAsyncSender":
        validation.check_count(window, "window", most=MAX_PER_CALL)
        return EmbeddedAsyncSender(self._core, self._threads, queue, on_receipt)

    def subscribe(
        self,
        queue: str,
        credit: int = 64,
        *,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle: float | None = None,
    ) -> "EmbeddedAsyncSubscription":
        made = self._core.subscribe(queue, credit, lease_seconds=lease_seconds, consumer=consumer, idle=idle)
        return EmbeddedAsyncSubscription(made, self._threads)

    async def connect(self) -> "AsyncQueues":
        """Return self: the store is already open. Exists because the clients have this method."""
        return self

    async def close(self) -> None:
        """Close the store after all calls in flight have returned."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._threads.shutdown)
        await loop.run_in_executor(None, self._core.close)

    def __await__(self) -> Generator[Any, None, "AsyncQueues"]:
        return self.connect().__await__()

    async def __aenter__(self) -> "AsyncQueues":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class EmbeddedAsyncDeadLetters:
    """Asyncio facade of ``broker.dead_letters.DeadLetters``."""

    def __init__(self, core: DeadLetters, threads: ThreadPoolExecutor) -> None:
        self._core = core
        self._threads = threads

    sources = threaded(DeadLetters.sources)
    show = threaded(DeadLetters.show)
    stats = threaded(DeadLetters.stats)
    redrive = threaded(DeadLetters.redrive)
    quarantine = threaded(DeadLetters.quarantine)
    purge = threaded(DeadLetters.purge)

    async def list(
        self, queue: str, filter: str = "", *, state: str = "dead", limit: int | None = None
    ) -> AsyncIterator[MessageView]:
        found = await threaded(DeadLetters.list)(self, queue, filter, state=state, limit=limit)
        async for view in _iterate(found, self._threads, BODIES_PER_PAGE):
            yield view


class EmbeddedAsyncSubscription:
    """Asyncio facade of an embedded subscription: ``async for delivery in subscription``."""

    def __init__(self, core: Subscription, threads: ThreadPoolExecutor) -> None:
        self._core = core
        self._threads = threads

    next = threaded(Subscription.next)
    next_batch = threaded(Subscription.next_batch)
    ack_nowait = threaded(Subscription.ack_nowait)
    settle = threaded(Subscription.settle)
    close = threaded(Subscription.close)

    def __aiter__(self) -> "EmbeddedAsyncSubscription":
        return self

    async def __anext__(self) -> MessageDelivery:
        delivery = await self.next()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def batches(self) -> AsyncIterator[list[MessageDelivery]]:
        while batch := await self.next_batch():
            yield batch

    async def __aenter__(self) -> "EmbeddedAsyncSubscription":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class EmbeddedAsyncSender:
    """Asyncio facade of an embedded sender: ``async with queues.sender(queue) as sender``.

    Messages are published one after the other, in the order of the ``send`` calls."""

    def __init__(
        self, queues: Queues, threads: ThreadPoolExecutor, queue: str, on_receipt: Callable[[AddResult], object] | None
    ) -> None:
        validation.check_callback(on_receipt)
        self._receipts: list[AddResult] = []
        self._core = queues.sender(queue, on_receipt=self._receipts.append)
        self._threads = threads
        self._on_receipt = on_receipt
        self._send_lock = asyncio.Lock()

    async def send(self, message: object) -> str:
        async with self._send_lock:
            loop = asyncio.get_running_loop()
            id = await loop.run_in_executor(self._threads, self._core.send, message)
        receipts, self._receipts[:] = self._receipts[:], []
        if self._on_receipt is not None:
            for receipt in receipts:
                self._on_receipt(receipt)
        return id

    async def settle(self) -> None:
        async with self._send_lock:
            self._core.settle()

    async def close(self) -> None:
        self._core.close()
        await self.settle()

    async def __aenter__(self) -> "EmbeddedAsyncSender":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _release_if_cancelled(future: "Future[Answer]", on_cancelled: Callable[[Answer], None]) -> Awaitable[Answer]:
    """Await ``future``. If the awaiting task is cancelled, ``on_cancelled`` gets the result when it arrives."""

    async def wait() -> Answer:
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: None if done.exception() else on_cancelled(done.result()))
            raise

    return wait()


async def _iterate(steps: Iterator[MessageView], threads: ThreadPoolExecutor, batch: int) -> AsyncIterator[MessageView]:
    """Iterate over ``steps`` in the thread pool, ``batch`` of them a call."""
    while page := await asyncio.get_running_loop().run_in_executor(threads, partial(_some, steps, batch)):
        for view in page:
            yield view


def _some(steps: Iterator[MessageView], most: int) -> list[MessageView]:
    return [view for _, view in zip(range(most), steps, strict=False)]
