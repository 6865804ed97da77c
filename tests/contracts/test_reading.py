"""``heads``, ``by_seq``, ``by_id``, ``envelopes``, ``failures`` and ``scan``: what was put in is what is found."""

import json
import random

import pytest

from tests.support.store_contract import FAILURE, NOW, QUEUE, REACHED, bring, envelope, listed, move, put
from tests.support.stores import Place
from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, with_traceback
from yirangmq.core.ports import Change, Store
from yirangmq.core.states import State


def test_heads_are_in_order_of_rank_then_place(store: Store) -> None:
    chance = random.Random(13)
    ranks = [0, 1, 2, 10, 11, 100, 2**31, 2**53 - 1, RANK_LAST]
    made = []
    for batch in range(10):
        made += put(store, *[envelope(f"m{batch}-{n}", rank=chance.choice(ranks)) for n in range(100)])
    expected = sorted(made, key=lambda card: (card.rank, card.place))
    with store.transaction(write=False) as transaction:
        assert [card for card, _ in transaction.heads(QUEUE, 1000)] == expected
        assert [card for card, _ in transaction.heads(QUEUE, 10)] == expected[:10]
        assert [card.id for card in expected] == [sent.id for _, sent in transaction.heads(QUEUE, 2000)]


def test_heads_are_the_ready_messages_of_a_single_queue(store: Store) -> None:
    put(store, envelope("d", available_at=NOW + 1))
    put(store, envelope("elsewhere", queue="post"))
    [leased, waiting] = put(store, envelope("l"), envelope("r"))
    move(store, leased, State.LEASED)
    with store.transaction(write=False) as transaction:
        assert [card for card, _ in transaction.heads(QUEUE, 9)] == [waiting]
        assert transaction.heads("nobody", 9) == []


def test_heads_show_a_released_message_at_its_place(store: Store) -> None:
    cards = put(store, *[envelope(f"m{n}", rank=n % 2) for n in range(6)])
    leased = [move(store, card, State.LEASED) for card in cards[:2]]
    move(store, leased[0], State.READY)  # to a fresh place: behind m4
    move(store, leased[1], State.READY, place=cards[1].place)  # to its old place: before m3
    with store.transaction(write=False) as transaction:
        assert [card.id for card, _ in transaction.heads(QUEUE, 9)] == ["m2", "m4", "m0", "m1", "m3", "m5"]


@pytest.mark.parametrize("state", REACHED)
def test_lookup_by_sequence_and_by_id_finds_a_message_in_every_state(store: Store, place: Place, state: State) -> None:
    [card] = put(store, envelope("m", rank=5, expires_at=NOW + 99_000))
    card = bring(store, card, state)
    with store.transaction(write=False) as transaction:
        assert transaction.by_seq([card.seq]) == [card]
        assert transaction.by_id(QUEUE, ["m"]) == [card]
        assert transaction.by_seq([card.seq, 999_999, card.seq]) == [card, None, card]
        assert transaction.by_id(QUEUE, ["nobody", "m", "nobody"]) == [None, card, None]
        assert transaction.by_id("nobody", ["m"]) == [None]
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.by_id(QUEUE, ["m"]) == [card]
        assert transaction.by_seq([card.seq]) == [card]


def test_lookup_of_nothing_finds_nothing(store: Store) -> None:
    with store.transaction(write=False) as transaction:
        assert transaction.by_seq([]) == []
        assert transaction.by_id(QUEUE, []) == []
        assert transaction.envelopes([]) == []
        assert transaction.failures([]) == []


PAYLOADS = {
    "every byte": (bytes(range(256)), False),
    "no byte": (b"", False),
    "one MiB": (bytes(range(256)) * 4096, False),
    "bytes that look like JSON": (b'{"a":1}', False),
    "JSON with its own spaces": (b'{ "b" : 1.0e0,\n\t"a":[ ] , "a": null }', True),
    "JSON with escapes": ('{"é":"\\u00e9\\ud83d\\ude00\\u0000","이랑":"/\\/"}'.encode(), True),
    "one MiB of JSON": (json.dumps(["x" * 100] * 10_000).encode(), True),
    "a number": (b"-0.10E+2", True),
    "a number no float can hold": (b"123456789012345678901234567890.123456789", True),
    "null": (b"null", True),
    "a string": (b'""', True),
    "a line break at the end": (b"line\n", False),
    "line breaks of every kind": (b"\r\n\r\x0b\x0c\x85\xe2\x80\xa8\n\n", False),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_payload_is_returned_byte_for_byte(store: Store, place: Place, name: str) -> None:
    payload, is_json = PAYLOADS[name]
    sent = envelope("m", payload=payload, is_json=is_json)
    [card] = put(store, sent)
    with store.transaction(write=False) as transaction:
        assert transaction.heads(QUEUE, 1) == [(card, sent)]
    leased = move(store, card, State.LEASED)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.envelopes([leased]) == [sent]


HEADERS = {
    "none": "",
    "the seed's members": '{"timestamp":"2026-01-13T10:21:00+09:00","type":"sensor.reading","version":1,'
    '"attributes":{"deviceId":"device-001","priority":3},"traceId":"trace-1234"}',
    "unknown members": '{"type":"t","x-unknown":{"deep":[1,2.5,{"é":null}]},"another":"이랑"}',
    "members with our own names": '{"type":"t","state":"dead","seq":7,"place":-1,"body":false,"failure":{}}',
}


@pytest.mark.parametrize("name", HEADERS)
def test_envelope_is_returned_complete(store: Store, place: Place, name: str) -> None:
    sent = envelope("m", header=HEADERS[name], rank=3, expires_at=NOW + 1, available_at=NOW - 5, dedup_key="a key")
    sent = sent._replace(published_at=NOW - 9)
    [card] = put(store, sent)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.envelopes([card]) == [sent]
        assert transaction.heads(QUEUE, 1)[0][1] == sent


def test_envelope_is_unchanged_after_a_redrive(store: Store) -> None:
    """Also not in another life: a redriven message no longer expires, its envelope still says when it would have."""
    sent = envelope("m", expires_at=NOW + 60_000, rank=2)
    [card] = put(store, sent)
    dead = bring(store, card, State.DEAD)
    ready = move(store, dead, State.READY, expires_at=0, due_at=0)
    with store.transaction(write=False) as transaction:
        assert transaction.envelopes([ready]) == [sent]
        assert transaction.heads(QUEUE, 1) == [(ready, sent)]


def test_envelope_is_missing_for_a_message_without_content(store: Store) -> None:
    cards = put(store, envelope("m"), envelope("n"), envelope("o"))
    done = move(store, bring(store, cards[0], State.LEASED), State.DONE, body=False)
    dropped = move(store, cards[1], State.DROPPED)
    with store.transaction(write=False) as transaction:
        found = transaction.envelopes([done, cards[2], dropped])
        assert [sent is None for sent in found] == [True, False, True]
        assert transaction.by_id(QUEUE, ["m", "n"]) == [done, dropped]


def test_failure_keeps_its_text_and_its_traceback(store: Store, place: Place) -> None:
    [card] = put(store, envelope("m"))
    failure = FAILURE._replace(stored_text=with_traceback("no such account", 'File "shop.py"\n이랑\n'))
    dead = move(store, move(store, card, State.LEASED), State.DEAD, failure)
    with place.reopen().transaction(write=False) as transaction:
        [found] = transaction.failures([dead])
    assert found == failure
    assert found is not None
    assert (found.reason_message, found.traceback) == ("no such account", 'File "shop.py"\n이랑\n')


def test_failure_that_is_latest_replaces_the_earlier_failure(store: Store, place: Place) -> None:
    first, other = put(store, envelope("m"), envelope("n"))
    leased = move(store, first, State.LEASED)
    delayed = move(store, leased, State.DELAYED, FAILURE)
    ready = move(store, delayed, State.READY)
    with store.transaction(write=False) as transaction:
        assert transaction.failures([ready, other]) == [FAILURE, None]
    newer = FAILURE._replace(stored_text='later, with "quotes", a line\nbreak and 이랑', attempt=2, consumer="")
    dead = move(store, move(store, ready, State.LEASED), State.DEAD, newer)
    with place.reopen().transaction(write=False) as transaction:
        assert transaction.failures([other, dead]) == [None, newer]
        assert transaction.counts(QUEUE).failed == 2


@pytest.mark.parametrize("state", REACHED)
def test_scan_in_pages_of_any_size_lists_the_same_messages(store: Store, state: State) -> None:
    cards = put(store, *[envelope(f"m{n}", rank=n % 4) for n in range(25)])
    put(store, *[envelope(f"e{n}", queue="post") for n in range(3)])
    there = [bring(store, card, state) for card in cards[:20]]
    with store.transaction(write=False) as transaction:
        whole = listed(transaction, QUEUE, state)
        assert sorted(whole) == sorted(there + (cards[20:] if state is State.READY else []))
        for size in (1, 7, 20, 25, 26):
            assert listed(transaction, QUEUE, state, size) == whole


def test_scan_of_ready_messages_is_in_order_of_delivery(store: Store) -> None:
    put(store, *[envelope(f"m{n}", rank=[9, 10, 100, RANK_LAST][n % 4]) for n in range(20)])
    with store.transaction(write=False) as transaction:
        assert listed(transaction, QUEUE, State.READY, 3) == [card for card, _ in transaction.heads(QUEUE, 20)]


@pytest.mark.parametrize("state", [State.DEAD, State.PARKED])
def test_scan_of_dead_or_parked_messages_lists_the_oldest_first(store: Store, state: State) -> None:
    cards = [bring(store, card, State.LEASED) for card in put(store, *[envelope(f"m{n}") for n in range(6)])]
    moments = [NOW + 30, NOW + 10, NOW + 1_000, NOW + 10, NOW + 20, NOW + 9]
    for card, moment in zip(cards, moments, strict=True):
        move(store, card, state, changed_at=moment)
    with store.transaction(write=False) as transaction:
        for size in (1, 2, 6):
            assert [c.id for c in listed(transaction, QUEUE, state, size)] == ["m5", "m1", "m3", "m4", "m0", "m2"]


def test_scan_continues_while_the_listed_messages_are_forgotten(store: Store) -> None:
    cards = [bring(store, card, State.DEAD) for card in put(store, *[envelope(f"m{n}") for n in range(9)])]
    seen, cursor = [], ""
    while True:
        with store.transaction() as transaction:
            page = transaction.scan(QUEUE, State.DEAD, 2, cursor)
            transaction.forget(page.messages)
        seen += page.messages
        cursor = page.cursor
        if not cursor:
            break
    assert sorted(seen) == sorted(cards)


def test_scan_of_ready_messages_starts_at_any_rank_and_place(store: Store) -> None:
    cards = put(store, *[envelope(f"m{n}", rank=rank) for n, rank in enumerate([0, 7, 7, 2**40, RANK_LAST])])
    with store.transaction(write=False) as transaction:
        for cursor, first in [
            ("-1.0", 0),
            (f"0.{2**62}", 1),
            (f"5.{2**62}", 1),
            (f"7.{cards[1].place}", 2),
            (f"7.{2**62}", 3),
            (f"{RANK_LAST - 1}.{2**62}", 4),
            (f"{RANK_LAST}.{2**62}", 5),
        ]:
            assert transaction.scan(QUEUE, State.READY, 9, cursor).messages == cards[first:], cursor


def test_scan_cursor_that_is_invalid_is_refused(store: Store) -> None:
    put(store, envelope("m"))
    with store.transaction(write=False) as transaction, pytest.raises(BadInput) as caught:
        transaction.scan(QUEUE, State.READY, 1, "not a cursor")
    assert caught.value.field == "cursor"


def test_scan_of_an_unknown_queue_is_empty(store: Store) -> None:
    with store.transaction(write=False) as transaction:
        assert transaction.scan("nobody", State.READY, 5) == ([], "")


def test_transaction_sees_its_own_changes(store: Store) -> None:
    """Calls that share a commit build on each other: published, leased and acked in one."""
    with store.transaction() as transaction:
        transaction.add([envelope("m"), envelope("n", rank=1)], NOW, NOW + 1)
        [(card, _)] = transaction.heads(QUEUE, 1)
        assert card.id == "n"
        leased = card._replace(state=State.LEASED, leases=1, attempt=1, due_at=NOW + 5)
        transaction.swap([Change(card, leased)])
        assert [head.id for head, _ in transaction.heads(QUEUE, 9)] == ["m"]
        assert transaction.by_id(QUEUE, ["n"]) == transaction.by_seq([card.seq]) == [leased]
        assert listed(transaction, QUEUE, State.LEASED) == [leased]
        assert transaction.due(NOW + 5, 9) == [leased]
        assert transaction.next_due() == NOW + 5
        dead = leased._replace(state=State.DEAD, due_at=0)
        transaction.swap([Change(leased, dead, FAILURE)])
        assert transaction.failures([dead]) == [FAILURE]
        assert listed(transaction, QUEUE, State.DEAD) == [dead]
        assert listed(transaction, QUEUE, State.LEASED) == transaction.due(NOW + 5, 9) == []
        ready = dead._replace(state=State.READY, place=transaction.places(1))
        transaction.swap([Change(dead, ready)])
        assert [head for head, _ in transaction.heads(QUEUE, 1)] == [ready]
        counts = transaction.counts(QUEUE)
        assert (counts.ready, counts.leased, counts.dead, counts.failed, counts.redriven) == (2, 0, 0, 1, 1)
        transaction.forget([ready])
        assert transaction.by_id(QUEUE, ["n"]) == [None]
    with store.transaction(write=False) as transaction:
        assert [head.id for head, _ in transaction.heads(QUEUE, 9)] == ["m"]
