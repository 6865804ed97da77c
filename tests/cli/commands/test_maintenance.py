"""``drop``, ``sweep``, ``check``, ``repair``, on both backends."""

from pathlib import Path

import apsw
import pytest

from tests.support.cli import Cli, Published
from yirangmq.testing import ManualClock


def test_drop_by_id_removes_the_named_messages_only(at: Cli, published: Published) -> None:
    first, second, third = published("mail", *"123")
    tried = at(f"drop -q mail {first} {second} --dry-run --json").json
    assert (tried["count"], tried["dryRun"]) == (2, True)
    assert at("status --json").json["queues"][0]["ready"] == 3
    answer = at(f"drop -q mail {first} {second} --json").json
    assert answer == {
        "ok": True,
        "did": "dropped",
        "queue": "mail",
        "count": 2,
        "ids": [first, second],
        "dryRun": False,
    }
    assert at(f"drop -q mail {first} --json").json["count"] == 0
    assert [line["messageId"] for line in at("peek -q mail --json").lines] == [third]


def test_drop_with_an_unknown_id_drops_nothing(at: Cli, published: Published) -> None:
    (id,) = published("mail", "1")
    assert at(f"drop -q mail {id} nobody --json", code=3).complaint["field"] == "id"
    assert at("status --json").json["queues"][0]["ready"] == 1


def test_drop_whole_queue_removes_the_queue_and_leaves_the_others(at: Cli, published: Published) -> None:
    published("mail", "1", "2")
    published("jobs", "1")
    assert at("drop -q mail --whole-queue --dry-run --json").json["count"] == 2
    assert len(at("queues --json").json["queues"]) == 2
    assert at("drop -q mail --whole-queue").out == "dropped: queue mail with 2 messages\n"
    assert [row["queue"] for row in at("queues --json").json["queues"]] == ["jobs"]
    assert at("drop -q mail --whole-queue --json", code=3).complaint["code"] == "not_found"


def test_drop_whole_queue_with_leased_messages_needs_force(at: Cli, published: Published) -> None:
    published("mail", "1")
    at("consume -q mail --no-ack")
    assert at("drop -q mail --whole-queue --json", code=4).complaint["code"] == "wrong_state"
    at("drop -q mail --whole-queue --force")


@pytest.mark.parametrize(
    "line", ["drop -q mail", "drop -q mail x --whole-queue", "drop -q mail ../x", "drop -q ../q x"]
)
def test_drop_refuses_bad_input(at: Cli, published: Published, line: str) -> None:
    published("mail", "1")
    assert at(f"{line} --json", code=2).complaint["code"] == "bad_input"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of every command of this test."""
    clock = ManualClock()
    monkeypatch.setattr("yirangmq.clock.SystemClock.now_ms", lambda _: clock.now_ms())
    return clock


def test_sweep_applies_due_transitions_and_its_dry_run_counts_them_by_state(
    at: Cli, published: Published, clock: ManualClock
) -> None:
    published("mail", "1", "2")
    at("consume -q mail --max 1 --no-ack --lease-seconds 10")
    for _ in range(3):
        at("publish -q mail --delay 10 3")
    at("publish -q mail --delay 1000 4")
    assert at("status --json").json["overdue"] is False
    clock.advance(10_000)
    answer = at("sweep --dry-run --json").json
    due = {"delayed": 3, "leased": 1}
    assert answer == {"ok": True, "did": "swept", "count": 4, "byState": due, "dryRun": True}
    assert at("status --json").json["overdue"] is True
    assert "due to move" in at("status").err
    assert "3 delayed" in at("sweep --dry-run").out
    assert at("sweep --json").json == {"ok": True, "did": "swept", "count": 4, "dryRun": False}
    status = at("status --json").json
    assert (status["overdue"], status["queues"][0]["ready"]) == (False, 5)
    assert at("sweep --dry-run").out == "due to move: nothing\n"
    assert at("sweep").out == "swept: 0 changes\n"


def test_check_and_repair_of_a_sound_store_report_no_findings(at: Cli, published: Published) -> None:
    published("mail", "1", "2")
    assert at("check --json").json == {"ok": True, "findings": [], "left": 0}
    assert at("check").out == "in order: nothing is wrong\n"
    assert at("repair --json").json["ok"] is True


@pytest.mark.parametrize("line", ["check", "repair", "repair --dry-run", "export", "drop -q mail x"])
def test_cli_maintenance_without_a_store_is_an_error_and_creates_no_file(at: Cli, tmp_path: Path, line: str) -> None:
    assert at(f"{line} --json", code=3).complaint["field"] == "store"
    assert list(tmp_path.iterdir()) == []


def test_check_finds_a_wrong_count_and_repair_corrects_it(cli: Cli, tmp_path: Path) -> None:
    cli("publish -q mail 1")
    db = apsw.Connection(str(tmp_path / "yirang-data" / "queue.db"))
    db.execute("UPDATE queue SET ready = 7")
    db.close()
    found = cli("check --json")
    assert (found.code, found.json["ok"], found.json["left"]) == (5, False, 1)
    assert set(found.json["findings"][0]) == {"kind", "where", "text", "mended"}
    assert "repair' repairs" in cli("check").err
    assert cli("repair --dry-run").code == 5
    mended = cli("repair --json")
    assert (mended.code, mended.json["left"], mended.json["findings"][0]["mended"]) == (0, 0, True)
    assert cli("check").code == 0


def test_salvage_by_repair_recovers_messages_of_a_file_that_does_not_open(cli: Cli, tmp_path: Path) -> None:
    cli("publish -q mail", '"hello"')
    path = tmp_path / "yirang-data" / "queue.db"
    path.write_bytes(bytes(100) + path.read_bytes()[100:])
    for line in ("status", "check", "repair --dry-run"):
        assert cli(f"{line} --json").complaint["code"] == "store_damaged"
    mended = cli("repair --json")
    assert (mended.code, [finding["kind"] for finding in mended.json["findings"]]) == (0, ["salvaged"])
    assert (tmp_path / "yirang-data" / "queue.db.damaged").exists()
    assert '"hello"' in cli("consume -q mail").out


def test_store_damaged_is_reported_by_every_command_for_a_file_of_another_kind(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "yirang-data").mkdir()
    (tmp_path / "yirang-data" / "queue.db").write_bytes(
        b"this is no database, but long enough to be looked at as one" * 50
    )
    for line in ("status", "publish -q mail 1", "check", "repair"):
        result = cli(f"{line} --json")
        assert (result.code, result.complaint["code"]) == (5, "store_damaged")


def test_cli_purge_drops_the_backlog_and_nothing_without_a_selection(at: Cli) -> None:
    for n in range(3):
        at(f"publish -q mail --id m-{n}", f'{{"n": {n}}}')
    assert at("purge -q mail --json", code=2).complaint["field"] == "filter"
    would = at("purge -q mail --all --dry-run --json").json
    assert would == {
        "ok": True,
        "did": "purged",
        "queue": "mail",
        "count": 3,
        "ids": ["m-0", "m-1", "m-2"],
        "dryRun": True,
    }
    assert at("purge -q mail --filter 'payload.n=1'").out == "purged: 1 message of mail\n"
    assert at("purge -q mail --all --limit 1 --state ready --json").json["ids"] == ["m-0"]
    assert at("purge -q mail --all").out == "purged: 1 message of mail\n"
    assert at("status -q mail --json").json["queues"][0]["ready"] == 0
    assert at("purge -q nowhere --all --json", code=3).complaint["code"] == "not_found"
