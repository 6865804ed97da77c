"""``policy get | set | validate``, on both backends."""

from pathlib import Path

import pytest

from tests.support.cli import Cli
from yirangmq.format.json_codec import loads


def test_policy_get_of_a_queue_without_its_own_policy_shows_the_defaults(at: Cli) -> None:
    answer = at("policy get -q mail --json").json
    assert (answer["queue"], answer["own"]) == ("mail", False)
    assert answer["policy"]["retry"]["limit"] == 5
    assert loads(at("policy get -q mail").out.encode()) == answer["policy"]


def test_policy_set_accepts_text_file_stdin_and_defaults(at: Cli, tmp_path: Path) -> None:
    at("policy set -q mail", '{"retry": {"limit": 2}}')
    assert at("policy get -q mail --json").json["policy"]["retry"]["limit"] == 2
    (tmp_path / "p.json").write_text('{"visibilityTimeoutSec": 7}')
    answer = at("policy set -q mail --file p.json --json").json
    assert (answer["policy"]["visibilityTimeoutSec"], answer["policy"]["retry"]["limit"]) == (7, 5)
    at("policy set -q mail --file -", stdin=b'{"ttlSec": 9}')
    assert at("policy get -q mail --json").json["own"] is True
    at("policy set -q mail --defaults")
    assert at("policy get -q mail --json").json["own"] is False


def test_policy_set_dry_run_changes_nothing(at: Cli) -> None:
    answer = at("policy set -q mail --dry-run --json", '{"ttlSec": 9}').json
    assert (answer["dryRun"], answer["policy"]["ttlSec"]) == (True, 9)
    assert at("policy get -q mail --json").json["policy"]["ttlSec"] == 0
    assert "would be" in at("policy set -q mail --dry-run", "{}").out


def test_policy_validate_needs_no_store(cli: Cli, tmp_path: Path) -> None:
    good = cli("policy validate", '{"retry": {"backoff": "linear"}}')
    assert (good.code, "a good policy" in good.out) == (0, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"retry": {"limit": -1}}', "retry.limit"),
        ('{"retry": {"backoff": "random"}}', "retry.backoff"),
        ('{"retry": {"initialDelaySec": 9, "maxDelaySec": 1}}', "retry.maxDelaySec"),
        ('{"visibilityTimeout": 1}', "visibilityTimeout"),
        ('{"dlq": {"queue": "../x"}}', "dlq.queue"),
        ('{"schemas": {"t": {"*": {"type": "nonsense"}}}}', "schemas.t.*"),
        ("[]", "document"),
        ("{", "policy"),
    ],
)
@pytest.mark.parametrize("verb", ["validate", "set -q mail", "set -q mail --dry-run"])
def test_policy_with_a_bad_value_is_refused_by_field_and_not_set(cli: Cli, verb: str, text: str, field: str) -> None:
    result = cli(f"policy {verb} --json", text)
    assert result.code == 2
    assert (result.complaint["code"], result.complaint["field"]) == ("bad_policy", field)
    assert cli("policy get -q mail --json").json["own"] is False


@pytest.mark.parametrize(
    "line",
    [
        "policy",
        "policy frobnicate",
        "policy set -q mail",
        "policy set -q mail {} --file x",
        "policy set -q mail {} --defaults",
        "policy set -q mail --file nowhere",
        "policy validate",
        "policy get",
    ],
)
def test_policy_commands_refuse_bad_input(cli: Cli, line: str) -> None:
    result = cli(f"{line} --json")
    assert (result.code, result.complaint["code"]) == (2, "bad_input")


def test_policy_file_damaged_by_hand_blocks_consume_of_its_own_queue_only(cli: Cli, tmp_path: Path) -> None:
    for queue in ("mail", "post"):
        cli(f"publish --path store -q {queue} 1")
    policy = tmp_path / "store" / "mail" / "config" / "policy.json"
    policy.write_text('{"ttlSec": -1}')
    status = cli("status --path store")
    assert (status.code, "the policy of mail is invalid" in status.err, "ttlSec" in status.err) == (0, True, True)
    rows = cli("status --path store --json").json["queues"]
    assert [(row["queue"], row["ready"], row["policyError"] is None) for row in rows] == [
        ("mail", 1, False),
        ("post", 1, True),
    ]
    assert cli("queues --path store").code == 0
    assert cli("dlq list --path store -q post-dlq").code == 0
    assert cli("publish --path store -q post 2").code == 0
    assert cli("consume --path store -q post --json").lines[0]["message"]["payload"] == 1
    assert cli("consume --path store -q mail --json").complaint["code"] == "bad_policy"
    assert cli("policy set --path store -q mail", "{}").code == 0
    assert cli("consume --path store -q mail --json").lines[0]["message"]["payload"] == 1
