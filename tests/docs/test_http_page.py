"""docs/http.md: its commands run as they stand there, one after the other, against a server on this machine."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.http.v1.servers import HttpServer
from yirangmq.clock import SystemClock
from yirangmq.stores.memory import MemoryStore

pytestmark = pytest.mark.process
PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
HAS_JSON = 7_82
"""The first curl with ``--json``, as the number of its version."""


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    made = HttpServer(MemoryStore(), SystemClock()).start()
    yield made
    made.stop()


def curl_version() -> int:
    said = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout
    major, minor, *_ = said.split()[1].split(".")
    return int(major) * 100 + int(minor)


def spelled(line: str) -> str:
    """For an older curl what ``--json`` is short for."""
    if curl_version() >= HAS_JSON:
        return line
    return line.replace("--json", "-H 'Content-Type: application/json' -H 'Accept: application/json' --data-binary")


def test_the_commands_of_the_page_run_in_their_order(server: HttpServer, tmp_path: Path) -> None:
    assert shutil.which("curl"), "curl is what the page is about"
    (tmp_path / "photo.png").write_bytes(bytes(range(256)))
    script = "\n".join(block for block in BLOCKS if "sh-slow" not in block)
    script = re.sub(r"^MQ=.*$", f"MQ={server.url}", script, flags=re.MULTILINE)
    script = spelled(script).replace("curl -s ", "curl -sS --max-time 20 -w '\\n%{http_code}\\n' ")
    done = subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    statuses = re.findall(r"^([0-9]{3})$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stderr
    assert len(statuses) == len(re.findall(r"^\s*curl ", "\n".join(BLOCKS), re.MULTILINE))
    assert [status for status in statuses if status not in ("200", "409")] == [], done.stdout
    assert statuses.count("409") == 1, "the one lease that is lost"
