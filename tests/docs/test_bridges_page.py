"""The commands of the page about bridges are run, and it names every state."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.server_process import daemon, run_command, until
from yirangmq.core.bridges import BridgeState

PAGE = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text()


def test_bridges_page_lists_every_bridge_state() -> None:
    assert re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE) == [*BridgeState]


@pytest.mark.process
def test_bridges_page_commands_do_as_the_page_says(tmp_path: Path) -> None:
    [block] = code_blocks(PAGE, "sh")
    first, *commands = block.splitlines()
    assert first == "yirangmq serve &"
    said = []
    with daemon(tmp_path, "--http", "127.0.0.1:0", data="yirang-data") as server:
        for command in commands:
            words = shlex.split(command)
            if words[0] == "curl":
                _, _, target, _, header, _, body = words
                host, _, path = target.partition("/")
                assert (host, header) == ("127.0.0.1:8080", "Content-Type: application/json")
                assert server.request("POST", f"/{path}", body.encode())[0] == 200
                continue
            if words[1] == "consume":
                until(lambda: b'"ready": 1' in _status(tmp_path))
            done = run_command(tmp_path, *words[1:])
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)
        assert re.search(r"bridge +to queue +state +lag\n(.*\n)*billing ", run_command(tmp_path, "status").stdout)
    assert '"id": 7' in said[2]
    assert "orders.*" in said[3]


def _status(folder: Path) -> bytes:
    found = json.loads(run_command(folder, "status", "--queue", "billing", "--json").stdout)
    return b'"ready": %d' % found["queues"][0]["ready"]
