"""What a connection remembers of what went through it."""

from collections.abc import Iterator

import apsw
import pytest

from yirangmq.stores.sqlite.cache import MAX_MISSES, Recorder

LOOK = "SELECT n FROM line WHERE queue = ? ORDER BY n"
PUT = "INSERT INTO line VALUES (?, ?)"
COUNT = "UPDATE total SET line = line + ?"


@pytest.fixture
def db() -> Iterator[apsw.Connection]:
    logged = apsw.Connection(":memory:")
    logged.execute("CREATE TABLE line (queue, n); CREATE TABLE total (line); INSERT INTO total VALUES (0)")
    yield logged
    logged.close()


@pytest.fixture
def asked(db: apsw.Connection) -> list[str]:
    found: list[str] = []

    def trace(cursor: object, statement: str, bindings: object) -> bool:
        found.append(statement)
        return True

    db.set_exec_trace(trace)
    return found


def test_negative_cache_skips_a_query_until_a_row_is_inserted_into_its_table(
    db: apsw.Connection, asked: list[str]
) -> None:
    recorder = Recorder(db, [COUNT], {LOOK: "line"})
    for _ in range(3):
        assert list(recorder.execute(LOOK, (1,))) == []
    recorder.execute(COUNT, (5,))  # has a column of that name
    recorder.flush_deferred()
    assert list(recorder.execute(LOOK, (1,))) == []
    assert asked == [LOOK, COUNT]
    recorder.execute(PUT, (1, 7))
    recorder.executemany(PUT, [(1, 8)])
    for _ in range(2):
        assert list(recorder.execute(LOOK, (1,))) == [(7,), (8,)]
        assert next(recorder.execute(LOOK, (1,))) == (7,)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO line VALUES (1, 2)",
        "INSERT OR IGNORE INTO line VALUES (1, 2)",
        "REPLACE INTO line VALUES (1, 2)",
        "\nINSERT INTO line SELECT 1, 2",
        "UPDATE line SET queue = 1",
        "UPDATE OR IGNORE line SET queue = 1",
    ],
)
@pytest.mark.parametrize("is_patient", [False, True])
def test_negative_cache_is_invalidated_by_every_kind_of_insert(
    db: apsw.Connection, statement: str, is_patient: bool
) -> None:
    recorder = Recorder(db, [statement] if is_patient else [], {LOOK: "line"})
    db.execute("INSERT INTO line VALUES (9, 2)")
    assert list(recorder.execute(LOOK, (1,))) == []
    recorder.execute(statement)
    assert (2,) in list(recorder.execute(LOOK, (1,)))


def test_negative_cache_is_invalidated_on_request(db: apsw.Connection) -> None:
    recorder = Recorder(db, [], {LOOK: "line"})
    assert list(recorder.execute(LOOK, (1,))) == []
    db.execute(PUT, (1, 7))
    recorder.invalidate_misses()
    assert list(recorder.execute(LOOK, (1,))) == [(7,)]


def test_negative_cache_is_bounded(db: apsw.Connection) -> None:
    recorder = Recorder(db, [], {LOOK: "line"})
    for queue in range(2 * MAX_MISSES):
        assert list(recorder.execute(LOOK, (queue,))) == []
    assert sum(len(known) for known in recorder._misses.values()) <= MAX_MISSES


def test_deferred_statements_are_executed_before_a_query_also_in_a_later_batch(db: apsw.Connection) -> None:
    recorder = Recorder(db, [COUNT])
    recorder.execute(COUNT, (5,))
    assert recorder.logged == [(COUNT, False, (5,))]
    assert next(db.execute("SELECT line FROM total")) == (0,)
    recorder.start()
    recorder.execute(COUNT, (2,))
    assert recorder.logged == [(COUNT, False, (2,))]
    assert next(recorder.execute("SELECT line FROM total")) == (7,)
    assert next(recorder.execute("SELECT line FROM total")) == (7,)


def test_connection_in_a_background_commit_is_waited_for_before_a_query(db: apsw.Connection) -> None:
    recorder = Recorder(db, [COUNT], {LOOK: "line"})
    assert list(recorder.execute(LOOK, (1,))) == []
    reached = []

    def join_background_commit() -> None:
        reached.append(next(db.execute("SELECT line FROM total")))
        recorder.join_background_commit = None

    recorder.join_background_commit = join_background_commit
    recorder.execute(COUNT, (5,))
    assert list(recorder.execute(LOOK, (1,))) == []
    assert reached == []
    assert next(recorder.execute("SELECT line FROM total")) == (5,)
    assert reached == [(0,)]


def test_deferred_statements_are_discarded_on_rollback(db: apsw.Connection) -> None:
    recorder = Recorder(db, [COUNT])
    recorder.execute(COUNT, (5,))
    recorder.discard_deferred()
    assert next(recorder.execute("SELECT line FROM total")) == (0,)
