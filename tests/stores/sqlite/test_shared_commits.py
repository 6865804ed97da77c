"""Several verbs in one transaction, as a server does them: what is kept back until the commit is seen by nobody, and a
memory store, told the same, agrees."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import pytest

from tests.support.store_contract import picture
from yirangmq.broker import operations, settle
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.settle import Leases
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.ports import Change, Store, Transaction
from yirangmq.core.states import State
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.sqlite.cache import MAX_RECENT_BYTES, RECENT_OVERHEAD_BYTES, RecentPayloads
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import CountingIds, ManualClock

QUEUES = ("mail", "post")


def envelope(id: str, payload: bytes = b"1") -> Envelope:
    return Envelope("mail", id, RANK_LAST, 0, 0, 0, None, "", payload, True)


class StoreOperations:
    """A store and its verbs."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.context = TransactionContext(clock, CountingIds())

    def do(self, steps: list[Callable[[TransactionContext, Transaction], object]]) -> list[object]:
        with self.store.transaction() as transaction:
            return [step(self.context, transaction) for step in steps]


def publish(queue: str, envelopes: list[Envelope]) -> Callable[[TransactionContext, Transaction], object]:
    return lambda context, transaction: [one.id for one in operations.publish(context, transaction, queue, envelopes)]


def lease(queue: str, count: int) -> Callable[[TransactionContext, Transaction], object]:
    def step(context: TransactionContext, transaction: Transaction) -> object:
        got = operations.lease(context, transaction, queue, count, None, "me")
        return [(one.id, one.payload, one.message.size, one.lease_until) for one in got]

    return step


def ack_some(queue: str, first: int, count: int) -> Callable[[TransactionContext, Transaction], object]:
    """Of what is leased, by its number in the listing."""

    def step(context: TransactionContext, transaction: Transaction) -> object:
        leased = transaction.scan(queue, State.LEASED, 99).messages[first : first + count]
        if not leased:
            return []
        errors = settle.ack(context, transaction, Leases([f"{one.seq}-{one.leases}" for one in leased]), None)
        return [one.id for one in leased], [str(error) for error in errors]

    return step


def look(queue: str, id: str) -> Callable[[TransactionContext, Transaction], object]:
    def step(context: TransactionContext, transaction: Transaction) -> object:
        [card] = transaction.by_id(queue, [id])
        listed = [one.id for one in transaction.scan(queue, State.READY, 99).messages]
        return card and (card.state, card.size), listed, transaction.counts(queue), transaction.next_due()

    return step


def drop(queue: str, id: str) -> Callable[[TransactionContext, Transaction], object]:
    return lambda context, transaction: [str(error) for error in operations.drop(context, transaction, queue, [id])]


def step(chance: Random, clock: ManualClock, made: list[str]) -> Callable[[TransactionContext, Transaction], object]:
    queue = chance.choice(QUEUES)
    kind = chance.choice(["publish", "publish", "lease", "lease", "ack", "ack", "look", "drop"])
    if kind == "publish":
        now = clock.now_ms()
        rank, expires = chance.choice([RANK_LAST, RANK_LAST, 3]), chance.choice([0] * 9 + [now + 10_000])
        ids = [f"m{len(made) + n}" for n in range(chance.randint(1, 5))]
        made += ids
        sent = [Envelope(queue, id, rank, now, now, expires, None, "", f'"{id} ü"'.encode(), True) for id in ids]
        return publish(queue, sent)
    if kind == "lease":
        return lease(queue, chance.randint(1, 8))
    if kind == "ack":
        return ack_some(queue, chance.randint(0, 3), chance.randint(1, 8))
    id = chance.choice(made) if made else "none"
    return look(queue, id) if kind == "look" else drop(queue, id)


@pytest.mark.parametrize("seed", range(10))
def test_shared_commit_of_operations_gives_the_same_results_as_the_memory_store(tmp_path: Path, seed: int) -> None:
    chance, clock = Random(seed), ManualClock()
    stores: list[Store] = [SqliteStore(tmp_path / "queue.db", durability="os"), MemoryStore()]
    houses = [StoreOperations(store, clock) for store in stores]
    made: list[str] = []
    for _ in range(25):
        steps = [step(chance, clock, made) for _ in range(chance.randint(1, 6))]
        ours, theirs = (house.do(steps) for house in houses)
        assert ours == theirs
        assert picture(stores[0]) == picture(stores[1])
        assert list(stores[0].check(repair=False)) == []
        clock.advance(chance.choice([0, 1, 500, 31_000]))
    for store in stores:
        store.close()


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    db = apsw.Connection(str(path))
    try:
        return list(db.execute(statement))
    finally:
        db.close()


def test_shared_commit_of_publish_and_lease_reads_no_message_from_a_table(tmp_path: Path) -> None:
    house = StoreOperations(SqliteStore(tmp_path / "queue.db", durability="os"), ManualClock())
    asked: list[str] = []

    def trace(cursor: object, text: str, bindings: object) -> bool:
        asked.append(text)
        return True

    house.store.file.db.set_exec_trace(trace)  # type: ignore[attr-defined]
    house.do([publish("mail", [envelope("a"), envelope("b")]), lease("mail", 9)])
    assert not [text for text in asked if "INTO fresh" in text or "CAST(payload AS BLOB)" in text]
    house.do([ack_some("mail", 0, 9)])
    house.store.close()
    assert rows(tmp_path / "queue.db", "SELECT first, last, state, ids FROM batch") == [(1, 2, "done", None)]


def test_next_due_follows_each_lease_and_ack(tmp_path: Path) -> None:
    clock = ManualClock()
    ours = SqliteStore(tmp_path / "queue.db", durability="os")
    houses = [StoreOperations(store, clock) for store in (ours, MemoryStore())]
    seen = []
    for steps in (
        [publish("mail", [envelope("a"), envelope("b")]), look("mail", "a"), lease("mail", 1), look("mail", "a")],
        [lease("mail", 1), look("mail", "b"), ack_some("mail", 0, 1), look("mail", "b")],
        [ack_some("mail", 0, 1), look("mail", "b")],
    ):
        clock.advance(1_000)
        ours_now, theirs_now = (house.do(steps) for house in houses)
        assert ours_now == theirs_now
        with ours.transaction() as transaction:
            seen.append(transaction.next_due())
    assert len(set(seen)) == 3
    ours.close()


def test_trim_writes_the_ids_of_a_run_whose_contents_it_deletes(tmp_path: Path) -> None:
    house = StoreOperations(SqliteStore(tmp_path / "queue.db", durability="os"), ManualClock())
    with house.store.transaction() as transaction:
        transaction.set_policy("mail", '{"archive":{"maxMessages":1}}')
    house.do([publish("mail", [envelope("a"), envelope("b")]), lease("mail", 9), ack_some("mail", 0, 9)])
    with house.store.transaction() as transaction:
        transaction.trim(9)
    kept = rows(tmp_path / "queue.db", "SELECT first, last, body, ids FROM batch ORDER BY first")
    assert kept == [(1, 1, 0, '{"a":1}'), (2, 2, 1, None)]
    with house.store.transaction() as transaction:
        cards = transaction.by_id("mail", ["a", "b"])
    assert [card and (card.state, card.body) for card in cards] == [(State.DONE, False), (State.DONE, True)]
    house.store.close()


def test_cache_does_not_deliver_messages_that_another_process_changed(tmp_path: Path) -> None:
    """A message just published is rewritten, and one just leased is settled, by somebody else."""
    clock = ManualClock()
    one, other = (StoreOperations(SqliteStore(tmp_path / "queue.db", durability="os"), clock) for _ in range(2))
    one.do([publish("mail", [envelope("a"), envelope("b")])])
    with other.store.transaction() as transaction:
        [card] = transaction.by_id("mail", ["a"])
        assert card is not None
        transaction.rewrite([card], [envelope("a", b'"another"')])
    [got] = one.do([lease("mail", 9)])
    assert [(id, payload) for id, payload, *_ in got] == [("a", b'"another"'), ("b", b"1")]  # type: ignore[attr-defined]
    other.do([ack_some("mail", 0, 1)])
    one.do([ack_some("mail", 0, 9)])
    assert picture(one.store) == picture(other.store)
    assert list(one.store.check(repair=False)) == []
    one.store.close()
    other.store.close()


def test_cache_of_new_arrivals_is_bounded_in_bytes() -> None:
    arrivals = RecentPayloads()
    most = MAX_RECENT_BYTES - RECENT_OVERHEAD_BYTES
    arrivals.add(1, [envelope("a"), envelope("b")], 2)
    assert arrivals.find(1, 3) is None
    assert arrivals.find(2, 1) == [envelope("b")]
    arrivals.drop(1, 1)
    assert arrivals.find(1, 1) is None
    arrivals.add(3, [envelope("c")], most)
    assert arrivals.find(3, 1) is None, "there is no room for it"
    assert arrivals.find(2, 1) == [envelope("b")], "and somebody wants what came before"
    arrivals.add(4, [envelope("d")], most)
    arrivals.add(5, [envelope("e")], 1)
    assert arrivals.find(5, 1) == [envelope("e")]
    arrivals.add(6, [envelope("f")], most)
    arrivals.add(7, [envelope("g")], most)
    assert arrivals.find(2, 1) is None, "nobody wanted it while much passed by"
    assert arrivals.find(7, 1) == [envelope("g")]
    arrivals.add(8, [envelope("h")], most + 1)
    assert arrivals.find(8, 1) is None


def test_cache_of_new_arrivals_counts_messages_without_a_body() -> None:
    arrivals = RecentPayloads()
    number = MAX_RECENT_BYTES // RECENT_OVERHEAD_BYTES
    arrivals.add(1, [envelope("a")] * number, 0)
    assert arrivals.find(1, 1) is not None
    arrivals.add(number + 1, [envelope("b")], 0)
    assert arrivals.find(number + 1, 1) is None
    arrivals.drop(1, number)
    arrivals.add(number + 1, [envelope("b")], 0)
    assert arrivals.find(number + 1, 1) is not None


def test_runs_ahead_of_a_released_message_are_still_leased_as_runs(tmp_path: Path) -> None:
    """Runs are handed out as runs as far as they stand before the first message with a row of its own."""
    clock = ManualClock()
    houses = [
        StoreOperations(SqliteStore(tmp_path / "queue.db", durability="os"), clock),
        StoreOperations(MemoryStore(), clock),
    ]
    lines = []
    for house in houses:
        house.do([publish("mail", [envelope(f"m{n:02}") for n in range(12)]), lease("mail", 3)])
        with house.store.transaction() as transaction:
            [card] = transaction.by_id("mail", ["m01"])
            assert card is not None
            back = card._replace(state=State.READY, due_at=0, consumer="", place=transaction.places(1))
            transaction.swap([Change(card, back)])
        with house.store.transaction(write=False) as transaction:
            lines.append([sent.id for _, sent in transaction.heads("mail", 20)])
    assert lines[0] == lines[1] == [*(f"m{n:02}" for n in range(3, 12)), "m01"]
    with houses[0].store.transaction(write=False) as transaction:
        runs = transaction.run_operations()
        assert runs is not None
        for limit, found in ((5, [5]), (9, [9]), (10, None)):
            heads = runs.head_runs("mail", limit, 0)
            assert (heads if heads is None else [run.length for run, _ in heads]) == found
    for house in houses:
        house.store.close()
