"""What the contract tests are made of: envelopes, moves, and a picture of all that a store holds."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.stores import Place
from yirangmq.core.message import RANK_LAST, Counts, Envelope, Message, MessageFailure
from yirangmq.core.ports import Change, Store, Transaction
from yirangmq.core.states import TRANSITIONS, UNFINISHED, State

NOW = 1_768_296_060_000
LATER = NOW + 3_600_000
QUEUE = "mail"
PAYLOAD = b"payload"
SIZE = len(PAYLOAD)
FAILURE = MessageFailure("TIMEOUT", "it took too long", NOW + 5, 2, "consumer-01")


def envelope(id: str, queue: str = QUEUE, **changes: Any) -> Envelope:
    plain = Envelope(queue, id, RANK_LAST, NOW, NOW, 0, None, "", PAYLOAD, False)
    return plain._replace(**changes)


def put(store: Store, *envelopes: Envelope, now: int = NOW) -> list[Message]:
    """Add to one queue and hand back the cards."""
    with store.transaction() as transaction:
        stored = transaction.add(envelopes, now, now + 300_000)
        return cards(transaction, [one.seq for one in stored])


def draft(store: Store, *envelopes: Envelope, until: int = LATER) -> list[Message]:
    """Begin messages whose content is still to come."""
    with store.transaction() as transaction:
        stored = transaction.add(envelopes, NOW, NOW + 300_000, until)
        return cards(transaction, [one.seq for one in stored])


def cards(transaction: Transaction, seqs: Sequence[int]) -> list[Message]:
    found = [message for message in transaction.by_seq(seqs) if message is not None]
    assert len(found) == len(seqs)
    return found


def move(
    store: Store, message: Message, state: State, failure: MessageFailure | None = None, **changes: Any
) -> Message:
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
"""States a published message can come to: a draft is begun as one."""


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
    size = sum(message.size for state in UNFINISHED for message in listed(transaction, queue, state))
    return transaction.counts(queue)._replace(**found, bytes=size)


def openings(place: Place) -> Iterator[Store]:
    """One more beside those there are, and one alone."""
    yield place.open()
    yield place.reopen()


Picture = dict[str, object]


def picture(store: Store) -> Picture:
    """Everything a store can be asked, to be compared before and after."""
    with store.transaction(write=False) as transaction:
        queues = {queue: _queue(transaction, queue) for queue in transaction.queues()}
        return {"next_due": transaction.next_due(), "notes": transaction.notes(""), **queues}


def _queue(transaction: Transaction, queue: str) -> Picture:
    messages = [message for state in State for message in listed(transaction, queue, state)]
    envelopes = transaction.envelopes(messages)
    keys = sorted({sent.dedup_key for sent in envelopes if sent is not None and sent.dedup_key is not None})
    return {
        "counts": transaction.counts(queue),
        "policy": transaction.policy_text(queue),
        "messages": messages,
        "envelopes": envelopes,
        "failures": transaction.failures(messages),
        "heads": {target: transaction.heads(queue, 1000, target) for target in sorted({m.target for m in messages})},
        "named": transaction.by_id(queue, [message.id for message in messages]),
        "firsts": transaction.group_first(queue, sorted({message.group for message in messages if message.group})),
        "holders": transaction.key_holders(queue, keys, NOW),
    }
