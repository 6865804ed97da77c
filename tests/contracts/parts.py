"""What the contract tests are made of: envelopes, moves, and a picture of all that a store holds."""

from collections.abc import Sequence
from typing import Any

from yirangmq.core.message import RANK_LAST, Counts, Envelope, Failure, Message
from yirangmq.core.ports import Change, Store, Transaction
from yirangmq.core.states import TRANSITIONS, State

NOW = 1_768_296_060_000
LATER = NOW + 3_600_000
QUEUE = "mail"
FAILURE = Failure("TIMEOUT", "it took too long", NOW + 5, 2, "consumer-01")


def envelope(id: str, queue: str = QUEUE, **changes: Any) -> Envelope:
    plain = Envelope(queue, id, RANK_LAST, NOW, NOW, 0, None, "", b"payload", False)
    return plain._replace(**changes)


def put(store: Store, *envelopes: Envelope, now: int = NOW) -> list[Message]:
    """Add to one queue and hand back the cards."""
    with store.transaction() as transaction:
        stored = transaction.add(envelopes, now, now + 300_000)
        return cards(transaction, [one.seq for one in stored])


def cards(transaction: Transaction, seqs: Sequence[int]) -> list[Message]:
    found = [message for message in transaction.by_seq(seqs) if message is not None]
    assert len(found) == len(seqs)
    return found


def move(store: Store, message: Message, state: State, failure: Failure | None = None, **changes: Any) -> Message:
    """Swap a message to a state, its card changed as far as such a move may change it."""
    with store.transaction() as transaction:
        after = moved(message, state, transaction.places(1))._replace(**changes)
        transaction.swap([Change(message, after, failure)])
    return after


def moved(message: Message, state: State, place: int) -> Message:
    if state is State.DONE:  # an ack changes no more than this
        return message._replace(state=state, changed_at=message.changed_at + 7, due_at=message.changed_at + 60_000)
    after = message._replace(
        state=state,
        attempt=message.attempt + 1,
        leases=message.leases + 1,
        changed_at=message.changed_at + 7,
        due_at=message.changed_at + 60_000,
        consumer="consumer-01",
        reason="TIMEOUT",
        repeats=message.repeats + 1,
    )
    if state is State.READY:
        return after._replace(place=place, due_at=after.expires_at)
    return after._replace(body=False) if state is State.DROPPED else after


def path_to(state: State) -> list[State]:
    """How a message gets from ready to a state, by the rows of the table."""
    paths = {State.READY: [State.READY]}
    while state not in paths:
        for (origin, _), target in TRANSITIONS.items():
            if origin in paths and target not in paths:
                paths[target] = [*paths[origin], target]
    return paths[state]


def bring(store: Store, message: Message, state: State) -> Message:
    for step in path_to(state)[1:]:
        message = move(store, message, step)
    return message


REACHED = [state for state in State if state is not State.DRAFT]
"""States a stored message can come to: a draft has no envelope yet, and no store is asked to keep one."""


def listed(transaction: Transaction, queue: str, state: State, limit: int = 1000) -> list[Message]:
    found: list[Message] = []
    cursor = ""
    while True:
        page = transaction.scan(queue, state, limit, cursor)
        found.extend(page.messages)
        cursor = page.cursor
        if not cursor:
            return found


def recount(transaction: Transaction, queue: str) -> Counts:
    """The counters as a listing of everything says they must be."""
    living = [state for state in State if state is not State.DROPPED]
    found = {
        state.value: sum(state is not State.DONE or message.body for message in listed(transaction, queue, state))
        for state in living
    }
    return transaction.counts(queue)._replace(**found)


Picture = dict[str, object]


def picture(store: Store) -> Picture:
    """Everything a store can be asked, to be compared before and after."""
    with store.transaction(write=False) as transaction:
        return {"next_due": transaction.next_due(), **{q: _queue(transaction, q) for q in transaction.queues()}}


def _queue(transaction: Transaction, queue: str) -> Picture:
    messages = [message for state in State for message in listed(transaction, queue, state)]
    return {
        "counts": transaction.counts(queue),
        "policy": transaction.policy_text(queue),
        "messages": messages,
        "envelopes": transaction.envelopes(messages),
        "failures": transaction.failures(messages),
        "heads": transaction.heads(queue, 1000),
        "named": transaction.by_id(queue, [message.id for message in messages]),
    }
