"""The commands of the page about dispatch are run, and it names every strategy and every status."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.server_process import daemon, run_command
from yirangmq.config.config import load
from yirangmq.core.dispatch import MEANING, Strategy
from yirangmq.core.events import DeliveryStatus

PAGE = (Path(__file__).parents[2] / "docs" / "dispatch.md").read_text()


def test_dispatch_page_lists_every_strategy_and_every_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted([*Strategy, *DeliveryStatus])
    assert set(MEANING) == set(Strategy)


def test_dispatch_page_settings_load() -> None:
    [settings] = [one for one in code_blocks(PAGE, "json") if '"programs"' in one]
    found = load(json.loads(settings), {}, {})
    assert [program.name for program in found.programs] == ["ATMH", "JETCO", "EPSCO"]


@pytest.mark.process
def test_dispatch_page_commands_do_as_the_page_says(tmp_path: Path) -> None:
    lines = [line for block in code_blocks(PAGE, "sh") for line in block.splitlines()]
    assert lines.pop(0) == "yirangmq serve &"
    said = {}
    with daemon(tmp_path, data="yirang-data"):
        for line in lines:
            done = run_command(tmp_path, *shlex.split(line)[1:])
            assert done.returncode == 0, (line, done.stderr)
            said[line] = done.stdout
    assert '{"order": 17}' in said["yirangmq consume --queue orders --consumer-id worker-1 --max 1"]
    assert "DELIVERED" in said["yirangmq deliveries --queue orders"]
    assert "round_robin" in said["yirangmq dispatch show orders"]
    assert '{"eur": 1.08}' in said["yirangmq consume --queue prices --consumer-id ledger --max 1"]
