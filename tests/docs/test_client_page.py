"""docs/client.md and its examples, run against a server as the page starts it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from yirangmq.client import connect, connection

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
PROGRAMS = code_blocks(PAGE, "python")
SOCKET = "unix:yirang-data/yirangmq.sock"


def run(*words: str, folder: Path, stdin: str = "") -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, input=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_client_page_programs_run(number: int, folder: Path) -> None:
    run("-W", "error", "-c", PROGRAMS[number], folder=folder)


def test_client_page_publish_and_subscribe_examples_transfer_every_line(folder: Path) -> None:
    lines = "".join(f"line {n}\n" for n in range(200))
    publish, subscribe = ROOT / "examples" / "publish.py", ROOT / "examples" / "subscribe.py"
    assert run(str(publish), SOCKET, "lines", folder=folder, stdin=lines) == "200 on disk\n"
    assert run(str(subscribe), SOCKET, "lines", folder=folder) == lines


def test_client_page_asyncio_example_shares_the_work_among_its_tasks(folder: Path) -> None:
    said = run(str(ROOT / "examples" / "asyncio_client.py"), SOCKET, folder=folder)
    assert said.endswith("\n30 done\n")
    assert "12 squared is 144\n" in said


def test_client_page_numbers_are_those_in_force() -> None:
    assert f"`timeout` seconds ({connect.TIMEOUT:g})" in PAGE
    assert f"`retries` times ({connect.RETRIES}; {connect.FAILOVER_RETRIES} with several addresses)" in PAGE
    assert f"waits {connection.BACKOFF.first:g} seconds" in PAGE
    assert f"up to {connection.BACKOFF.limit:g} seconds" in PAGE
