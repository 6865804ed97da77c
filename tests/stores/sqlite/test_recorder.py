"""What a connection remembers of what went through it."""

from collections.abc import Iterator

import apsw
import pytest

from yirangmq.stores.sqlite.recorder import MAX_MISSES, Recorder
from yirangmq.stores.sqlite.statements import Effects, Misses, Statement, cached_query


def change(number: int, text: str, *, fills: str = "", deferrable: bool = False) -> Statement:
    """A statement with a number that is not of the redo log."""
    statement = Statement(text)
    statement.effects = Effects(number, fills, deferrable, text.startswith("INSERT"))
    return statement


LOOK = cached_query("SELECT n FROM line WHERE queue = ? ORDER BY n", empty_until="line")
PUT = change(-1, "INSERT INTO line VALUES (?, ?)", fills="line")
COUNT = change(-2, "UPDATE total SET line = line + ?", deferrable=True)
TOTAL = Statement("SELECT line FROM total")


def recorder_of(db: apsw.Connection) -> tuple[Recorder, Misses]:
    misses: Misses = {"line": set()}
    return Recorder(db, misses), misses


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
    recorder, _ = recorder_of(db)
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


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("text", ["INSERT INTO line VALUES (1, 2)", "UPDATE line SET queue = 1"])
def test_negative_cache_is_invalidated_by_a_statement_that_fills_its_table(
    db: apsw.Connection, text: str, deferrable: bool
) -> None:
    recorder, _ = recorder_of(db)
    db.execute("INSERT INTO line VALUES (9, 2)")
    assert list(recorder.execute(LOOK, (1,))) == []
    recorder.execute(change(-3, text, fills="line", deferrable=deferrable))
    assert (2,) in list(recorder.execute(LOOK, (1,)))


def test_update_that_changes_no_row_is_not_logged(db: apsw.Connection) -> None:
    recorder, _ = recorder_of(db)
    update = change(-3, "UPDATE line SET queue = ?")
    recorder.execute(update, (1,))
    assert recorder.logged == []
    recorder.execute(PUT, (1, 7))
    recorder.execute(update, (2,))
    assert recorder.logged == [(-1, False, (1, 7)), (-3, False, (2,))]


def test_negative_cache_is_bounded(db: apsw.Connection) -> None:
    recorder, misses = recorder_of(db)
    for queue in range(2 * MAX_MISSES):
        assert list(recorder.execute(LOOK, (queue,))) == []
    assert sum(len(known) for known in misses.values()) <= MAX_MISSES


def test_deferred_statements_are_executed_before_a_query_also_in_a_later_batch(db: apsw.Connection) -> None:
    recorder, _ = recorder_of(db)
    recorder.execute(COUNT, (5,))
    assert recorder.logged == [(-2, False, (5,))]
    assert next(db.execute("SELECT line FROM total")) == (0,)
    recorder.start()
    recorder.execute(COUNT, (2,))
    assert recorder.logged == [(-2, False, (2,))]
    assert next(recorder.execute(TOTAL)) == (7,)
    assert next(recorder.execute(TOTAL)) == (7,)


def test_connection_in_a_background_commit_is_waited_for_before_a_query(db: apsw.Connection) -> None:
    recorder, _ = recorder_of(db)
    assert list(recorder.execute(LOOK, (1,))) == []
    reached = []

    def join_background_commit() -> None:
        reached.append(next(db.execute("SELECT line FROM total")))
        recorder.join_background_commit = None

    recorder.join_background_commit = join_background_commit
    recorder.execute(COUNT, (5,))
    assert list(recorder.execute(LOOK, (1,))) == []
    assert reached == []
    assert next(recorder.execute(TOTAL)) == (5,)
    assert reached == [(0,)]


def test_deferred_statements_are_discarded_on_rollback(db: apsw.Connection) -> None:
    recorder, _ = recorder_of(db)
    recorder.execute(COUNT, (5,))
    recorder.discard_deferred()
    assert next(recorder.execute(TOTAL)) == (0,)
