"""Queues, policies and several openers of one place."""

import threading
from contextlib import suppress

import pytest

from tests.support.store_contract import FAILURE, NOW, QUEUE, REACHED, SIZE, bring, envelope, listed, move, picture, put
from tests.support.stores import Place
from yirangmq.core.errors import StoreError
from yirangmq.core.message import Counts
from yirangmq.core.policy import read_policy
from yirangmq.core.ports import Store
from yirangmq.core.states import State


def test_empty_store_has_no_queues_counts_policies_or_due_times(store: Store) -> None:
    with store.transaction(write=False) as transaction:
        assert transaction.queues() == []
        assert transaction.counts(QUEUE) == Counts()
        assert transaction.policy_text(QUEUE) is None
        assert transaction.policy(QUEUE) == read_policy({}, QUEUE)
        assert transaction.next_due() is None
        assert transaction.due(2**52, 9) == []
        assert transaction.trim(9) == 0
        assert transaction.heads(QUEUE, 9) == []


def test_policy_text_is_kept_exactly_as_given(store: Store, place: Place) -> None:
    text = '{"retry": {"limit": 2},\n "schemas": {"열": {"*": true}}}'
    with store.transaction() as transaction:
        transaction.set_policy(QUEUE, text)
        assert transaction.policy(QUEUE).retry.limit == 2
    with place.reopen().transaction() as transaction:
        assert transaction.policy_text(QUEUE) == text
        assert transaction.policy(QUEUE).retry.limit == 2
        assert transaction.policy("post").retry.limit == 5
        assert transaction.queues() == [QUEUE]
        transaction.set_policy(QUEUE, '{"retry":{"limit":3}}')
        assert transaction.policy(QUEUE).retry.limit == 3
    with place.open().transaction() as transaction:
        transaction.set_policy(QUEUE, None)
        assert transaction.policy(QUEUE) == read_policy({}, QUEUE)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.policy_text(QUEUE) is None


def test_delete_queue_removes_messages_failures_keys_and_policy(store: Store, place: Place) -> None:
    put(store, *[envelope(f"m{n}", "post", dedup_key=f"k{n}") for n in range(3)])
    before = picture(store)
    cards = put(store, *[envelope(f"m{n}", dedup_key=f"k{n}", expires_at=NOW + 9) for n in range(len(REACHED))])
    for card, state in zip(cards, REACHED, strict=True):
        bring(store, move(store, card, State.READY, FAILURE), state)
    with store.transaction() as transaction:
        transaction.set_policy(QUEUE, '{"ttlSec":5}')
    with store.transaction() as transaction:
        transaction.delete_queue(QUEUE)
        transaction.delete_queue("nobody")
        assert transaction.policy(QUEUE).ttl_ms == 0
    assert picture(store) == before
    assert picture(place.reopen()) == before
    with place.reopen().transaction() as transaction:
        assert transaction.by_seq([card.seq for card in cards]) == [None] * len(cards)
        assert transaction.failures(cards) == [None] * len(cards)
        assert transaction.due(2**52, 9) == []
        again = transaction.add([envelope(f"m{n}", dedup_key=f"k{n}") for n in range(3)], NOW, NOW + 5)
        assert [one.duplicate for one in again] == [False] * 3
        assert min(one.seq for one in again) > max(card.seq for card in cards)
        assert transaction.counts(QUEUE) == Counts(ready=3, published=3, bytes=3 * SIZE)


def test_delete_queue_and_recreate_it_in_the_same_transaction(store: Store) -> None:
    put(store, envelope("m"), envelope("n"))
    with store.transaction() as transaction:
        transaction.add([envelope("o")], NOW, NOW)
        transaction.delete_queue(QUEUE)
        assert transaction.counts(QUEUE) == Counts()
        assert transaction.queues() == []
        assert transaction.heads(QUEUE, 9) == []
        transaction.add([envelope("m")], NOW, NOW)
        assert transaction.counts(QUEUE) == Counts(ready=1, published=1, bytes=SIZE)
    with store.transaction(write=False) as transaction:
        assert [head.id for head, _ in transaction.heads(QUEUE, 9)] == ["m"]
        assert transaction.counts(QUEUE) == Counts(ready=1, published=1, bytes=SIZE)


def test_two_openers_see_the_same_messages_and_policy(store: Store, place: Place) -> None:
    other = place.open()
    [card] = put(store, envelope("m"))
    leased = move(other, card, State.LEASED)
    with other.transaction() as transaction:
        transaction.set_policy(QUEUE, '{"ttlSec":5}')
    with store.transaction(write=False) as transaction:
        assert transaction.by_id(QUEUE, ["m"]) == [leased]
        assert transaction.policy(QUEUE).ttl_ms == 5_000
    put(other, envelope("n"))
    assert picture(store) == picture(other)


def test_delete_queue_by_another_opener_is_seen_by_every_opener(store: Store, place: Place) -> None:
    """What an opener remembers of a queue must not outlive the queue: nothing may land in another one's line."""
    other = place.open()
    put(store, envelope("m"))
    with other.transaction() as transaction:
        transaction.delete_queue(QUEUE)
        transaction.add([envelope("x", "post")], NOW, NOW)
    put(store, envelope("n"))
    for opener in (store, other, place.open()):
        with opener.transaction(write=False) as transaction:
            assert transaction.queues() == [QUEUE, "post"]
            assert [card.id for card in listed(transaction, QUEUE, State.READY)] == ["n"]
            assert [card.id for card in listed(transaction, "post", State.READY)] == ["x"]
            assert transaction.counts(QUEUE) == transaction.counts("post") == Counts(ready=1, published=1, bytes=SIZE)


def test_wait_ends_when_another_opener_commits(store: Store, place: Place) -> None:
    other = place.open()
    heard = threading.Event()

    def listen() -> None:
        found = False
        while not found:
            store.wait(60)
            with store.transaction(write=False) as transaction:
                found = bool(transaction.heads(QUEUE, 1))
        heard.set()

    listener = threading.Thread(target=listen)
    listener.start()
    put(other, envelope("m"))
    listener.join()
    assert heard.is_set()


def test_wait_returns_at_once_after_a_commit_before_it(store: Store, place: Place) -> None:
    other = place.open()
    with store.transaction(write=False) as transaction:
        assert transaction.heads(QUEUE, 1) == []
    put(other, envelope("m"))
    store.wait(3600)
    with store.transaction(write=False) as transaction:
        assert len(transaction.heads(QUEUE, 1)) == 1


def test_threads_write_transactions_in_turn_and_keep_their_order(store: Store) -> None:
    def work(name: str) -> None:
        for n in range(10):
            with store.transaction() as transaction:
                transaction.add([envelope(f"{name}{n}")], NOW, NOW)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.transaction(write=False) as transaction:
        assert transaction.counts(QUEUE) == Counts(ready=40, published=40, bytes=40 * SIZE)
        for name in "abcd":
            mine = [card.id for card, _ in transaction.heads(QUEUE, 99) if card.id.startswith(name)]
            assert mine == [f"{name}{n}" for n in range(10)]


def test_closed_store_refuses_a_transaction_and_can_be_closed_again(store: Store) -> None:
    store.close()
    with pytest.raises(StoreError), store.transaction():
        pass
    store.close()


# -- many queues ------------------------------------------------------------------------------------------------------


def test_queue_names_are_read_in_pages_and_by_prefix(store: Store) -> None:
    names = [f"{kind}-{n:02}" for kind in ("a", "b", "c") for n in range(4)]
    with store.transaction() as transaction:
        for name in names[:8]:
            transaction.set_policy(name, "{}")
    with store.transaction() as transaction:
        for name in names[8:]:
            transaction.set_policy(name, "{}")
        pages, after = [], ""
        while page := transaction.queues(after, 5):
            pages.append(page)
            after = page[-1]
        assert pages == [names[:5], names[5:10], names[10:]]
        assert transaction.queues(prefix="b-") == names[4:8]
        assert transaction.queues("b-01", 1, "b-") == ["b-02"]
        assert transaction.queues("b-03", 9, "b-") == transaction.queues(prefix="d") == []
        assert transaction.queue_count() == 12
        transaction.delete_queue("b-00")
        assert transaction.queue_count() == 11
        assert not transaction.has_queue("b-00")
        assert transaction.has_queue("b-01")
    with store.transaction(write=False) as transaction:
        assert transaction.queue_count() == 11
        assert transaction.queues(limit=5) == [*names[:4], "b-01"]


def test_queue_count_follows_a_transaction_that_failed(store: Store) -> None:
    put(store, envelope("a"))
    with suppress(KeyError), store.transaction() as transaction:
        transaction.set_policy("post", "{}")
        assert transaction.queue_count() == 2
        raise KeyError
    with store.transaction(write=False) as transaction:
        assert (transaction.queue_count(), transaction.has_queue("post")) == (1, False)


def test_policied_lists_the_queues_with_a_policy_of_their_own(store: Store, place: Place) -> None:
    put(store, envelope("a"))
    with store.transaction() as transaction:
        assert transaction.queues_with_policy() == []
        transaction.set_policy("post", "{}")
        transaction.set_policy(QUEUE, "{}")
        assert transaction.queues_with_policy() == sorted([QUEUE, "post"])
    with store.transaction() as transaction:
        assert transaction.queues_with_policy() == sorted([QUEUE, "post"])
        transaction.set_policy("post", None)
        assert transaction.queues_with_policy() == [QUEUE]
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.queues_with_policy() == [QUEUE]


def test_totals_of_all_queues_follow_every_change(store: Store, place: Place) -> None:
    def summed() -> Counts:
        with store.transaction(write=False) as transaction:
            each = [transaction.counts(queue) for queue in transaction.queues()]
            assert transaction.totals() == Counts(*map(sum, zip(Counts(), *each, strict=True)))
            return transaction.totals()

    assert summed() == Counts()
    put(store, envelope("a"), envelope("b"))
    assert (summed().ready, summed().published) == (2, 2)
    with store.transaction() as transaction:
        transaction.add([envelope("c", queue="post")], NOW, NOW)
        assert transaction.totals().ready == 3
    assert summed().ready == 3
    with store.transaction() as transaction:
        transaction.delete_queue("post")
        assert transaction.totals().ready == 2
    assert summed().ready == 2
    with place.open().transaction() as transaction:  # another process
        transaction.add([envelope("d", queue="post")], NOW, NOW)
    store = place.reopen()
    assert summed().ready == 3
