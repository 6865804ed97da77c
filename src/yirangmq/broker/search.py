"""Messages that match a filter, page by page. Knows: which field of the filter comes from where, and loads nothing
the filter does not ask for."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from yirangmq.broker.looks import shown
from yirangmq.broker.queues import Queues
from yirangmq.core.filter import Lookup, Node, fields_of, matches
from yirangmq.core.message import RANK_LAST, Envelope, Failure, Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import Look
from yirangmq.format.envelope import header_of, payload_value

CARDS_PER_PAGE = 500
BODIES_PER_PAGE = 50
"""A payload may have a mebibyte or more, a card has a hundred bytes: two page sizes, one flat memory."""
FROM_ENVELOPE = frozenset({"type", "version", "traceId", "publishedAt", "attributes", "payload"})
FROM_FAILURE = frozenset({"reasonMessage", "failedAt", "consumerId"})


def search(queues: Queues, queue: str, state: State, node: Node, *, bodies: bool = True) -> Iterator[Look]:
    """Every match of one state, in the order of ``Transaction.scan``. Without ``bodies`` a look has its envelope and
    its failure only if the filter needed them."""
    heavy = bodies or bool(fields_of(node) & FROM_ENVELOPE)
    limit = BODIES_PER_PAGE if heavy else CARDS_PER_PAGE
    cursor = ""
    while True:
        ahead = queues.ahead_ms()
        page = partial(search_page, queue=queue, state=state, limit=limit, cursor=cursor, node=node, bodies=bodies)
        cursor, found = queues.read(partial(page, ahead=ahead))
        yield from found
        if not cursor:
            return


def matching(transaction: Transaction, messages: Sequence[Message], node: Node, ahead: int) -> list[Look]:
    """Those that match, loaded as far as the filter needs. Times of a filter are those of the wall clock, which is
    ``ahead`` of store time; those of the looks are store time."""
    wanted = fields_of(node)
    nothing: list[None] = [None] * len(messages)
    envelopes = transaction.envelopes(messages) if wanted & FROM_ENVELOPE else nothing
    failures = transaction.failures(messages) if wanted & FROM_FAILURE else nothing
    parts = zip(messages, envelopes, failures, strict=True)
    found = [Look(message, sent, failure, transaction.policy(message.queue)) for message, sent, failure in parts]
    return [look for look in found if matches(node, lookup_of(*(shown(look, ahead) if ahead else look)[:3]))]


def lookup_of(message: Message, envelope: Envelope | None, failure: Failure | None) -> Lookup:
    """The fields of the filter language for one message, as its dead-letter record would show them."""
    header: dict[str, Any] = {}

    def from_header(name: str) -> object:
        if envelope is not None and not header:
            header.update(header_of(envelope))
        return header.get(name)

    def lookup(field: str) -> object:
        match field:
            case "reasonCode":
                return message.reason or None
            case "reasonMessage":
                return failure.reason_message if failure else None
            case "failedAt":
                return failure.failed_at if failure else None
            case "consumerId":
                return (failure.consumer if failure else message.consumer) or None
            case "attempt":
                return message.attempt
            case "messageId":
                return message.id
            case "sourceQueue":
                return message.queue
            case "state":
                return message.state.value
            case "priority":
                return None if message.rank == RANK_LAST else message.rank
            case "publishedAt":
                return envelope.published_at if envelope else None
            case "payload":
                return payload_value(envelope) if envelope and envelope.is_json else None
            case _:
                return from_header(field)

    return lookup


def search_page(
    transaction: Transaction, *, queue: str, state: State, limit: int, cursor: str, node: Node, bodies: bool, ahead: int
) -> tuple[str, list[Look]]:
    """One page of ``search``: the cursor of the next one, and what matched in this."""
    page = transaction.scan(queue, state, limit, cursor)
    found = matching(transaction, page.messages, node, ahead)
    if bodies:
        messages = [look.message for look in found]
        parts = zip(found, transaction.envelopes(messages), transaction.failures(messages), strict=True)
        found = [Look(look.message, envelope, failure, look.rules) for look, envelope, failure in parts]
    return page.cursor, [shown(look, ahead) for look in found] if ahead else found
