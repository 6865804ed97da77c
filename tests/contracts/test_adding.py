"""``add``: what a store takes in, in which order, and what it knows already."""

import itertools

import pytest

from tests.support.store_contract import NOW, QUEUE, REACHED, SIZE, bring, cards, envelope, listed, put
from yirangmq.core import transitions
from yirangmq.core.message import Counts
from yirangmq.core.ports import AddResult, Change, Store
from yirangmq.core.states import State

WINDOW = 300_000


def test_add_numbers_messages_in_the_order_given(store: Store) -> None:
    with store.transaction() as transaction:
        first = transaction.add([envelope(f"a{n}") for n in range(5)], NOW, NOW + WINDOW)
        second = transaction.add([envelope(f"b{n}") for n in range(5)], NOW, NOW + WINDOW)
    assert [one.id for one in first + second] == [f"{letter}{n}" for letter in "ab" for n in range(5)]
    seqs = [one.seq for one in first + second]
    assert seqs == sorted(set(seqs))
    assert not any(one.duplicate for one in first + second)


def test_add_of_an_empty_batch_stores_nothing(store: Store) -> None:
    with store.transaction() as transaction:
        assert transaction.add([], NOW, NOW + WINDOW) == []
        assert transaction.queues() == []


@pytest.mark.parametrize("available", [NOW - 1, NOW, NOW + 1, NOW + 5_000])
@pytest.mark.parametrize("expires", [0, NOW - 1, NOW, NOW + 1, NOW + 4_999, NOW + 5_000, NOW + 9_000])
def test_add_creates_the_state_that_the_transition_rules_give(store: Store, available: int, expires: int) -> None:
    sent = envelope("m", available_at=available, expires_at=expires, rank=3)
    [card] = put(store, sent)
    assert card == transitions.fresh(sent, card.seq, NOW)


def test_add_separates_ready_and_delayed_messages_within_a_batch(store: Store) -> None:
    sent = [envelope(f"m{n}", available_at=NOW + n % 3 * 1_000, expires_at=n % 2 * (NOW + 500)) for n in range(12)]
    made = put(store, *sent)
    assert made == [transitions.fresh(e, card.seq, NOW) for e, card in zip(sent, made, strict=True)]
    with store.transaction(write=False) as transaction:
        assert transaction.counts(QUEUE) == Counts(delayed=8, ready=4, published=12, bytes=12 * SIZE)


@pytest.mark.parametrize("state", REACHED)
def test_dedup_finds_a_known_id_in_every_state(store: Store, state: State) -> None:
    [card] = put(store, envelope("m"), envelope("other"))[:1]
    bring(store, card, state)
    with store.transaction() as transaction:
        counts = transaction.counts(QUEUE)
        new, again = transaction.add([envelope("n"), envelope("m", payload=b"changed")], NOW, NOW + WINDOW)
        assert again == AddResult(card.seq, "m", True)
        assert not new.duplicate
        assert transaction.counts(QUEUE) == counts._replace(
            ready=counts.ready + 1, published=counts.published + 1, bytes=counts.bytes + SIZE
        )


def test_dedup_finds_a_remembered_id_without_content_until_it_is_forgotten(store: Store) -> None:
    [card] = put(store, envelope("m"))
    with store.transaction() as transaction:
        policy = transaction.policy(QUEUE)
        dropped = transitions.drop(card, policy, NOW)
        transaction.swap([Change(card, dropped)])
    with store.transaction() as transaction:
        assert transaction.add([envelope("m")], NOW, NOW + WINDOW) == [AddResult(card.seq, "m", True)]
        transaction.forget([dropped])
        assert not transaction.add([envelope("m")], NOW, NOW + WINDOW)[0].duplicate


def test_dedup_stores_an_id_repeated_within_a_batch_once(store: Store) -> None:
    with store.transaction() as transaction:
        stored = transaction.add(
            [envelope("m", payload=b"first"), envelope("n"), envelope("m", payload=b"second")], NOW, NOW + WINDOW
        )
        assert [one.duplicate for one in stored] == [False, False, True]
        assert stored[2].seq == stored[0].seq
        assert [sent.payload for _, sent in transaction.heads(QUEUE, 9)] == [b"first", b"payload"]


def test_id_is_distinguished_by_case_and_by_queue(store: Store) -> None:
    put(store, envelope("m"), envelope("M"), envelope("m" * 100), envelope("m" * 99 + "M"), envelope("m.", rank=0))
    put(store, envelope("m", queue="Mail"))
    put(store, envelope("m", queue="mail-dlq"))
    put(store, envelope("m", queue="q" * 200))
    with store.transaction(write=False) as transaction:
        assert transaction.queues() == sorted(["mail", "Mail", "mail-dlq", "q" * 200])
        assert [transaction.counts(queue).ready for queue in ("mail", "Mail", "mail-dlq", "q" * 200)] == [5, 1, 1, 1]


def test_dedup_key_is_held_until_its_window_ends(store: Store) -> None:
    with store.transaction() as transaction:
        [first] = transaction.add([envelope("m1", dedup_key="k")], NOW, NOW + WINDOW)
    with store.transaction() as transaction:
        last_moment = NOW + WINDOW - 1
        again = transaction.add([envelope("m2", dedup_key="k")], last_moment, last_moment + WINDOW)
        assert again == [AddResult(first.seq, "m1", True)]
    with store.transaction() as transaction:
        [third] = transaction.add([envelope("m3", dedup_key="k")], NOW + WINDOW, NOW + 2 * WINDOW)
        assert third.duplicate is False
    with store.transaction() as transaction:
        fourth = transaction.add([envelope("m4", dedup_key="k")], NOW + WINDOW + 1, NOW + 3 * WINDOW)
        assert fourth == [AddResult(third.seq, "m3", True)]


def test_dedup_key_is_held_within_a_batch_and_a_transaction(store: Store) -> None:
    with store.transaction() as transaction:
        one, two, other = transaction.add(
            [envelope("m1", dedup_key="k"), envelope("m2", dedup_key="k"), envelope("m3", dedup_key="l")],
            NOW,
            NOW + WINDOW,
        )
        assert (two, other.duplicate) == (AddResult(one.seq, "m1", True), False)
        assert transaction.add([envelope("m4", dedup_key="l")], NOW, NOW + WINDOW) == [AddResult(other.seq, "m3", True)]


def test_dedup_window_of_zero_holds_no_key(store: Store) -> None:
    with store.transaction() as transaction:
        batch = transaction.add([envelope("m1", dedup_key="k"), envelope("m2", dedup_key="k")], NOW, NOW)
        later = transaction.add([envelope("m3", dedup_key="k")], NOW, NOW)
    assert [one.duplicate for one in batch + later] == [False, False, False]


def test_dedup_key_outlives_its_message(store: Store) -> None:
    [card] = put(store, envelope("m", dedup_key="k"))
    with store.transaction() as transaction:
        transaction.forget([card])
    with store.transaction() as transaction:
        assert transaction.add([envelope("n", dedup_key="k")], NOW + 1, NOW + WINDOW) == [
            AddResult(card.seq, "m", True)
        ]


def test_dedup_key_of_a_duplicate_id_is_not_held(store: Store) -> None:
    put(store, envelope("m"))
    with store.transaction() as transaction:
        transaction.add([envelope("m", dedup_key="k")], NOW, NOW + WINDOW)
        assert not transaction.add([envelope("n", dedup_key="k")], NOW, NOW + WINDOW)[0].duplicate


def test_dedup_key_is_distinguished_by_queue_and_exact_text(store: Store) -> None:
    keys = ["k", "K", " k", "k ", "a/b", "../k", "열쇠", "é", "e\u0301", "k" * 255, "k" * 254, "%00", ".", "-", "\n"]
    for again, queue in itertools.product([False, True], ["mail", "post"]):
        with store.transaction() as transaction:
            sent = [envelope(f"m{n}-{again}", queue, dedup_key=key) for n, key in enumerate(keys)]
            stored = transaction.add(sent, NOW, NOW + WINDOW)
        assert [one.duplicate for one in stored] == [again] * len(keys)
        assert [one.id for one in stored] == [f"m{n}-False" for n in range(len(keys))]


def test_add_of_a_thousand_messages_stores_all_of_them(store: Store) -> None:
    made = put(store, *[envelope(f"m{n}", rank=n % 7) for n in range(1000)])
    with store.transaction(write=False) as transaction:
        assert transaction.counts(QUEUE) == Counts(ready=1000, published=1000, bytes=1000 * SIZE)
        assert cards(transaction, [card.seq for card in made]) == made
        assert sorted(listed(transaction, QUEUE, State.READY)) == sorted(made)
