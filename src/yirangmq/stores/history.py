"""History given up for new messages: where a store is full, the content of acked messages goes before its policy says
so, the oldest first. Their ids stay remembered for the tombstone window.

Knows: the port. Does not know: which store."""

from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State

HISTORY_PARTS = (500, 50, 5)
"""Messages that are given up in one transaction: as many as there is space for."""


def give_up_history(transaction: Transaction, limit: int) -> int:
    """How many messages lost their content."""
    changes: list[Change] = []
    for queue in transaction.queues():
        if len(changes) >= limit or not transaction.counts(queue).done:
            continue
        window = transaction.policy(queue).tombstone_ms
        cursor = ""
        while len(changes) < limit:
            page = transaction.scan(queue, State.DONE, limit, cursor)
            kept = [message for message in page.messages if message.body][: limit - len(changes)]
            changes += [Change(one, one._replace(body=False, due_at=one.changed_at + window)) for one in kept]
            cursor = page.cursor
            if not cursor:
                break
    transaction.swap(changes)
    return len(changes)
