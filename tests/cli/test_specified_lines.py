"""Every line of the specification's command-line section, as written. Only the two absolute folders are moved
into the test's own, so that nothing outside it is touched."""

from pathlib import Path

import pytest

from tests.support.cli import Cli

LINES = """
yirangmq publish --backend fs --queue telemetry --file message.json
yirangmq publish --backend sqlite --db /data/yirang.db --queue telemetry --file message.json
yirangmq consume --backend fs --queue telemetry --path /var/yirang/queues
yirangmq consume --backend sqlite --db /data/yirang.db --queue telemetry
yirangmq status --backend fs --queue telemetry
yirangmq status --backend sqlite --queue telemetry
yirangmq dlq list --backend sqlite --queue telemetry-dlq
yirangmq dlq requeue --backend fs --queue telemetry-dlq --filter reasonCode=TIMEOUT
""".strip().splitlines()

MESSAGE = """{
  "messageId": "9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71",
  "timestamp": "2026-01-13T10:21:00+09:00",
  "queue": "telemetry",
  "type": "sensor.reading",
  "version": 1,
  "attributes": {"deviceId": "device-001", "priority": 3},
  "traceId": "trace-1234",
  "deduplicationKey": "device-001:1705112460",
  "payload": {
    "temp": 36.1,
    "rpm": 1200
  }
}
"""


def here(line: str, folder: Path) -> str:
    return line.removeprefix("yirangmq ").replace("/data/", f"{folder}/data/").replace("/var/", f"{folder}/var/")


@pytest.fixture
def message(tmp_path: Path) -> Path:
    path = tmp_path / "message.json"
    path.write_text(MESSAGE)
    return path


def test_cli_specified_lines_run_one_after_the_other(cli: Cli, message: Path, tmp_path: Path) -> None:
    for line in LINES:
        result = cli(here(line, tmp_path))
        assert result.code == 0, (line, result)


@pytest.mark.parametrize("line", LINES)
def test_cli_specified_line_runs_alone_in_an_empty_folder(cli: Cli, message: Path, tmp_path: Path, line: str) -> None:
    assert cli(here(line, tmp_path)).code == 0


def test_cli_specified_publish_line_is_consumed_by_the_specified_consume_line(
    cli: Cli, message: Path, tmp_path: Path
) -> None:
    cli(here(LINES[1], tmp_path))
    shown = cli(here(LINES[3], tmp_path)).out
    assert "9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71" in shown
    assert '"temp": 36.1' in shown
    assert "nothing to consume" in cli(here(LINES[3], tmp_path)).err


def test_cli_specified_lines_that_inspect_a_missing_store_create_no_file(cli: Cli, tmp_path: Path) -> None:
    for line in LINES[4:7]:
        assert cli(here(line, tmp_path)).code == 0
    assert list(tmp_path.iterdir()) == []
