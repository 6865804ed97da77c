"""Messages for one consumer: a line of their own, which that consumer's turns are merged with."""

import pytest

from tests.support.store_contract import LATER, NOW, QUEUE, REACHED, SIZE, bring, envelope, listed, move, openings, put
from tests.support.stores import Place
from yirangmq.core.message import RANK_LAST, Counts, Message
from yirangmq.core.ports import Change, Store, Transaction
from yirangmq.core.states import State
from yirangmq.core.validation import line_of

ANNA, BERTA = line_of("anna"), line_of("berta")


def heads(transaction: Transaction, target: int = 0, limit: int = 99) -> list[str]:
    return [card.id for card, _ in transaction.heads(QUEUE, limit, target)]


def test_target_message_is_seen_by_its_consumer_only(store: Store, place: Place) -> None:
    sent = [envelope("a", target=ANNA), envelope("any"), envelope("b", target=BERTA), envelope("a2", target=ANNA)]
    made = put(store, *sent)
    assert [card.target for card in made] == [ANNA, 0, BERTA, ANNA]
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            assert heads(transaction) == ["any"]
            assert heads(transaction, ANNA) == ["a", "any", "a2"]
            assert heads(transaction, BERTA) == ["any", "b"]
            assert heads(transaction, line_of("carla")) == ["any"]
            assert [sent for _, sent in transaction.heads(QUEUE, 9, ANNA)] == [sent[0], sent[1], sent[3]]


def test_target_messages_and_messages_for_any_consumer_are_merged_by_rank_then_place(store: Store) -> None:
    ranks = [5, RANK_LAST, 0, 5, 0, RANK_LAST, 5, 0]
    made = put(store, *[envelope(f"m{n}", rank=rank, target=ANNA * (n % 2)) for n, rank in enumerate(ranks)])
    expected = [card.id for card in sorted(made, key=lambda card: (card.rank, card.place))]
    with store.transaction(write=False) as transaction:
        assert heads(transaction, ANNA) == expected
        for limit in range(1, 9):
            assert heads(transaction, ANNA, limit) == expected[:limit]


@pytest.mark.parametrize("state", REACHED)
def test_target_is_kept_in_every_state(store: Store, place: Place, state: State) -> None:
    [card] = put(store, envelope("m", target=ANNA, expires_at=LATER))
    card = bring(store, card, state)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.by_seq([card.seq]) == transaction.by_id(QUEUE, ["m"]) == [card]
        assert card.target == ANNA
        assert heads(transaction) == []
        assert heads(transaction, ANNA) == (["m"] if state is State.READY else [])


def test_target_message_that_is_released_is_ready_for_its_consumer_only(store: Store, place: Place) -> None:
    one, _, _ = put(store, envelope("m", target=ANNA), envelope("n", target=ANNA), envelope("any"))
    move(store, move(store, one, State.LEASED), State.READY)
    with place.reopen().transaction(write=False) as transaction:
        assert heads(transaction, ANNA) == ["n", "any", "m"]
        assert heads(transaction) == ["any"]


def test_target_and_common_messages_changed_in_a_transaction_are_seen_in_it(store: Store) -> None:
    put(store, envelope("old", target=ANNA), envelope("any"))
    with store.transaction() as transaction:
        transaction.add([envelope("new", target=ANNA), envelope("urgent", target=ANNA, rank=0)], NOW, NOW)
        assert heads(transaction, ANNA) == ["urgent", "old", "any", "new"]
        [(card, _)] = transaction.heads(QUEUE, 1, ANNA)
        transaction.swap([Change(card, card._replace(state=State.LEASED, leases=1))])
        assert heads(transaction, ANNA) == ["old", "any", "new"]
        [old] = transaction.by_id(QUEUE, ["old"])
        assert old is not None
        transaction.forget([old])
        assert heads(transaction, ANNA, 2) == ["any", "new"]
        assert [card.id for card in listed(transaction, QUEUE, State.READY)] == ["any", "new"]


def _furnished(store: Store) -> list[Message]:
    """In the order of a listing."""
    sent = [envelope(f"m{n}", rank=[3, RANK_LAST][n % 2], target=[0, ANNA, BERTA][n % 3]) for n in range(24)]
    return sorted(put(store, *sent), key=lambda card: (card.target, card.rank, card.place))


def test_target_messages_are_listed_behind_those_for_any_consumer(store: Store) -> None:
    expected = _furnished(store)
    with store.transaction(write=False) as transaction:
        for size in (1, 2, 5, 8, 23, 24, 25):
            assert listed(transaction, QUEUE, State.READY, size) == expected, size


def test_scan_cursor_without_a_target_is_a_place_among_messages_for_any_consumer(store: Store) -> None:
    expected = _furnished(store)
    with store.transaction(write=False) as transaction:
        third = expected[2]
        assert transaction.scan(QUEUE, State.READY, 99, f"{third.rank}.{third.place}").messages == expected[3:]
        behind_all = transaction.scan(QUEUE, State.READY, 99, f"{RANK_LAST}.{2**62}").messages
        assert behind_all == [card for card in expected if card.target]


def test_scan_cursor_with_a_target_starts_behind_the_messages_of_that_consumer(store: Store) -> None:
    expected = _furnished(store)
    with store.transaction(write=False) as transaction:
        for target in (ANNA, BERTA, 2**62):
            page = transaction.scan(QUEUE, State.READY, 99, f"{target}.{RANK_LAST}.{2**62}")
            assert page.messages == [card for card in expected if card.target > target]


def test_scan_with_targets_continues_while_the_listed_messages_are_forgotten(store: Store) -> None:
    expected = _furnished(store)
    seen, cursor = [], ""
    while True:
        with store.transaction() as transaction:
            page = transaction.scan(QUEUE, State.READY, 5, cursor)
            transaction.forget(page.messages)
        seen += page.messages
        cursor = page.cursor
        if not cursor:
            break
    assert seen == expected


def test_target_message_is_due_when_it_expires(store: Store) -> None:
    card, _ = put(store, envelope("m", target=ANNA, expires_at=NOW + 100), envelope("n", target=ANNA))
    with store.transaction(write=False) as transaction:
        assert transaction.due(NOW + 99, 9) == []
        assert transaction.due(NOW + 100, 9) == [card]
        assert transaction.next_due() == NOW + 100


def test_target_messages_are_deleted_with_their_queue(store: Store, place: Place) -> None:
    put(store, envelope("m", target=ANNA))
    put(store, envelope("m", "post", target=ANNA))
    with store.transaction() as transaction:
        transaction.delete_queue(QUEUE)
        assert heads(transaction, ANNA) == []
        transaction.add([envelope("again", target=BERTA)], NOW, NOW)
    with place.reopen().transaction(write=False) as transaction:
        assert (heads(transaction, ANNA), heads(transaction, BERTA)) == ([], ["again"])
        assert [card.id for card, _ in transaction.heads("post", 9, ANNA)] == ["m"]
        assert transaction.counts(QUEUE) == Counts(ready=1, published=1, bytes=SIZE)
