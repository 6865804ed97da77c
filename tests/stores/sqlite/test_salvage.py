"""A SQLite file that is damaged: what can be read goes on in a new file, the damaged one is kept as it is."""

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tests.support.sqlite import open_sqlite
from yirangmq import NewMessage
from yirangmq.core.errors import StoreBusy, StoreDamaged
from yirangmq.core.ports import Finding
from yirangmq.format.json_codec import loads
from yirangmq.stores.open import salvage_store
from yirangmq.stores.sqlite.connection import PAGE_SIZE, open_connection

SENT = 600
POLICY = {"visibilityTimeoutSec": 600}


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 600: 20 leased, 20 dead, 20 done, the others ready."""
    path = tmp_path_factory.mktemp("sound") / "queue.db"
    with open_sqlite(path) as queues:
        queues.set_policy("mail", POLICY)
        for begin in range(0, SENT, 50):
            queues.publish_many("mail", [{"n": begin + n, "text": "x" * 2000} for n in range(50)])
        leases = [delivery.lease_id for delivery in queues.lease("mail", 60)]
        queues.ack(leases[:20])
        queues.nack(leases[20:40], "REJECTED", "never")
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "queue.db"))


HOLD = """
import sys, yirangmq
with yirangmq.open("sqlite:" + sys.argv[1]) as queues:
    print(queues.counts("mail").ready, flush=True)
    sys.stdin.read()
"""


def _repaired(path: Path) -> list[Finding]:
    """As the command does: through the store if it opens, else without."""
    try:
        with open_sqlite(path) as queues:
            return list(queues.check(repair=True))
    except StoreDamaged:
        return salvage_store(f"sqlite:{path}")


def _cut_in_half(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _cut_the_end(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - PAGE_SIZE // 3)


def _overwrite(path: Path, begin: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(data)


def _replace(path: Path, statement: str) -> None:
    """Text that is none, which SQLite itself does not look at."""
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()


def _flip_bytes(path: Path) -> None:
    chance = random.Random(5)
    for _ in range(120):
        _overwrite(path, chance.randrange(path.stat().st_size), chance.randbytes(1))


def _page_of(path: Path, table: str) -> int:
    db = apsw.Connection(str(path))
    page = next(db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)))[0]
    db.close()
    return (int(page) - 1) * PAGE_SIZE


DAMAGE: dict[str, tuple[Callable[[Path], None], int]] = {
    "cut in half": (_cut_in_half, 150),
    "the end cut off": (_cut_the_end, SENT - 40),
    "no header": (lambda path: _overwrite(path, 0, bytes(100)), SENT),
    "no first page": (lambda path: _overwrite(path, 0, random.Random(1).randbytes(PAGE_SIZE)), SENT),
    "pages of zeros": (lambda path: _overwrite(path, 30 * PAGE_SIZE, bytes(3 * PAGE_SIZE)), SENT - 100),
    "flipped bytes": (_flip_bytes, SENT - 100),
    "no line": (lambda path: _overwrite(path, _page_of(path, "fresh"), bytes(PAGE_SIZE)), SENT),
    "no states": (lambda path: _overwrite(path, _page_of(path, "life"), bytes(PAGE_SIZE)), SENT),
    "no batches": (lambda path: _overwrite(path, _page_of(path, "batch"), bytes(PAGE_SIZE)), SENT),
    "an id": (lambda path: _replace(path, "UPDATE message SET id = CAST(x'ff61' AS TEXT) WHERE seq = 99"), SENT),
    "a consumer": (lambda path: _replace(path, "UPDATE life SET consumer = CAST(x'ff61' AS TEXT)"), SENT),
    "no names": (lambda path: _overwrite(path, _page_of(path, "name"), bytes(PAGE_SIZE)), SENT),
}
"""What is done to the file, and how many messages must be found again at the least."""


@pytest.mark.parametrize("how", DAMAGE)
def test_salvage_copies_readable_messages_to_a_new_file_and_keeps_the_damaged_file(path: Path, how: str) -> None:
    harm, least = DAMAGE[how]
    harm(path)
    harmed = path.read_bytes()
    first, *_ = _repaired(path)
    assert (first.kind, first.is_repaired) == ("salvaged", True)
    assert "queue.db.damaged" in first.text
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if entry != path} == {
        "queue.db.damaged": harmed
    }
    with open_sqlite(path) as queues:
        assert list(queues.check()) == []
        assert queues.queues() == ["mail"]
        found = sum(1 for state in ("ready", "leased", "dead", "done") for _ in queues.walk("mail", state))
        assert least <= found <= SENT
        assert queues.publish("mail", NewMessage(payload=1, id="new")).seq > SENT


def test_salvage_keeps_sound_messages_and_policy_unchanged(path: Path) -> None:
    with open_sqlite(path) as queues:
        before = {state: [*queues.walk("mail", state)] for state in ("ready", "leased", "dead", "done")}
    _overwrite(path, 0, bytes(PAGE_SIZE))
    _repaired(path)
    with open_sqlite(path) as queues:
        assert {state: [*queues.walk("mail", state)] for state in before} == before
        assert queues.policy("mail")["visibilityTimeoutSec"] == 600


def test_salvage_restores_messages_with_lost_rows_from_their_payloads(path: Path) -> None:
    _overwrite(path, _page_of(path, "message"), bytes(PAGE_SIZE))
    first, *_ = _repaired(path)
    assert "600 are not whole" in first.text
    with open_sqlite(path) as queues:
        assert list(queues.check()) == []
        back = [*queues.walk("mail", "dead"), *queues.walk("mail", "done")]
        sent = [loads(look.envelope.payload)["n"] for look in back if look.envelope is not None]
        assert sorted(sent) == list(range(SENT))
        reasons = Counter(look.message.reason for look in queues.walk("mail", "dead"))
        assert reasons == {"CORRUPT": SENT - 40, "REJECTED": 20}


def test_salvage_makes_messages_with_lost_state_ready_again(path: Path) -> None:
    DAMAGE["no line"][0](path)
    with open_sqlite(path) as queues:
        lost = [finding for finding in queues.check(repair=True) if finding.kind == "nowhere"]
        assert [finding.where for finding in lost] == ["540 times"]
        ids = [delivery.value()["n"] for delivery in queues.lease("mail", SENT)]
        assert ids == list(range(60, SENT))


def test_salvage_reads_the_wal_too(path: Path, tmp_path: Path) -> None:
    with open_sqlite(path) as queues:
        queues.publish("mail", NewMessage(payload=1, id="late"))
        log = path.with_name("queue.db-wal").read_bytes()
    shutil.copy(path, tmp_path / "other.db")
    other = tmp_path / "other.db"
    _overwrite(other, _page_of(other, "name"), bytes(PAGE_SIZE))
    other.with_name("other.db-wal").write_bytes(log)
    _repaired(other)
    with open_sqlite(other) as queues:
        assert list(queues.check()) == []
        assert [look.message.id for look in queues.walk("mail", "ready")][-1] == "late"


def test_salvage_reads_a_file_with_smaller_pages_and_no_header(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_connection(path, "os", 0, page_size=8192).close()
    with open_sqlite(path) as queues:
        queues.publish_many("mail", [{"n": n, "text": "x" * 500} for n in range(SENT)])
    _overwrite(path, 0, bytes(100))
    _repaired(path)
    with open_sqlite(path) as queues:
        assert [delivery.value()["n"] for delivery in queues.lease("mail", SENT)] == list(range(SENT))


def test_salvage_gives_a_second_damaged_file_a_name_of_its_own(path: Path) -> None:
    for _ in range(2):
        _overwrite(path, 0, bytes(100))
        _repaired(path)
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "queue.db",
        "queue.db.damaged",
        "queue.db.damaged-2",
    ]


@pytest.mark.parametrize("content", [b"", b"a letter to a friend", random.Random(2).randbytes(20 * PAGE_SIZE)])
def test_salvage_leaves_a_file_without_readable_content_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="it is not changed"):
        salvage_store(f"sqlite:{path}")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("queue.db", content)]


def test_salvage_leaves_a_database_of_another_program_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    db = apsw.Connection(str(path))
    db.execute("PRAGMA application_id = 7; CREATE TABLE theirs (a)")
    db.close()
    content = path.read_bytes()
    with pytest.raises(StoreDamaged, match="another program"):
        salvage_store(f"sqlite:{path}")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("queue.db", content)]


@pytest.mark.process
def test_salvage_refuses_a_file_that_another_process_has_open(path: Path) -> None:
    holder = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"540\n"
        with pytest.raises(StoreBusy, match="stop it first"):
            salvage_store(f"sqlite:{path}")
    assert {entry.name for entry in path.parent.iterdir()} - {"queue.db-reserve"} == {"queue.db"}
