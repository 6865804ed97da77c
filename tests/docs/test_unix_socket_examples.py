"""The examples of producers without Python, ``examples/publish.c`` and ``examples/publish.sh``, against a server."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.server_process import Daemon, daemon, until
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process
EXAMPLES = Path(__file__).parents[2] / "examples"
Command = Callable[[str], list[str]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Daemon]:
    """Its HTTP is at ``http.sock`` in the folder of the test."""
    with daemon(tmp_path, "--http", f"unix:{tmp_path / 'http.sock'}") as server:
        yield server


@pytest.fixture(params=["c", "sh"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Command:
    """The program's command line for a queue."""
    socket = str(tmp_path / "http.sock")
    if request.param == "sh":
        if shutil.which("curl") is None:
            pytest.skip("there is no curl on this machine")
        return lambda queue: ["sh", str(EXAMPLES / "publish.sh"), socket, queue]
    program = _compiled(tmp_path)
    return lambda queue: [program, socket, queue]


def _compiled(folder: Path) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler on this machine")
    program = str(folder / "publish")
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", program, EXAMPLES / "publish.c"], check=True)
    return program


def run(command: list[str], lines: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_publish_example_makes_each_line_a_message_in_order(server: Daemon, command: Command) -> None:
    documents = [{"n": n, "text": "후 'quoted' \\ $HOME"} for n in range(20)]
    done = run(command("mail"), "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in documents))
    assert (done.returncode, done.stdout) == (0, "20 on disk\n"), done.stderr
    with connect(server.address) as client:
        assert [delivery.value() for delivery in client.lease("mail", 100)] == documents


def test_publish_example_stops_at_a_refused_line_with_its_error(server: Daemon, command: Command) -> None:
    done = run(command("mail"), '{"n": 1}\n{"n": \n{"n": 3}\n')
    assert (done.returncode, done.stdout) == (1, "")
    assert "bad_input" in done.stderr
    assert "; 1 before it are on disk\n" in done.stderr
    with connect(server.address) as client:
        assert client.counts("mail").ready == 1


def test_publish_example_without_a_server_fails(command: Command) -> None:
    done = run(command("mail"), "1\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr


def test_publish_example_in_c_connects_again_after_a_restart(server: Daemon, tmp_path: Path) -> None:
    producer = subprocess.Popen(
        [_compiled(tmp_path), str(tmp_path / "http.sock"), "mail"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert producer.stdin is not None
    try:
        os.write(producer.stdin.fileno(), b'{"n": 1}\n')
        with connect(server.address) as client:
            until(lambda: "mail" in client.queues() and client.counts("mail").ready == 1)
        assert server.stop() == 0
        server.start()
        out, _ = producer.communicate(b'{"n": 2}\n', timeout=PATIENCE)
    finally:
        producer.kill()
    assert (producer.returncode, out) == (0, b"2 on disk\n")
    with connect(server.address) as client:
        assert [delivery.value() for delivery in client.lease("mail", 100)] == [{"n": 1}, {"n": 2}]
