"""``queue pause | resume`` and ``schedule list``, on each backend."""

from tests.support.cli import Cli, Published

NIGHTLY = '{"schedules": [{"name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "message": {"a": 1}}]}'


def test_queue_pause_stops_delivery_until_queue_resume(at: Cli, published: Published) -> None:
    published("mail", "1")
    assert at("queue pause mail").out == "paused: mail\n"
    assert at("consume -q mail --fail-empty", code=6).out == ""
    [row] = at("status --json").json["queues"]
    assert row["paused"] is True
    assert "mail is paused" in at("status").err
    assert at("queue resume mail").out == "resumed: mail\n"
    assert at("consume -q mail --json").json["message"]["payload"] == 1


def test_queue_pause_and_resume_of_several_queues_report_which_changed(at: Cli, published: Published) -> None:
    published("mail", "1")
    published("post", "1")
    at("queue pause post")
    assert at("queue pause mail post --json").json == {
        "ok": True,
        "queues": [
            {"queue": "mail", "paused": True, "changed": True},
            {"queue": "post", "paused": True, "changed": False},
        ],
    }
    assert at("queue resume mail post mail").out == "resumed: mail\nresumed: post\n"
    assert at("queue resume mail").out == "mail was not paused\n"


def test_queue_pause_of_a_missing_queue_is_refused_and_pauses_no_other(at: Cli, cli: Cli, published: Published) -> None:
    assert cli("queue pause mail").code == 3  # no store yet
    published("mail", "1")
    assert "there is no queue 'post'" in at("queue pause post", code=3).err
    assert "a/b" in at("queue pause mail a/b", code=2).err
    [row] = at("status --json").json["queues"]
    assert row["paused"] is False


def test_schedule_list_shows_name_cron_and_next_run_of_each_schedule(at: Cli) -> None:
    at("policy set -q mail", NIGHTLY)
    at("policy set -q post", '{"schedules": [{"name": "often", "cron": "* * * * *", "message": 1}]}')
    title, first, second = at("schedule list").out.splitlines()
    assert title.split() == ["queue", "name", "cron", "time", "zone", "next", "local", "time"]
    assert first.split()[:8] == ["mail", "nightly", "30", "2", "*", "*", "*", "Europe/Berlin"]
    assert second.split()[:2] == ["post", "often"]
    [row] = at("schedule list --json -q mail").json["schedules"]
    assert (row["name"], row["nextLocal"][10:16], row["error"]) == ("nightly", "T02:30", None)


def test_schedule_list_without_schedules_prints_no_table(at: Cli) -> None:
    result = at("schedule list")
    assert result.out == ""
    assert "no queue has a schedule" in result.err


def test_quota_exceeded_has_its_own_exit_code(at: Cli) -> None:
    at("policy set -q mail", '{"quota": {"maxMessages": 1}}')
    at("publish -q mail 1")
    refused = at("publish -q mail --json 2", code=10)
    assert refused.complaint["code"] == "quota_exceeded"
    assert "try again in 5 s" in refused.complaint["error"]


def test_schedule_with_an_unknown_timezone_is_refused_by_policy_validate(cli: Cli) -> None:
    wrong = NIGHTLY.replace("Europe/Berlin", "No/Where")
    result = cli("policy validate --json", wrong)
    assert (result.code, result.complaint["field"]) == (2, "schedules[0].timezone")
