"""Files that people and programs drop into an inbox: taken up, in order, once; broken ones set aside with a reason."""

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.stores.files.parts import OLD_NS, document, drop, only, open_queues, tree
from yirangmq import NewMessage
from yirangmq.broker.queues import Queues
from yirangmq.core.states import State
from yirangmq.testing import ManualClock


def taken(queues: Queues, queue: str = "mail") -> list[object]:
    return [delivery.value() for delivery in queues.lease(queue, 100)]


def test_inbox_file_with_a_bare_payload_becomes_a_message(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        drop(tmp_path / "mail" / "inbox", "order-17.json", {"item": 17})
        [delivery] = queues.lease("mail")
        assert delivery.value() == {"item": 17}
        assert delivery.id.startswith("dropped-")
        assert queues.counts("mail").published == 1
        queues.ack(delivery.lease_id)
        assert taken(queues) == []
    with open_queues(tmp_path) as queues:
        look = queues.show("mail", delivery.id)
        assert look.message.state is State.DONE
        assert look.envelope == delivery.envelope


def test_inbox_file_is_moved_and_not_copied(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        path = drop(tmp_path / "mail" / "inbox", "a.json", b'{ "spaces" : "kept" }\n')
        inode = path.stat().st_ino
        queues.lease("mail")
        held = only(tmp_path / "mail" / "processing")
        assert (held.stat().st_ino, held.read_bytes()) == (inode, b'{ "spaces" : "kept" }\n')


def test_inbox_file_with_an_envelope_keeps_its_id_header_and_priority(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        sent = {"messageId": "m", "type": "t", "attributes": {"priority": 0}, "payload": [1]}
        queues.publish("mail", "waits since before")
        drop(tmp_path / "mail" / "inbox", "e.json", sent)
        first, second = queues.lease("mail", 2)
        assert (first.id, first.value(), first.header["type"]) == ("m", [1], "t")
        assert second.value() == "waits since before"


def test_inbox_files_are_leased_in_order_of_arrival_and_before_later_publishes(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        inbox = tmp_path / "mail" / "inbox"
        for number, name in enumerate(["z", "a", "m"]):
            drop(inbox, f"{name}.json", number, at_ns=OLD_NS + number)
        queues.publish("mail", 3)
        assert taken(queues) == [0, 1, 2, 3]


def test_inbox_file_in_a_folder_made_by_mkdir_creates_the_queue(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        drop(tmp_path / "new" / "inbox", "a.json", 1)
        assert queues.queues() == ["new"]
        assert taken(queues, "new") == [1]
        assert queues.counts("new").leased == 1


def test_inbox_file_with_a_known_id_or_dedup_key_is_not_stored_again(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        inbox = tmp_path / "mail" / "inbox"
        queues.publish("mail", NewMessage(payload=0, id="m", deduplication_key="k"))
        drop(inbox, "1.json", {"messageId": "m", "payload": 1})
        drop(inbox, "2.json", {"messageId": "m2", "deduplicationKey": "k", "payload": 2})
        drop(inbox, "3.json", {"messageId": "m3", "deduplicationKey": "l", "payload": 3}, at_ns=OLD_NS + 1)
        drop(inbox, "4.json", {"messageId": "m4", "deduplicationKey": "l", "payload": 4}, at_ns=OLD_NS + 2)
        assert taken(queues) == [0, 3]
        assert tree(inbox) == []
        assert queues.publish("mail", NewMessage(payload=5, deduplication_key="l")).duplicate


def test_inbox_file_without_message_id_is_a_payload_whatever_its_members(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        sent = {"type": "t", "deduplicationKey": "k", "payload": 2}
        drop(tmp_path / "mail" / "inbox", "a.json", sent)
        assert taken(queues) == [sent]


@pytest.mark.parametrize("name", [".hidden.json", "a.json.tmp", "notes.txt", "a.JSON"])
def test_inbox_file_without_the_json_suffix_or_hidden_is_left_unchanged(tmp_path: Path, name: str) -> None:
    with open_queues(tmp_path) as queues:
        path = drop(tmp_path / "mail" / "inbox", name, 1)
        assert taken(queues) == []
        assert path.exists()
        assert list(queues.check()) == []


BROKEN = {
    "cut off": (b'{"payload": {"a": 1', "malformed JSON"),
    "empty": (b"", "malformed JSON"),
    "not text": (b'{"payload":"\xff"}', "malformed JSON"),
    "another queue": (b'{"messageId":"m","queue":"post","payload":1}', "queue"),
    "a bad id": (b'{"messageId":"no/slash","payload":1}', "messageId"),
    "a bad priority": (b'{"messageId":"m","attributes":{"priority":-1},"payload":1}', "attributes.priority"),
    "too large": (json.dumps("x" * 2_000).encode(), "payload"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_inbox_file_that_is_invalid_is_quarantined_with_a_reason(tmp_path: Path, what: str) -> None:
    content, reason = BROKEN[what]
    with open_queues(tmp_path) as queues:
        queues.set_policy("mail", {"maxBytes": 1_000})
        inbox = tmp_path / "mail" / "inbox"
        drop(inbox, "bad.json", content)
        drop(inbox, "good.json", 1, at_ns=OLD_NS + 1)
        assert taken(queues) == [1]
        assert tree(inbox) == []
        quarantine = tmp_path / "mail" / "quarantine"
        assert (quarantine / "bad.json").read_bytes() == content
        note = document(quarantine / "bad.json.reason.json")
        assert reason in note["reason"]
        assert (note["file"], note["from"]) == ("bad.json", "inbox/bad.json")
        drop(inbox, "bad.json", content)
        assert taken(queues) == []
        assert len(tree(quarantine)) == 4
        assert list(queues.check()) == []


def test_inbox_file_still_being_written_is_left_until_it_is_complete(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        path = drop(tmp_path / "mail" / "inbox", "slow.json", b'{"half":', at_ns=time.time_ns())
        assert taken(queues) == []
        assert path.exists()
        path.write_bytes(b'{"half":"whole"}')
        assert taken(queues) == [{"half": "whole"}]


def test_dead_letter_file_moved_to_the_inbox_is_delivered_again_with_attempt_1(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish("mail", NewMessage(payload={"again": True}, id="m", type="t", priority=3))
        queues.nack(queues.lease("mail")[0].lease_id, "REJECTED")
        dead = only(tmp_path / "mail" / "dlq")
        shutil.move(dead, tmp_path / "mail" / "inbox" / dead.name)
        [delivery] = queues.lease("mail")
        assert (delivery.id, delivery.value(), delivery.attempt) == ("m", {"again": True}, 1)
        assert delivery.header["type"] == "t"
        assert delivery.message.rank == 3
        queues.ack(delivery.lease_id)
        assert queues.counts("mail").dead == 0
        assert queues.counts("mail").done == 1
        assert list(queues.check()) == []


def test_inbox_file_gets_the_time_to_live_of_the_queues_policy(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        queues.set_policy("mail", {"ttlSec": 5, "onExpire": "dead"})
        drop(tmp_path / "mail" / "inbox", "a.json", 1)
        queues.publish("mail", 2)
        clock.advance(5_000)
        assert taken(queues) == []
        assert queues.counts("mail").dead == 2


def test_inbox_of_a_thousand_files_is_leased_completely_and_in_order(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        for number in range(1_003):
            drop(tmp_path / "mail" / "inbox", f"{number}.json", number, at_ns=OLD_NS + number)
        found = [delivery.value() for delivery in queues.lease("mail", 2_000)]
        found += [delivery.value() for delivery in queues.lease("mail", 2_000)]
        assert found == list(range(1_003))


def test_inbox_folder_or_symlink_named_json_is_ignored(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        inbox = tmp_path / "mail" / "inbox"
        (inbox / "folder.json").mkdir(parents=True)
        (inbox / "link.json").symlink_to("/etc/hostname")
        assert taken(queues) == []
        queues.publish("mail", 1)
        assert taken(queues) == [1]
