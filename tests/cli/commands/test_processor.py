"""``processor``: set, seen, tried and taken away, on a store of one's own."""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.cli import Cli

CHAIN = '{"checks": [{"check": "encoding", "encoding": "euc-kr"}, {"check": "length", "max": 5}]}'


def test_processor_set_keeps_the_rest_of_the_policy(at: Cli) -> None:
    at("policy set -q mail", '{"ttlSec": 60}')
    done = at("processor set --json -q mail", CHAIN).json
    assert (done["queue"], done["dryRun"]) == ("mail", False)
    assert [check["check"] for check in done["processor"]["checks"]] == ["encoding", "length"]
    policy = at("policy get --json -q mail").json["policy"]
    assert (policy["ttlSec"], policy["processor"]) == (60, done["processor"])
    assert at("processor show --json -q mail").json == {
        "ok": True, "queue": "mail", "from": "policy", "processor": done["processor"],
    }  # fmt: skip


def test_processor_list_shows_the_processors_of_all_queues(at: Cli) -> None:
    assert "no queue has a processor" in at("processor list").out
    at("processor set -q mail", CHAIN)
    at("processor set -q post", '{"integrity": "sha256"}')
    assert [row["queue"] for row in at("processor list --json").json["processors"]] == ["mail", "post"]
    [_, mail, post] = at("processor list").out.splitlines()
    assert mail.split() == ["mail", "policy", "none", "encoding,", "length", "-"]
    assert post.split() == ["post", "policy", "sha256", "-", "-"]


def test_processor_check_is_a_dry_run_on_files_and_stores_nothing(at: Cli, tmp_path: Path) -> None:
    at("processor set -q mail", CHAIN)
    (tmp_path / "good").write_bytes("이".encode("euc-kr"))
    (tmp_path / "bad").write_bytes(b"\xff\xff")
    (tmp_path / "long").write_bytes(b"123456")
    assert (
        f"good: fits, 2 bytes, SHA-256 {sha256('이'.encode('euc-kr')).hexdigest()}"
        in at("processor check -q mail good").out
    )
    done = at("processor check -q mail good bad long", code=2)
    assert [line.partition(" (")[0] for line in done.out.splitlines()[1:]] == [
        "bad: unfit: payload: is not euc-kr: byte 0",
        "long: unfit: payload: has 6 bytes, not at most 5",
    ]
    told = at("processor check --json -q mail good bad", code=2).json
    assert (told["ok"], told["refused"], told["messages"][1]["file"]) == (False, 1, "bad")
    assert at("status --json -q mail").json["queues"][0]["ready"] == 0


def test_processor_check_tests_header_options(at: Cli, tmp_path: Path) -> None:
    at("processor set -q mail", '{"checks": [{"check": "headers", "fields": {"type": {}, "attributes.bank": {}}}]}')
    (tmp_path / "one").write_bytes(b"1")
    assert "one: unfit: type: is missing" in at("processor check -q mail one", code=2).out
    at("processor check -q mail one --type transfer --attribute bank=012")


def test_processor_missing_on_a_queue_means_every_message_fits(at: Cli, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    at("publish -q mail", "1")
    done = at("processor check -q mail one")
    assert ("one: fits" in done.out, "mail has no processor" in done.err) == (True, True)
    assert "has no processor" in at("processor show -q mail").out
    assert "not_found" in at("processor remove -q mail", code=3).err


def test_processor_remove_ends_the_checks_of_the_queue(at: Cli) -> None:
    at("processor set -q mail", CHAIN)
    assert "unfit" in at("publish -q mail --raw 123456", code=2).err
    at("processor remove -q mail")
    at("publish -q mail --raw 123456")
    assert at("policy get --json -q mail").json["own"] is False


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["{"], "processor: "), (["null"], "processor remove"), (['{"chekcs": []}'], "did you mean 'checks'?"),
     (['{"hooks": [{"hook": "os:system"}]}'], "os:system may not run here: none may, by the setting hooks"),
     ([], "give one of")],
    ids=["broken", "null", "unknown", "forbidden", "nothing"],
)  # fmt: skip
def test_processor_set_refuses_a_bad_document_with_the_reason(at: Cli, words: list[str], complaint: str) -> None:
    done = at("processor set -q mail", *words, code=2)
    assert complaint in done.err


def test_processor_set_dry_run_changes_nothing(at: Cli) -> None:
    assert "would be now" in at("processor set --dry-run -q mail", CHAIN).out
    at("publish -q mail --raw 123456")


@pytest.mark.process
def test_hook_runs_only_if_the_environment_allows_its_module(
    at: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bank_rules.py").write_text(
        "def check(message):\n    return message.payload[:1] == b'1' or 'is no one'\n"
    )
    monkeypatch.setenv("YIRANGMQ_HOOKS", "bank_rules")
    at("processor set -q mail", '{"hooks": [{"hook": "bank_rules:check", "timeoutSec": 60}]}')
    at("publish -q mail --raw 123")
    assert "unfit: payload: is no one" in at("publish -q mail --raw 234", code=2).err
    monkeypatch.setenv("YIRANGMQ_HOOKS", "")
    assert (
        "hook_failed: processor.hooks: bank_rules:check may not run here" in at("publish -q mail --raw 1", code=10).err
    )
