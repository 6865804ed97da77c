"""``check`` finds each thing that can be wrong in a SQLite store, ``repair`` mends it, nothing is wrong afterwards."""

from pathlib import Path

import apsw
import pytest

from tests.support.sqlite import open_sqlite
from yirangmq import LeaseLost, NewMessage
from yirangmq.stores.sqlite.store import SqliteStore

FAULTS = {
    "nowhere": "DELETE FROM ready WHERE seq = 5",
    "twice": "INSERT INTO life SELECT seq, queue, 'm', 'dead', rank, 5, 0, 0, 0, 0, 9, '', '', 0, 1, 0, 0, 1 "
    "FROM ready LIMIT 1",
    "in line twice": "INSERT INTO ready SELECT queue, 0, rank, 99, seq, 0, 0, 0, 0, '', '', 0, 0, 1 FROM ready LIMIT 1",
    "nameless": "DELETE FROM name WHERE id = 'm5'",
    "stateless": "UPDATE life SET state = 'leasfd' WHERE state = 'leased'",
    "bodiless in line": "DELETE FROM message WHERE seq = 5",
    "bodiless": "DELETE FROM message WHERE id = 'm1'",
    "miscounted": "UPDATE queue SET ready = 7, dead = 0",
    "bytes": "UPDATE queue SET bytes = 1",
    "acked": "UPDATE queue SET acked = 0",
    "published": "UPDATE queue SET published = 1",
    "misgrouped": "INSERT INTO member VALUES (1, 77, 5, 5)",
    "stuck": "UPDATE life SET state = 'held', grp = 7 WHERE state = 'leased'; "
    "INSERT INTO member SELECT queue, grp, place, seq FROM life WHERE state = 'held'; "
    "UPDATE queue SET leased = 0, held = 1",
    "payload": "UPDATE message SET payload = CAST(x'227aff22' AS TEXT) WHERE id = 'm5'",
    "payload of a dead one": "UPDATE message SET payload = CAST(x'227aff22' AS TEXT) WHERE id = 'm1'",
    "json": "UPDATE message SET payload = '{\"a\":' WHERE id = 'm5'",
    "header": "UPDATE message SET header = '{\"type\"' WHERE id = 'm5'",
}
RUN_FAULTS = {
    "nowhere": "DELETE FROM fresh",
    "twice": "INSERT INTO life SELECT first, queue, 'm', 'dead', rank, 5, 0, 0, 0, 0, 9, '', '', 0, 1, 0, 0, 1 "
    "FROM fresh",
    "in line twice": "INSERT INTO ready SELECT queue, 0, rank, 99, first, 0, 0, 0, 0, '', '', 0, 0, 1 FROM fresh",
    "in hand and in line": "INSERT INTO fresh SELECT queue, rank, first, last FROM batch WHERE state = 'leased'",
    "stateless batch": "UPDATE batch SET state = 'leasfd' WHERE state = 'leased'",
    "lost ids": "UPDATE batch SET ids = '{}' WHERE state = 'done'",
    "no ids": "UPDATE batch SET ids = NULL, body = 0 WHERE state = 'done'",
    "too long": "UPDATE fresh SET last = 99999999999",
    "backwards": "UPDATE fresh SET last = first - 1",
    "one over the other": "INSERT INTO fresh SELECT queue, rank, last, last FROM fresh",
    "batch over batch": "INSERT INTO batch SELECT last + 1, last + 1, queue, rank, 'leased', 0, 0, '', 1, NULL "
    "FROM batch WHERE state = 'done'; UPDATE batch SET last = last + 1 WHERE state = 'done'",
    "of another rank": "UPDATE message SET rank = 3 WHERE seq = 5",
    "bodiless in line": "DELETE FROM message WHERE seq = 5",
    "bodiless in hand": "DELETE FROM message WHERE id = 'm2'",
    "nameless": "DELETE FROM name WHERE id = 'm5'",
    "miscounted": "UPDATE queue SET ready = 7, leased = 0",
    "acked": "UPDATE queue SET acked = 0",
    "payload": "UPDATE message SET payload = CAST(x'ff' AS TEXT) WHERE id = 'm5'",
    "payload gone": "DELETE FROM content",
    "payload elsewhere": "UPDATE message SET payload = payload + 33554432 * 99 WHERE id = 'm5'",
    "payload before all": "UPDATE message SET payload = -payload WHERE id = 'm5'",
    "litter": "INSERT INTO content VALUES (900, 901, x'0202', x'3131')",
    "contents over others": "UPDATE content SET last = 9; INSERT INTO content SELECT 6, 7, sizes, data FROM content",
    "payload in hand": "UPDATE message SET payload = CAST(x'ff' AS TEXT) WHERE id = 'm2'",
    "payload of a done one": "UPDATE message SET payload = CAST(x'ff' AS TEXT) WHERE id = 'm0'",
}
KINDS = {
    "in line twice": "twice",
    "in hand and in line": "twice",
    "bodiless in hand": "bodiless",
    "too long": "bodiless",
    "payload in hand": "unreadable",
    "payload of a done one": "unreadable",
    **dict.fromkeys(("payload gone", "payload elsewhere", "payload before all"), "unreadable"),
    "contents over others": "torn",
    **dict.fromkeys(
        ("stateless batch", "lost ids", "no ids", "backwards", "one over the other", "of another rank"), "torn"
    ),
    "batch over batch": "torn",
    "bodiless in line": "bodiless",
    "payload of a dead one": "unreadable",
    **dict.fromkeys(("bytes", "acked", "published"), "miscounted"),
    **dict.fromkeys(("payload", "json", "header"), "unreadable"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two ready, one leased, one dead, one done, one remembered by its id; each in a row of its own."""
    return _filled(tmp_path / "queue.db", ttl=1_000_000)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The same in runs, but for those that are dead or remembered."""
    return _filled(tmp_path / "runs.db")


def _filled(path: Path, ttl: float | None = None) -> Path:
    with open_sqlite(path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", type="t", ttl=ttl) for n in range(6)])
        first, second, _, fourth = queues.lease("mail", 4)
        queues.ack(first.lease_id)
        queues.nack(second.lease_id, "REJECTED", "never")
        queues.drop("mail", [fourth.id])
    return path


def _harm(path: Path, statement: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(statement)
    assert db.changes()
    db.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_check_finds_and_repairs_each_fault(path: Path, fault: str) -> None:
    _find_and_mend(path, FAULTS[fault], fault)


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_check_finds_and_repairs_each_fault_in_runs(runs: Path, fault: str) -> None:
    _find_and_mend(runs, RUN_FAULTS[fault], fault)
    with open_sqlite(runs) as queues:
        kept = {
            look.message.id
            for state in ("ready", "leased", "dead", "done")
            for look in queues.peek("mail", state=state)
        }
        assert {"m0", "m1", "m2", "m4", "m5"} - kept <= ({"m2"} if "in hand" in fault else {"m4"})
        assert queues.peek("mail", state="done")[0].message.id == "m0"


def _find_and_mend(path: Path, harm: str, fault: str) -> None:
    store = SqliteStore(path, durability="os")
    assert list(store.check(repair=False)) == []
    _harm(path, harm)
    found = list(store.check(repair=False))
    assert KINDS.get(fault, fault) in {finding.kind for finding in found}
    assert not any(finding.is_repaired for finding in found)
    is_repaired = list(store.check(repair=True))
    assert all(finding.is_repaired for finding in is_repaired)
    assert KINDS.get(fault, fault) in {finding.kind for finding in is_repaired}
    assert list(store.check(repair=False)) == []
    store.close()


@pytest.mark.parametrize("fault", ["payload", "json", "header"])
@pytest.mark.parametrize("kind", ["path", "runs"])
def test_check_moves_an_unreadable_message_to_the_dead_letters_as_bytes(
    request: pytest.FixtureRequest, kind: str, fault: str
) -> None:
    path = request.getfixturevalue(kind)
    _harm(path, FAULTS[fault])
    with open_sqlite(path) as queues:
        list(queues.check(repair=True))
        _, look = queues.peek("mail", state="dead")
        assert (look.message.id, look.message.reason) == ("m5", "CORRUPT")
        assert look.failure is not None
        assert "cannot be read" in look.failure.reason_message
        assert look.envelope is not None
        assert not look.envelope.is_json
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["m4"]


@pytest.mark.parametrize("kind", ["path", "runs"])
def test_lease_moves_an_unreadable_message_to_the_dead_letters_and_delivers_the_next(
    request: pytest.FixtureRequest, kind: str
) -> None:
    path = request.getfixturevalue(kind)
    _harm(path, "UPDATE message SET payload = CAST(x'ff' AS TEXT) WHERE id = 'm4'")
    with open_sqlite(path) as queues:
        first = queues.peek("mail")[0].envelope
        assert first is not None
        assert first.payload == b"\xff"
        assert [delivery.id for delivery in queues.lease("mail", 1)] == ["m5"]
        assert {look.message.id for look in queues.peek("mail", state="dead")} == {"m1", "m4"}
        assert list(queues.check()) == []


def test_check_accepts_a_json_number_of_any_size(path: Path) -> None:
    with open_sqlite(path) as queues:
        queues.publish_text("mail", [b'{"far": 1e999}'])
        assert list(queues.check()) == []


def test_check_that_makes_a_message_ready_again_voids_its_earlier_lease(path: Path) -> None:
    with open_sqlite(path) as queues:
        [old] = queues.lease("mail", 1)
    _harm(path, f"DELETE FROM life WHERE id = '{old.id}'")
    with open_sqlite(path) as queues:
        list(queues.check(repair=True))
        again = {delivery.id: delivery for delivery in queues.lease("mail", 9)}[old.id]
        assert again.lease_id != old.lease_id
        with pytest.raises(LeaseLost):
            queues.ack(old.lease_id)
