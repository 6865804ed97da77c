"""Totals of the files store (published, acked …) after a process dies at each call of a batch, and after a store of an
earlier format is opened."""

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import yirangmq
from tests.stores.files.parts import open_queues, tree
from tests.support.faulty_disk import UnwillingDisk
from yirangmq.broker.changes import apply_changes, no_events
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.queues import Queues
from yirangmq.core import transitions
from yirangmq.core.errors import QueueError
from yirangmq.core.message import lease_id
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.crashtest.workload import Snapshot, take_snapshot, wrong_totals
from yirangmq.format.envelope import NewMessage
from yirangmq.stores.files.store import FilesStore
from yirangmq.testing import CountingIds, ManualClock, open_for_test

START = 1_768_296_060_000
LATER = START + 10 * 86_400_000
"""By then every message acked or dropped at the start is forgotten."""
POLICY = {"retry": {"limit": 3}, "tombstoneSec": 60, "archive": {"maxMessages": 1}}


def prepared(folder: Path) -> Snapshot:
    """Two messages are acked, two dead, one dropped, three leased, one ready."""
    with open_queues(folder, ManualClock(START)) as queues:
        queues.set_policy("mail", POLICY)
        queues.publish_many("mail", [{"n": n} for n in range(9)])
        held = [delivery.lease_id for delivery in queues.lease("mail", 7)]
        queues.ack(held[:2])
        queues.nack_many(held[2:4], "REJECTED", "no")
        queues.drop("mail", [queues.peek("mail", 1)[0].message.id])
    return seen(folder)


def leased(queues: Queues) -> list[str]:
    return [lease_id(look.message) for look in queues.walk("mail", "leased")]


def redrive(transaction: Transaction) -> None:
    dead = transaction.scan("mail", State.DEAD, 9).messages
    place = transaction.places(len(dead))
    changes = [Change(one, transitions.redrive(one, START, place + offset)) for offset, one in enumerate(dead)]
    context = TransactionContext(ManualClock(START), CountingIds())
    apply_changes(context, transaction, changes, START, no_events)


VERBS: dict[str, Callable[[Queues], object]] = {
    "publish": lambda queues: queues.publish_many("mail", [NewMessage(payload=n, id=f"new-{n}") for n in (1, 2)]),
    "ack": lambda queues: queues.ack_many(leased(queues)),
    "nack": lambda queues: queues.nack_many(leased(queues), "HANDLER_ERROR", "no", delay=0),
    "bury": lambda queues: queues.nack_many(leased(queues), "REJECTED", "no"),
    "redrive": lambda queues: queues.run(redrive),
    "drop": lambda queues: queues.drop("mail", [look.message.id for look in queues.walk("mail", "dead")]),
    "forget": lambda queues: queues.sweep(),
}


def played(folder: Path, verb: str, last: int | None = None) -> int:
    """Do it; with ``last``, until that call. How many calls of the disk it takes."""
    disk = UnwillingDisk()
    store = FilesStore(folder, disk=disk, durability="os")
    clock = ManualClock(LATER if verb == "forget" else START)
    with suppress(QueueError), open_for_test(store=store, clock=clock) as queues:
        disk.start(lambda number, name: errno.EIO if last is not None and number > last else 0)
        VERBS[verb](queues)
    return len(disk.calls)


def seen(folder: Path) -> Snapshot:
    store = FilesStore(folder, durability="os")
    try:
        assert list(store.check(repair=False)) == []
        return take_snapshot(store)
    finally:
        store.close()


@pytest.mark.parametrize("verb", VERBS)
def test_totals_equal_a_recount_after_a_process_dies_at_any_call(tmp_path: Path, verb: str) -> None:
    """From one call on the disk does nothing more: what lies there then is what a killed process leaves."""
    before = prepared(tmp_path / "begin")
    shutil.rmtree(tmp_path / "begin" / ".index")
    shutil.copytree(tmp_path / "begin", tmp_path / "whole")
    calls = played(tmp_path / "whole", verb)
    after = seen(tmp_path / "whole")
    assert after != before
    for last in range(calls):
        folder = tmp_path / "killed"
        shutil.copytree(tmp_path / "begin", folder)
        played(folder, verb, last)
        shutil.rmtree(folder / ".index")
        found = seen(folder)
        assert wrong_totals(found, before, after) == [], f"killed after call {last} of {calls}"
        assert found.counts["mail"].acked >= found.counts["mail"].done
        shutil.rmtree(folder)


def test_totals_of_format_2_that_lag_behind_are_counted_anew(tmp_path: Path) -> None:
    """As an earlier version left them when a consumer was killed: one ack less than there are acked messages."""
    prepared(tmp_path)
    [base] = (tmp_path / "mail" / "meta" / "totals").iterdir()
    base.rename(base.with_name("9.1.2.1.0"))
    shutil.rmtree(tmp_path / ".index")
    found = seen(tmp_path).counts["mail"]
    assert (found.published, found.acked, found.failed, found.dropped, found.redriven) == (9, 2, 2, 1, 0)


def test_totals_in_the_index_that_differ_from_a_recount_are_found_by_check(tmp_path: Path) -> None:
    prepared(tmp_path)
    with open_queues(tmp_path) as queues:
        [base] = (tmp_path / "mail" / "meta" / "totals").iterdir()
        base.rename(base.with_name("9.0.1.2.0.0"))
        [finding] = queues.check()
        assert (finding.kind, finding.where) == ("counts", "mail")
        assert finding.text == "the index counts acked 2, not 3"
        [is_repaired] = queues.check(repair=True)
        assert is_repaired.is_repaired
        assert list(queues.check()) == []
        assert queues.counts("mail").acked == 3


def test_totals_survive_messages_that_are_forgotten(tmp_path: Path) -> None:
    before = prepared(tmp_path)
    played(tmp_path, "ack")
    played(tmp_path, "forget")
    after = seen(tmp_path)
    assert len(after.entries) < len(before.entries)
    shutil.rmtree(tmp_path / ".index")
    assert seen(tmp_path).counts == after.counts
    assert (after.counts["mail"].published, after.counts["mail"].acked) == (9, 5)
    assert len([path for path in tree(tmp_path) if "/totals/" in path]) == 1


def test_totals_of_a_queue_made_again_do_not_count_the_intent_of_its_predecessor(tmp_path: Path) -> None:
    with yirangmq.open(f"files:{tmp_path / 'q'}") as queues:
        queues.set_policy("mail", {"ttlSec": 3600})
        queues.publish("mail", b"x")
        queues.bulk.clear("mail")
        assert [*queues.check()] == []
        queues.publish("mail", b"y")
        assert (queues.counts("mail").published, [*queues.check()]) == (1, [])
