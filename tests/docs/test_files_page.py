"""The commands of the page about files by date run as they stand there, and its records are records."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.wait import PATIENCE
from yirangmq.core.journal import DeliveryResult, JournalRecordKind
from yirangmq.format.journal_line import payload_of, read

PAGE = (Path(__file__).parents[2] / "docs" / "files-by-date.md").read_text()


def block(language: str) -> str:
    [found] = code_blocks(PAGE, language)
    return str(found)


@pytest.mark.process
def test_files_page_commands_run(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", block("sh")],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "in order: nothing is wrong" in done.stdout
    assert "DELIVERED" in done.stdout
    assert '"record":"outcome"' in done.stdout


def test_files_page_records_are_valid_and_their_members_explained() -> None:
    accepted, outcome = (read(line.encode()) for line in block("json").splitlines())
    assert payload_of(accepted) == b'{"amount":50}'
    assert {*accepted, *outcome} <= {*re.findall(r"`(\w+)`", PAGE)}


@pytest.mark.parametrize(
    "word", [*JournalRecordKind, *DeliveryResult, "completed", "unconfirmed", "lost", "unfinished", "unsettled"]
)
def test_files_page_explains_every_word_of_kinds_deliveries_and_findings(word: str) -> None:
    assert f"`{word}`" in PAGE
