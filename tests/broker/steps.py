"""Steps that many scenarios take."""

from yirangmq.broker.queues import Queues
from yirangmq.core.policy import DAY_MS
from yirangmq.core.states import State
from yirangmq.format.delivery import Delivery

SECOND = 1_000
DAY = DAY_MS


def take(queues: Queues, queue: str = "mail") -> Delivery:
    """Lease one, and fail if there is nothing."""
    [delivery] = queues.lease(queue)
    return delivery


def taken(queues: Queues, limit: int = 100, queue: str = "mail") -> list[str]:
    """The ids that a lease hands out, in order."""
    return [delivery.id for delivery in queues.lease(queue, limit)]


def state(queues: Queues, id: str = "m-1", queue: str = "mail") -> State:
    return queues.show(queue, id).message.state


def exhaust(queues: Queues, queue: str = "mail", reason: str = "REJECTED") -> Delivery:
    """Take one and give it up for good."""
    delivery = take(queues, queue)
    queues.nack(delivery.lease_id, reason)
    return delivery
