"""docs/http.md, http-topics.md and webhooks.md: their commands run in their order, against a server on this machine."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.curl import curl_command
from tests.support.http_server import HttpServer
from tests.support.pages import code_blocks
from tests.support.wait import PATIENCE
from yirangmq.clock import SystemClock
from yirangmq.stores.memory import MemoryStore

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("http", "http-topics", "webhooks")]
SCRIPT = "\n".join(block for page in PAGES for block in code_blocks(page, "sh"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    made = HttpServer(MemoryStore(), SystemClock(), folder=tmp_path_factory.mktemp("data")).start()
    yield made
    made.stop()


def test_http_pages_commands_run_in_their_order(server: HttpServer, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(bytes(range(256)))
    here = re.sub(r"^MQ=.*$", f"MQ={server.url}", SCRIPT, flags=re.MULTILINE)
    here = here.replace("curl -s ", f"{curl_command()} -sS --max-time 20 -w '\\n%{{http_code}}\\n' ")
    done = subprocess.run(["sh", "-e", "-c", here], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    statuses = re.findall(r"^([0-9]{3})$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stderr
    asked = re.findall(r"^\s*curl -s .*$", SCRIPT, re.MULTILINE)
    assert len(statuses) == len([line for line in asked if not re.search(r" >\w+$", line)]) > 30  # else it is in a file
    assert [status for status in statuses if status not in ("200", "409")] == [], done.stdout
    assert statuses.count("409") == 1, "the one lease that is lost"
