"""Messages as people look at them: the card with its content, its failure and the policy of its queue. Changes
nothing."""

from collections.abc import Sequence

from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import Look


def check_state(state: str) -> State:
    try:
        return State(state)
    except ValueError:
        raise BadInput(f"{state!r} is not one of {', '.join(State)}", field="state") from None


def looks(transaction: Transaction, messages: Sequence[Message]) -> list[Look]:
    parts = zip(messages, transaction.envelopes(messages), transaction.failures(messages), strict=True)
    return [Look(message, envelope, failure, transaction.policy(message.queue)) for message, envelope, failure in parts]


def page(transaction: Transaction, queue: str, state: State, limit: int, cursor: str) -> tuple[str, list[Look]]:
    page = transaction.scan(queue, state, limit, cursor)
    return page.cursor, looks(transaction, page.messages)


def one(transaction: Transaction, queue: str, id: str) -> Look:
    message = transaction.by_id(queue, [id])[0]
    if message is None:
        raise NotFound(f"queue {queue!r} has no message {id!r}")
    return looks(transaction, [message])[0]
