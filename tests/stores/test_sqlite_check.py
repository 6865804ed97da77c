"""``check`` finds each thing that can be wrong in a SQLite store, ``repair`` mends it, nothing is wrong afterwards."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from yirangmq import LeaseLost, NewMessage
from yirangmq.broker.queues import Queues
from yirangmq.stores.sqlite import SqliteStore
from yirangmq.testing import open_for_test

FAULTS = {
    "nowhere": "DELETE FROM ready WHERE seq = 5",
    "twice": "INSERT INTO life SELECT seq, queue, 'm', 'dead', rank, 5, 0, 0, 0, 0, 9, '', '', 0, 1, 0, 0, 1 FROM ready "
    "LIMIT 1",
    "in line twice": "INSERT INTO ready SELECT queue, 0, rank, 99, seq, 0, 0, 0, 0, '', '', 0, 0, 1 FROM ready LIMIT 1",
    "nameless": "DELETE FROM name WHERE id = 'm5'",
    "stateless": "UPDATE life SET state = 'leasfd' WHERE state = 'leased'",
    "bodiless in line": "DELETE FROM message WHERE seq = 5",
    "bodiless": "DELETE FROM message WHERE id = 'm1'",
    "miscounted": "UPDATE queue SET ready = 7, dead = 0",
    "bytes": "UPDATE queue SET bytes = 1",
    "misgrouped": "INSERT INTO member VALUES (1, 77, 5, 5)",
    "stuck": "UPDATE life SET state = 'held', grp = 7 WHERE state = 'leased'; "
    "INSERT INTO member SELECT queue, grp, place, seq FROM life WHERE state = 'held'; "
    "UPDATE queue SET leased = 0, held = 1",
    "payload": "UPDATE message SET payload = CAST(x'227aff22' AS TEXT) WHERE id = 'm5'",
    "payload of a dead one": "UPDATE message SET payload = CAST(x'227aff22' AS TEXT) WHERE id = 'm1'",
    "json": "UPDATE message SET payload = '{\"a\":' WHERE id = 'm5'",
    "header": "UPDATE message SET header = '{\"type\"' WHERE id = 'm5'",
}
KINDS = {
    "in line twice": "twice",
    "bodiless in line": "bodiless",
    "payload of a dead one": "unreadable",
    "bytes": "miscounted",
    **dict.fromkeys(("payload", "json", "header"), "unreadable"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two ready, one leased, one dead, one done, one remembered by its id."""
    path = tmp_path / "queue.db"
    with _opened(path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", type="t") for n in range(6)])
        first, second, _, fourth = queues.lease("mail", 4)
        queues.ack(first.lease_id)
        queues.nack(second.lease_id, "REJECTED", "never")
        queues.drop("mail", [fourth.id])
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, durability="os")
    yield store
    store.close()


def _opened(path: Path) -> Queues:
    return open_for_test(store=SqliteStore(path, durability="os"))


def _harm(path: Path, statement: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(statement)
    assert db.changes()
    db.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_mended(path: Path, store: SqliteStore, fault: str) -> None:
    assert list(store.check(repair=False)) == []
    _harm(path, FAULTS[fault])
    found = list(store.check(repair=False))
    assert KINDS.get(fault, fault) in {finding.kind for finding in found}
    assert not any(finding.mended for finding in found)
    mended = list(store.check(repair=True))
    assert all(finding.mended for finding in mended)
    assert KINDS.get(fault, fault) in {finding.kind for finding in mended}
    assert list(store.check(repair=False)) == []


@pytest.mark.parametrize("fault", ["payload", "json", "header"])
def test_what_cannot_be_read_lies_among_the_dead_letters_as_bytes(path: Path, fault: str) -> None:
    _harm(path, FAULTS[fault])
    with _opened(path) as queues:
        list(queues.check(repair=True))
        _, look = queues.peek("mail", state="dead")
        assert (look.message.id, look.message.reason) == ("m5", "CORRUPT")
        assert look.failure is not None
        assert "cannot be read" in look.failure.reason_message
        assert look.envelope is not None
        assert not look.envelope.is_json
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["m4"]


def test_one_that_cannot_be_read_holds_nobody_up(path: Path) -> None:
    _harm(path, "UPDATE message SET payload = CAST(x'227aff22' AS TEXT) WHERE id = 'm4'")
    with _opened(path) as queues:
        first = queues.peek("mail")[0].envelope
        assert first is not None
        assert first.payload == b'"z\xff"'
        assert [delivery.id for delivery in queues.lease("mail", 1)] == ["m5"]
        assert {look.message.id for look in queues.peek("mail", state="dead")} == {"m1", "m4"}
        assert list(queues.check()) == []


def test_a_number_of_any_size_is_readable(path: Path) -> None:
    with _opened(path) as queues:
        queues.publish_text("mail", [b'{"far": 1e999}'])
        assert list(queues.check()) == []


def test_a_message_put_back_in_line_has_no_lease_that_was_given_before(path: Path) -> None:
    with _opened(path) as queues:
        [old] = queues.lease("mail", 1)
    _harm(path, f"DELETE FROM life WHERE id = '{old.id}'")
    with _opened(path) as queues:
        list(queues.check(repair=True))
        again = {delivery.id: delivery for delivery in queues.lease("mail", 9)}[old.id]
        assert again.lease_id != old.lease_id
        with pytest.raises(LeaseLost):
            queues.ack(old.lease_id)
