"""Batches of a pipeline: in once, whole or not at all, whatever is repeated, lost or cut off in between."""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from yirangmq.broker.credit_window import PendingLeaseRequest
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.sink_batches import LONG_JOB_ROWS, SinkBatches, positions
from yirangmq.clock import TimeOrderedIds
from yirangmq.core.errors import (
    BadInput,
    NotActive,
    NotFound,
    QueueError,
    QuotaExceeded,
    StoreFull,
    TooLarge,
    Unavailable,
    Unfit,
    WrongState,
)
from yirangmq.core.message import Counts
from yirangmq.core.ports import Transaction
from yirangmq.core.sink_batches import KEPT_BATCHES, STAGE_AGE_MS, BatchEntry, BatchStage, BatchState
from yirangmq.core.states import State
from yirangmq.core.topics import NewRecord, Record
from yirangmq.format.envelope import plain
from yirangmq.stores.log.log import SegmentLog
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.stores.staging import StageFiles
from yirangmq.testing import ManualClock
from yirangmq.wire.records import encode_batch

QUERY = "q-1"
Done = Callable[[Any, QueueError | None], None]


class LogTopics:
    """``broker.sink_batches.Topics`` on a real log. ``dies_after``: the power goes when so many calls were appended."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self.dies_after: int | None = None

    def last(self) -> int:
        return self._log.last

    def publish(self, records: Sequence[NewRecord], done: Done) -> None:
        if self.dies_after is not None:
            if self.dies_after == 0:
                return  # nobody is ever told
            self.dies_after -= 1
        self._log.append(records)
        done(None, None)

    def records_after(self, sequence: int) -> Iterator[Record]:
        return self._log.reader().records(sequence + 1)

    def seen(self) -> list[tuple[str, bytes]]:
        return [(record.topic, record.payload) for record in self._log.reader().records(1)]


class BatchServer:
    """A server without a network: its turns are the test's."""

    def __init__(self, folder: Path, store: Any, log: SegmentLog | None) -> None:
        self.clock = ManualClock()
        self.store = store
        self._soon: list[Callable[[], None]] = []
        self.stages = StageFiles(folder / "stages")
        self.topics = None if log is None else LogTopics(log)
        self.begin()

    def begin(self) -> None:
        """A server starts, on what the one before it left."""
        self._soon.clear()
        operations = QueueOperations(self.clock, TimeOrderedIds())
        self.desk = GroupCommitter(self.store, operations, self.clock, self._soon.append, lambda seconds, act: None)
        self.batches = SinkBatches(self.desk, self.stages, self._aside, self.clock, TimeOrderedIds())
        self.batches.topics = self.topics

    def _aside(self, work: Callable[[], Any], done: Done) -> None:
        try:
            value, problem = work(), None
        except QueueError as error:
            value, problem = None, error
        self._soon.append(lambda: done(value, problem))

    def turn(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def stage(self, batch: int, stage: str, *rows: tuple[str, bytes, dict[str, str]], pieces: int = 1) -> BatchStage:
        """Laid down in so many pieces."""
        checksum = 0
        size = -(-len(rows) // pieces)
        told: list[Any] = []
        for piece in range(pieces):
            data = frames(*rows[piece * size : (piece + 1) * size])
            self.batches.put(QUERY, batch, stage, piece, data, lambda *answer: told.append(answer))
            self.turn()
            received, error = told.pop()
            assert error is None
            assert received.checksum == crc32(data)
            checksum = crc32(data, checksum)
        return BatchStage(stage, pieces, len(rows), checksum)

    def commit(self, batch: int, *stages: BatchStage, bad_queue: str = "") -> tuple[BatchEntry, bool]:
        told: list[Any] = []
        self.batches.commit(QUERY, batch, stages, lambda *answer: told.append(answer), bad_queue)
        self.turn()
        [(result, error)] = told
        if error is not None:
            raise error
        entry, is_first = result
        return entry, is_first

    def dies_committing(self, batch: int, stage: BatchStage, calls: int) -> None:
        """When the topics have so many calls of it; and another server begins."""
        assert self.topics is not None
        self.topics.dies_after = calls
        told: list[Any] = []
        self.batches.commit(QUERY, batch, [stage], lambda *answer: told.append(answer))
        self.turn()
        assert told == []
        self.topics.dies_after = None
        self.begin()

    def counts(self, queue: str) -> Counts:
        return self.desk.read(lambda transaction: transaction.counts(queue))

    def payloads(self, queue: str) -> list[bytes]:
        return self.desk.read(lambda transaction: [sent.payload for _, sent in transaction.heads(queue, 10_000)])


def frames(*rows: tuple[str, bytes, dict[str, str]]) -> bytes:
    records = [NewRecord(target, payload, None, headers) for target, payload, headers in rows]
    return encode_batch(records, 1, 1, {}, synced=False).data if records else b""


def row(target: str, value: object, **headers: str) -> tuple[str, bytes, dict[str, str]]:
    return target, str(value).encode(), headers


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BatchServer]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "queue.db", durability="os")
    log = SegmentLog(tmp_path / "log")
    yield BatchServer(tmp_path, store, log)
    log.close()
    store.close()


def test_sink_batch_goes_to_queues_topics_and_dead_letters_at_once(house: BatchServer) -> None:
    first = house.stage(0, "0-0", row("queue:a", 1), row("topic:t", 2), row("dlq:a", 3, reason="no amount"))
    second = house.stage(0, "1-0", row("queue:b", 4), row("topic:t", 5), row("queue:a", 6), pieces=2)
    entry, is_first = house.commit(0, first, second)
    assert is_first
    assert (entry.step, entry.queue_rows, entry.dead_rows, entry.topic_rows) == (BatchState.DONE, 3, 1, 2)
    assert house.payloads("a") == [b"1", b"6"]
    assert house.payloads("b") == [b"4"]
    assert house.counts("a").dead == 1
    assert house.topics is not None
    assert house.topics.seen() == [("t", b"2"), ("t", b"5")]
    assert list(house.stages.batches()) == []


def test_sink_batch_passes_the_processors_of_its_queues(house: BatchServer) -> None:
    text = '{"processor": {"checks": [{"check": "length", "max": 1}]}}'
    with house.store.transaction() as transaction:
        transaction.set_policy("b", text)
    rows = (row("queue:a", 1), row("queue:b", 22), row("queue:b", 3))
    with pytest.raises(Unfit, match="check 'length' of queue 'b'"):
        house.commit(0, house.stage(0, "0-0", *rows))
    assert (house.counts("a").published, house.counts("b").published) == (0, 0)
    entry, _ = house.commit(0, house.stage(0, "0-1", *rows), bad_queue="bad")
    assert (entry.queue_rows, entry.dead_rows) == (2, 1)
    assert (house.payloads("a"), house.payloads("b"), house.counts("b").dead) == ([b"1"], [b"3"], 1)


def test_sink_batch_committed_twice_is_stored_once(house: BatchServer) -> None:
    stages = [house.stage(7, "0-0", row("queue:a", 1), row("topic:t", 2))]
    once, _ = house.commit(7, *stages)
    house.stage(7, "0-1", row("queue:a", 1), row("topic:t", 2))
    again, is_first = house.commit(7, *stages)
    assert (again, is_first) == (once._replace(refused=1), False)
    assert house.commit(7, *stages)[0].refused == 2
    assert house.payloads("a") == [b"1"]
    assert house.topics is not None
    assert house.topics.seen() == [("t", b"2")]


def test_sink_batch_committed_twice_at_the_same_time_is_stored_once_and_both_commits_succeed(
    house: BatchServer,
) -> None:
    stage = house.stage(1, "0-0", row("queue:a", 1))
    told: list[Any] = []
    for _ in range(2):
        house.batches.commit(QUERY, 1, [stage], lambda *answer: told.append(answer))
    house.turn()
    assert [(result[1], error) for result, error in told] == [(True, None), (False, None)]
    assert house.payloads("a") == [b"1"]


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_sink_batch_cut_off_before_the_topics_have_it_all_is_finished_after_a_restart(
    house: BatchServer, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.broker.sink_batches.MAX_PER_APPEND", 50)
    rows = [row("topic:t", n) for n in range(120)]
    stage = house.stage(3, "0-0", row("queue:a", "x"), *rows, pieces=3)
    house.dies_committing(3, stage, calls)
    house.batches.finish_pending()
    house.turn()
    assert house.topics is not None
    assert house.topics.seen() == [("t", str(n).encode()) for n in range(120)]
    assert house.payloads("a") == [b"x"]
    entry, is_first = house.commit(3, stage)
    assert (entry.step, is_first) == (BatchState.DONE, False)
    assert len(house.topics.seen()) == 120


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_sink_batch_committed_again_during_the_recovery_at_start_waits_for_it(
    house: BatchServer, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.broker.sink_batches.MAX_PER_APPEND", 10)
    rows = [row("topic:t", n) for n in range(30)]
    stage = house.stage(3, "0-0", row("queue:a", "x"), *rows, pieces=3)
    house.dies_committing(3, stage, 1)
    house.batches.finish_pending()
    for _ in range(turns):
        house._soon.pop(0)()
    entry, is_first = house.commit(3, stage)
    assert (entry.step, is_first) == (BatchState.DONE, False)
    assert house.topics is not None
    assert house.topics.seen() == [("t", str(n).encode()) for n in range(30)]
    assert house.payloads("a") == [b"x"]


def test_sink_batch_left_half_committed_is_finished_by_its_next_commit(house: BatchServer) -> None:
    stage = house.stage(3, "0-0", row("queue:a", "x"), row("topic:t", 1))
    house.dies_committing(3, stage, 0)
    entry, is_first = house.commit(3, stage)
    assert (entry.step, is_first) == (BatchState.DONE, False)
    assert house.topics is not None
    assert house.topics.seen() == [("t", b"1")]
    assert house.payloads("a") == [b"x"]


def test_sink_batch_with_a_missing_short_or_changed_stage_is_refused(house: BatchServer) -> None:
    stage = house.stage(0, "0-0", row("queue:a", 1), row("queue:a", 2))
    for wrong, kind in (
        (stage._replace(id="0-9"), NotFound),
        (stage._replace(pieces=2), NotFound),
        (stage._replace(rows=3), BadInput),
        (stage._replace(checksum=stage.checksum ^ 1), BadInput),
    ):
        with pytest.raises(kind, match=r"stage|stages"):
            house.commit(0, wrong)
    assert house.counts("a") == Counts()
    house.commit(0, stage)
    assert house.payloads("a") == [b"1", b"2"]


def test_sink_batch_with_an_invalid_row_is_refused_completely(house: BatchServer) -> None:
    for rows, kind, where in (
        ([row("queue:a", 1), row("elsewhere", 2)], BadInput, r"rows\[1\].target"),
        ([row("queue:a", 1), row("queue:.b", 2)], BadInput, r"rows\[1\].target"),
        ([row("queue:a", 1), row("queue:a", "{", contentType="application/json")], BadInput, r"rows\[1\].payload"),
        ([row("queue:a", 1), row("queue:a", 2, priority="soon")], BadInput, r"rows\[1\].priority"),
        ([row("queue:a", 1), row("queue:b", "x" * 2_000_000)], TooLarge, "value"),
    ):
        stage = house.stage(0, "0-0", *rows)
        with pytest.raises(kind, match=where):
            house.commit(0, stage)
        assert house.counts("a") == Counts()


def test_sink_batch_refused_by_a_full_queue_is_accepted_later(house: BatchServer) -> None:
    with house.store.transaction() as transaction:
        transaction.set_policy("b", '{"quota": {"maxMessages": 1}}')
    stage = house.stage(0, "0-0", row("queue:a", 1), row("queue:b", 2), row("queue:b", 3))
    with pytest.raises(QuotaExceeded):
        house.commit(0, stage)
    assert (house.counts("a"), house.counts("b")) == (Counts(), Counts())
    with house.store.transaction() as transaction:
        transaction.set_policy("b", None)
    assert house.commit(0, stage)[1]


def test_sink_batch_headers_become_members_of_the_envelope(house: BatchServer) -> None:
    told = {"messageId": "m1", "type": "order", "priority": "2", "attributes": '{"a": 1}', "colour": "red"}
    house.commit(0, house.stage(0, "0-0", row("queue:a", '{"b": 2}', contentType="application/json", **told)))
    [(card, sent)] = house.desk.read(lambda transaction: transaction.heads("a", 1))
    assert (card.id, card.rank, sent.is_json) == ("m1", 2, True)
    assert '"colour":"red"' in sent.header
    assert '"type":"order"' in sent.header


def test_sink_batch_with_topic_rows_is_refused_on_a_server_without_topics(tmp_path: Path) -> None:
    house = BatchServer(tmp_path, MemoryStore(), None)
    with pytest.raises(Unavailable):
        house.commit(0, house.stage(0, "0-0", row("queue:a", 1), row("topic:t", 2)))
    assert house.counts("a") == Counts()


def test_sink_batch_ledger_forgets_old_batches_and_refuses_batches_older_than_it_keeps(house: BatchServer) -> None:
    for batch in (0, 1, KEPT_BATCHES + 1):
        house.commit(batch, house.stage(batch, "0-0", row("queue:a", batch)))
    assert house.commit(1)[1] is False
    with pytest.raises(WrongState, match="older than the ledger"):
        house.commit(0, house.stage(0, "0-0", row("queue:a", 0)))
    assert len(house.payloads("a")) == 3


def test_sink_batch_without_rows_is_committed_once(house: BatchServer) -> None:
    assert house.commit(0)[1] is True
    assert house.commit(0)[1] is False


def test_sink_batch_ledger_knows_how_far_the_topics_were_at_least(house: BatchServer) -> None:
    """P-30: with it the server sees that the log lost its end. Entries before ``since_ms`` may be of another log."""
    house.commit(0, house.stage(0, "0-0", row("topic:t", 1), row("topic:t", 2)))
    house.commit(1, house.stage(1, "0-0", row("queue:a", 3)))
    house.clock.advance(1000)
    between = house.clock.wall_ms()
    house.dies_committing(2, house.stage(2, "0-0", row("topic:t", 4)), 0)
    assert house.desk.read(partial(positions, since_ms=0)) == {f"batch {QUERY}/0": 2, f"batch {QUERY}/2": 2}
    assert house.desk.read(partial(positions, since_ms=between)) == {f"batch {QUERY}/2": 2}
    house.batches.finish_pending()
    house.turn()
    assert house.desk.read(partial(positions, since_ms=between)) == {f"batch {QUERY}/2": 3}


def test_sink_batch_stages_never_committed_are_removed_by_the_sweeper(house: BatchServer) -> None:
    house.stage(5, "0-0", row("queue:a", 1))
    [(_, _, written)] = house.stages.batches()
    told: list[Any] = []
    for now in (written + STAGE_AGE_MS, written + STAGE_AGE_MS + 1):
        house.clock.advance(now - house.clock.now_ms())
        house.batches.sweep(lambda count, error: told.append((count, error)))
        house.turn()
    assert told == [(0, None), (1, None)]
    assert list(house.stages.batches()) == []


def test_sink_batch_piece_with_an_incomplete_record_is_rejected(house: BatchServer) -> None:
    data = frames(row("queue:a", 1))
    told: list[Any] = []
    for cut in (data[:-1], data + b"x", data[: len(data) // 2]):
        house.batches.put(QUERY, 0, "0-0", 0, cut, lambda *answer: told.append(answer))
    house.turn()
    assert [type(error) for _, error in told] == [BadInput] * 3
    assert list(house.stages.batches()) == []


def dead_letters(house: BatchServer, queue: str) -> list[tuple[bytes, str]]:
    def look(transaction: Transaction) -> list[tuple[bytes, str]]:
        found = transaction.scan(queue, State.DEAD, 100).messages
        pairs = zip(transaction.envelopes(found), transaction.failures(found), strict=True)
        return [(sent.payload if sent else b"", why.reason_message if why else "") for sent, why in pairs]

    return house.desk.read(look)


def test_sink_batch_rows_that_are_invalid_become_dead_letters_when_requested(house: BatchServer) -> None:
    rows = (
        row("queue:a", 1),
        row("elsewhere", 2),
        row("queue:a", "{", isJson="yes"),
        row("topic:.t", 4),
        row("topic:t", 5),
        row("queue:a", "x" * 2_000_000),
        row("queue:a", 7, priority="soon"),
    )
    told: list[Any] = []
    stage = house.stage(0, "0-0", *rows, pieces=2)
    house.batches.commit(QUERY, 0, [stage], lambda *answer: told.append(answer), "bad")
    house.turn()
    [((entry, is_first), error)] = told
    assert (error, is_first, entry.queue_rows, entry.dead_rows, entry.topic_rows) == (None, True, 1, 5, 1)
    assert house.payloads("a") == [b"1"]
    assert house.topics is not None
    assert house.topics.seen() == [("t", b"5")]
    reasons = {payload[:9]: why for payload, why in dead_letters(house, "a") + dead_letters(house, "bad")}
    assert sorted(reasons) == [b"2", b"4", b"7", b"xxxxxxxxx", b"{"]
    assert all(why.startswith("bad row: ") for why in reasons.values())
    assert "2000000 bytes" in reasons[b"xxxxxxxxx"]


def test_sink_batch_too_large_to_keep_in_memory_is_read_again_for_the_topics(
    house: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.broker.sink_batch_rows.KEPT_BYTES", 40)
    monkeypatch.setattr("yirangmq.broker.sink_batches.MAX_PER_APPEND", 7)
    rows = [row("queue:a" if n % 10 == 3 else "topic:t", n) for n in range(100)]
    more = [row("topic:t", n, **({"h": str(n)} if n > 150 else {})) for n in range(100, 200)]
    entry, _ = house.commit(0, house.stage(0, "0-0", *rows, pieces=4), house.stage(0, "1-0", *more, pieces=4))
    assert (entry.queue_rows, entry.topic_rows) == (10, 190)
    assert house.topics is not None
    assert house.topics.seen() == [("t", str(n).encode()) for n in range(200) if n % 10 != 3 or n >= 100]
    bad = house.stage(1, "0-0", *more, row("topic:.t", 1), pieces=5)
    with pytest.raises(BadInput, match=r"rows\[100\].target"):
        house.commit(1, bad)


@pytest.mark.parametrize("between", ["queues", "headers", "nothing"])
def test_sink_batch_rows_stay_unchanged_while_the_next_rows_are_read(house: BatchServer, between: str) -> None:
    """Pieces of which nothing goes to a topic are passed over: several are read then while one part is written."""
    others = [row("queue:a", f"q{n}", **({"h": "1"} if between == "headers" else {})) for n in range(6)]
    stages = []
    for number in range(3):
        rows = [row("topic:t", f"{number}{n}") for n in range(4)]
        stages.append(house.stage(0, f"{number}-0", *rows, pieces=3 if between == "nothing" else 2))
        if between != "nothing":
            stages.append(house.stage(0, f"{number}-1", *others, pieces=2 + number))
    house.commit(0, *stages)
    assert house.topics is not None
    assert [payload for _, payload in house.topics.seen()] == [b"%d%d" % (i, n) for i in range(3) for n in range(4)]
    assert len(house.payloads("a")) == (0 if between == "nothing" else 18)


def test_sink_batch_commit_in_parts_lets_other_requests_publish_in_between(house: BatchServer) -> None:
    """Each part is a turn of its own, and nobody waits for more than one of them."""
    stage = house.stage(0, "0-0", *(row("topic:t", n) for n in range(60)), pieces=6)
    told: list[Any] = []
    taken: list[int] = []
    house.batches.commit(QUERY, 0, [stage], lambda *answer: told.append(answer))
    assert house.topics is not None
    while not told:
        house._soon.pop(0)()
        house.topics.publish([NewRecord("other", b"")], lambda *answer: None)
        house.desk.submit(
            lambda transaction: house.desk.operations.publish(transaction, "a", [plain("a", str(len(taken)), b"x", 1)]),
            lambda value, error: taken.append(len(told)),
        )
    [((entry, _), error)] = told
    assert (error, entry.topic_rows) == (None, 60)
    assert taken.count(0) >= 6, "queues were written to before the commit was answered"
    lots = [(topic, len(list(lot))) for topic, lot in groupby(topic for topic, _ in house.topics.seen())]
    assert [lot for lot in lots if lot[0] == "t"] == [("t", 10)] * 6
    assert [payload for topic, payload in house.topics.seen() if topic == "t"] == [b"%d" % n for n in range(60)]


def test_sink_batch_cut_off_by_a_full_disk_fails_and_is_finished_by_the_next_try(
    house: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = house.stage(0, "0-0", *(row("topic:t", n) for n in range(60)), pieces=6)
    assert house.topics is not None
    publish, calls = house.topics.publish, []

    def full_once(records: Sequence[NewRecord], done: Done) -> None:
        calls.append(len(records))
        if len(calls) == 3:
            done(None, StoreFull("no room"))
        else:
            publish(records, done)

    monkeypatch.setattr(house.topics, "publish", full_once)
    with pytest.raises(StoreFull):
        house.commit(0, stage)
    assert calls == [10] * 3
    entry, is_first = house.commit(0, stage)
    assert (entry.topic_rows, is_first) == (60, False)
    assert [payload for _, payload in house.topics.seen()] == [b"%d" % n for n in range(60)]


@pytest.mark.parametrize("told", ["yes", "maybe", ""])
def test_sink_batch_row_header_decides_whether_its_value_is_json(house: BatchServer, told: str) -> None:
    headers = {"isJson": told} if told else {}
    house.commit(0, house.stage(0, "0-0", row("queue:a", '{"b": 2}', **headers)))
    house.commit(1, house.stage(1, "0-0", row("queue:a", "{ no", **({"isJson": "maybe"} if told else {}))))
    found = house.desk.read(lambda transaction: [sent.is_json for _, sent in transaction.heads("a", 10)])
    assert found == [bool(told), False]


# -- many rows: stored off the loop's thread ---------------------------------------------------------------------------


class Slow:
    """An ``aside`` whose works are done by a thread when the test says so."""

    def __init__(self, house: BatchServer) -> None:
        self._soon = house._soon
        self.works: list[tuple[Callable[[], Any], Done]] = []

    def __call__(self, work: Callable[[], Any], done: Done) -> None:
        self.works.append((work, done))

    def do(self) -> None:
        [(work, done)] = self.works
        self.works.clear()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self._soon.append(lambda: done(None, None))


def submit_many(house: BatchServer, aside: Slow) -> list[Any]:
    """As a batch does."""
    told: list[Any] = []

    def work(transaction: Transaction) -> int:
        now = house.clock.now_ms()
        rows = [plain("a", id, b"x", now) for id in TimeOrderedIds().new(LONG_JOB_ROWS)]
        return len(house.desk.operations.publish(transaction, "a", rows))

    house.desk.submit_long(work, lambda value, error: told.append((value, error)), aside)
    return told


def test_sink_batch_of_many_rows_keeps_the_event_loop_free_and_later_jobs_wait_their_turn(house: BatchServer) -> None:
    aside = Slow(house)
    first, second = submit_many(house, aside), submit_many(house, aside)
    house.turn()
    told: list[Any] = []
    house.desk.submit(lambda transaction: transaction.counts("a").ready, lambda *answer: told.append(answer))
    house.turn()
    assert (first, second, told, house.desk.is_idle) == ([], [], [], False)
    aside.do()
    house.turn()
    assert (first, told, second) == ([(LONG_JOB_ROWS, None)], [(LONG_JOB_ROWS, None)], [])
    aside.do()
    house.turn()
    assert second == [(LONG_JOB_ROWS, None)]
    assert house.desk.is_idle


def test_sink_batch_of_many_rows_serves_a_waiting_consumer_once_it_is_stored(house: BatchServer) -> None:
    aside = Slow(house)
    got: list[Any] = []

    def take(deliveries: Any) -> bool:
        got.append(deliveries)
        return True

    house.desk.add_waiter(PendingLeaseRequest("a", "w", None, 3, take))
    submit_many(house, aside)
    house.turn()
    assert got == []
    aside.do()
    house.turn()
    [deliveries] = got
    assert len(deliveries) == 3


def test_sink_batch_of_many_rows_is_stored_completely_or_not_at_all(house: BatchServer) -> None:
    rows = [row("queue:a", n) for n in range(LONG_JOB_ROWS)]
    bad = house.stage(0, "0-0", *rows, row("queue:a", "x" * 2_000_000))
    with pytest.raises(TooLarge):
        house.commit(0, bad)
    assert house.counts("a") == Counts()
    assert house.desk.is_idle
    entry, _ = house.commit(0, house.stage(0, "1-0", *rows, row("topic:t", "y")))
    assert (entry.queue_rows, entry.topic_rows) == (LONG_JOB_ROWS, 1)
    assert house.payloads("a") == [str(n).encode() for n in range(LONG_JOB_ROWS)]
    assert house.commit(0)[1] is False
    assert house.counts("a").ready == LONG_JOB_ROWS


def test_sink_batch_stored_after_the_active_role_ended_is_not_confirmed(house: BatchServer) -> None:
    house.desk.guard = guard = EndingDuty()
    aside = Slow(house)
    told = submit_many(house, aside)
    house.turn()
    guard.is_on = False
    aside.do()
    house.turn()
    [(_, error)] = told
    assert isinstance(error, NotActive)
    told = submit_many(house, aside)
    house.turn()
    assert aside.works == []
    assert isinstance(told[0][1], NotActive)


class EndingDuty:
    def __init__(self) -> None:
        self.is_on = self.accepts_new = True

    def refusal(self) -> NotActive:
        return NotActive("this node is standby in term 2")


@pytest.mark.parametrize("targets", [("queue:mail", "queue:mail-dlq"), ("queue:mail-dlq", "dlq:mail")])
def test_sink_batch_for_a_queue_and_its_dead_letter_queue_is_refused_completely(
    house: BatchServer, targets: tuple[str, str]
) -> None:
    """The name shows the dead letters of a queue that the same batch would make."""
    stage = house.stage(0, "0-0", *(row(target, number, reason="bad") for number, target in enumerate(targets)))
    with pytest.raises(BadInput, match="'mail-dlq' shows the dead letters of 'mail'"):
        house.commit(0, stage)
    assert (house.counts("mail"), house.counts("mail-dlq")) == (Counts(), Counts())
