"""Yi-Rang MQ: a durable message queue that begins as a folder on one device."""

from typing import TYPE_CHECKING

from yirangmq.core.errors import (
    BadInput,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    NotFound,
    QueueError,
    StoreError,
    TooLarge,
    WrongState,
)
from yirangmq.core.reasons import Reason
from yirangmq.format.envelope import NewMessage

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "LeaseExpired",
    "LeaseLost",
    "LeaseMismatch",
    "NewMessage",
    "NotFound",
    "QueueError",
    "Reason",
    "StoreError",
    "TooLarge",
    "WrongState",
    "open",
]


def open(url: str, *, durability: str = "full", consumer: str | None = None) -> "Queues":
    """Open the queues kept at ``url``: ``sqlite:queue.db`` or ``files:./queues``. Use it with ``with``.

    ``durability="os"`` survives a killed process but not a power cut; the default survives both."""
    from yirangmq.broker.queues import Queues
    from yirangmq.clock import SystemClock, TimeOrderedIds
    from yirangmq.stores.open import open_roster, open_store

    clock = SystemClock()
    store = open_store(url, durability=durability)
    return Queues(store, clock, TimeOrderedIds(), consumer, roster=open_roster(url, clock))
