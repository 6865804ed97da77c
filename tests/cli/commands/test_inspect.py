"""``peek``, ``show``, ``status``, ``queues``, on both backends."""

from pathlib import Path

import pytest

from tests.support.cli import Cli, Killed, Published
from yirangmq.cli import queue_rows

CARD = {
    "messageId",
    "queue",
    "state",
    "priority",
    "attempt",
    "changedAt",
    "dueAt",
    "consumerId",
    "reasonCode",
    "seq",
    "message",
    "failure",
}
COUNTS = {
    "queue",
    "exists",
    "held",
    "backlog",
    "ready",
    "delayed",
    "leased",
    "dead",
    "parked",
    "done",
    "headAgeSec",
    "paused",
    "rates",
    "dlqQueue",
    "policyError",
    "strategy",
    "totals",
}


def test_peek_shows_the_next_messages_and_leases_none(at: Cli, published: Published) -> None:
    published("mail", *"12345")
    lines = at("peek -q mail --limit 3 --json").lines
    assert [line["message"]["payload"] for line in lines] == [1, 2, 3]
    assert all(set(line) == CARD for line in lines)
    title, *rows = at("peek -q mail").out.splitlines()
    assert title.split() == ["message", "priority", "attempt", "since", "due", "payload"]
    assert len(rows) == 5
    assert at("status --json").json["queues"][0]["ready"] == 5


def test_peek_selects_by_state_and_filter(at: Cli, published: Published, killed: Killed) -> None:
    published("mail", *(f'{{"n": {n}}}' for n in range(5)))
    lines = at("peek -q mail --json --filter", "payload.n>=3").lines
    assert [line["message"]["payload"]["n"] for line in lines] == [3, 4]
    at("publish -q mail --delay 100 --id later 1")
    assert [line["messageId"] for line in at("peek -q mail --state delayed --json").lines] == ["later"]
    killed("jobs", "x")
    (line,) = at("peek -q jobs --state dead --json").lines
    assert (line["reasonCode"], line["failure"]["reasonMessage"]) == ("REJECTED", "no")
    assert "no parked messages in mail" in at("peek -q mail --state parked").err


def test_show_finds_a_ready_done_or_dead_message(at: Cli, published: Published, killed: Killed) -> None:
    (id,) = published("mail", '{"to": "ann"}')
    shown = at(f"show -q mail {id} --json").json
    assert set(shown) == CARD
    assert (shown["state"], shown["message"]["payload"]) == ("ready", {"to": "ann"})
    at("consume -q mail")
    assert "state         done" in at(f"show -q mail {id}").out
    killed("jobs", "x")
    people = at("show -q jobs x").out
    assert "reasonCode    REJECTED" in people
    assert "reasonMessage no" in people


def test_show_of_an_unknown_message_is_not_found(at: Cli, published: Published) -> None:
    published("mail", "1")
    complaint = at("show -q mail nobody --json", code=3).complaint
    assert complaint == {
        "ok": False,
        "code": "not_found",
        "error": "queue 'mail' has no message 'nobody'",
        "field": None,
    }


def test_status_counts_each_state(at: Cli, backend: str, published: Published, killed: Killed) -> None:
    published("mail", *"123456")
    at("consume -q mail --max 1")
    at("consume -q mail --max 1 --no-ack")
    at("publish -q mail --delay 100 1")
    killed("jobs", "x")
    answer = at("status --json").json
    assert {key: answer[key] for key in ("ok", "backend", "durability", "overdue", "deadLettersOf")} == {
        "ok": True,
        "backend": backend,
        "durability": "full",
        "overdue": False,
        "deadLettersOf": None,
    }
    assert answer["store"] == {"sqlite": "sqlite:yirang-data/queue.db", "fs": "files:yirang-queues"}[backend]
    jobs, mail = answer["queues"]
    assert set(mail) == COUNTS
    assert [mail[name] for name in ("backlog", "ready", "delayed", "leased", "done")] == [5, 4, 1, 1, 1]
    assert mail["totals"] == {"published": 7, "acked": 1, "failed": 0, "dropped": 0, "redriven": 0}
    assert 0 <= mail["headAgeSec"] < 60
    assert (jobs["dead"], jobs["headAgeSec"], jobs["dlqQueue"]) == (1, None, "jobs-dlq")


def test_status_without_json_is_a_table_with_the_durability(at: Cli, published: Published) -> None:
    published("mail", "1")
    first, titles, row = at("status").out.splitlines()
    assert "durability full" in first
    columns = ["queue", "ready", "leased", "delayed", "dead", "oldest", "in/s", "out/s", "consumers"]
    assert titles.split() == [*columns, "held", "parked", "done", "published", "acked", "failed", "dropped", "redriven"]
    assert row.split()[:5] == ["mail", "1", "0", "0", "0"]
    assert row.split()[6:10] == ["-", "-", "0", "0"]


def test_status_of_a_dead_letter_queue_name_shows_its_source_queues(at: Cli, killed: Killed) -> None:
    killed("jobs", "x", "y")
    answer = at("status -q jobs-dlq --json").json
    assert answer["deadLettersOf"] == ["jobs"]
    assert [(row["queue"], row["dead"]) for row in answer["queues"]] == [("jobs", 2)]
    assert "jobs-dlq shows the dead letters of jobs" in at("status -q jobs-dlq").out


def test_status_of_a_queue_never_published_to_says_so(at: Cli, published: Published) -> None:
    published("mail", "1")
    (row,) = at("status -q nothing --json").json["queues"]
    assert (row["exists"], row["backlog"]) == (False, 0)
    assert "nothing was ever published to nothing" in at("status -q nothing").err


def test_cli_queues_lists_backlog_dead_letters_and_policy_of_each_queue(at: Cli, published: Published) -> None:
    published("mail", "1")
    at("policy set -q jobs", '{"dlq": {"queue": "graves"}}')
    rows = at("queues --json").json["queues"]
    assert rows == [
        {"queue": "jobs", "backlog": 0, "dead": 0, "dlqQueue": "graves", "hasPolicy": True},
        {"queue": "mail", "backlog": 1, "dead": 0, "dlqQueue": "mail-dlq", "hasPolicy": False},
    ]
    assert "jobs         0     0  graves             own" in at("queues").out


@pytest.mark.parametrize("line", ["status", "queues", "peek -q mail", "dlq list -q mail", "dlq stats -q mail"])
def test_cli_inspection_without_a_store_says_so_and_creates_no_file(at: Cli, tmp_path: Path, line: str) -> None:
    said = at(line).err
    assert "there is no store at" in said
    assert "the command shows an empty one and creates nothing. Check the path" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "peek -q mail --limit 0",
        "peek -q mail --state gone",
        "peek -q ../mail",
        "peek -q mail --filter nonsense",
        "status -q ../mail",
        "show -q mail ../x",
        "show -q mail",
        "status --backend cloud",
    ],
)
def test_cli_inspection_commands_refuse_bad_input(cli: Cli, line: str) -> None:
    result = cli(f"{line} --json")
    assert result.code == 2
    assert result.complaint["code"] in ("bad_input", "bad_filter")


def test_dispatch_strategy_is_set_shown_in_status_and_lists_its_consumers(at: Cli, published: Published) -> None:
    published("mail", "1")
    assert at("dispatch set mail --strategy round_robin --json").json["strategy"] == "round_robin"
    assert "mail is dispatched by round_robin" in at("status").err
    assert "round_robin" in at("dispatch show mail").out
    at("consume -q mail --max 1 --consumer-id w")
    assert at("deliveries -q mail --json").json["deliveries"] == [], "the process that delivered it has ended"
    assert at("dispatch register mail w v --json").json["consumers"][1] == {
        "consumerId": "v",
        "registered": True,
        "changed": True,
    }
    assert "deregistered: w" in at("dispatch deregister mail w").out
    assert at("dispatch set mail", code=2).err


# -- many queues ------------------------------------------------------------------------------------------------------


def test_cli_queue_lists_are_limited_on_a_terminal_and_complete_with_json(
    at: Cli, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_rows, "SHOWN", 3)
    monkeypatch.setattr(queue_rows, "PAGE", 2)
    monkeypatch.setattr(queue_rows.page, "__defaults__", ("", "", 2, None))
    names = [f"mail-{n}" for n in range(5)]
    for name in names:
        published(name, "1")
    for command in ("status", "queues"):
        assert [row["queue"] for row in at(f"{command} --json").json["queues"]] == names
        assert [row["queue"] for row in at(f"{command} --json --limit 4").json["queues"]] == names[:4]
        assert [row["queue"] for row in at(f"{command} --json --prefix mail-3").json["queues"]] == names[3:4]
        shown = at(command)
        assert "mail-2" in shown.out
        assert "mail-3" not in shown.out
        assert "2 more queues; --all shows them" in shown.err
        whole = at(f"{command} --all")
        assert "mail-4" in whole.out
        assert "more queues" not in whole.err
    assert at("status --json").json["all"]["queues"] == 5
