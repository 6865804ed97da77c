"""A byte that changes on the disk: the message is never handed out, whoever asks and however often."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

import pytest

import yirangmq
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.core.states import State

PROCESSED = {"processor": {"integrity": "sha256"}}
SENT = [b'{"to":"first","amount":100}', b'{"to":"marked","amount":100}', b"raw \xff bytes 100 marked"]


def flip(paths: Iterable[Path], old: bytes, new: bytes) -> None:
    """In whichever of these files it stands."""
    found = [path for path in paths if path.is_file() and old in path.read_bytes()]
    assert found, old
    for path in found:
        path.write_bytes(path.read_bytes().replace(old, new))


def flip_sqlite(folder: Path) -> None:
    files = list(folder.glob("queue.db*"))
    flip(files, b'"marked","amount":100', b'"marked","amount":900')
    flip(files, b"bytes 100 marked", b"bytes 101 marked")


def flip_files(folder: Path) -> None:
    """JSON that a person can read, and Base64."""
    files = list(folder.rglob("*"))
    flip(files, b'"marked","amount":100', b'"marked","amount":900')
    flip(files, b"cmF3IP8gYnl0ZXMgMTAwIG1hcmtlZA==", b"cmF3IP8gYnl0ZXMgMTAxIG1hcmtlZA==")


@pytest.mark.parametrize(
    ("url", "spoil"), [("sqlite:queue.db", flip_sqlite), ("files:queues", flip_files)], ids=["sqlite", "files"]
)
def test_integrity_never_delivers_a_payload_changed_on_disk_and_makes_it_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    with yirangmq.open(url) as queues:
        queues.set_policy("mail", PROCESSED)
        queues.publish_text("mail", SENT[:2])
        queues.publish("mail", SENT[2])
        ids = [look.message.id for look in queues.peek("mail")]
    spoil(tmp_path)
    with yirangmq.open(url) as queues:
        deliveries = queues.lease("mail", 10)
        assert [one.payload for one in deliveries] == SENT[:1]
        for id, payload in zip(ids[1:], SENT[1:], strict=True):
            look = queues.show("mail", id)
            assert look.message.state is State.DEAD
            assert look.failure is not None
            assert (look.failure.reason_code, sha256(payload).hexdigest() in look.failure.reason_message) == (
                "CORRUPT",
                True,
            )
        queues.ack(deliveries[0].lease_id)
        assert queues.lease("mail", 10) == []


def test_integrity_makes_messages_with_an_unreadable_header_dead_letters(tmp_path: Path) -> None:
    with yirangmq.open(f"sqlite:{tmp_path / 'queue.db'}") as queues:
        queues.set_policy("mail", PROCESSED)
        queues.publish("mail", yirangmq.NewMessage(payload=b"x", type="spoilt"))
        queues.publish("mail", b"y")
    flip(tmp_path.glob("queue.db*"), b'{"payloadSha256":"', b'{"payloadSha256":x')
    with yirangmq.open(f"sqlite:{tmp_path / 'queue.db'}") as queues:
        assert queues.lease("mail", 10) == []
        assert queues.counts("mail").dead == 2


def test_redrive_of_a_damaged_message_checks_its_integrity_again(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'queue.db'}"
    with yirangmq.open(url) as queues:
        queues.set_policy("mail", PROCESSED)
        queues.publish("mail", b"payload that is marked")
    flip(tmp_path.glob("queue.db*"), b"that is marked", b"that is Marked")
    with yirangmq.open(url) as queues:
        for _ in range(2):
            assert queues.lease("mail") == []
            assert DeadLetters(queues).redrive("mail", all=True).count == 1
        assert queues.lease("mail") == []
        assert queues.counts("mail").dead == 1
