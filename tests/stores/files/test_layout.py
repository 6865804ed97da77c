"""What lies where: a person with ``ls`` and ``cat`` sees each message, its state, and why it failed."""

import json
import random
from pathlib import Path

from tests.stores.files.parts import document, only, open_queues, tree
from yirangmq import NewMessage
from yirangmq.core.message import RANK_LAST
from yirangmq.core.states import State
from yirangmq.testing import ManualClock


def test_layout_keeps_a_message_as_a_json_file_in_the_folder_of_its_state(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        queues.publish("mail", NewMessage(payload={"hello": "world"}, id="m", trace_id="t-1"))
        waiting = only(tmp_path / "mail" / "inbox")
        assert document(waiting) == {
            "messageId": "m",
            "timestamp": "2026-01-13T09:21:00.000+00:00",
            "queue": "mail",
            "traceId": "t-1",
            "payload": {"hello": "world"},
            "yirangmq": {"format": 1, "publishedAt": clock.now_ms()},
        }
        inode = waiting.stat().st_ino
        [delivery] = queues.lease("mail")
        held = only(tmp_path / "mail" / "processing")
        assert "tester" in held.name
        queues.nack(delivery.lease_id, "HANDLER_ERROR", "no luck")
        assert only(tmp_path / "mail" / "delayed").stat().st_ino == inode
        clock.advance(1_000)
        [delivery] = queues.lease("mail")
        queues.nack(delivery.lease_id, "REJECTED", "never")
        assert only(tmp_path / "mail" / "dlq").stat().st_ino == inode
        queues.drop("mail", ["m"])
        gone = only(tmp_path / "mail" / "meta" / "dropped")
        assert (gone.stat().st_ino, gone.read_bytes()) == (inode, b"{")


def test_layout_moves_an_acked_message_to_the_archive_with_its_result(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}") for n in range(2)])
        queues.ack([delivery.lease_id for delivery in queues.lease("mail", 2)])
    day = tmp_path / "mail" / "archive" / "2026-01-13"
    assert [document(path)["payload"] for path in sorted((day / "0921").iterdir())] == [0, 1]
    results = [json.loads(line) for line in (day / "results.jsonl").read_text().splitlines()]
    assert results == [
        {
            "messageId": f"m{n}",
            "ackedAt": "2026-01-13T09:21:00.000+00:00",
            "attempt": 1,
            "consumerId": "tester",
        }
        for n in range(2)
    ]


def test_layout_without_history_keeps_the_name_of_a_done_message_without_content(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.set_policy("mail", {"archive": {"enabled": False}})
        queues.publish("mail", NewMessage(payload=1, id="m"))
        queues.ack(queues.lease("mail")[0].lease_id)
        assert only(tmp_path / "mail" / "meta" / "done").read_bytes() == b"{"
        assert tree(tmp_path / "mail" / "archive") == []
        assert queues.publish("mail", NewMessage(payload=2, id="m")).duplicate
        assert queues.show("mail", "m").message.state is State.DONE


def test_layout_keeps_the_failure_of_a_message_as_json(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish("mail", NewMessage(payload=1, id="m"))
        queues.nack(queues.lease("mail")[0].lease_id, "REJECTED", "never again")
    failure = document(only(tmp_path / "mail" / "meta" / "failures"))
    assert failure["messageId"] == "m"
    assert failure["failure"] == {
        "reasonCode": "REJECTED",
        "reasonMessage": "never again",
        "failedAt": "2026-01-13T09:21:00.000+00:00",
        "attempt": 1,
        "consumerId": "tester",
    }
    assert failure["routing"] == {"sourceQueue": "mail", "dlqQueue": "mail-dlq"}


def test_layout_files_named_json_contain_valid_json(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        queues.set_policy("mail", {"retry": {"limit": 1}})
        queues.publish_many("mail", [NewMessage(payload=bytes([n]), deduplication_key=str(n)) for n in range(9)])
        queues.ack([delivery.lease_id for delivery in queues.lease("mail", 3)])
        for _ in range(2):
            queues.nack([delivery.lease_id for delivery in queues.lease("mail", 3)], delay=0)
        clock.advance(60_000)
        queues.lease("mail", 2)
    files = [path for path in tmp_path.rglob("*.json") if path.is_file()]
    assert len(files) > 12
    assert all(document(path) for path in files)


def test_priority_orders_two_thousand_messages_then_arrival(tmp_path: Path) -> None:
    chance = random.Random(5)
    sent: list[tuple[int, int]] = []
    with open_queues(tmp_path) as queues:
        for batch in range(20):
            ranks = [chance.choice([None, 0, 1, 2, 9, 10, 100]) for _ in range(100)]
            queues.publish_many(
                "mail", [NewMessage(payload=batch * 100 + n, priority=rank) for n, rank in enumerate(ranks)]
            )
            sent += [(RANK_LAST if rank is None else rank, batch * 100 + n) for n, rank in enumerate(ranks)]
        assert {path.name for path in (tmp_path / "mail" / "inbox").iterdir()} == {
            "0",
            "1",
            "2",
            "9",
            "10",
            "100",
            "last",
        }
        taken: list[int] = []
        while batch_taken := queues.lease("mail", 77):
            taken += [delivery.value() for delivery in batch_taken]
            queues.ack([delivery.lease_id for delivery in batch_taken])
    assert taken == [number for _, number in sorted(sent)]


def test_layout_removes_empty_folders(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        for _ in range(3):
            queues.publish_many("mail", list(range(1000)))
            while batch := queues.lease("mail", 500):
                queues.ack([delivery.lease_id for delivery in batch])
        queues.publish("mail", "last")
    mail = tmp_path / "mail"
    assert [len(list((mail / top).glob(depth))) for top, depth in [("inbox", "*/*"), ("processing", "*")]] == [1, 1]


def test_spare_file_of_a_forgotten_message_is_blanked_and_reused(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues, open_queues(tmp_path, clock) as other:
        queues.set_policy("mail", {"archive": {"enabled": False}, "tombstoneSec": 1})
        for n in range(6):
            queues.publish_many("mail", [NewMessage(payload={"secret": n}, id=f"m{n}-{k}") for k in range(3)])
            inodes = {path.stat().st_ino for path in (tmp_path / "mail" / "inbox").rglob("*.json")}
            other.ack([delivery.lease_id for delivery in other.lease("mail", 9)])
            clock.advance(1_000)
            queues.sweep()
            spare = list((tmp_path / "mail" / "meta" / "spare").iterdir())
            assert {path.stat().st_ino for path in spare} == inodes
            assert [path.read_bytes() for path in spare] == [b"{"] * 3
        assert list(queues.check()) == []
        other.publish_many("mail", [NewMessage(payload=k, id=f"last-{k}") for k in range(5)])
        assert list((tmp_path / "mail" / "meta" / "spare").iterdir()) == []
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == list(range(5))


def test_envelope_members_of_every_kind_are_returned_as_given(tmp_path: Path) -> None:
    """Also one that is called like our own."""
    with open_queues(tmp_path) as queues:
        text = (
            b'{"messageId":"m","type":"t","yirangmq":{"format":9},"timestamp":"2026-01-01T00:00:00Z","payload": [1] }'
        )
        queues.publish_text("mail", [text])
        queues.publish("mail", NewMessage(payload=b' {"a":1}\n', content_type="application/json"))
        first, second = queues.lease("mail", 2)
    assert first.header == {
        "messageId": "m",
        "timestamp": "2026-01-01T00:00:00Z",
        "queue": "mail",
        "type": "t",
        "yirangmq": {"format": 9},
    }
    assert first.payload == b"[1]"
    assert second.payload == b' {"a":1}\n'
