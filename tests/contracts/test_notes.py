"""What somebody keeps beside the messages: in the same commits, and gone with a transaction that fails."""

import pytest

from tests.support.store_contract import QUEUE, envelope, put
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Store


def test_note_is_kept_until_it_is_removed(store: Store) -> None:
    with store.transaction() as transaction:
        assert transaction.note("ledger/a") is None
        transaction.set_note("ledger/a", "1")
        assert transaction.note("ledger/a") == "1"
        transaction.set_note("ledger/a", "2 ü\n")
    with store.transaction(write=False) as transaction:
        assert transaction.note("ledger/a") == "2 ü\n"
    with store.transaction() as transaction:
        transaction.set_note("ledger/a", None)
        transaction.set_note("ledger/never", None)
        assert transaction.notes("") == {}


def test_note_listing_is_by_key_prefix_in_key_order(store: Store) -> None:
    with store.transaction() as transaction:
        for key in ("b/2", "a/1", "b/10", "bb", "b/1"):
            transaction.set_note(key, key.upper())
        assert list(transaction.notes("b/").items()) == [("b/1", "B/1"), ("b/10", "B/10"), ("b/2", "B/2")]
    with store.transaction(write=False) as transaction:
        assert list(transaction.notes("")) == ["a/1", "b/1", "b/10", "b/2", "bb"]


def test_note_is_not_kept_by_a_failed_transaction(store: Store) -> None:
    def fail() -> None:
        with store.transaction() as transaction:
            transaction.set_note("ledger/a", "1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.transaction(write=False) as transaction:
        assert transaction.note("ledger/a") is None


def test_note_is_kept_when_a_queue_is_deleted(store: Store) -> None:
    put(store, envelope("m"))
    with store.transaction() as transaction:
        transaction.set_note(QUEUE, "1")
        transaction.delete_queue(QUEUE)
    with store.transaction(write=False) as transaction:
        assert transaction.note(QUEUE) == "1"


@pytest.mark.parametrize("key", ["", "/", "a/", "../a", "a//b", "a b", "a/b/c/d/e", "x" * 201])
def test_note_key_that_is_not_made_of_names_is_refused(store: Store, key: str) -> None:
    with pytest.raises(BadInput), store.transaction() as transaction:
        transaction.set_note(key, "1")
