"""Named methods about the dispatch of a queue: its strategy, its consumers, its deliveries."""

from collections.abc import Callable, Mapping
from typing import Any

from yirangmq.broker import policies
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.validation import kind
from yirangmq.doors.paged import Done, Given
from yirangmq.doors.values import Values, reading

MOST_SHOWN = 100


def look(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    return policies.look(verbs, transaction, reading(given, lambda values: values.queue()), clock.now_ms())


def change(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    queue, members = reading(given, lambda values: (values.queue(), values.take("members", None)))
    if not isinstance(members, Mapping):
        raise BadInput(f"must be an object, not {kind(members)}", field="members")
    return policies.change(verbs, transaction, queue, members, clock.now_ms())


def register(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> bool:
    return policies.register(verbs, transaction, *reading(given, _one), clock.now_ms())


def deregister(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> bool:
    return policies.deregister(verbs, transaction, *reading(given, _one), clock.now_ms())


def _one(values: Values) -> tuple[str, str]:
    return values.queue(), validation.check_consumer(values.take("consumer", None), "consumer")


def deliveries(verbs: Verbs, desk: Desk, given: Given, done: Done) -> None:
    """From memory: there is no commit to wait for."""
    limit, wanted = reading(given, _wanted)
    done(policies.deliveries(verbs, wanted, limit), None)


def _wanted(values: Values) -> tuple[int, dict[str, Any]]:
    id, consumer = values.take("id", None), values.take("consumer", None)
    wanted = {
        "queue": values.some_queue(),
        "id": None if id is None else validation.check_id(id, "id"),
        "consumer": None if consumer is None else validation.check_consumer(consumer, "consumer"),
        "status": values.take("status", None),
    }
    return values.limit(MOST_SHOWN), wanted


METHODS: dict[str, Callable[[Clock, Verbs, Transaction, Given], Any]] = {
    "dispatch": look,
    "dispatch_set": change,
    "dispatch_register": register,
    "dispatch_deregister": deregister,
}
