"""docs/topics.md: its programs and its commands, run against a server as the page starts it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.wait import PATIENCE
from yirangmq.client import topics
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "topics.md").read_text()
PROGRAMS = code_blocks(PAGE, "python")
LINES = [line for block in code_blocks(PAGE, "sh") for line in block.splitlines()]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_topics_page_programs_run(number: int, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS[number]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


def test_topics_page_commands_run_with_a_server_and_without(folder: Path, tmp_path: Path) -> None:
    assert len(LINES) >= 10
    for where in (folder, tmp_path):
        (where / "trades.txt").write_text("one\ntwo\nthree\n")
        script = "\n".join(LINES).replace("yirangmq", f"{sys.executable} -m yirangmq")
        done = subprocess.run(["bash", "-e", "-c", script], cwd=where, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert "replayed to queue:audit: " in done.stdout
    assert (tmp_path / "yirang-data" / "topics").is_dir()


def test_ledger_example_resumes_after_its_last_record(folder: Path) -> None:
    line = [sys.executable, str(ROOT / "examples" / "ledger.py"), "unix:yirang-data/yirangmq.sock", "books", "book.txt"]
    with connect(f"unix:{folder / 'yirang-data' / 'yirangmq.sock'}") as client:
        expected = []
        for n in range(2):
            receipts = client.topics.publish_many([("books", f"{n}.{line}") for line in range(3)])
            expected += [f"{one.sequence} books {n}.{line}" for line, one in enumerate(receipts)]
            done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
            assert (done.returncode, done.stdout) == (0, "online, 0 behind\n"), done.stderr
            assert (folder / "book.txt").read_text().splitlines() == expected


def test_topics_page_numbers_are_those_in_force() -> None:
    assert f"every {topics.RECONNECT:g} seconds" in PAGE
