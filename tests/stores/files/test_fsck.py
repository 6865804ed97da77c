"""``check`` finds each thing that can be wrong, ``repair`` mends it, and nothing is wrong afterwards."""

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stores.files.parts import document, only, open_queues, tree
from tests.support.store_contract import picture
from yirangmq import NewMessage
from yirangmq.core.ports import Finding
from yirangmq.stores.files.index import EMPTY, RECORD
from yirangmq.stores.files.store import FilesStore
from yirangmq.testing import ManualClock

LATER = "000000000099"


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    """A queue's folder: two ready, one leased, one dead, one done, one remembered by its id; and a group of two."""
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", deduplication_key=f"k{n}") for n in range(6)])
        first, second, _, fourth = queues.lease("mail", 4)
        queues.ack(first.lease_id)
        queues.nack(second.lease_id, "REJECTED", "never")
        queues.drop("mail", [fourth.id])
        queues.publish_many("mail", [NewMessage(payload=n, id=f"g{n}", group="order-7") for n in range(2)])
    return tmp_path / "mail"


@pytest.fixture
def store(mail: Path) -> Iterator[FilesStore]:
    store = FilesStore(mail.parent, durability="os")
    yield store
    store.close()


def _copied(mail: Path, top: str, pattern: str, target: str) -> None:
    [path] = (mail / top).rglob(pattern)
    (mail / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, mail / target)


def _temp(mail: Path) -> None:
    (mail / "meta" / "temp" / "7.tmp").write_bytes(b"half")


def _counter_temp(mail: Path) -> None:
    (mail.parent / ".counter.tmp").write_bytes(b"half")


def _trash(mail: Path) -> None:
    (mail.parent / ".trash" / "old~1" / "inbox").mkdir(parents=True)


def _wrong_name(mail: Path) -> None:
    (mail / "inbox" / "last" / "0000000000" / "hello.json").write_bytes(b"1")


def _stray(mail: Path) -> None:
    (mail / "processing" / "hello.json").write_bytes(b"1")


def _misplaced(mail: Path) -> None:
    path = only(mail / "processing")
    (mail / "processing" / "0000000007").mkdir()
    shutil.move(path, mail / "processing" / "0000000007" / path.name)


def _twice(mail: Path) -> None:
    name = only(mail / "processing").name.replace("A1L1", "").partition("D")[0]
    changed = only(mail / "processing").name.partition("C")[2].partition("~")[0]
    [ready] = (mail / "inbox").rglob("*~m5.json")
    _copied(mail, "processing", "*.json", f"{ready.parent.relative_to(mail)}/{name}C{changed}~m2.json")


def _same_id(mail: Path) -> None:
    [path] = (mail / "inbox").rglob("*~m4.json")
    shutil.copy(path, path.parent / f"{LATER}{path.name[12:]}")


def _same_number(mail: Path) -> None:
    (mail.parent / "post" / "inbox" / "last").mkdir(parents=True)
    shutil.copytree(mail / "inbox" / "last" / "0000000000", mail.parent / "post" / "inbox" / "last" / "0000000000")


def _broken(mail: Path) -> None:
    only(mail / "dlq").write_bytes(b'{"payload":')


def _broken_failure(mail: Path) -> None:
    only(mail / "meta" / "failures").write_bytes(b"{}")


def _no_reason(mail: Path) -> None:
    only(mail / "meta" / "failures").unlink()


def _orphan_failure(mail: Path) -> None:
    (mail / "meta" / "failures" / "0000000000" / f"{LATER}a.json").write_bytes(b"{}")


def _orphan_key(mail: Path) -> None:
    path = next((mail / "meta" / "keys").rglob("*~m1"))
    until, _, rest = path.name.split(".", 2)
    (path.parent / f"{until}.zz.{rest}").touch()


def _wrong_key(mail: Path) -> None:
    (mail / "meta" / "keys" / "0000000001").mkdir()
    (mail / "meta" / "keys" / "0000000001" / "hello").touch()


def _totals(mail: Path) -> None:
    (mail / "meta" / "totals" / "1.0.0.0.0").touch()


def _counter_behind(mail: Path) -> None:
    (mail.parent / ".counter").write_bytes(b'{"format":1,"reserved":3}')


def _counter_torn(mail: Path) -> None:
    (mail.parent / ".counter").write_bytes(b"{")


def _miscounted(mail: Path) -> None:
    path = mail.parent / ".index" / "queues"
    data = bytearray(path.read_bytes())
    struct.pack_into("<q", data, 200 + 2 * 8, 77)
    path.write_bytes(data)


def _misled(mail: Path) -> None:
    path = mail.parent / ".index" / "seq" / "0"
    data = bytearray(path.read_bytes())
    data[3 * RECORD.size : 4 * RECORD.size] = EMPTY
    path.write_bytes(data)


def _unchained(mail: Path) -> None:
    [path] = (mail.parent / ".index" / "links").iterdir()
    path.write_bytes(bytes(path.stat().st_size))


FAULTS: dict[str, list[Callable[[Path], None]]] = {
    "temp": [_temp, _counter_temp],
    "trash": [_trash],
    "wrong name": [_wrong_name, _wrong_key],
    "stray": [_stray],
    "misplaced": [_misplaced],
    "twice": [_twice],
    "same id": [_same_id],
    "same number": [_same_number],
    "broken": [_broken, _broken_failure],
    "no reason": [_no_reason],
    "orphan": [_orphan_failure, _orphan_key],
    "totals": [_totals],
    "counter": [_counter_behind, _counter_torn],
    "counts": [_miscounted],
    "index": [_misled, _unchained],
}
EACH = [(kind, fault) for kind, faults in FAULTS.items() for fault in faults]


@pytest.mark.parametrize(("kind", "fault"), EACH, ids=[fault.__name__ for _, fault in EACH])
def test_fsck_finds_and_repairs_each_fault(
    store: FilesStore, mail: Path, kind: str, fault: Callable[[Path], None]
) -> None:
    before = picture(store)
    assert list(store.check(repair=False)) == []
    fault(mail)
    files = tree(mail.parent)
    found = list(store.check(repair=False))
    assert {finding.kind for finding in found} - ({"orphan"} if fault is _broken else set()) == {kind}
    assert not any(finding.is_repaired for finding in found)
    assert tree(mail.parent) == files, "a check changes nothing"
    assert [finding._replace(is_repaired=False) for finding in store.check(repair=True)] == found
    assert list(store.check(repair=False)) == []
    if fault not in (_broken, _broken_failure, _no_reason, _same_number):
        assert picture(store) == before


def test_fsck_findings_name_the_place_and_the_problem(store: FilesStore, mail: Path) -> None:
    _temp(mail)
    _orphan_failure(mail)
    assert list(store.check(repair=True)) == [
        Finding("temp", "mail/meta/temp/7.tmp", "a file that was never finished", is_repaired=True),
        Finding(
            "orphan",
            f"mail/meta/failures/0000000000/{LATER}a.json",
            "a failure without its message",
            is_repaired=True,
        ),
    ]


def test_quarantine_of_a_broken_message_keeps_its_bytes_and_the_reason(store: FilesStore, mail: Path) -> None:
    name = only(mail / "dlq").name
    _broken(mail)
    list(store.check(repair=True))
    assert (mail / "quarantine" / name).read_bytes() == b'{"payload":'
    note = document(mail / "quarantine" / f"{name}.reason.json")
    assert note["reason"].startswith("broken: ")
    with store.transaction(write=False) as transaction:
        assert transaction.by_id("mail", ["m1"]) == [None]
        assert transaction.counts("mail").dead == 0


def test_fsck_restores_a_lost_failure_reason_from_the_file_name(store: FilesStore, mail: Path) -> None:
    _no_reason(mail)
    list(store.check(repair=True))
    with store.transaction(write=False) as transaction:
        [dead] = transaction.by_id("mail", ["m1"])
        assert dead is not None
        [failure] = transaction.failures([dead])
        assert failure is not None
        assert (failure.reason_code, failure.attempt, failure.consumer) == ("REJECTED", 1, "tester")
        assert "lost" in failure.reason_message


def test_fsck_repairs_many_faults_at_once(store: FilesStore, mail: Path) -> None:
    chosen = [_temp, _wrong_name, _stray, _same_id, _broken, _orphan_failure, _orphan_key, _totals, _counter_torn]
    for fault in chosen:
        fault(mail)
    assert len(list(store.check(repair=True))) >= len(chosen)
    assert list(store.check(repair=False)) == []


def test_fsck_reports_a_broken_policy_and_does_not_repair_it(store: FilesStore, mail: Path) -> None:
    (mail / "config" / "policy.json").write_text('{"ttlSec":-1}')
    for repair in (False, True):
        [finding] = store.check(repair=repair)
        assert (finding.kind, finding.where, finding.is_repaired) == ("policy", "mail/config/policy.json", False)
        assert "ttlSec" in finding.text
