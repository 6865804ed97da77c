"""Files by date around each store: every accepted message once, whatever refuses or is killed; bytes come back."""

import base64
import os
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.day_files import DAY_MS, Kept, keeping
from tests.support.faulty_disk import UnwillingDisk, dead_from, full_from, full_once
from tests.support.golden_files import golden
from yirangmq import NewMessage
from yirangmq.core.errors import StoreError, StoreFull
from yirangmq.core.states import State
from yirangmq.format.journal_line import head_of, payload_of, read
from yirangmq.stores.journal import files
from yirangmq.stores.journal.maintenance import check
from yirangmq.stores.journal.store import POSITION_NOTE
from yirangmq.testing import CountingIds, open_for_test

TODAY = "2026-01-13"


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Kept]:
    with keeping("sqlite", tmp_path) as made:
        yield made


# -- what is told ---------------------------------------------------------------------------------------------------


def test_files_by_date_record_each_acceptance_and_outcome_of_a_message_as_a_line(kept: Kept) -> None:
    queues = kept.queues
    queues.set_policy("mail", {"retry": {"limit": 1, "initialDelaySec": 1, "backoff": "fixed"}})
    queues.publish_many("mail", [NewMessage(payload={"to": "ann"}, type="letter", priority=3), b"\xff\x00", b"three"])
    first, second, third = queues.lease("mail", 3, consumer="w1")
    kept.clock.advance(250)
    queues.ack(first.lease_id)
    queues.nack(second.lease_id, text="no such street")
    queues.nack(third.lease_id, "REJECTED")
    kept.clock.advance(2000)
    (again,) = queues.lease("mail", 3, lease_seconds=1)
    kept.clock.advance(5000)
    queues.sweep()
    assert kept.told() == [
        ("accepted", "m-1", ""),
        ("accepted", "m-2", ""),
        ("accepted", "m-3", ""),
        ("outcome", first.id, "done"),
        ("outcome", second.id, "delayed"),
        ("outcome", third.id, "dead"),
        ("outcome", again.id, "dead"),
    ]
    letter = next(one for one in kept.records if one["messageId"] == "m-1")
    assert letter["header"] == {"type": "letter", "attributes": {"priority": 3}}
    assert letter["payloadText"] == '{"to":"ann"}'
    done = next(one for one in kept.records if one.get("state") == "done")
    assert (done["delivery"], done["attempt"], done["consumerId"]) == ("DELIVERED", 1, "w1")
    assert (done["leasedAt"], done["at"]) == ("2026-01-13T09:21:00.000Z", "2026-01-13T09:21:00.250Z")
    late = kept.records[-1]
    assert (late["delivery"], late["reasonCode"], late["attempt"]) == ("TIMEOUT", "TIMEOUT", 2)
    kept.agrees()


def test_files_by_date_write_one_line_for_each_message_of_a_batch(kept: Kept) -> None:
    kept.queues.publish_many("bulk", [b"%d" % n for n in range(50)])
    taken = kept.queues.lease("bulk", 50)
    kept.queues.ack([one.lease_id for one in taken])
    told = Counter(kept.told())
    assert told == Counter([("accepted", one.id, "") for one in taken] + [("outcome", one.id, "done") for one in taken])
    kept.agrees()


def test_files_by_date_omit_duplicates_and_record_redrive_drop_and_queue_deletion(kept: Kept) -> None:
    queues = kept.queues
    queues.publish("q", NewMessage(payload=b"a", id="one"))
    queues.publish_many("q", [NewMessage(payload=b"b", id="one"), NewMessage(payload=b"c", id="two")])
    queues.nack(queues.lease("q")[0].lease_id, "REJECTED")
    from yirangmq.broker.dead_letters import DeadLetters

    DeadLetters(queues).redrive("q", all=True)
    queues.drop("q", ["two"])
    queues.delete_queue("q")
    assert kept.told() == [
        ("accepted", "one", ""),
        ("accepted", "two", ""),
        ("outcome", "one", "dead"),
        ("outcome", "one", "ready"),
        ("outcome", "two", "dropped"),
        ("queue_deleted", "", "dropped"),
    ]
    kept.agrees()


@pytest.mark.parametrize(
    "payload",
    [b"", b"plain", "schön\u2028\x00\x85".encode(), b'\r\n\t"\\', bytes(range(256)), b"\xed\xa0\x80", b'{"a" : 1.0}\n'],
    ids=["empty", "plain", "odd-text", "escapes", "every-byte", "surrogate", "json-with-spaces"],
)
def test_files_by_date_restore_every_payload_byte_for_byte(sqlite: Kept, payload: bytes) -> None:
    sqlite.queues.publish("any", NewMessage(payload=payload))
    (record,) = sqlite.records
    assert payload_of(record) == payload
    assert record["sha256"] == sha256(payload).hexdigest()
    assert ("payloadText" in record) == _is_text(payload)
    if "payloadBase64" in record:
        assert base64.b64decode(record["payloadBase64"]) == payload
    [name] = files.files(sqlite.root)
    assert (sqlite.root / name).read_bytes().count(b"\n") == 1


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_files_by_date_are_rolled_by_size_and_each_day_has_its_folder(kept: Kept) -> None:
    for n in range(30):
        kept.queues.publish("q", b"x" * 300)
        if n == 20:
            kept.clock.advance(DAY_MS)
    names = files.files(kept.root)
    assert {name.partition("/")[0] for name in names} == {TODAY, "2026-01-14"}
    assert len(names) > 3
    assert len(kept.records) == 30
    assert max((kept.root / name).stat().st_size for name in names) < 5000
    kept.agrees()


# -- crashes --------------------------------------------------------------------------------------------------------


def test_files_by_date_lines_without_a_commit_are_truncated_at_the_start(kept: Kept) -> None:
    kept.queues.publish_many("q", [b"one", b"two"])
    with kept.store.files.lock:  # killed between the lines and the commit
        kept.store.files.append(
            TODAY, [b'{"record":"accepted","at":"x","seq":99,"queue":"q","messageId":"ghost"}\n', b'{"rec']
        )
    kept.killed()
    assert [finding.kind for finding in kept.store.findings] == ["unconfirmed"]
    assert [id for _, id, _ in kept.told()] == ["m-1", "m-2"]
    kept.queues.publish("q", b"three")
    assert [id for _, id, _ in kept.told()] == ["m-1", "m-2", "m-3"]
    kept.agrees()
    kept.killed()
    assert kept.store.findings == []


def test_files_by_date_file_created_for_a_commit_that_never_happened_is_emptied(kept: Kept) -> None:
    kept.queues.publish("q", b"one")
    with kept.store.files.lock:
        kept.store.files.append(
            "2026-01-14", [b'{"record":"accepted","at":"x","seq":99,"queue":"q","messageId":"ghost"}\n']
        )
    kept.killed()
    assert [id for _, id, _ in kept.told()] == ["m-1"]
    kept.clock.advance(DAY_MS)
    kept.queues.publish("q", b"two")
    assert files.files(kept.root)[-1] == "2026-01-14/00000003.jsonl"
    kept.agrees()


def test_files_by_date_complete_messages_written_directly_to_the_store_at_the_start(kept: Kept) -> None:
    kept.queues.publish("q", b"one")
    kept.store.close()
    if kept.place.kind == "memory":
        kept.place.close()
    direct = open_for_test(store=kept.raw(), clock=kept.clock, ids=CountingIds("direct"))
    direct.publish_many("q", [b"two", b"three"])
    direct.ack(direct.lease("q", consumer="x")[0].lease_id)
    kept.killed()
    assert [finding.kind for finding in kept.store.findings] == ["completed"]
    assert [id for kind, id, _ in kept.told() if kind == "accepted"] == ["m-1", "direct-1", "direct-2"]
    assert [one.get("completed") for one in kept.records[:3]] == [None, True, True]
    kept.killed()
    assert kept.store.findings == []


def test_files_by_date_switched_on_later_begin_with_the_backlog(kept: Kept) -> None:
    raw = open_for_test(store=kept.raw(), clock=kept.clock, ids=CountingIds("early"))
    raw.publish_many("q", [b"%d" % n for n in range(1200)])
    with kept.inner.transaction() as transaction:
        transaction.set_note(POSITION_NOTE, None)
    kept.killed()
    assert Counter(kept.told()) == Counter(("accepted", f"early-{n}", "") for n in range(1, 1201))
    kept.agrees()


def test_files_by_date_lines_that_were_lost_are_reported_and_completed(kept: Kept) -> None:
    kept.queues.publish_many("q", [b"one", b"two"])
    name = files.files(kept.root)[-1]
    kept.store.files.close()
    os.truncate(kept.root / name, 10)
    kept.killed()
    assert [finding.kind for finding in kept.store.findings] == ["lost", "completed"]
    (kept.root / name).unlink()
    assert sorted(id for _, id, _ in kept.told()) == ["m-1", "m-2"]
    kept.agrees()


def test_files_by_date_of_a_partial_commit_record_the_missing_message_as_dropped(kept: Kept) -> None:
    """As the files store may leave it: the note of the commit is there, some of its messages are not."""
    kept.queues.publish_many("q", [b"one", b"two"])
    with kept.inner.transaction() as transaction:
        transaction.forget([card for card in transaction.by_id("q", ["m-2"]) if card is not None])
    kept.killed()
    assert [finding.kind for finding in kept.store.findings] == ["unfinished"]
    assert kept.told()[-1] == ("outcome", "m-2", "dropped")
    assert kept.records[-1]["reasonCode"] == "not_stored"
    kept.killed()
    assert kept.store.findings == []


# -- refusals -------------------------------------------------------------------------------------------------------


def test_files_by_date_lines_are_removed_when_the_commit_fails(kept: Kept) -> None:
    kept.queues.publish("q", b"one")
    kept.inner.fail_at(1)
    with pytest.raises(StoreFull):
        kept.queues.publish("q", b"two")
    assert [id for _, id, _ in kept.told()] == ["m-1"]
    kept.queues.publish("q", b"three")
    assert [id for _, id, _ in kept.told()] == ["m-1", "m-3"]
    kept.agrees()


@pytest.mark.parametrize("refusal", [full_once, full_from, dead_from], ids=["once", "full", "dead"])
def test_files_by_date_hold_no_partial_line_after_a_disk_error_at_any_call(tmp_path: Path, refusal: Any) -> None:
    """The sender is refused, and what it sent is neither in the store nor in the files."""
    at, refused = 1, 1
    while refused:
        kept = Kept("memory", tmp_path / f"{at}")
        (tmp_path / f"{at}").mkdir(exist_ok=True)
        disk = kept.disk = UnwillingDisk()
        kept.killed()
        confirmed = []
        disk.start(refusal(at))
        for n in range(12):
            try:
                confirmed += [one.id for one in kept.queues.publish_many("q", [b"%d" % n, b"x" * 900])]
            except StoreError:
                assert disk.refused
            if n == 8:
                kept.clock.advance(DAY_MS)
        refused = disk.refused
        disk.start(lambda number, name: 0)
        more = kept.queues.publish("q", b"last").id
        kept.killed()
        assert [id for kind, id, _ in kept.told() if kind == "accepted"] == [*confirmed, more]
        assert kept.queues.counts("q").ready == len(confirmed) + 1
        kept.agrees()
        kept.store.files.close()
        at += 3
    assert at > 10


def test_full_disk_of_files_by_date_raises_store_full_and_stores_nothing(sqlite: Kept) -> None:
    disk = sqlite.disk = UnwillingDisk()
    sqlite.killed()
    disk.start(full_from(1))
    with pytest.raises(StoreFull, match="nothing was stored"):
        sqlite.queues.publish("q", b"one")
    assert sqlite.queues.counts("q").ready == 0


# -- check ----------------------------------------------------------------------------------------------------------


def test_files_by_date_check_finds_changed_duplicate_missing_and_torn_lines(sqlite: Kept) -> None:
    sqlite.queues.publish_many("q", [b"one", b"two", b"three"])
    sqlite.queues.publish("q", b"x" * 5000)
    sqlite.queues.publish("q", b"four")
    name = files.files(sqlite.root)[0]
    path = sqlite.root / name
    lines = path.read_bytes().splitlines(keepends=True)
    lines[0] = lines[0].replace(b'"one"', b'"eno"')
    path.write_bytes(b"".join([lines[0], lines[1], lines[1], b"rubbish\n", *lines[3:], b"torn"]))
    found = Counter(finding.kind for finding in check(sqlite.root, sqlite.queues.read).findings)
    assert found == {"record": 2, "twice": 1, "missing": 2, "torn": 1}


def test_files_by_date_line_head_is_parsed_without_the_rest() -> None:
    head = head_of(b'{"record":"outcome","at":"t","seq":7,"queue":"q","messageId":"m","state":"done","attempt":1}\n')
    assert (head.kind, head.seq, head.queue, head.id, head.state) == ("outcome", 7, "q", "m", State.DONE)


def test_files_by_date_format_version_1_is_unchanged(tmp_path: Path) -> None:
    """Version 1, to the byte; and it is read as it was written."""
    kept = Kept("memory", tmp_path)
    queues = kept.queues
    queues.publish_many(
        "mail",
        [
            NewMessage(payload={"to": "ann"}, id="text", type="letter", priority=3, ttl=60, delay=1),
            NewMessage(payload=bytes(range(8)) + b"\xff", id="binary", content_type="image/png"),
        ],
    )
    kept.clock.advance(1500)
    first, second = queues.lease("mail", 2, consumer="ann")
    queues.ack(first.lease_id)
    kept.clock.advance(20)
    queues.nack(second.lease_id, "REJECTED", 'says "no"\n')
    queues.delete_queue("mail")
    [name] = files.files(kept.root)
    written = (kept.root / name).read_bytes()
    assert written == golden("files-by-date-v1.jsonl")
    assert [payload_of(read(line)) for line in written.splitlines()[:2]] == [b'{"to":"ann"}', b"\0\1\2\3\4\5\6\7\xff"]
    kept.store.close()
