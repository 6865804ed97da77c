"""``due``, ``next_due``, ``forget_keys`` and ``trim``: what time asks of a store."""

from typing import Any

import pytest

from tests.support.store_contract import NOW, QUEUE, REACHED, bring, envelope, listed, move, put
from yirangmq.core.message import Message
from yirangmq.core.ports import Change, Store
from yirangmq.core.states import State


@pytest.mark.parametrize("state", [state for state in REACHED if state is not State.READY])
def test_due_lists_a_message_at_its_time_and_not_before(store: Store, state: State) -> None:
    card = bring(store, put(store, envelope("m"))[0], state)
    card = move(store, card, state, due_at=NOW + 100) if state is not State.DROPPED else card
    with store.transaction(write=False) as transaction:
        assert transaction.due(card.due_at - 1, 9) == []
        assert transaction.due(card.due_at, 9) == [card]
        assert transaction.next_due() == card.due_at


@pytest.mark.parametrize("state", REACHED)
def test_due_never_lists_a_message_without_a_due_time(store: Store, state: State) -> None:
    card = bring(store, put(store, envelope("m"))[0], state)
    if state is not State.READY:
        with store.transaction() as transaction:
            transaction.swap([Change(card, card._replace(due_at=0))])
    with store.transaction(write=False) as transaction:
        assert transaction.due(2**52, 9) == []
        assert transaction.next_due() is None


def test_due_lists_a_ready_message_when_it_expires(store: Store) -> None:
    card, _ = put(store, envelope("m", expires_at=NOW + 100), envelope("n"))
    with store.transaction(write=False) as transaction:
        assert transaction.due(NOW + 99, 9) == []
        assert transaction.due(NOW + 100, 9) == [card]
        assert transaction.next_due() == NOW + 100


def test_due_forgets_the_earlier_time_of_a_message_that_moved(store: Store) -> None:
    [card] = put(store, envelope("m", available_at=NOW + 10))
    ready = move(store, card, State.READY)
    with store.transaction(write=False) as transaction:
        assert transaction.due(NOW + 10, 9) == []
        assert transaction.next_due() is None
    move(store, ready, State.LEASED, due_at=NOW + 50)
    with store.transaction(write=False) as transaction:
        assert transaction.next_due() == NOW + 50


def test_next_due_is_returned_only_if_it_is_before_the_given_time(store: Store) -> None:
    put(store, envelope("m", available_at=NOW + 10), envelope("n", available_at=NOW + 20))
    with store.transaction(write=False) as transaction:
        for before, told in [(NOW + 10, None), (NOW + 11, NOW + 10), (NOW + 99, NOW + 10), (None, NOW + 10)]:
            assert transaction.next_due(before) == told


def test_next_due_after_an_ack_is_the_time_of_the_next_lease(store: Store) -> None:
    """Also for who asked before, and asks only for what comes earlier than it knows."""
    cards = [bring(store, card, State.LEASED) for card in put(store, envelope("m"), envelope("n"))]
    for card, moment in zip(cards, (NOW + 50, NOW + 70), strict=True):
        move(store, card, State.LEASED, due_at=moment)
    with store.transaction() as transaction:
        [first, second] = [card for card in transaction.by_id(QUEUE, ["m", "n"]) if card]
        assert transaction.next_due() == NOW + 50
        transaction.swap([Change(first, first._replace(state=State.DONE, due_at=0))])
        assert transaction.next_due(NOW + 50) is None
        assert transaction.due(NOW + 60, 9) == []
        assert transaction.next_due() == NOW + 70
        assert transaction.due(NOW + 70, 9) == [second]


def _overdue(store: Store) -> list[Message]:
    """Thirty messages of two queues, leased, delayed, dead and ready, in the order in which time acts on them."""
    made = []
    for n in range(30):
        moment = NOW + 1 + n * 7 % 10
        queue = ["mail", "post"][n % 2]
        sent: dict[str, Any] = {"available_at": moment} if n % 4 == 0 else {"expires_at": moment if n % 4 == 1 else 0}
        [card] = put(store, envelope(f"m{n}", queue, **sent))
        if n % 4 > 1:
            card = move(store, bring(store, card, State.LEASED), [State.LEASED, State.DEAD][n % 4 - 2], due_at=moment)
        made.append(card)
    return sorted(made, key=lambda card: (card.due_at, card.seq))


def test_due_lists_the_longest_overdue_first(store: Store) -> None:
    overdue = _overdue(store)
    with store.transaction(write=False) as transaction:
        found = transaction.due(NOW + 99, 99)
        assert sorted(found) == sorted(overdue)
        assert [card.due_at for card in found] == [card.due_at for card in overdue]
        assert transaction.next_due() == overdue[0].due_at


def test_due_lists_messages_of_the_same_time_in_order_of_publishing(store: Store) -> None:
    cards = put(store, *[envelope(f"m{n}", available_at=NOW + 5, rank=9 - n) for n in range(9)])
    with store.transaction(write=False) as transaction:
        assert transaction.due(NOW + 5, 99) == cards


@pytest.mark.parametrize("limit", [1, 4, 29, 30, 31])
def test_due_with_a_limit_lists_the_longest_overdue(store: Store, limit: int) -> None:
    overdue = _overdue(store)
    with store.transaction(write=False) as transaction:
        found = transaction.due(NOW + 99, limit)
    assert [card.due_at for card in found] == [card.due_at for card in overdue[:limit]]


def test_forget_keys_removes_keys_after_their_window_up_to_the_limit(store: Store) -> None:
    for n in range(6):
        with store.transaction() as transaction:
            transaction.add([envelope(f"m{n}", dedup_key=f"k{n}")], NOW, NOW + 10 * (n + 1))
    with store.transaction() as transaction:
        assert transaction.forget_keys(NOW + 9, 99) == 0
        assert transaction.forget_keys(NOW + 40, 3) == 3
        assert transaction.forget_keys(NOW + 40, 3) == 1
        assert transaction.forget_keys(NOW + 40, 3) == 0
    with store.transaction() as transaction:
        again = transaction.add([envelope(f"n{n}", dedup_key=f"k{n}") for n in range(6)], NOW, NOW + 5)
        assert [one.duplicate for one in again] == [False] * 4 + [True] * 2


def test_forget_keys_leaves_messages_unchanged(store: Store) -> None:
    cards = put(store, envelope("m", dedup_key="k"))
    with store.transaction() as transaction:
        transaction.forget_keys(NOW + 10**9, 9)
        assert listed(transaction, QUEUE, State.READY) == cards


def _done(store: Store, queue: str, count: int, keep: int) -> list[Message]:
    with store.transaction() as transaction:
        transaction.set_policy(queue, f'{{"archive":{{"maxMessages":{keep}}}}}')
    cards = put(store, *[envelope(f"m{n}", queue) for n in range(count)])
    leased = [bring(store, card, State.LEASED) for card in cards]
    return [move(store, card, State.DONE, changed_at=NOW + 100 - n) for n, card in enumerate(leased)]


def _kept(store: Store, queue: str) -> set[str]:
    with store.transaction(write=False) as transaction:
        done = listed(transaction, queue, State.DONE)
        bodies = {card.id for card in done if card.body}
        stored = transaction.envelopes(done)
        assert bodies == {envelope.id for envelope in stored if envelope is not None}
        assert transaction.counts(queue).done == len(bodies)
        return bodies


def test_trim_removes_the_oldest_history_beyond_the_policy(store: Store) -> None:
    mail = _done(store, "mail", 7, 4)
    post = _done(store, "post", 5, 4)
    _done(store, "little", 3, 4)
    with store.transaction() as transaction:
        assert transaction.trim(99) == 4
    assert _kept(store, "mail") == {card.id for card in mail[:4]}
    assert _kept(store, "post") == {card.id for card in post[:4]}
    assert len(_kept(store, "little")) == 3


def test_trim_remembers_the_id_until_the_tombstone_window_ends(store: Store) -> None:
    done = _done(store, "mail", 3, 2)
    with store.transaction() as transaction:
        assert transaction.trim(9) == 1
        window = transaction.policy("mail").tombstone_ms
    with store.transaction(write=False) as transaction:
        after = done[2]._replace(body=False, due_at=done[2].changed_at + window)
        assert transaction.by_id("mail", [done[2].id]) == [after]
        assert after not in transaction.due(after.due_at - 1, 9)
        assert after in transaction.due(after.due_at, 9)


def test_trim_stops_at_its_limit_and_continues_at_the_next_call(store: Store) -> None:
    done = _done(store, "mail", 6, 1)
    with store.transaction() as transaction:
        assert [transaction.trim(2), transaction.trim(2), transaction.trim(2), transaction.trim(2)] == [2, 2, 1, 0]
    assert _kept(store, "mail") == {done[0].id}


def test_trim_counts_changes_of_its_own_transaction(store: Store) -> None:
    done = _done(store, "mail", 4, 2)
    with store.transaction() as transaction:
        transaction.forget([done[3], done[2]])
        assert transaction.trim(9) == 0
        transaction.set_policy("mail", '{"archive":{"maxMessages":1}}')
        assert transaction.trim(9) == 1
    assert _kept(store, "mail") == {done[0].id}


def test_trim_of_a_queue_without_history_removes_all_of_it(store: Store) -> None:
    _done(store, "mail", 3, 0)
    with store.transaction() as transaction:
        assert transaction.trim(9) == 3
    assert _kept(store, "mail") == set()
