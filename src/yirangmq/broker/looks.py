"""Messages as people look at them: the card with its content, its failure and the policy of its queue. Changes
nothing."""

from collections.abc import Sequence

from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.core.store_time import shown_envelope, shown_failure, shown_message
from yirangmq.format.delivery import Look


def check_state(state: str) -> State:
    try:
        return State(state)
    except ValueError:
        raise BadInput(f"{state!r} is not one of {', '.join(State)}", field="state") from None


def looks(transaction: Transaction, messages: Sequence[Message], ahead: int) -> list[Look]:
    """Times are shown by the wall clock, which is ``ahead`` of store time (``Clock.ahead_ms``)."""
    parts = zip(messages, transaction.envelopes(messages), transaction.failures(messages), strict=True)
    found = [Look(message, sent, failure, transaction.policy(message.queue)) for message, sent, failure in parts]
    return [shown(look, ahead) for look in found] if ahead else found


def shown(look: Look, ahead: int) -> Look:
    message, envelope, failure, rules = look
    return Look(
        shown_message(message, ahead),
        None if envelope is None else shown_envelope(envelope, ahead),
        None if failure is None else shown_failure(failure, ahead),
        rules,
    )


def page(
    transaction: Transaction, queue: str, state: State, limit: int, cursor: str, ahead: int
) -> tuple[str, list[Look]]:
    page = transaction.scan(queue, state, limit, cursor)
    return page.cursor, looks(transaction, page.messages, ahead)


def one(transaction: Transaction, queue: str, id: str, ahead: int) -> Look:
    message = transaction.by_id(queue, [id])[0]
    if message is None:
        raise NotFound(f"queue {queue!r} has no message {id!r}")
    return looks(transaction, [message], ahead)[0]
