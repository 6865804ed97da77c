"""``export`` and ``import``, between every pair of backends."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import BACKENDS, Cli, Killed, Published
from yirangmq.format.json_codec import loads


def messages(text: str) -> dict[str, Any]:
    found = (loads(line.encode()) for line in text.splitlines())
    return {line["messageId"]: line for line in found if line["kind"] == "message"}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(BACKENDS, BACKENDS)))
def test_export_and_import_between_all_backends_keep_messages_states_and_policies(
    cli: Cli, tmp_path: Path, source: str, target: str
) -> None:
    here, there = f"--store {_url(source, 'first')}", f"--store {_url(target, 'second')}"
    cli(f"policy set -q mail {here}", '{"ttlSec": 1000}')
    for number in range(5):
        cli(f"publish -q mail --id m{number} --priority {number} {here}", f'{{"n": {number}}}')
    cli(f"publish -q raw --raw --id bytes --file - {here}", stdin=b"\x00\xff")
    lease = cli(f"consume -q mail --max 1 --no-ack --json {here}").json["lease"]["leaseId"]
    cli(f"nack {lease} --reason REJECTED --text never {here}")
    cli(f"consume -q mail --max 1 {here}")
    answer = cli(f"export all.jsonl --json {here}").json
    assert (answer["messages"], answer["queues"]) == (6, ["mail", "raw"])
    assert answer["bytes"] == (tmp_path / "all.jsonl").stat().st_size
    tried = cli(f"import all.jsonl --dry-run --json {there}").json
    assert (tried["stored"], tried["dryRun"]) == (6, True)
    assert cli(f"queues --json {there}").json["queues"] == []
    done = cli(f"import all.jsonl --json {there}").json
    assert done == {
        "ok": True,
        "queues": ["mail", "raw"],
        "stored": 6,
        "duplicates": 0,
        "policies": 1,
        "policiesKept": [],
        "dryRun": False,
    }
    assert cli(f"import all.jsonl {there}").out == "imported: 0 messages; 6 existed already\n"
    assert cli(f"import all.jsonl --dry-run --json {there}").json["stored"] == 0
    assert cli(f"policy get -q mail --json {there}").json["policy"]["ttlSec"] == 1000
    sent, arrived = messages(cli(f"export {here}").out), messages(cli(f"export - {there}").out)
    for line in (*sent.values(), *arrived.values()):
        if not line["leases"]:
            del line["changedAt"]
    assert arrived == sent
    assert cli(f"consume -q mail --raw {there}").out == '{"n": 2}\n{"n": 3}\n{"n": 4}\n'
    assert cli(f"dlq list -q mail-dlq --json {there}").json["reasonMessage"] == "never"
    assert cli(f"check {there}").code == 0


def _url(backend: str, name: str) -> str:
    return f"sqlite:{name}.db" if backend == "sqlite" else f"files:{name}"


def test_export_of_chosen_queues_contains_only_those(at: Cli, published: Published) -> None:
    for queue in ("a", "b", "c"):
        published(queue, "1")
    assert at("export some.jsonl -q a -q c --json").json["queues"] == ["a", "c"]
    assert at("export -q nobody --json", code=3).complaint["field"] == "queue"


def test_export_to_stdout_can_be_imported_from_stdin(at: Cli, published: Published) -> None:
    published("mail", "1", "2")
    exported = at("export")
    assert "exported 2 messages of 1 queue" in exported.err
    at("drop -q mail --whole-queue")
    assert at("import -", stdin=exported.out.encode()).out == "imported: 2 messages\n"


def test_export_does_not_overwrite_a_file_without_force(at: Cli, published: Published, tmp_path: Path) -> None:
    published("mail", "1")
    (tmp_path / "x.jsonl").write_text("precious")
    assert at("export x.jsonl --json", code=2).complaint["field"] == "file"
    assert (tmp_path / "x.jsonl").read_text() == "precious"
    at("export x.jsonl --force")
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 4


def test_export_that_fails_leaves_no_file(at: Cli, published: Published, tmp_path: Path) -> None:
    published("mail", "1")
    at("export y.jsonl -q nobody", code=3)
    at("export missing/y.jsonl", code=5)
    assert not list(tmp_path.glob("*y.jsonl*"))


def test_import_keeps_a_different_policy_unless_asked_to_replace(at: Cli, cli: Cli) -> None:
    at("policy set -q mail", '{"ttlSec": 5}')
    at("export p.jsonl")
    at("policy set -q mail", '{"ttlSec": 9}')
    kept = at("import p.jsonl")
    assert "mail keeps its own policy" in kept.err
    assert at("import p.jsonl --json").json["policiesKept"] == ["mail"]
    at("import p.jsonl --policies skip")
    assert at("policy get -q mail --json").json["policy"]["ttlSec"] == 9
    at("import p.jsonl --policies replace")
    assert at("policy get -q mail --json").json["policy"]["ttlSec"] == 5


def test_import_of_a_truncated_export_is_refused(at: Cli, published: Published, tmp_path: Path) -> None:
    published("mail", "1", "2", "3")
    at("export x.jsonl")
    whole = (tmp_path / "x.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(whole[:-2]))
    refused = at("import cut.jsonl --json", code=2)
    assert refused.complaint["field"] == "import"
    assert "cut off" in refused.complaint["error"]


@pytest.mark.parametrize("line", ["import", "import nowhere.jsonl", "import x --policies merge"])
def test_import_refuses_bad_input(cli: Cli, line: str) -> None:
    result = cli(f"{line} --json")
    assert (result.code, result.complaint["code"]) == (2, "bad_input")


def test_dead_letter_reasons_are_kept_by_export_and_import(at: Cli, killed: Killed, cli: Cli) -> None:
    killed("jobs", "a", "b", reason="TIMEOUT")
    at("export x.jsonl")
    cli("import x.jsonl --db other.db")
    assert cli("dlq stats -q jobs --db other.db --json").json["byReason"] == {"TIMEOUT": 2}
    assert cli("dlq requeue -q jobs-dlq --db other.db --filter reasonCode=TIMEOUT --json").json["ids"] == ["a", "b"]
