"""``dlq list | show | stats | requeue | quarantine | purge``, on both backends."""

import pytest

from tests.support.cli import Cli, Killed, Published

CARD = {
    "messageId",
    "sourceQueue",
    "dlqQueue",
    "state",
    "reasonCode",
    "reasonMessage",
    "failedAt",
    "attempt",
    "consumerId",
    "priority",
    "seq",
}


@pytest.fixture
def letters(killed: Killed) -> None:
    """a and b rejected, c and d timed out."""
    killed("jobs", "a", "b", text="unknown\naccount")
    killed("jobs", "c", "d", reason="TIMEOUT", text="slow")


def ids(at: Cli, line: str = "dlq list -q jobs") -> list[str]:
    return [card["messageId"] for card in at(f"{line} --json").lines]


@pytest.mark.usefixtures("letters")
def test_cli_dlq_list_shows_the_dead_letters_as_json_and_table(at: Cli) -> None:
    cards = at("dlq list -q jobs-dlq --json").lines
    assert all(set(card) == CARD for card in cards)
    assert [card["messageId"] for card in cards] == ["a", "b", "c", "d"]
    assert (cards[0]["sourceQueue"], cards[0]["dlqQueue"], cards[0]["reasonMessage"]) == (
        "jobs",
        "jobs-dlq",
        "unknown\naccount",
    )
    title, first, *_ = at("dlq list -q jobs").out.splitlines()
    assert title.split()[:5] == ["message", "source", "queue", "state", "reason"]
    assert "unknown\\naccount" in first


@pytest.mark.usefixtures("letters")
def test_cli_dlq_list_selects_by_filter_limit_and_state(at: Cli) -> None:
    late = "reasonCode=TIMEOUT and attempt>=1 and failedAt>2026-01-14"
    assert ids(at, f"dlq list -q jobs --filter '{late}'") == ["c", "d"]
    assert ids(at, "dlq list -q jobs --limit 1") == ["a"]
    assert "only the first 2 are shown" in at("dlq list -q jobs --limit 2").err
    at("dlq quarantine -q jobs --id b")
    assert ids(at, "dlq list -q jobs --state parked") == ["b"]
    assert ids(at, "dlq list -q jobs --state all") == ["a", "c", "d", "b"]
    assert ids(at, "dlq list -q jobs --filter state=parked") == ["b"]


@pytest.mark.usefixtures("letters")
def test_cli_dlq_list_records_and_dlq_show_print_complete_records(at: Cli) -> None:
    records = at("dlq list -q jobs --records --filter messageId=a").lines
    assert records == [at("dlq show -q jobs-dlq a --json").json]
    assert set(records[0]) == {"originalMessage", "failure", "routing"}
    assert records[0]["originalMessage"]["payload"] == {"id": "a"}
    assert set(records[0]["failure"]) == {"reasonCode", "reasonMessage", "failedAt", "attempt", "consumerId"}
    assert records[0]["routing"] == {"sourceQueue": "jobs", "dlqQueue": "jobs-dlq"}
    assert '"reasonCode": "REJECTED"' in at("dlq show -q jobs a").out


@pytest.mark.usefixtures("letters")
def test_cli_dlq_stats_counts_by_reason_and_day(at: Cli) -> None:
    at("dlq quarantine -q jobs --id b")
    stats = at("dlq stats -q jobs-dlq --json").json
    assert (stats["ok"], stats["total"], stats["parked"], stats["sources"]) == (True, 3, 1, ["jobs"])
    assert stats["byReason"] == {"TIMEOUT": 2, "REJECTED": 1}
    assert sum(day["total"] for day in stats["byDay"]) == 3
    people = at("dlq stats -q jobs").out
    assert "jobs: 3 dead, 1 parked" in people
    assert "all" in people


@pytest.mark.usefixtures("letters")
def test_cli_dlq_requeue_by_filter_moves_the_matching_messages_back_with_attempt_1(at: Cli) -> None:
    answer = at("dlq requeue -q jobs-dlq --filter reasonCode=TIMEOUT --json").json
    assert answer == {
        "ok": True,
        "did": "requeued",
        "queue": "jobs-dlq",
        "count": 2,
        "ids": ["c", "d"],
        "dryRun": False,
    }
    assert ids(at) == ["a", "b"]
    assert [line["lease"]["attempt"] for line in at("consume -q jobs --json").lines] == [1, 1]


@pytest.mark.usefixtures("letters")
def test_cli_dlq_requeue_by_id_and_all_moves_the_chosen_messages(at: Cli) -> None:
    assert at("dlq requeue -q jobs --id d --id a --json").json["ids"] == ["a", "d"]
    at("dlq quarantine -q jobs --id b")
    assert at("dlq requeue -q jobs --all").out == "redriven: 1 of jobs (c)\n"
    assert at("dlq requeue -q jobs --all --state parked --json").json["ids"] == ["b"]
    assert at("consume -q jobs --raw").out.count("\n") == 4


@pytest.mark.usefixtures("letters")
def test_cli_dlq_purge_drops_dead_letters_and_keeps_quarantined_messages_unless_selected(at: Cli) -> None:
    at("dlq quarantine -q jobs --filter messageId=a")
    assert at("dlq purge -q jobs --all --json").json["count"] == 3
    assert ids(at, "dlq list -q jobs --state all") == ["a"]
    assert at("dlq purge -q jobs --filter state=parked --json").json["ids"] == ["a"]
    assert at("status -q jobs --json").json["queues"][0]["totals"]["dropped"] == 4


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("verb", ["requeue", "quarantine", "purge"])
@pytest.mark.parametrize(("which", "count"), [("--all", 4), ("--filter reasonCode=TIMEOUT", 2), ("--id a", 1)])
def test_cli_dlq_dry_run_counts_the_selected_messages_and_changes_nothing(
    at: Cli, verb: str, which: str, count: int
) -> None:
    answer = at(f"dlq {verb} -q jobs {which} --dry-run --json").json
    assert (answer["count"], answer["dryRun"]) == (count, True)
    assert "would have been" in at(f"dlq {verb} -q jobs {which} --dry-run").out
    assert ids(at) == ["a", "b", "c", "d"]
    assert at(f"dlq {verb} -q jobs {which} --json").json["count"] == count


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("verb", ["requeue", "quarantine", "purge"])
@pytest.mark.parametrize(
    ("which", "code", "problem", "field"),
    [
        ("", 2, "bad_input", "filter"),
        ("--all --id a", 2, "bad_input", "all"),
        ("--all --filter attempt=1", 2, "bad_input", "all"),
        ("--filter reasonCode=WEATHER", 2, "bad_filter", "filter"),
        ("--id a --id nobody", 3, "not_found", "id"),
        ("--id a --id alive", 4, "wrong_state", "id"),
        ("--id ../a", 2, "bad_input", "messageId"),
    ],
)
def test_cli_dlq_bad_input_is_refused_and_moves_nothing(
    at: Cli, published: Published, verb: str, which: str, code: int, problem: str, field: str
) -> None:
    at("publish -q jobs --id alive --delay 100 1")
    complaint = at(f"dlq {verb} -q jobs {which} --json", code=code).complaint
    assert (complaint["code"], complaint["field"]) == (problem, field)
    assert ids(at) == ["a", "b", "c", "d"]


def test_filter_error_of_cli_dlq_list_points_at_the_wrong_field(at: Cli, published: Published) -> None:
    published("jobs", "1")
    refused = at("dlq list -q jobs --filter", "reasonCode=TIMEOUT and atempt>=3", code=2)
    assert refused.err.splitlines() == [
        "yirangmq: bad_filter: filter: 'atempt' is not a field; did you mean 'attempt'?",
        "  reasonCode=TIMEOUT and atempt>=3",
        "                         ^",
    ]


def test_cli_dlq_show_of_a_message_that_is_not_dead_is_a_wrong_state(at: Cli, published: Published) -> None:
    (id,) = published("jobs", "1")
    assert at(f"dlq show -q jobs {id} --json", code=4).complaint["code"] == "wrong_state"
    assert at("dlq show -q jobs nobody --json", code=3).complaint["code"] == "not_found"


def test_cli_dlq_commands_without_dead_letters_report_zero(at: Cli, published: Published) -> None:
    published("jobs", "1")
    assert "no dead letters under jobs-dlq" in at("dlq list -q jobs-dlq").err
    assert at("dlq stats -q jobs").out == "jobs: 0 dead, 0 parked\n"
    assert at("dlq requeue -q jobs --all --json").json["count"] == 0


def test_cli_dlq_stats_without_a_queue_count_all_queues(at: Cli, killed: Killed) -> None:
    killed("jobs", "a", "b")
    killed("mail", "c")
    at("publish -q idle", "1")
    stats = at("dlq stats --json").json
    assert (stats["queue"], stats["total"]) == (None, 3)
    assert [(row["queue"], row["total"]) for row in stats["byQueue"]] == [("jobs", 2), ("mail", 1)]
    people = at("dlq stats").out
    assert "all queues: 3 dead, 0 parked" in people
    assert "jobs" in people


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("verb", ["redrive", "requeue", "quarantine", "purge"])
def test_cli_dlq_limit_takes_the_first_that_arrived(at: Cli, verb: str) -> None:
    dry = at(f"dlq {verb} -q jobs --all --limit 3 --dry-run --json").json
    assert (dry["count"], dry["ids"]) == (3, ["a", "b", "c"])
    assert at(f"dlq {verb} -q jobs --filter reasonCode=TIMEOUT --limit 1 --json").json["ids"] == ["c"]
    assert ids(at) == ["a", "b", "d"]
    refused = at(f"dlq {verb} -q jobs --all --limit 0 --json", code=2)
    assert refused.complaint["field"] == "limit"
