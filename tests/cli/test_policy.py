"""``policy get | set | validate``, on both backends."""

from pathlib import Path

import pytest

from tests.cli.parts import Cli
from yirangmq.format.jsontext import loads


def test_a_queue_without_a_policy_lives_on_defaults(at: Cli) -> None:
    answer = at("policy get -q mail --json").json
    assert (answer["queue"], answer["own"]) == ("mail", False)
    assert answer["policy"]["retry"]["limit"] == 5
    assert loads(at("policy get -q mail").out.encode()) == answer["policy"]


def test_a_policy_is_set_from_text_file_and_stdin(at: Cli, tmp_path: Path) -> None:
    at("policy set -q mail", '{"retry": {"limit": 2}}')
    assert at("policy get -q mail --json").json["policy"]["retry"]["limit"] == 2
    (tmp_path / "p.json").write_text('{"visibilityTimeoutSec": 7}')
    answer = at("policy set -q mail --file p.json --json").json
    assert (answer["policy"]["visibilityTimeoutSec"], answer["policy"]["retry"]["limit"]) == (7, 5)
    at("policy set -q mail --file -", stdin=b'{"ttlSec": 9}')
    assert at("policy get -q mail --json").json["own"] is True
    at("policy set -q mail --defaults")
    assert at("policy get -q mail --json").json["own"] is False


def test_a_dry_run_sets_nothing(at: Cli) -> None:
    answer = at("policy set -q mail --dry-run --json", '{"ttlSec": 9}').json
    assert (answer["dryRun"], answer["policy"]["ttlSec"]) == (True, 9)
    assert at("policy get -q mail --json").json["policy"]["ttlSec"] == 0
    assert "would be" in at("policy set -q mail --dry-run", "{}").out


def test_a_policy_is_checked_without_a_store(cli: Cli, tmp_path: Path) -> None:
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
def test_a_bad_policy_names_its_field_and_is_not_set(cli: Cli, verb: str, text: str, field: str) -> None:
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
def test_bad_input(cli: Cli, line: str) -> None:
    result = cli(f"{line} --json")
    assert (result.code, result.complaint["code"]) == (2, "bad_input")
