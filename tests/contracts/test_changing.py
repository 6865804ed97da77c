"""``swap``, ``forget``, ``places``, rollback and reopening: what changes, and what stays."""

from collections.abc import Callable

import pytest

from tests.support.store_contract import (
    FAILURE,
    LATER,
    NOW,
    QUEUE,
    SIZE,
    bring,
    draft,
    envelope,
    listed,
    move,
    moved,
    picture,
    put,
)
from tests.support.stores import Place
from yirangmq.core.message import Counts, Message
from yirangmq.core.ports import Change, Store, Transaction
from yirangmq.core.states import TRANSITIONS, UNFINISHED, State, Verb

ALL_ROWS = [(before, verb) for before, verb in TRANSITIONS if before is not None]
ROWS = [(before, verb) for before, verb in ALL_ROWS if before is not State.DRAFT]


@pytest.mark.parametrize(("origin", "verb"), ALL_ROWS, ids=[f"{state}-{verb}" for state, verb in ALL_ROWS])
def test_swap_stores_every_row_of_the_transition_table(store: Store, place: Place, origin: State, verb: Verb) -> None:
    target = TRANSITIONS[origin, verb]
    others = put(store, envelope("before", rank=4))
    sent = envelope("m", rank=4, expires_at=LATER, header='{"type":"t"}')
    [card] = draft(store, sent) if origin is State.DRAFT else put(store, sent)
    others += put(store, envelope("after", rank=4))
    card = card if origin is State.DRAFT else bring(store, card, origin)
    assert _bytes(store) == 2 * SIZE + (sent.size if origin in UNFINISHED else 0)
    failure = None if target is State.DONE else FAILURE
    after = move(store, card, target, failure)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.by_seq([after.seq]) == transaction.by_id(QUEUE, ["m"]) == [after]
        assert transaction.failures([after]) == [failure]
        assert (transaction.envelopes([after])[0] is None) == (target is State.DROPPED)
        for state in State:
            expected = ([after] if state is target else []) + (others if state is State.READY else [])
            assert sorted(listed(transaction, QUEUE, state)) == sorted(expected)
        waiting = [*others, after] if target is State.READY else others
        assert [head for head, _ in transaction.heads(QUEUE, 9)] == waiting
        assert (after in transaction.due(after.due_at, 9)) == (after.due_at > 0)
    assert _bytes(place.open()) == 2 * SIZE + (sent.size if target in UNFINISHED else 0)


def _bytes(store: Store) -> int:
    with store.transaction(write=False) as transaction:
        return transaction.counts(QUEUE).bytes


def test_swap_stores_every_kind_of_transition_in_a_single_batch(store: Store, place: Place) -> None:
    made = put(store, *[envelope(f"m{n}", rank=n % 3) for n in range(len(ROWS))])
    before = [bring(store, card, origin) for card, (origin, _) in zip(made, ROWS, strict=True)]
    with store.transaction() as transaction:
        first = transaction.places(len(ROWS))
        after = [
            moved(card, TRANSITIONS[row], first + n) for n, (card, row) in enumerate(zip(before, ROWS, strict=True))
        ]
        transaction.swap([Change(old, new) for old, new in zip(before, after, strict=True)])
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.by_seq([card.seq for card in after]) == after
        assert sorted(card for state in State for card in listed(transaction, QUEUE, state)) == sorted(after)


def test_swap_of_leased_heads_leaves_a_message_released_between_them_ready(store: Store) -> None:
    """Callers share transactions: what one has looked at may stand between what another has put back."""
    first, middle, last = put(store, envelope("a"), envelope("b"), envelope("c"))
    held = move(store, middle, State.LEASED)
    with store.transaction() as transaction:
        heads = [head for head, _ in transaction.heads(QUEUE, 9)]
        assert heads == [first, last]
        back = held._replace(state=State.READY, due_at=0)
        transaction.swap([Change(held, back)])
        transaction.swap([Change(head, moved(head, State.LEASED, 0)) for head in heads])
        assert [head for head, _ in transaction.heads(QUEUE, 9)] == [back]
    with store.transaction(write=False) as transaction:
        assert [head for head, _ in transaction.heads(QUEUE, 9)] == [back]


def test_swap_within_a_state_is_kept(store: Store, place: Place) -> None:
    """An extended lease, a ready message that takes another place, a done one that loses its content."""
    one, two, three = put(store, envelope("a"), envelope("b"), envelope("c", expires_at=LATER))
    leased = move(store, one, State.LEASED)
    extended = move(store, leased, State.LEASED, due_at=LATER, consumer="consumer-02")
    behind = move(store, two, State.READY)
    done = bring(store, three, State.DONE)
    remembered = move(store, done, State.DONE, body=False)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.by_id(QUEUE, ["a", "b", "c"]) == [extended, behind, remembered]
        assert transaction.envelopes([remembered]) == [None]
        assert transaction.counts(QUEUE) == Counts(ready=1, leased=1, published=3, acked=1, bytes=2 * SIZE)


def test_counts_follow_every_transition(store: Store) -> None:
    cards = put(store, *[envelope(f"m{n}") for n in range(5)])
    bring(store, cards[0], State.DONE)
    move(store, bring(store, cards[1], State.DEAD), State.READY, FAILURE)
    move(store, bring(store, cards[2], State.PARKED), State.READY)
    move(store, cards[3], State.DROPPED)
    with store.transaction(write=False) as transaction:
        counts = transaction.counts(QUEUE)
    assert counts == Counts(ready=3, done=1, published=5, acked=1, dropped=1, redriven=2, failed=1, bytes=3 * SIZE)


def test_swap_and_forget_of_nothing_change_nothing(store: Store) -> None:
    put(store, envelope("m"))
    before = picture(store)
    with store.transaction() as transaction:
        transaction.swap([])
        transaction.forget([])
    assert picture(store) == before


@pytest.mark.parametrize("state", [State.READY, State.DELAYED, State.LEASED, State.DEAD, State.DONE, State.DROPPED])
def test_forget_leaves_no_trace_of_a_message(store: Store, place: Place, state: State) -> None:
    put(store, envelope("stays", expires_at=LATER + 1))
    before = picture(store)
    [card] = put(store, envelope("goes", expires_at=LATER))
    card = bring(store, card, state)
    card = move(store, card, state, FAILURE) if state is not State.DROPPED else card
    with store.transaction() as transaction:
        transaction.forget([card])
    after = picture(place.reopen())
    for view in (before[QUEUE], after[QUEUE]):
        assert isinstance(view, dict)
        counts = view.pop("counts")
        assert counts._replace(published=0, failed=0, acked=0, dropped=0, redriven=0) == Counts(ready=1, bytes=SIZE)
    assert after == before
    with place.reopen().transaction() as transaction:
        assert transaction.by_seq([card.seq]) == transaction.by_id(QUEUE, ["goes"]) == [None]
        assert transaction.envelopes([card]) == [None]
        assert transaction.failures([card]) == [None]
        assert not transaction.add([envelope("goes")], NOW, NOW)[0].duplicate


def test_forget_removes_the_failure_of_a_redriven_message(store: Store) -> None:
    [card] = put(store, envelope("m"))
    dead = move(store, bring(store, card, State.LEASED), State.DEAD, FAILURE)
    ready = move(store, dead, State.READY, reason="", attempt=0)
    with store.transaction() as transaction:
        assert transaction.failures([ready]) == [FAILURE]
        transaction.forget([ready])
        assert transaction.failures([ready]) == [None]


def test_places_only_grow_also_after_reopening(store: Store, place: Place) -> None:
    given: list[int] = []
    for count in (1, 5, 3):
        with store.transaction() as transaction:
            first = transaction.places(count)
            second = transaction.places(2)
            [stored] = transaction.add([envelope(f"m{count}")], NOW, NOW)
            third = transaction.places(1)
        given += [*range(first, first + count), second, second + 1, stored.seq, third]
        store = place.reopen()
    assert given == sorted(set(given))
    with store.transaction() as transaction:
        cards = [card for card, _ in transaction.heads(QUEUE, 9)]
        transaction.forget(cards)
    with place.reopen().transaction() as transaction:
        assert transaction.places(1) > given[-1]


def _add(transaction: Transaction, card: Message) -> None:
    transaction.add([envelope("new"), envelope("later", dedup_key="k", available_at=LATER)], NOW, NOW + 1)


def _swap(transaction: Transaction, card: Message) -> None:
    transaction.swap([Change(card, moved(card, State.LEASED, 0), FAILURE)])


def _drop(transaction: Transaction, card: Message) -> None:
    transaction.swap([Change(card, moved(card, State.DROPPED, 0))])


def _forget(transaction: Transaction, card: Message) -> None:
    transaction.forget([card])


def _set_policy(transaction: Transaction, card: Message) -> None:
    transaction.set_policy(QUEUE, '{"ttlSec":5}')
    assert transaction.policy(QUEUE).ttl_ms == 5_000
    transaction.set_policy("new", "{}")


def _delete_queue(transaction: Transaction, card: Message) -> None:
    transaction.delete_queue(QUEUE)


def _forget_keys(transaction: Transaction, card: Message) -> None:
    assert transaction.forget_keys(LATER, 9) == 1


def _life(transaction: Transaction, card: Message) -> None:
    transaction.add([envelope("new"), envelope("other", "new")][:1], NOW, NOW)
    leased = moved(card, State.LEASED, 0)
    transaction.swap([Change(card, leased)])
    transaction.swap([Change(leased, moved(leased, State.READY, transaction.places(1)))])


WRITES = [_add, _swap, _drop, _forget, _set_policy, _delete_queue, _forget_keys, _life]


@pytest.mark.parametrize("write", WRITES, ids=[write.__name__ for write in WRITES])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_rollback_of_a_failed_transaction_leaves_the_store_as_it_was(
    store: Store, place: Place, write: Callable[[Transaction, Message], None], error: type[BaseException]
) -> None:
    [card, _] = put(store, envelope("m", dedup_key="held"), envelope("n", available_at=LATER))
    with store.transaction() as transaction:
        transaction.set_policy(QUEUE, '{"ttlSec":7}')
    before = picture(store)

    def fail() -> None:
        with store.transaction() as transaction:
            write(transaction, card)
            raise error

    with pytest.raises(error):
        fail()
    assert picture(store) == before
    with store.transaction(write=False) as transaction:
        assert transaction.policy(QUEUE).ttl_ms == 7_000
    assert picture(place.reopen()) == before


def test_rollback_leaves_the_store_usable(store: Store) -> None:
    def fail() -> None:
        with store.transaction() as transaction:
            transaction.add([envelope("m", "fresh")], NOW, NOW)
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    [card] = put(store, envelope("m", "fresh"))
    with store.transaction(write=False) as transaction:
        assert transaction.by_id("fresh", ["m"]) == [card]
        assert transaction.queues() == ["fresh"]


def test_reopen_keeps_messages_in_every_state_and_policies(store: Store, place: Place) -> None:
    for queue in ("mail", "post"):
        cards = put(store, *[envelope(f"m{n}", queue, rank=n % 3, payload=bytes([n])) for n in range(len(ROWS))])
        for card, (origin, verb) in zip(cards, ROWS, strict=True):
            target = TRANSITIONS[origin, verb]
            move(store, bring(store, card, origin), target, None if target is State.DONE else FAILURE)
    with store.transaction() as transaction:
        transaction.set_policy("mail", '{"requeue":"front"}')
    before = picture(store)
    assert picture(place.reopen()) == before
    assert picture(place.reopen()) == before
