"""Public Python API of Yi-Rang MQ, a durable message queue: ``open``, ``connect``, values and errors.

``open`` uses a store in this process. ``connect`` and ``connect_async`` take a server's address or a store's URL; their
verbs are the same as those of ``open``. An import loads neither stores nor clients: the function that needs one loads
it, and the module's ``__getattr__`` loads the names in ``_LATE``."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from yirangmq.core.errors import (
    BadInput,
    HookFailed,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    NotAllowed,
    NotFound,
    PayloadDamaged,
    QueueError,
    QuotaExceeded,
    Replaced,
    Retired,
    StoreError,
    TlsFailed,
    TooLarge,
    Unavailable,
    Unfit,
    Unreachable,
    WrongEpoch,
    WrongState,
)
from yirangmq.core.message import Reason
from yirangmq.core.topics import NewRecord
from yirangmq.format.envelope import NewMessage

if TYPE_CHECKING:
    from yirangmq.broker.async_queues import AsyncQueues
    from yirangmq.broker.dead_letters import DeadLetters
    from yirangmq.broker.queues import Queues
    from yirangmq.client.async_client import AsyncClient
    from yirangmq.client.sync_client import Client
    from yirangmq.client.values import LostRecords, Missing, Moved, NewEpoch, TopicRecord
    from yirangmq.consumer.consumer import Consumer
    from yirangmq.consumer.delivery import Reject, Retry

__version__ = "0.2.0"
__all__ = [
    "AsyncClient",
    "BadInput",
    "Consumer",
    "DeadLetters",
    "HookFailed",
    "LeaseExpired",
    "LeaseLost",
    "LeaseMismatch",
    "LostRecords",
    "Missing",
    "Moved",
    "NewEpoch",
    "NewMessage",
    "NewRecord",
    "NotAllowed",
    "NotFound",
    "PayloadDamaged",
    "QueueError",
    "QuotaExceeded",
    "Reason",
    "Reject",
    "Replaced",
    "Retired",
    "Retry",
    "StoreError",
    "TlsFailed",
    "TooLarge",
    "TopicRecord",
    "Unavailable",
    "Unfit",
    "Unreachable",
    "WrongEpoch",
    "WrongState",
    "connect",
    "connect_async",
    "open",
]
_LATE = {
    "AsyncClient": "client.async_client",
    "Consumer": "consumer.consumer",
    "DeadLetters": "broker.dead_letters",
    "Reject": "consumer.delivery",
    "Retry": "consumer.delivery",
    **dict.fromkeys(("LostRecords", "Missing", "Moved", "NewEpoch", "TopicRecord"), "client.values"),
}
"""Names that are loaded on first access. A program that only publishes needs none of them."""

if not TYPE_CHECKING:  # otherwise a misspelt name would have any type

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def open(
    url: str,
    *,
    durability: str = "full",
    consumer: str | None = None,
    hooks: Sequence[str] = (),
    read_only: bool = False,
) -> "Queues":
    """Open the queues of the store at ``url``: ``sqlite:queue.db`` or ``files:./queues``. Use it with ``with``.

    ``durability="os"`` survives a killed process but not a power cut; the default survives both. ``hooks`` lists the
    modules and packages with functions that the queues' processors may run. With ``read_only`` the store is not
    written, and every call that would write raises ``store_read_only``."""
    from yirangmq.broker.operations import QueueOperations
    from yirangmq.broker.queues import Queues
    from yirangmq.broker.store_time import resume
    from yirangmq.clock import SystemClock, TimeOrderedIds
    from yirangmq.core.policy import Defaults
    from yirangmq.stores.open import open_consumer_registry, open_store

    clock = SystemClock()
    ids = TimeOrderedIds(clock.now_ms)
    store = open_store(url, durability=durability, read_only=read_only)
    operations = QueueOperations(clock, ids, Defaults(hooks=tuple(hooks)))
    resume(operations.store_time, store)
    return Queues(store, clock, ids, consumer, registry=open_consumer_registry(url, clock), operations=operations)


def connect(
    address: str,
    *,
    consumer: str | None = None,
    token: str = "",
    ca: str = "",
    cert: str = "",
    key: str = "",
    timeout: float = 30,
    retries: int | None = None,
    stay_awake: bool = True,
) -> "Client | Queues":
    """Connect to the queues at ``address``.

    The address is a server (``unix:/PATH``, ``tcp://HOST:PORT``, ``tls://HOST:PORT``, or several of them separated by
    commas) or a store in this process (``sqlite:FILE``, ``files:FOLDER``). The verbs are the same.

    ``ca``, ``cert`` and ``key`` are PEM files for ``tls://``: the authority that signed the server's certificate
    (default: those of the system), and a client certificate with its key, if the server requires one.

    ``timeout`` is in seconds and applies to every wait. After a lost connection the request is retried up to
    ``retries`` times (default: 8, and 50 with more than one address). A client that waits for a single reply spins for
    up to 0.5 ms before it blocks; ``stay_awake=False`` turns that off and saves the power."""
    from yirangmq.client.address import is_address

    if not is_address(address):
        return open(address, consumer=consumer)
    from yirangmq.client import connect as client

    return client.connect(
        address,
        consumer=consumer,
        token=token,
        ca=ca,
        cert=cert,
        key=key,
        timeout=timeout,
        retries=retries,
        stay_awake=stay_awake,
    )


def connect_async(
    address: str,
    *,
    consumer: str | None = None,
    token: str = "",
    ca: str = "",
    cert: str = "",
    key: str = "",
    timeout: float = 30,
    retries: int | None = None,
) -> "AsyncClient | AsyncQueues":
    """Connect like ``connect``, for asyncio: ``async with yirangmq.connect_async(address) as queues``, or ``await`` it.

    Every verb is a coroutine. Any number of them may be in flight concurrently."""
    from yirangmq.client.address import is_address

    if not is_address(address):
        from yirangmq.broker.async_queues import AsyncQueues

        return AsyncQueues(open(address, consumer=consumer))
    from yirangmq.client import connect as client

    return client.connect_async(
        address, consumer=consumer, token=token, ca=ca, cert=cert, key=key, timeout=timeout, retries=retries
    )
