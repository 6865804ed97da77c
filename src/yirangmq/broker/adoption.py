"""What waits in the store of a node that is gone, brought into that of the node that works; and what two nodes took in
while both worked.

Knows: two stores, the order of steps. First the other store is marked, so that nothing is delivered from it meanwhile;
then each page is stored here together with the ids it had, then given up there; then the mark goes. Broken off at any
point it can be done again: nothing is stored twice, also when it was delivered here long ago. Does not know: where the
stores are."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from yirangmq.broker.adopting import MARK
from yirangmq.broker.queues import Queues
from yirangmq.broker.transfer import MOST_PER_PAGE, loaded, scanned, store_page
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.format.envelope import iso
from yirangmq.format.export import MessageLine
from yirangmq.format.json_codec import dumps, loads

KNOWN = "pair-adopted"
"""Here: the ids that came from a node, by node, queue and page."""
WAITING = (State.LEASED, State.CLAIMED, State.READY, State.DELAYED, State.HELD)
"""Those in hand were first in line; nobody here holds a lease from there."""


def adopt(ours: Queues, theirs: Queues, here: str, there: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Every message that waits in ``theirs``, the store of node ``there``; how many were new, by queue."""
    if not dry_run:
        theirs.run(lambda transaction: transaction.set_note(MARK, here))
    adopted: dict[str, int] = {}
    known = 0
    for queue in theirs.queues():
        policy = theirs.read(partial(_policy_text, queue=queue))
        seqs = theirs.read(partial(_waiting, queue=queue))
        before = ours.read(partial(_known, node=there, queue=queue))
        if policy is not None and not dry_run:
            ours.run(partial(_set_policy, queue=queue, text=policy))
        for begin in range(0, len(seqs), MOST_PER_PAGE):
            ahead = theirs.ahead_ms() - ours.ahead_ms()
            page = theirs.read(partial(loaded, seqs=seqs[begin : begin + MOST_PER_PAGE], ahead=ahead))
            fresh = [line for line in page if line.message.id not in before]
            stored = len(fresh)
            if not dry_run:
                stored = _move(ours, theirs, there, page, fresh)
            adopted[queue] = adopted.get(queue, 0) + stored
            known += len(page) - stored
    if not dry_run:
        theirs.run(lambda transaction: transaction.set_note(MARK, None))
    return {"adopted": adopted, "messages": sum(adopted.values()), "known": known, "dryRun": dry_run}


def _move(ours: Queues, theirs: Queues, node: str, page: list[MessageLine], fresh: list[MessageLine]) -> int:
    stored = ours.run(partial(_store, node=node, page=fresh, now=ours.now_ms())) if fresh else 0
    ids = [line.message.id for line in page]
    if ids:
        theirs.drop(page[0].message.queue, ids)
    return stored


def _store(transaction: Transaction, node: str, page: list[MessageLine], now: int) -> int:
    queue = page[0].message.queue
    stored = store_page(transaction, page, now)
    number = len(transaction.notes(_place(node, queue)))
    transaction.set_note(f"{_place(node, queue)}{number}", dumps([line.message.id for line in page]).decode())
    return stored


def _place(node: str, queue: str) -> str:
    return f"{KNOWN}/{node}/{queue}/"


def _known(transaction: Transaction, node: str, queue: str) -> set[str]:
    return {id for text in transaction.notes(_place(node, queue)).values() for id in loads(text.encode())}


def _waiting(transaction: Transaction, queue: str) -> list[int]:
    return [message.seq for state in WAITING for message in scanned(transaction, queue, state)]


def _policy_text(transaction: Transaction, queue: str) -> str | None:
    return transaction.policy_text(queue)


def _set_policy(transaction: Transaction, queue: str, text: str) -> None:
    """Where this store has none of its own."""
    if transaction.policy_text(queue) is None:
        transaction.set_policy(queue, text)


# -- while both worked --------------------------------------------------------------------------------------------


def overlap(queues: Queues, since_ms: int, tell: Callable[[dict[str, Any]], None]) -> int:
    """Tell every message that came or changed here since then, one by one; how many."""
    count = 0
    since_ms -= queues.ahead_ms()
    for queue in queues.queues():
        for message in queues.read(partial(_changed, queue=queue, since_ms=since_ms)):
            tell(_about(message))
            count += 1
    return count


def _changed(transaction: Transaction, queue: str, since_ms: int) -> list[Message]:
    return [message for message in _all(transaction, queue) if message.changed_at >= since_ms]


def _all(transaction: Transaction, queue: str) -> Iterator[Message]:
    for state in State:
        if state is not State.DROPPED:
            yield from scanned(transaction, queue, state)


def _about(message: Message) -> dict[str, Any]:
    return {
        "queue": message.queue,
        "messageId": message.id,
        "state": message.state.value,
        "attempt": message.attempt,
        "changedAt": iso(message.changed_at),
        "consumerId": message.consumer,
    }
