"""The command as a process of its own: pipes, signals, stdin."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wait import PATIENCE, until
from yirangmq.format.json_codec import loads

pytestmark = pytest.mark.process
YIRANGMQ = [sys.executable, "-m", "yirangmq"]


def call(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*YIRANGMQ, *words], input=stdin, capture_output=True, check=False, timeout=PATIENCE)


def counts() -> dict[str, int]:
    found: dict[str, int] = loads(call("status", "--queue", "mail", "--json").stdout)["queues"][0]
    return found


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_cli_installed_script_prints_the_same_version_as_the_module() -> None:
    script = Path(sys.executable).with_name("yirangmq")
    done = subprocess.run([script, "--version"], capture_output=True, check=True, timeout=PATIENCE)
    assert done.stdout == call("--version").stdout


def test_cli_consume_into_a_closed_pipe_exits_141_without_stderr_and_loses_no_message() -> None:
    published = 3000
    call("publish", "-q", "mail", "--lines", "--file", "-", stdin=b'"' + b"x" * 200 + b'"\n' + b"1\n" * (published - 1))
    consumer = subprocess.Popen(
        [*YIRANGMQ, "consume", "-q", "mail", "--batch", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    consumer.stdout.readline()
    consumer.stdout.close()
    assert consumer.stderr.read() == b""
    consumer.stderr.close()
    assert consumer.wait(PATIENCE) == 141
    left = counts()
    assert left["leased"] == 0
    assert left["ready"] + left["done"] == published
    assert left["ready"] >= 1000


def test_cli_peek_into_a_closed_pipe_exits_141_without_stderr() -> None:
    call("publish", "-q", "mail", "--lines", "--file", "-", stdin=b"1\n" * 3000)
    done = subprocess.run(
        f"{sys.executable} -m yirangmq peek -q mail --limit 3000 --json | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stderr == b""
    assert done.stdout.splitlines()[-1] == b"141"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_cli_consume_follow_prints_new_messages_and_stops_on_a_signal(number: signal.Signals, code: int) -> None:
    call("publish", "-q", "mail", '"first"')
    follower = subprocess.Popen(
        [*YIRANGMQ, "consume", "-q", "mail", "--follow", "--raw"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == b'"first"\n'
    call("publish", "-q", "mail", '"second"')
    assert follower.stdout.readline() == b'"second"\n'
    until(lambda: counts()["done"] == 2)  # it says what it got, then that it is done
    os.kill(follower.pid, number)
    out, err = follower.communicate(timeout=PATIENCE)
    assert (follower.returncode, out, err) == (code, b"", b"")
    assert counts()["done"] == 2


def test_cli_consume_releases_its_message_though_the_stop_signal_comes_twice() -> None:
    """As from ``timeout``, which signals the child and then its group."""
    call("publish", "-q", "mail", "--raw", "--file", "-", stdin=b"x" * 1_000_000)
    stuck = subprocess.Popen([*YIRANGMQ, "consume", "-q", "mail", "--raw"], stdout=subprocess.PIPE)
    assert stuck.stdout is not None
    assert stuck.stdout.read(1) == b"x"  # it has begun, and the rest does not fit into the pipe
    os.kill(stuck.pid, signal.SIGTERM)
    os.kill(stuck.pid, signal.SIGINT)
    assert stuck.wait(PATIENCE) in (130, 143)
    stuck.stdout.close()
    assert (counts()["ready"], counts()["leased"]) == (1, 0)


def test_cli_publish_lines_stores_each_line_of_a_slow_program_while_its_pipe_stays_open() -> None:
    slow = subprocess.Popen(
        [*YIRANGMQ, "publish", "-q", "mail", "--lines", "--file", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert slow.stdin is not None
    try:
        for number in (1, 2):
            slow.stdin.write(b"%d\n" % number)
            slow.stdin.flush()
            until(lambda number=number: counts().get("ready") == number)
        out, _ = slow.communicate(b"3", timeout=PATIENCE)
    finally:
        slow.kill()
    assert (slow.returncode, out) == (0, b"published 3 to mail\n")
    assert counts()["ready"] == 3


def test_cli_errors_go_to_stderr_and_leave_stdout_empty() -> None:
    done = call("publish", "-q", "mail", "{")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"yirangmq: bad_input: ")
    assert b"Traceback" not in done.stderr
