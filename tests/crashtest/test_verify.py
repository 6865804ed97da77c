"""The judge sees what it is there to see: each broken promise is named, and an unbroken store passes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from yirangmq.broker.queues import Queues
from yirangmq.crashtest.verify import ExpectedStore, differences, verify
from yirangmq.crashtest.workload import (
    EMPTY_SNAPSHOT,
    START_MS,
    ConfirmedMessages,
    FixedClock,
    NumberedIds,
    Snapshot,
    take_snapshot,
)
from yirangmq.stores.sqlite.store import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Four messages: m-1 and m-2 ready, m-3 leased, m-4 acked."""
    made = SqliteStore(tmp_path / "queue.db", durability="os")
    queues = Queues(made, FixedClock(), NumberedIds("m"), "tester")
    queues.publish_many("orders", [b"four", b"three"])
    queues.ack(queues.lease("orders")[0].lease_id)
    queues.lease("orders")
    queues.publish_many("orders", [b"one", b"two"])
    yield made
    made.close()


def verdict(
    store: SqliteStore, before: Snapshot, after: Snapshot | None = None, *, is_atomic: bool = True
) -> list[str]:
    return verify(store, ExpectedStore(before, after or before, START_MS, is_atomic))


def test_verifier_accepts_a_store_that_kept_its_promises(store: SqliteStore) -> None:
    assert verdict(store, take_snapshot(store)) == []


def test_verifier_accepts_a_call_in_flight_as_present(store: SqliteStore) -> None:
    before = take_snapshot(store)
    Queues(store, FixedClock(), NumberedIds("late"), "tester").publish("orders", b"late")
    after = take_snapshot(store)
    assert verdict(store, before, after) == []


def test_verifier_reports_a_message_that_was_never_sent(store: SqliteStore) -> None:
    before = take_snapshot(store)
    Queues(store, FixedClock(), NumberedIds("late"), "tester").publish("orders", b"late")
    assert verdict(store, before)[0].startswith("orders/late-1 is ready")


def test_verifier_reports_half_of_a_call_where_calls_are_atomic(store: SqliteStore) -> None:
    before = take_snapshot(store)
    queues = Queues(store, FixedClock(), NumberedIds("late"), "tester")
    queues.publish("orders", b"first half")
    half = take_snapshot(store)
    queues.publish("orders", b"second half")
    whole = take_snapshot(store)
    # As the files store may leave it: one of two messages is there, and counted right.
    assert verdict_of(half, before, whole, is_atomic=False) == []
    assert verdict_of(half, before, whole, is_atomic=True) == ["half of a call is there"]


def verdict_of(found: Snapshot, before: Snapshot, after: Snapshot, *, is_atomic: bool) -> list[str]:
    return differences(found, ExpectedStore(before, after, START_MS, is_atomic))


AT_REST = "INSERT INTO life VALUES (2, 1, 'm-2', 'leased', 0, 2, 1, 0, 0, 0, 0, 'tester', '', 0, 1, 0, 0, 5)"
BROKEN: dict[str, tuple[str, str]] = {
    "lost": ("UPDATE fresh SET first = 4 WHERE first = 3", "orders/m-3 is absent, not ready"),
    "another content": ("UPDATE message SET payload = x'00' WHERE seq = 3", "orders/m-3 is ready (1 bytes"),
    "come back": ("UPDATE batch SET state = 'leased' WHERE first = 1", "orders/m-1 is leased"),
    "a lease forgotten": (f"DELETE FROM batch WHERE first = 2; {AT_REST}", "orders/m-2 is leased"),
    "miscounted": ("UPDATE queue SET ready = 7", "queue orders says 7 ready, there are 2"),
    "two states": (
        "INSERT INTO ready SELECT queue, 0, rank, 99, seq, 0, 0, 0, 0, '', '', 0, 0, 1 FROM message WHERE seq = 2",
        "orders/m-2 is in two states",
    ),
    "policy": ("UPDATE queue SET policy = '{}'", "queue orders has another policy than was set"),
}


@pytest.mark.parametrize("sort", sorted(BROKEN))
def test_verifier_names_each_broken_promise(store: SqliteStore, sort: str) -> None:
    before = take_snapshot(store)
    tampering, complaint = BROKEN[sort]
    store.file.db.execute(tampering)
    found = verdict(store, before)
    assert any(each.startswith(complaint) for each in found), found


def test_verifier_reports_a_damaged_file_without_crashing(store: SqliteStore) -> None:
    before = take_snapshot(store)
    store.file.db.execute("DROP TABLE failure")
    assert verdict(store, before) != []


def test_ledger_reports_messages_that_differ_from_those_sent_and_finished(store: SqliteStore) -> None:
    ledger = ConfirmedMessages()
    ledger.published(("orders", "m-3"), b"one")
    ledger.done(("orders", "m-1"))
    assert ledger.complaints(take_snapshot(store)) == []
    ledger.published(("orders", "m-4"), b"something else")
    ledger.published(("orders", "m-9"), b"never came")
    ledger.done(("orders", "m-2"))
    assert sorted(ledger.complaints(take_snapshot(store))) == [
        "orders/m-2 was finished and is leased",
        "orders/m-4 has not the content that was sent",
        "orders/m-9 was confirmed and is gone",
    ]


def test_verifier_accepts_an_empty_store(tmp_path: Path) -> None:
    made = SqliteStore(tmp_path / "queue.db", durability="os")
    assert verify(made, ExpectedStore(EMPTY_SNAPSHOT, EMPTY_SNAPSHOT, START_MS, True)) == []
    made.close()
