"""The redo log is a format: what a version wrote, later ones replay."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import pytest

from tests.support.golden_files import golden
from tests.support.redo_samples import shown, unpack
from tests.support.sqlite import after_a_kill, plain, served
from yirangmq.core.errors import StoreTooNew
from yirangmq.core.states import State
from yirangmq.format.messagepack import pack
from yirangmq.stores.sqlite import sql, statements
from yirangmq.stores.sqlite.connection import steps
from yirangmq.stores.sqlite.payloads import SELECT_PACKED
from yirangmq.stores.sqlite.redo_format import FORMAT, HEAD, RedoPosition, commits, record
from yirangmq.stores.sqlite.redo_log import PLAIN_RECORDS
from yirangmq.stores.sqlite.redo_replay import read_position, redo_path
from yirangmq.stores.sqlite.runs import FRESH_BEHIND, FRESH_LINE
from yirangmq.stores.sqlite.statements import STATEMENTS, Statement
from yirangmq.testing import open_for_test

POSITION = RedoPosition(0x0102030405060708, 3)
CHANGES: list[Any] = [
    (25, False, (1, "01J", -1, 2**53)),
    (66, True, [(1, 2, b"\x00\xff", b""), (3, 4, b"", "ü".encode())]),
    (16, False, ("key", None)),
    (38, False, (State.LEASED, True, 1.5)),
]


@pytest.mark.parametrize("opener", [plain, served])
@pytest.mark.parametrize("sample", ["redo-log-v0", "redo-log-v1"])
def test_redo_log_of_every_released_format_is_replayed_after_a_kill(home: Path, sample: str, opener: Any) -> None:
    expected = unpack(sample, home)
    store = opener(home)
    assert shown(store) == expected
    assert list(store.check(repair=False)) == []
    store.close()


def test_redo_record_has_the_bytes_of_its_format() -> None:
    data = record(POSITION.generation, POSITION.number, FORMAT + pack(CHANGES))
    assert data.hex() == golden("redo-record-v1.hex").decode().replace("\n", "")
    [found] = commits(data, POSITION)
    assert [(STATEMENTS[number], is_many) for number, is_many, _ in CHANGES] == [found[n][:2] for n in range(4)]
    assert found[1][2] == [[1, 2, b"\x00\xff", b""], [3, 4, b"", "ü".encode()]]
    assert [found[n][2] for n in (0, 2, 3)] == [[1, "01J", -1, 2**53], ["key", None], ["leased", True, 1.5]]


def test_redo_record_with_any_flipped_byte_is_void() -> None:
    data = record(POSITION.generation, POSITION.number, FORMAT + pack(CHANGES))
    for at in range(len(data)):
        torn = bytearray(data)
        torn[at] ^= 0x10
        assert list(commits(bytes(torn), POSITION)) == []
    assert [list(commits(data[:end], POSITION)) for end in range(len(data))] == [[]] * len(data)


def test_statement_numbers_keep_their_texts() -> None:
    """A number that is in use never gets another text: a log of an earlier version names it. A new statement gets the
    next number, and its line here."""
    known = json.loads(golden("redo-statements.json"))
    assert {str(number): str(text) for number, text in STATEMENTS.items()} == known


def test_every_statement_that_changes_the_store_has_a_number() -> None:
    """A change without a number would not be logged."""
    for module in [module for name, module in sys.modules.items() if name.startswith("yirangmq.stores.sqlite.")]:
        for value in vars(module).values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Statement):
                    is_query = one.lstrip().startswith(("SELECT", "WITH"))
                    assert (one.effects.number == 0) == is_query, one
                    assert one.effects.number == 0 or STATEMENTS[one.effects.number] is one
    assert len({id(one) for one in STATEMENTS.values()}) == len(STATEMENTS) == max(STATEMENTS)


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"\x02\x90", "format 2"), (FORMAT + pack([(60_000, False, ())]), "statement 60000")],
)
def test_redo_log_of_a_newer_version_is_refused_and_left_as_it_is(
    home: Path, tmp_path: Path, body: bytes, text: str
) -> None:
    store = served(home)
    open_for_test(store=store).publish("q", b"x")
    left = after_a_kill(home, tmp_path / "left")
    store.close()
    db = apsw.Connection(str(left / "queue.db"))
    position = read_position(db)
    db.close()
    log = left / "queue.db-redo"
    data = log.read_bytes()
    [length, *_] = HEAD.unpack_from(data)
    second = record(position.generation, position.number + 1, body)
    written = data[: HEAD.size + length] + second
    log.write_bytes(written + bytes(len(data) - len(written)))
    for opener in (plain, served):
        with pytest.raises(StoreTooNew, match=text):
            opener(left)
    assert log.read_bytes().startswith(written)


# -- statements ---------------------------------------------------------------------------------------------------


@pytest.fixture
def db() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    for _, text in steps():
        made.execute(text)
    return made


ACTIONS = {"SQLITE_READ": "read", "SQLITE_INSERT": "insert", "SQLITE_UPDATE": "update", "SQLITE_DELETE": "delete"}


def effects(db: apsw.Connection, statement: Statement) -> dict[str, set[str]]:
    """The tables that SQLite reads, inserts into, updates and deletes from, as it says when it prepares a statement."""
    found: dict[str, set[str]] = {name: set() for name in ACTIONS.values()}
    for action in apsw.ext.query_info(db, statement, actions=True).actions or []:
        if action.action_name in ACTIONS and action.table_name is not None:
            found[ACTIONS[action.action_name]].add(action.table_name)
    return found


@pytest.mark.parametrize("number", STATEMENTS)
def test_statement_declares_what_it_does(db: apsw.Connection, number: int) -> None:
    statement = STATEMENTS[number]
    found = effects(db, statement)
    assert statement.effects.number == number
    filled = found["insert"] | found["update"]
    assert filled & {"ready", "fresh"} == ({statement.effects.fills} - {""})
    assert len(filled | found["delete"]) == 1
    assert statement.effects.is_always_logged == bool(found["insert"])


@pytest.mark.parametrize("statement", [sql.IS_ANY_SINGLE, sql.SCAN_READY, FRESH_LINE, FRESH_BEHIND])
def test_query_with_a_negative_cache_depends_on_its_table(db: apsw.Connection, statement: Statement) -> None:
    found = effects(db, statement)
    assert found["read"] - {"message"} == {statement.empty_until}
    assert found["insert"] | found["update"] | found["delete"] == set()


def test_queries_have_no_number(db: apsw.Connection) -> None:
    queries = [one for one in vars(sql).values() if isinstance(one, Statement)]
    assert len(queries) > 20
    for query in (*queries, SELECT_PACKED.span, sql.ENVELOPES.some):
        assert query.effects.number == 0
        found = effects(db, query)
        assert found["insert"] | found["update"] | found["delete"] == set()


def test_statement_for_messages_names_them_by_span_or_one_by_one() -> None:
    assert statements.END_LIVES.among([4, 5, 6]) == (statements.END_LIVES.span, (4, 6))
    assert statements.END_LIVES.among([6, 4]) == (statements.END_LIVES.some, ("[6,4]",))
    assert statements.END_LIVES.among([4, 4]) == (statements.END_LIVES.some, ("[4,4]",))


COMMITS_WITHOUT_MSGSPEC = """
import sys
from pathlib import Path
from yirangmq.stores.sqlite.redo_log import PLAIN_RECORDS, RedoLog
from yirangmq.stores.sqlite.redo_format import RedoPosition

if sys.argv[2] == "missing":
    sys.modules["msgspec"] = None
log = RedoLog(Path(sys.argv[1]), RedoPosition(1), sync=False)
seen = set()
for number in range(PLAIN_RECORDS + 10):
    assert log.append([(16, False, (str(number), "x"))], lambda: None)
    seen.add(sys.modules.get("msgspec") is not None)
assert seen == ({False} if sys.argv[2] == "missing" else {False, True}), seen
"""


@pytest.mark.process
@pytest.mark.parametrize("msgspec", ["there", "missing"])
def test_redo_log_is_written_without_msgspec_until_there_are_many_commits(tmp_path: Path, msgspec: str) -> None:
    path = tmp_path / "queue.db"
    subprocess.run([sys.executable, "-c", COMMITS_WITHOUT_MSGSPEC, str(path), msgspec], check=True, timeout=60)
    found = list(commits(redo_path(path).read_bytes(), RedoPosition(1)))
    assert [one[0][2] for one in found] == [[str(number), "x"] for number in range(PLAIN_RECORDS + 10)]
