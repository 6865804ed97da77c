"""Messages seen without being taken, as plain values for a RESULT frame, and back.

A page is ``{"looks": [[message, envelope, failure] …], "policies": {queue: document}, "cursor": text}``: each part an
array of its members in the order of ``core.message``, null where there is none; an empty cursor ends the listing."""

from collections.abc import Iterable, Sequence
from typing import Any

from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope, Failure, Message
from yirangmq.core.policy import QueuePolicy, read_policy, show_policy
from yirangmq.core.states import State

Parts = tuple[Message, Envelope | None, Failure | None, QueuePolicy]
"""One message with all that is known of it; ``format.delivery.Look`` is such a tuple."""


def pack(looks: Iterable[Parts], cursor: str = "") -> dict[str, Any]:
    packed: list[list[Any]] = []
    policies: dict[str, Any] = {}
    for message, envelope, failure, policy in looks:
        if message.queue not in policies:
            policies[message.queue] = show_policy(policy)
        packed.append([[*message], envelope and [*envelope], failure and [*failure]])
    return {"looks": packed, "policies": policies, "cursor": cursor}


def unpack(page: Any) -> tuple[list[Parts], str]:
    """What ``pack`` made; ``BadInput`` if it did not."""
    try:
        policies = {queue: read_policy(document, queue) for queue, document in page["policies"].items()}
        return [_look(parts, policies) for parts in page["looks"]], page["cursor"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"a page of messages that cannot be read: {error}", field="value") from None


def _look(parts: Sequence[Any], policies: dict[str, QueuePolicy]) -> Parts:
    card, sent, failed = parts
    seq, queue, id, state, *rest = card
    message = Message(seq, queue, id, State(state), *rest)
    return message, sent and Envelope(*sent), failed and Failure(*failed), policies[queue]
