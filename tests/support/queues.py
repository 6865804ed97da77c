"""Steps that many scenarios take."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.support.http_queues import WebQueues
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import QueueError
from yirangmq.core.policy import DAY_MS
from yirangmq.core.ports import MoveResult
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageDelivery, MessageView

SECOND = 1_000
DAY = DAY_MS


def take(queues: Queues, queue: str = "mail") -> MessageDelivery:
    """Lease one, and fail if there is nothing."""
    [delivery] = queues.lease(queue)
    return delivery


def taken(queues: Queues, limit: int = 100, queue: str = "mail") -> list[str]:
    """The ids that a lease hands out, in order."""
    return [delivery.id for delivery in queues.lease(queue, limit)]


def state(queues: Queues, id: str = "m-1", queue: str = "mail") -> State:
    return queues.show(queue, id).message.state


def exhaust(queues: Queues, queue: str = "mail", reason: str = "REJECTED") -> MessageDelivery:
    """Take one and give it up for good."""
    delivery = take(queues, queue)
    queues.nack(delivery.lease_id, reason)
    return delivery


class WebLetters:
    """The same over HTTP."""

    def __init__(self, client: WebQueues) -> None:
        self._client = client

    def redrive(self, queue: str, *, all: bool) -> MoveResult:
        return self._moved("redrive", queue)

    def quarantine(self, queue: str, *, all: bool) -> MoveResult:
        return self._moved("quarantine", queue)

    def _moved(self, verb: str, queue: str) -> MoveResult:
        answer = self._client.move_dead(verb, queue)
        return MoveResult(answer["count"], answer["ids"])

    def list(self, queue: str) -> Iterator[MessageView]:
        return iter(self._client.dead(queue))


def dead_letters(queues: Queues) -> DeadLetters | WebLetters:
    """Through the door that the queues are reached by."""
    door: Any = queues
    return WebLetters(door) if isinstance(door, WebQueues) else queues.dead_letters


def unsettled(client: Any, queue: str) -> int:
    """How many messages are still to be delivered or acked."""
    counts = client.counts(queue)
    return int(counts.ready + counts.delayed + counts.leased + counts.held)


def codes_of(errors: list[QueueError | None]) -> list[str]:
    return [error.code if error else "" for error in errors]


def answer_or_code(queues: Queues, ask: Callable[[Queues], object]) -> object:
    try:
        return ask(queues)
    except QueueError as error:
        return error.code
