"""Folders written in formats 1, 2 and 3: they open, and everything in them is what it was."""

import shutil
from pathlib import Path

import pytest

from tests.stores.files.parts import document, open_queues, tree
from yirangmq import NewMessage
from yirangmq.broker.queues import Queues
from yirangmq.core.message import Counts
from yirangmq.core.states import UNFINISHED, State
from yirangmq.stores.files.names import base36
from yirangmq.testing import ManualClock

GOLDEN = Path(__file__).parents[2] / "golden" / "files-v1"
START = 1_768_296_060_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "queues"))


def test_golden_folder_of_format_1_opens_with_states_counts_and_failures_unchanged(folder: Path) -> None:
    before = tree(folder)
    with open_queues(folder, ManualClock(START + 2_000)) as queues:
        assert list(queues.check()) == []
        assert without_totals(folder) == [path for path in before if "/totals/" not in path]
        seen = {
            state: [
                (look.message.id, look.message.attempt, look.message.consumer) for look in queues.walk("mail", state)
            ]
            for state in ("ready", "delayed", "leased", "dead", "done", "dropped")
        }
        assert seen == {
            "ready": [("m0", 0, ""), ("m3", 0, ""), ("m6", 0, "")],
            "delayed": [("m7", 1, "worker-1"), ("raw", 0, "")],
            "leased": [("m5", 1, "worker-1")],
            "dead": [("m4", 1, "worker-1")],
            "done": [("m1", 1, "worker-1")],
            "dropped": [("m2", 1, "")],
        }
        assert queues.counts("mail") == Counts(
            ready=3, delayed=2, leased=1, dead=1, done=1, published=9, acked=1, failed=2, dropped=1, bytes=257
        )
        assert _bytes(queues) == 257, "which the names do not say, but the contents do"
        record = queues.show("mail", "m4").record()
        assert record is not None
        assert record["failure"]["reasonMessage"] == "never"
        assert record["originalMessage"]["payload"] == {"n": 4}


def _bytes(queues: Queues) -> int:
    waiting = [look for state in ("ready", "delayed", "leased") for look in queues.walk("mail", state)]
    return sum(look.envelope.size for look in waiting if look.envelope is not None)


def test_golden_message_of_format_1_gets_its_size_into_its_name_when_it_moves(folder: Path) -> None:
    clock = ManualClock(START + 2_000)
    with open_queues(folder, clock) as queues:
        for delivery in queues.lease("mail", 9):
            assert f"Z{base36(delivery.message.size)}~{delivery.id}" in "".join(tree(folder / "mail" / "processing"))
            queues.nack(delivery.lease_id, "REJECTED")
        assert queues.counts("mail").bytes == _bytes(queues) > 0
        clock.advance(60_000)
        queues.ack([delivery.lease_id for delivery in queues.lease("mail", 9)])
        assert queues.counts("mail").bytes == _bytes(queues)


def test_golden_folder_of_format_1_is_marked_as_format_3_when_opened(folder: Path) -> None:
    assert document(folder / ".counter")["format"] == 1
    open_queues(folder).close()
    assert document(folder / ".counter")["format"] == 3


def test_golden_folder_of_format_1_accepts_acks_publishes_and_leases(folder: Path) -> None:
    clock = ManualClock(START + 2_000)
    with open_queues(folder, clock) as queues:
        queues.ack("6-1")
        assert queues.publish("mail", NewMessage(payload=0, deduplication_key="k5")).id == "m5"
        assert queues.publish("mail", NewMessage(payload=0, id="m2")).duplicate
        assert queues.policy("mail")["retry"]["limit"] == 1
        clock.advance(60_000)
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["m7", "m0", "m3", "m6", "raw"]
        assert queues.counts("mail").done == 2


def without_totals(folder: Path) -> list[str]:
    """Format 3 keeps the base of the totals, formats 1 and 2 kept whole ones."""
    return [path for path in tree(folder) if "/totals/" not in path]


@pytest.fixture(params=["files-v2", "files-v3"])
def second(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(GOLDEN.parent / request.param, tmp_path / "second"))


def test_golden_folder_of_later_formats_opens_with_states_counts_and_keys_unchanged(second: Path) -> None:
    before = without_totals(second)
    with open_queues(second, ManualClock(START + 2_000)) as queues:
        assert list(queues.check()) == []
        assert without_totals(second) == before
        assert [path for path in tree(second) if "/totals/" in path] == ["mail/meta/totals/1.0.0.1.0.0"]
        counts = queues.counts("mail")
        assert (counts.published, counts.acked, counts.failed, counts.dropped) == (9, 1, 1, 0)
        seen = {state: [look.message.id for look in queues.walk("mail", state)] for state in State}
        assert {state: ids for state, ids in seen.items() if ids} == {
            "draft": ["begun"],
            "delayed": ["late"],
            "held": ["g3", "behind"],
            "ready": ["g2", "t1", "t0"],
            "leased": ["raw"],
            "dead": ["g1"],
            "done": ["g0"],
        }
        waiting = [look for state in UNFINISHED for look in queues.walk("mail", state)]
        assert queues.counts("mail").bytes == sum(look.envelope.size for look in waiting if look.envelope) == 280
        assert queues.read(lambda transaction: transaction.note("ledger/one")) == '{"batch":7}'
        assert queues.read(lambda transaction: transaction.key_holders("mail", ["unique"], START)) == [(9, "raw")]


def test_golden_folder_of_later_formats_accepts_acks_publishes_and_leases(second: Path) -> None:
    clock = ManualClock(START + 2_000)
    with open_queues(second, clock) as queues:
        assert queues.publish("mail", NewMessage(payload=0, deduplication_key="k1")).id == "t1"
        assert [delivery.id for delivery in queues.lease("mail", 9, consumer="anna")] == ["t1", "t0", "g2"]
        queues.ack("3-1")
        clock.advance(60_000)
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["g3", "late", "raw"]
        assert [look.message.id for look in queues.walk("mail", "held")] == ["behind"]
