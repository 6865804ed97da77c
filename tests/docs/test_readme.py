"""The README as a newcomer runs it: the server in one terminal, its commands in another, its program."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.curl import curl_command
from tests.support.pages import code_blocks
from tests.support.wait import PATIENCE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return code_blocks(README, language)


def _run(script: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.process
def test_readme_commands_of_the_second_terminal_and_over_http_work_against_the_server(tmp_path: Path) -> None:
    serve, second, web, *_ = _blocks("sh")
    assert serve == "make serve\n"
    command = [sys.executable, "-m", "yirangmq", "serve", "--data", "yirang-data", "--log-format", "text"]
    command += ["--http", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = server.stdout.readline()
            assert "is ready at" in told
            assert '{"to": "world"}' in _run(second, tmp_path)
            here = re.search(r"http://127\.0\.0\.1:[0-9]+", told)
            assert here is not None, told
            script = web.replace("http://127.0.0.1:8080", here[0]).replace("curl -s ", f"{curl_command()} -s ")
            assert '"payload":{"to": "world"}' in _run(script, tmp_path)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE) == 0
    assert not (tmp_path / "yirang.db").exists()


@pytest.mark.process
def test_readme_commands_without_a_server_and_the_program_work(tmp_path: Path) -> None:
    _, _, _, third = _blocks("sh")
    shown = _run(third, tmp_path)
    assert '{"work": 1}' in shown
    assert ".json" in shown
    [program] = _blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "{'work': 3}\n", done.stderr


def test_readme_names_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) | {"serve", "test"} <= targets
