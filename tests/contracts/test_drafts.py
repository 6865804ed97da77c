"""Drafts, and contents that take the place of others: ``add`` with ``draft_until``, and ``rewrite``."""

from typing import Any

import pytest

from tests.support.store_contract import LATER, NOW, QUEUE, SIZE, draft, envelope, listed, move, openings, put
from tests.support.stores import Place
from yirangmq.core import transitions
from yirangmq.core.message import Counts, Envelope, Message
from yirangmq.core.ports import AddResult, Change, Store, Transaction
from yirangmq.core.states import State
from yirangmq.core.validation import line_of

CONTENTS: dict[str, dict[str, Any]] = {
    "longer": {"payload": b"x" * 5_000},
    "shorter": {"payload": b""},
    "as long": {"payload": b"daolyap"},
    "JSON": {"payload": b'{"a": [1, 2]}', "is_json": True},
    "a header": {"header": '{"type":"t","attributes":{"é":1}}'},
    "both": {"payload": bytes(range(256)), "header": '{"traceId":"t"}'},
}


def test_draft_matches_the_transition_rules(store: Store, place: Place) -> None:
    sent = envelope("m", rank=3, available_at=NOW + 5_000, expires_at=LATER + 1, payload=b"")
    [card] = draft(store, sent)
    assert card == transitions.draft(sent, card.seq, LATER, NOW)
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            assert transaction.by_id(QUEUE, ["m"]) == transaction.by_seq([card.seq]) == [card]
            assert listed(transaction, QUEUE, State.DRAFT) == [card]
            assert transaction.envelopes([card]) == [sent]
            assert transaction.heads(QUEUE, 9) == []
            assert transaction.counts(QUEUE) == Counts(draft=1)
            assert (transaction.due(LATER - 1, 9), transaction.due(LATER, 9)) == ([], [card])
            assert transaction.next_due() == LATER


def test_draft_ids_and_dedup_keys_are_known(store: Store) -> None:
    [card] = draft(store, envelope("m", dedup_key="k"))
    with store.transaction() as transaction:
        again = transaction.add([envelope("m"), envelope("n", dedup_key="k")], NOW, NOW + 9)
        assert again == [AddResult(card.seq, "m", True)] * 2
        begun = transaction.add([envelope("m"), envelope("o"), envelope("o")], NOW, NOW + 9, LATER)
        assert [one.duplicate for one in begun] == [True, False, True]
        assert transaction.counts(QUEUE) == Counts(draft=2)


def test_draft_counts_as_published_when_it_becomes_ready(store: Store, place: Place) -> None:
    [card, other] = draft(store, envelope("m"), envelope("never"))
    ready = card._replace(state=State.READY, due_at=0, changed_at=NOW + 5)
    with store.transaction() as transaction:
        transaction.swap([Change(card, ready)])
        assert transaction.counts(QUEUE) == Counts(draft=1, ready=1, published=1, bytes=SIZE)
        assert [head for head, _ in transaction.heads(QUEUE, 9)] == [ready]
    move(store, other, State.DROPPED)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.counts(QUEUE) == Counts(ready=1, published=1, dropped=1, bytes=SIZE)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("state", [State.DRAFT, State.READY])
def test_rewrite_replaces_the_content_and_keeps_the_place(store: Store, place: Place, state: State, name: str) -> None:
    sent = envelope("m", rank=3, expires_at=LATER, dedup_key="k", target=line_of("anna"))
    begin = draft if state is State.DRAFT else put
    [card] = begin(store, sent)
    put(store, envelope("n", rank=3, target=line_of("anna")))
    new = sent._replace(**CONTENTS[name])
    after = card._replace(size=new.size)
    with store.transaction() as transaction:
        transaction.rewrite([card], [new])
        _check_rewritten(transaction, after, new)
        assert transaction.counts(QUEUE).bytes == SIZE + (new.size if state is State.READY else 0)
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            _check_rewritten(transaction, after, new)
            if state is State.READY:
                heads = transaction.heads(QUEUE, 9, line_of("anna"))
                assert heads[0] == (after, new), "it keeps its place"
                assert [head.id for head, _ in heads] == ["m", "n"]


def _check_rewritten(transaction: Transaction, after: Message, new: Envelope) -> None:
    assert transaction.by_id(QUEUE, ["m"]) == transaction.by_seq([after.seq]) == [after]
    assert transaction.envelopes([after]) == [new]


def test_draft_is_rewritten_and_made_ready_in_a_single_transaction(store: Store, place: Place) -> None:
    sent = envelope("m", payload=b"", rank=1)
    [card] = draft(store, sent)
    new = sent._replace(payload=b"the content", header='{"type":"t"}')
    with store.transaction() as transaction:
        transaction.rewrite([card], [new])
        filled = card._replace(size=new.size)
        ready = filled._replace(state=State.READY, due_at=0)
        transaction.swap([Change(filled, ready)])
        assert transaction.heads(QUEUE, 9) == [(ready, new)]
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.heads(QUEUE, 9) == [(ready, new)]
        assert listed(transaction, QUEUE, State.DRAFT) == []
        assert transaction.counts(QUEUE) == Counts(ready=1, published=1, bytes=new.size)


def test_rewrite_repeated_keeps_the_last_content(store: Store, place: Place) -> None:
    sent = envelope("m")
    [card] = put(store, sent)
    with store.transaction() as transaction:
        for n in range(5):
            new = sent._replace(payload=b"%d" % n * n)
            transaction.rewrite([card], [new])
            card = card._replace(size=new.size)
    with place.reopen().transaction() as transaction:
        assert transaction.heads(QUEUE, 9) == [(card, new)]
        assert transaction.counts(QUEUE).bytes == 4
        transaction.rewrite([card], [sent])
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.heads(QUEUE, 9) == [(card._replace(size=SIZE), sent)]


def test_rewrite_of_many_messages_leaves_the_others_unchanged(store: Store, place: Place) -> None:
    sent = [envelope(f"m{n}") for n in range(30)]
    made = put(store, *sent)
    new = [one._replace(payload=b"new %d" % n) for n, one in enumerate(sent[::2])]
    with store.transaction() as transaction:
        transaction.rewrite(made[::2], new)
    with place.reopen().transaction(write=False) as transaction:
        found = transaction.heads(QUEUE, 99)
        assert [card.id for card, _ in found] == [card.id for card in made]
        assert [one for _, one in found[::2]] == new
        assert [one for _, one in found[1::2]] == sent[1::2]


def test_rewrite_in_the_transaction_that_added_the_message_is_kept(store: Store, place: Place) -> None:
    with store.transaction() as transaction:
        [stored] = transaction.add([envelope("m")], NOW, NOW)
        [card] = transaction.by_seq([stored.seq])
        assert card is not None
        new = envelope("m", payload=b"at second thought")
        transaction.rewrite([card], [new])
        assert transaction.counts(QUEUE).bytes == new.size
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.heads(QUEUE, 9) == [(card._replace(size=new.size), new)]


@pytest.mark.parametrize("state", [State.LEASED, State.DROPPED, None])
def test_rewrite_then_lease_drop_or_forget_in_the_same_transaction_is_kept(
    store: Store, place: Place, state: State | None
) -> None:
    """None: it is forgotten."""
    [card] = put(store, envelope("m"))
    new = envelope("m", payload=b"new content")
    with store.transaction() as transaction:
        transaction.rewrite([card], [new])
        card = card._replace(size=new.size)
        if state is None:
            transaction.forget([card])
        else:
            after = card._replace(state=state, body=state is not State.DROPPED, due_at=LATER)
            transaction.swap([Change(card, after)])
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.by_id(QUEUE, ["m"]) == [None if state is None else after]
        assert transaction.envelopes([card]) == [new if state is State.LEASED else None]
        assert transaction.counts(QUEUE).bytes == (new.size if state is State.LEASED else 0)


def test_rewrite_in_a_failed_transaction_leaves_the_content_as_it_was(store: Store, place: Place) -> None:
    sent = envelope("m")
    [card] = put(store, sent)

    def fail() -> None:
        with store.transaction() as transaction:
            transaction.rewrite([card], [sent._replace(payload=b"lost")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    for opener in openings(place):
        with opener.transaction(write=False) as transaction:
            assert transaction.heads(QUEUE, 9) == [(card, sent)]
            assert transaction.counts(QUEUE).bytes == SIZE
