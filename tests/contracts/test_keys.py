"""``key_holders``, ``hold_keys`` and ``free_keys``: who holds which deduplication key, and who is given it."""

import pytest

from tests.support.store_contract import NOW, QUEUE, bring, envelope, openings, put
from tests.support.stores import Place
from yirangmq.core.message import Message
from yirangmq.core.ports import AddResult, Store
from yirangmq.core.states import State

WINDOW = 300_000
UNTIL = NOW + WINDOW
FOREVER = 9_999_999_999_999


def of(message: Message) -> tuple[int, str]:
    return message.seq, message.id


def test_dedup_key_holder_is_known_until_its_window_ends(store: Store, place: Place) -> None:
    m, n = put(store, envelope("m", dedup_key="k"), envelope("n", dedup_key="l"))
    put(store, envelope("p", "post", dedup_key="k"))
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            assert transaction.key_holders(QUEUE, ["l", "nobody's", "k"], NOW) == [of(n), None, of(m)]
            assert transaction.key_holders(QUEUE, ["k"], UNTIL - 1) == [of(m)]
            assert transaction.key_holders(QUEUE, ["k"], UNTIL) == [None]
            assert transaction.key_holders("nobody", ["k"], NOW) == [None]
            assert transaction.key_holders(QUEUE, [], NOW) == []


def test_dedup_key_is_moved_from_a_message_to_another(store: Store, place: Place) -> None:
    m, n = put(store, envelope("m", dedup_key="k"), envelope("n"))
    with store.transaction() as transaction:
        transaction.hold_keys(QUEUE, {"k": of(n), "l": of(n)}, UNTIL + 5)
        assert transaction.key_holders(QUEUE, ["k", "l"], NOW) == [of(n), of(n)]
        assert transaction.add([envelope("o", dedup_key="k")], NOW, UNTIL) == [AddResult(n.seq, "n", True)]
    for opener in openings(place):
        with opener.transaction() as transaction:
            assert transaction.key_holders(QUEUE, ["k", "l"], UNTIL + 4) == [of(n), of(n)]
            assert transaction.key_holders(QUEUE, ["k"], UNTIL + 5) == [None]
            assert transaction.add([envelope("o", dedup_key="l")], NOW, UNTIL) == [AddResult(n.seq, "n", True)]
            assert transaction.by_seq([m.seq, n.seq]) == [m, n]


def test_dedup_key_that_was_freed_can_be_taken_by_a_new_message(store: Store, place: Place) -> None:
    [m] = put(store, envelope("m", dedup_key="k"))
    with store.transaction() as transaction:
        transaction.free_keys(QUEUE, ["k", "nobody's"])
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [None]
    with place.reopen().transaction() as transaction:
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [None]
        assert transaction.by_seq([m.seq]) == [m]
        [stored] = transaction.add([envelope("n", dedup_key="k")], NOW, UNTIL)
        assert not stored.duplicate
        transaction.free_keys(QUEUE, ["k"])
        [again] = transaction.add([envelope("o", dedup_key="k")], NOW, UNTIL)
        assert not again.duplicate
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [(again.seq, "o")]
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [(again.seq, "o")]


def test_dedup_window_can_be_made_longer_and_shorter(store: Store, place: Place) -> None:
    [m] = put(store, envelope("m", dedup_key="k"))
    for until in (UNTIL, UNTIL + 9, UNTIL - 9, UNTIL + 10**7, NOW + 1):
        with store.transaction() as transaction:
            transaction.hold_keys(QUEUE, {"k": of(m)}, until)
            transaction.hold_keys(QUEUE, {"k": of(m)}, until)
        store = place.reopen()
        with store.transaction(write=False) as transaction:
            assert transaction.key_holders(QUEUE, ["k"], until - 1) == [of(m)]
            assert transaction.key_holders(QUEUE, ["k"], until) == [None]


def test_dedup_key_moved_several_times_in_a_transaction_stays_with_the_last_holder(store: Store, place: Place) -> None:
    m, n = put(store, envelope("m", dedup_key="k"), envelope("n"))
    with store.transaction() as transaction:
        transaction.free_keys(QUEUE, ["k"])
        transaction.hold_keys(QUEUE, {"k": of(m)}, UNTIL)
        transaction.hold_keys(QUEUE, {"k": of(n)}, UNTIL)
        transaction.hold_keys(QUEUE, {"k": of(m)}, UNTIL)
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [of(m)]
    with place.reopen().transaction() as transaction:
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [of(m)]
        transaction.forget_keys(UNTIL, 9)
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [None]


def test_dedup_key_is_given_to_a_message_added_in_the_same_transaction(store: Store, place: Place) -> None:
    [m] = put(store, envelope("m", dedup_key="k"))
    with store.transaction() as transaction:
        [stored] = transaction.add([envelope("n")], NOW, UNTIL)
        transaction.hold_keys(QUEUE, {"k": (stored.seq, "n")}, UNTIL)
    with place.reopen().transaction() as transaction:
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [(stored.seq, "n")]
        transaction.forget([card for card in transaction.by_seq([stored.seq]) if card])
        assert transaction.by_seq([m.seq]) == [m]
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [(stored.seq, "n")], "a key outlives its message"


@pytest.mark.parametrize("state", [State.LEASED, State.DEAD, State.DONE, State.DROPPED])
def test_dedup_key_can_be_given_to_a_message_in_any_state(store: Store, place: Place, state: State) -> None:
    card = bring(store, put(store, envelope("m"))[0], state)
    with store.transaction() as transaction:
        transaction.hold_keys(QUEUE, {"k": of(card)}, UNTIL)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [of(card)]
        assert transaction.by_seq([card.seq]) == [card]


def test_dedup_key_holders_are_unchanged_by_a_failed_transaction(store: Store, place: Place) -> None:
    m, n = put(store, envelope("m", dedup_key="k"), envelope("n", dedup_key="l"))

    def fail() -> None:
        with store.transaction() as transaction:
            transaction.hold_keys(QUEUE, {"k": of(n), "new": of(n)}, UNTIL)
            transaction.free_keys(QUEUE, ["l"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            assert transaction.key_holders(QUEUE, ["k", "l", "new"], NOW) == [of(m), of(n), None]


def test_dedup_key_is_deleted_with_its_queue(store: Store, place: Place) -> None:
    [m] = put(store, envelope("m"))
    with store.transaction() as transaction:
        transaction.hold_keys(QUEUE, {"k": of(m)}, UNTIL)
        transaction.delete_queue(QUEUE)
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [None]
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.queues() == []
        assert transaction.key_holders(QUEUE, ["k"], NOW) == [None]


def test_dedup_key_can_be_held_forever(store: Store, place: Place) -> None:
    """Of many: what each of them costs must not grow with their number, and a thousand of them are found one by one."""
    made = put(store, *[envelope(f"m{n}", dedup_key=f"own{n}") for n in range(30)])
    with store.transaction() as transaction:
        [new] = transaction.add([envelope("new", dedup_key="own")], NOW, UNTIL)
        transaction.hold_keys(QUEUE, {f"k{card.id}": of(card) for card in made} | {"knew": (new.seq, "new")}, FOREVER)
        assert transaction.key_holders(QUEUE, ["km7", "knew"], FOREVER - 1) == [of(made[7]), (new.seq, "new")]
    with place.reopen().transaction() as transaction:
        assert transaction.key_holders(QUEUE, ["km7", "knew", "own"], UNTIL) == [of(made[7]), (new.seq, "new"), None]
        assert transaction.forget_keys(UNTIL, 99) == 31
        transaction.hold_keys(QUEUE, {"km7": of(made[8])}, FOREVER)
        transaction.free_keys(QUEUE, ["km9"])
        transaction.forget([card for card in transaction.by_id(QUEUE, ["new", "m3"]) if card is not None])
    with place.reopen().transaction(write=False) as transaction:
        found = transaction.key_holders(QUEUE, ["km3", "km7", "km8", "km9", "knew"], NOW)
        assert found == [of(made[3]), of(made[8]), of(made[8]), None, (new.seq, "new")]


@pytest.mark.parametrize("until", [UNTIL, FOREVER])
def test_dedup_key_holder_need_not_be_a_message(store: Store, place: Place, until: int) -> None:
    """Somebody keeps a number in a key. It may be that of a message, which has nothing to do with it."""
    [card] = put(store, envelope("m", dedup_key="k"))
    with store.transaction() as transaction:
        [new] = transaction.add([envelope("n", dedup_key="l")], NOW, UNTIL)
        transaction.hold_keys(QUEUE, {"mark": (new.seq, "all")}, until)
        transaction.hold_keys(QUEUE, {"mark": (card.seq, "all")}, until)
    with place.reopen().transaction() as transaction:
        holders = [(card.seq, "all"), of(card), (new.seq, "n")]
        assert transaction.key_holders(QUEUE, ["mark", "k", "l"], NOW) == holders
        transaction.hold_keys(QUEUE, {"mark": (10**6, "all")}, until)
        assert transaction.add([envelope("o", dedup_key="k")], NOW, UNTIL) == [AddResult(card.seq, "m", True)]
    with place.reopen().transaction() as transaction:
        transaction.forget([card])
        transaction.free_keys(QUEUE, ["mark"])
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.key_holders(QUEUE, ["mark", "k", "l"], NOW) == [None, of(card), (new.seq, "n")]
