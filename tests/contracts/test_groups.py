"""``group_first``: of each group the message that came first of those not done with, whatever was done to it."""

import random

import pytest

from tests.support.store_contract import (
    FAILURE,
    LATER,
    NOW,
    QUEUE,
    bring,
    cards,
    draft,
    envelope,
    listed,
    move,
    moved,
    openings,
    path_to,
    put,
)
from tests.support.stores import Place
from yirangmq.core.message import Message
from yirangmq.core.ports import Change, Store, Transaction
from yirangmq.core.states import TRANSITIONS, UNFINISHED, State, Verb
from yirangmq.core.validation import line_of

ONE, OTHER = line_of("one"), line_of("other")
ROWS = [(before, verb) for before, verb in TRANSITIONS if before is not None]


def first(transaction: Transaction, group: int = ONE, queue: str = QUEUE) -> str | None:
    [message] = transaction.group_first(queue, [group])
    return message.id if message else None


def hold(store: Store, *messages: Message) -> list[Message]:
    return [move(store, message, State.HELD, due_at=message.expires_at) for message in messages]


def test_group_first_is_the_message_that_was_added_first(store: Store, place: Place) -> None:
    a, b, _, c = put(
        store, envelope("a", group=ONE), envelope("b", group=ONE), envelope("x"), envelope("c", group=OTHER, rank=0)
    )
    put(store, envelope("p", "post", group=ONE))
    hold(store, b)
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            assert transaction.group_first(QUEUE, [ONE, line_of("nobody"), OTHER]) == [a, None, c]
            assert first(transaction, queue="post") == "p"
            assert transaction.group_first("nobody", [ONE]) == [None]
            assert transaction.group_first(QUEUE, []) == []


@pytest.mark.parametrize(("origin", "verb"), ROWS, ids=[f"{state}-{verb}" for state, verb in ROWS])
def test_group_first_moves_on_when_the_first_message_leaves_the_backlog(
    store: Store, place: Place, origin: State, verb: Verb
) -> None:
    target = TRANSITIONS[origin, verb]
    begin = draft if origin is State.DRAFT else put
    [one] = begin(store, envelope("one", group=ONE, expires_at=LATER))
    one = one if origin is State.DRAFT else bring(store, one, origin)
    [two] = put(store, envelope("two", group=ONE))
    if origin in UNFINISHED:
        [two] = hold(store, two)
    with store.transaction() as transaction:
        expected = one if origin in UNFINISHED else two
        assert transaction.group_first(QUEUE, [ONE]) == [expected]
        after = moved(one, target, one.place)  # a message of a group keeps its place
        transaction.swap([Change(one, after, None if target is State.DONE else FAILURE)])
        expected = after if target in UNFINISHED else two
        assert transaction.group_first(QUEUE, [ONE]) == [expected]
        in_turn = _put_in_turn(transaction, after, two)
        assert transaction.group_first(QUEUE, [ONE]) == [in_turn]
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.group_first(QUEUE, [ONE]) == [in_turn]


def _put_in_turn(transaction: Transaction, one: Message, two: Message) -> Message:
    """As the broker leaves it: the first one in line or in hand, the other one held. The first one comes out."""
    if one.state in UNFINISHED and two.state is not State.HELD:
        transaction.swap([Change(two, two._replace(state=State.HELD))])
    first = one if one.state in UNFINISHED else two
    if first.state is State.HELD:
        first = first._replace(state=State.READY, due_at=first.expires_at)
        transaction.swap([Change(one if one.state in UNFINISHED else two, first)])
    return first


def test_group_member_redriven_to_a_later_place_goes_behind_the_others(store: Store, place: Place) -> None:
    """A redriven message; and one that takes its old place again is where it was."""
    a, b, c = put(store, *[envelope(id, group=ONE) for id in "abc"])
    b, c = hold(store, b, c)
    dead = bring(store, a, State.DEAD)
    b = move(store, b, State.READY, place=b.place)
    with store.transaction() as transaction:
        assert first(transaction) == "b"
        again = moved(dead, State.HELD, 0)._replace(place=transaction.places(1))
        transaction.swap([Change(dead, again)])
        assert first(transaction) == "b"
        transaction.forget([b, c])
        assert transaction.group_first(QUEUE, [ONE]) == [again]
        transaction.swap([Change(again, again._replace(state=State.READY))])
    with place.reopen().transaction(write=False) as transaction:
        assert first(transaction) == "a"


def test_group_first_is_a_draft_set_at_an_earlier_place(store: Store, place: Place) -> None:
    """A draft that is set when others of its group are there already."""
    [begun] = draft(store, envelope("begun", group=ONE))
    *others, last = put(store, *[envelope(f"m{n}", group=ONE) for n in range(4)])
    hold(store, *others[1:], last)
    with store.transaction() as transaction:
        assert first(transaction) == "m0"
        transaction.swap([Change(begun, begun._replace(state=State.READY, due_at=0))])
        assert first(transaction) == "begun"
        transaction.swap([Change(others[0], others[0]._replace(state=State.HELD))])
    with place.reopen().transaction() as transaction:
        assert first(transaction) == "begun"
        transaction.forget(cards(transaction, [begun.seq]))
        assert first(transaction) == "m0"
        [ready] = transaction.by_id(QUEUE, ["m0"])
        assert ready is not None
        transaction.swap([Change(ready, ready._replace(state=State.READY))])


def test_group_first_skips_forgotten_messages(store: Store, place: Place) -> None:
    made = put(store, *[envelope(f"m{n}", group=ONE) for n in range(5)])
    one, two, three, four, five = [made[0], *hold(store, *made[1:])]
    with store.transaction() as transaction:
        transaction.forget([three])
        assert first(transaction) == "m0"
        transaction.forget([one, two])
        assert first(transaction) == "m3"
        transaction.swap([Change(four, four._replace(state=State.READY))])
    with place.reopen().transaction() as transaction:
        assert first(transaction) == "m3"
        transaction.forget(cards(transaction, [four.seq, five.seq]))
        assert first(transaction) is None
    with place.reopen().transaction(write=False) as transaction:
        assert first(transaction) is None


def test_group_members_are_deleted_with_their_queue(store: Store, place: Place) -> None:
    made = put(store, *[envelope(f"m{n}", group=ONE) for n in range(3)])
    hold(store, *made[1:])
    put(store, envelope("p", "post", group=ONE))
    with store.transaction() as transaction:
        transaction.delete_queue(QUEUE)
        assert first(transaction) is None
        transaction.add([envelope("again", group=ONE)], NOW, NOW)
        assert first(transaction) == "again"
    with place.reopen().transaction() as transaction:
        assert first(transaction) == "again"
        assert first(transaction, queue="post") == "p"
        transaction.delete_queue(QUEUE)
    with place.reopen().transaction(write=False) as transaction:
        assert first(transaction) is None
        assert first(transaction, queue="post") == "p"


def test_group_of_2500_messages_is_processed_in_order(store: Store, place: Place) -> None:
    made = put(store, *[envelope(f"m{n}", group=ONE) for n in range(2_500)])
    with store.transaction() as transaction:
        transaction.swap([Change(card, card._replace(state=State.HELD)) for card in made[1:]])
    seen: list[str] = []
    for size in (1, 1, 998, 1_000, 500):
        with store.transaction() as transaction:
            for _ in range(size):
                [card] = transaction.group_first(QUEUE, [ONE])
                assert card is not None
                seen.append(card.id)
                transaction.forget([card])
            [card] = transaction.group_first(QUEUE, [ONE])
            if card is not None:
                transaction.swap([Change(card, card._replace(state=State.READY))])
        store = place.reopen()
    assert seen == [f"m{n}" for n in range(2_500)]


@pytest.mark.parametrize("seed", range(4))
def test_group_first_agrees_with_a_full_scan_after_any_changes(store: Store, place: Place, seed: int) -> None:
    """Any changes, in transactions of any length."""
    chance = random.Random(seed)
    groups = [ONE, OTHER, line_of("third")]
    for step in range(12):
        with store.transaction() as transaction:
            for n in range(chance.randint(1, 5)):
                _change(transaction, chance, f"m{step}-{n}", chance.choice(groups))
                assert transaction.group_first(QUEUE, groups) == _firsts(transaction, groups)
        with store.transaction(write=False) as transaction:
            assert transaction.group_first(QUEUE, groups) == _firsts(transaction, groups)
        store = place.reopen() if step % 4 == 3 else store
    with store.transaction() as transaction:
        transaction.forget(_everything(transaction))


def _change(transaction: Transaction, chance: random.Random, id: str, group: int) -> None:
    known = [card for card in _everything(transaction) if card.state is not State.DROPPED]
    what = chance.choice(["add", "add", "move", "move", "move", "return", "forget"])
    if what == "add" or not known:
        transaction.add([envelope(id, group=group)], NOW, NOW)
    elif what == "forget":
        transaction.forget([chance.choice(known)])
    else:
        card = chance.choice(known)
        targets = [target for (origin, _), target in TRANSITIONS.items() if origin is card.state]
        after = moved(card, chance.choice(targets or [card.state]), transaction.places(1))
        transaction.swap([Change(card, after._replace(place=card.place) if what == "return" else after)])


def _everything(transaction: Transaction) -> list[Message]:
    return [card for state in State for card in listed(transaction, QUEUE, state)]


def _firsts(transaction: Transaction, groups: list[int]) -> list[Message | None]:
    waiting = [card for card in _everything(transaction) if card.state in UNFINISHED]
    return [
        min((card for card in waiting if card.group == group), key=lambda card: card.place, default=None)
        for group in groups
    ]


def test_held_message_is_due_when_it_expires(store: Store) -> None:
    one, two = put(store, envelope("one", group=ONE), envelope("two", group=ONE, expires_at=NOW + 100))
    [held] = hold(store, two)
    with store.transaction(write=False) as transaction:
        assert held.due_at == NOW + 100
        assert transaction.due(NOW + 99, 9) == []
        assert transaction.due(NOW + 100, 9) == [held]
        assert transaction.next_due() == NOW + 100
        assert [card.id for card, _ in transaction.heads(QUEUE, 9)] == [one.id]
        assert transaction.counts(QUEUE).held == 1


def test_group_first_is_unchanged_by_a_failed_transaction(store: Store, place: Place) -> None:
    made = put(store, *[envelope(f"m{n}", group=ONE) for n in range(3)])
    hold(store, *made[1:])

    def fail() -> None:
        with store.transaction() as transaction:
            transaction.add([envelope("lost", group=ONE), envelope("lost-too", group=OTHER)], NOW, NOW)
            transaction.forget(made[:1])
            assert first(transaction) == "m1"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            assert (first(transaction), first(transaction, OTHER)) == ("m0", None)


def test_held_state_is_reached_through_ready() -> None:
    assert path_to(State.HELD) == [State.READY, State.HELD]
