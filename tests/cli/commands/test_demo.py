"""``demo`` and ``torture``: that they run and say what they did."""

import tempfile
from pathlib import Path

import pytest

from tests.support.cli import Cli


def test_cli_demo_prints_every_step_from_publish_to_redrive(cli: Cli, backend: str) -> None:
    shown = cli(f"demo --backend {backend}")
    assert shown.code == 0
    for words in ("publish two messages", "priority goes first", "ack:", "nack", "dead letter", "redrive", "all done"):
        assert words in shown.out
    assert "The store was removed" in shown.out


def test_cli_demo_json_reports_its_steps_and_the_dead_letter_record(cli: Cli, backend: str) -> None:
    told = cli(f"demo --json --backend {backend}").json
    assert told["steps"][-1] == {"step": "all done", "published": 2, "acked": 2, "failed": 2, "dead": 0}
    (record,) = (step["record"] for step in told["steps"] if "record" in step)
    assert (record["failure"]["attempt"], record["routing"]["dlqQueue"]) == (2, "telemetry-dlq")


def test_cli_demo_keep_leaves_the_store(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = cli("demo --json --keep").json
    assert str(tmp_path) in told["store"]
    assert cli(f"status --json --store {told['store']}").json["queues"][0]["done"] == 2
    assert "The store is left at" in cli("demo --keep").out


def test_cli_torture_is_a_command_and_refuses_zero_steps(cli: Cli) -> None:
    refused = cli("torture --steps 0 --json")
    assert (refused.code, refused.complaint["field"]) == (2, "steps")
