"""docs/files.md is right: its commands run, its names are names, and it leaves out no folder and no mark."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.wait import PATIENCE
from yirangmq.core.message import Reason
from yirangmq.stores.files.names import FAILURE_MARKS, LETTER_OF, STATE_FOLDERS, folder_of, read_name

PAGE = (Path(__file__).parents[3] / "docs" / "files.md").read_text()


def blocks(language: str) -> list[str]:
    return code_blocks(PAGE, language)


@pytest.mark.process
def test_files_page_commands_run_in_order(tmp_path: Path) -> None:
    shown = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(blocks("sh"))],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert shown.returncode == 0, shown.stderr
    for text in ("~m-1.json", '"temp": 41.2', '"messageId":"m-2","ackedAt"', '"item": 17', '"item": 18'):
        assert text in shown.stdout
    assert shown.stdout.index('"item": 18') < shown.stdout.index('"item": 17'), "priority 0 goes first"


def test_files_page_example_names_are_valid_in_their_folders() -> None:
    [text] = blocks("text")
    for path in text.split():
        folder, _, name = path.rpartition("/")
        card = read_name("telemetry", folder.partition("/")[0], name)
        assert card is not None
        assert (folder_of(card.message), card.name) == (folder, name)


def test_files_page_explains_every_folder_mark_and_letter() -> None:
    for top in STATE_FOLDERS:
        assert f"`{top}/" in PAGE, top
    for mark in "PSWALDXCNRFGTZE":
        assert re.search(rf"^\| `{mark}\w*` \|", PAGE, re.MULTILINE), mark
    for reason in Reason:
        assert f"`{LETTER_OF[reason]}` {reason}" in PAGE
    for note in FAILURE_MARKS:
        assert f"`{note}`" in PAGE or not note
