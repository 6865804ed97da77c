"""Hooks that hang, crash and are killed, in a real server: their sender is told, and nobody else notices."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.admission.hooks import MODULE
from tests.broker.admission.live import PATIENCE, served
from tests.support.daemon_thread import DaemonThread
from tests.support.server_process import Daemon
from tests.support.wait import until
from yirangmq.broker.admission import workers
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.core.errors import HookFailed, QueueError

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
LONG = 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    with served(tmp_path_factory.mktemp("hooks") / "d") as server:
        yield server


@pytest.fixture
def client(server: DaemonThread) -> Iterator[Client]:
    with connect(server.unix, consumer="tester") as client:
        yield client


def hooked(client: Client, queue: str, name: str, seconds: float = LONG, **more: Any) -> None:
    client.set_policy(queue, {"processor": {"hooks": [{"hook": f"{MODULE}:{name}", "timeoutSec": seconds}], **more}})


class Sending(threading.Thread):
    """A producer that waits for its answer while the test goes on."""

    def __init__(self, address: str, queue: str, *payloads: bytes) -> None:
        super().__init__(daemon=True)
        self._address, self._queue, self._payloads = address, queue, payloads
        self.error: QueueError | None = None
        self.start()

    def run(self) -> None:
        try:
            with connect(self._address, retries=0) as client:
                client.publish_many(self._queue, self._payloads)
        except QueueError as error:
            self.error = error

    def end(self) -> QueueError | None:
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.error


def is_gone(pid: int) -> bool:
    """Ended; whoever inherited it may not have noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def number_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def test_hook_that_hangs_is_stopped_at_its_timeout_and_the_next_message_is_accepted(client: Client) -> None:
    hooked(client, "hang", "hang", 0.3)
    with pytest.raises(HookFailed, match=r"^processor\.hooks: hook .*:hang was stopped after 0\.3 s \(message "):
        client.publish("hang", b"hang")
    assert client.counts("hang").published == 0
    hooked(client, "hang", "hang")
    client.publish("hang", b"fine")
    assert client.counts("hang").ready == 1


def test_hook_that_hangs_three_times_is_not_tried_for_the_rest_of_the_batch(client: Client) -> None:
    hooked(client, "hanging", "hang", 0.2)
    report = client.try_out("hanging", [b"hang"] * 6)
    words = [row["error"] for row in report["messages"]]
    assert ["was stopped" in text for text in words] == [True, True, True, False, False, False]
    assert all("not tried" in text for text in words[3:])


@pytest.mark.parametrize(
    ("payload", "how"), [(b"exit", "with exit code 3"), (b"kill", "by SIGKILL")], ids=["exit", "kill"]
)
def test_hook_process_that_crashes_fails_its_batch_and_no_other_message(
    client: Client, payload: bytes, how: str
) -> None:
    queue = f"die-{payload.decode()}"
    hooked(client, queue, "die")
    client.publish(queue, b"before")
    with pytest.raises(HookFailed, match=f"the process of hook .*:die ended {how}"):
        client.publish_many(queue, [b"one", payload])
    client.publish(queue, b"after")
    assert [one.payload for one in client.lease(queue, 10)] == [b"before", b"after"]


def test_hook_process_killed_from_outside_is_reported_to_the_sender(
    server: DaemonThread, client: Client, tmp_path: Path
) -> None:
    hooked(client, "killed", "begun")
    sending = Sending(server.unix, "killed", bytes(tmp_path / "pid"))
    os.kill(number_in(tmp_path / "pid"), signal.SIGKILL)
    error = sending.end()
    assert isinstance(error, HookFailed)
    assert "ended by SIGKILL" in str(error)
    assert client.counts("killed").published == 0


def test_hook_that_is_slow_delays_no_other_queue(server: DaemonThread, client: Client, tmp_path: Path) -> None:
    hooked(client, "slow", "wait")
    go = tmp_path / "go"
    sending = Sending(server.unix, "slow", bytes(go))
    until(go.with_suffix(".begun").exists)
    hooked(client, "quick", "hang")
    client.publish("quick", b"fine")
    client.publish("plain", b"fine")
    client.set_policy("much", {"processor": {"checks": [{"check": "encoding", "encoding": "utf-8"}]}})
    client.publish("much", b"a" * (1 << 19))
    assert [client.counts(queue).ready for queue in ("quick", "plain", "much", "slow")] == [1, 1, 1, 0]
    assert sending.is_alive()
    go.touch()
    assert sending.end() is None
    assert client.counts("slow").ready == 1


def test_hook_runs_in_parallel_keep_the_order_of_the_messages_of_a_queue(
    server: DaemonThread, client: Client, tmp_path: Path
) -> None:
    hooked(client, "order", "wait", workers=2)
    first, second = tmp_path / "first", tmp_path / "second"
    second.touch()
    slow = Sending(server.unix, "order", bytes(first))
    until(first.with_suffix(".begun").exists)
    quick = Sending(server.unix, "order", bytes(second))
    until(second.with_suffix(".begun").exists)  # at the same time
    first.touch()
    assert (slow.end(), quick.end()) == (None, None)
    assert [one.payload for one in client.lease("order", 10)] == [bytes(first), bytes(second)]


def test_hook_wait_queue_is_bounded_and_rejects_further_messages(
    server: DaemonThread, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_WAITING", 2)
    hooked(client, "full", "wait")
    go = tmp_path / "go"
    sending = Sending(server.unix, "full", bytes(go), bytes(go))
    until(go.with_suffix(".begun").exists)
    with pytest.raises(HookFailed, match="has too many waiting for it; try again later"):
        client.publish("full", b"one more")
    go.touch()
    assert sending.end() is None


def _stopped(tmp_path: Path, stop: Callable[[Any], Any]) -> tuple[int, QueueError | None]:
    """A server as a process, stopped while a hook runs that never ends."""
    daemon = Daemon(tmp_path, "--hooks", MODULE, "--stop-seconds", "0.5")
    daemon.start(PYTHONPATH=str(ROOT))
    try:
        with connect(daemon.address) as client:
            hooked(client, "begun", "begun")
        sending = Sending(daemon.address, "begun", bytes(tmp_path / "pid"))
        pid = number_in(tmp_path / "pid")
        stop(daemon)
        return pid, sending.end()
    finally:
        daemon.kill()


@pytest.mark.parametrize("stop", [Daemon.kill, Daemon.stop], ids=["killed", "stopped"])
def test_hook_processes_end_when_their_server_is_killed_or_stopped(tmp_path: Path, stop: Callable[[Any], Any]) -> None:
    pid, error = _stopped(tmp_path, stop)
    assert error is not None
    until(lambda: is_gone(pid))


def test_hook_beside_a_program_is_found_from_another_folder(tmp_path: Path) -> None:
    """The hook's process searches the module path of the program that opened the store."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "house_rules.py").write_text(
        "from yirangmq import Reject\n\n\ndef check(message):\n    raise Reject('as the rule says')\n"
    )
    (tmp_path / "program" / "main.py").write_text(
        "import yirangmq\n\n"
        "with yirangmq.open('memory:', hooks=['house_rules']) as queues:\n"
        "    queues.set_policy('mail', {'processor': {'hooks': [{'hook': 'house_rules:check'}]}})\n"
        "    try:\n"
        "        queues.publish('mail', 1)\n"
        "    except yirangmq.Unfit as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "program/main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "as the rule says" in done.stdout, done.stderr
