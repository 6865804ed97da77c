"""Named methods that change queues. Short ones work inside one transaction; long ones (``paged``) have a thread of
their own and take the desk for one page at a time."""

from functools import partial
from typing import Any

from yirangmq.broker import policies
from yirangmq.broker.operations import Verbs
from yirangmq.broker.queues import Queues
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.doors import looking
from yirangmq.doors.paged import Given
from yirangmq.doors.values import reading

PER_PAGE = 500


def put_policy(verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Check a policy document and put it in force for what comes; null goes back to the defaults."""
    full = looking.check_policy(verbs, transaction, given)
    policies.put(transaction, verbs, given["queue"], given.get("document"))
    return full


def check_policy(queues: Queues, given: Given) -> dict[str, Any]:
    """The full form of a policy document, without setting it. Its schemas are compiled in this thread."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return queues.check_policy(queue, document)


def set_policy(queues: Queues, given: Given) -> dict[str, Any]:
    """Check a policy document and put it in force, page by page for messages that are there; null goes back to the
    defaults."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return queues.set_policy(queue, document)


def pause(verbs: Verbs, transaction: Transaction, given: Given, *, paused: bool) -> bool:
    """Stop or begin again to hand messages out; False: it was so already."""
    queue = reading(given, lambda values: values.queue())
    return policies.pause(transaction, verbs, queue, paused=paused)


def drop(verbs: Verbs, transaction: Transaction, given: Given) -> list[list[str] | None]:
    """Give messages up; for each null, or [code, text]."""
    queue, ids = reading(given, lambda values: (values.queue(), values.ids()))
    errors = verbs.drop(transaction, queue, ids)
    return [None if error is None else [error.code, str(error)] for error in errors]


def configure(queues: Queues, given: Given) -> None:
    """Change one member of a queue's policy document; null takes it away."""
    queue, namespace, member, value = reading(
        given,
        lambda values: (
            values.queue(), values.text("namespace"), values.text("member"), values.take("value", None),
        ),
    )  # fmt: skip
    queues.wholesale.configure(queue, namespace, member, value)


def renew_failed(queues: Queues, given: Given) -> int:
    """All dead letters of this queue back in line, first arrived first; how many."""
    return queues.wholesale.renew_failed(reading(given, lambda values: values.queue()))


def abandon_failed(queues: Queues, given: Given) -> int:
    """Give up all dead letters of this queue; how many."""
    return queues.wholesale.abandon_failed(reading(given, lambda values: values.queue()))


def clear(queues: Queues, given: Given) -> None:
    """All messages of a queue, its counters and the ids it remembers; its policy stays."""
    queues.wholesale.clear(reading(given, lambda values: values.queue()))


def sweep(queues: Queues, given: Given) -> int:
    """Do what time brings, completely; how many messages changed."""
    reading(given, lambda values: None)
    return queues.sweep()


def delete_queue(queues: Queues, given: Given) -> int:
    """A queue with all its messages and its policy; how many messages went. A large one goes page by page first."""
    queue = reading(given, lambda values: values.queue())
    gone = 0
    for state in State:
        while count := queues.run(partial(_forget, queue=queue, state=state)):
            gone += count
    queues.delete_queue(queue)
    return gone


def _forget(transaction: Transaction, queue: str, state: State) -> int:
    messages = transaction.scan(queue, state, PER_PAGE).messages
    transaction.forget(messages)
    return len(messages)
