"""A server between quick requests: awake while they come, asleep when they do not."""

import os
import time
from pathlib import Path

import pytest

from tests.support.server_process import Daemon, daemon, until
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process


def work_of(server: Daemon) -> float:
    """Seconds of processors that it has had."""
    words = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("awake", ["on", "off"])
def test_busy_poll_on_or_off_lets_the_server_sleep_after_a_thousand_quick_requests(tmp_path: Path, awake: str) -> None:
    with daemon(tmp_path, "--stay-awake", awake, "--durability", "os") as server:
        with connect(server.address) as client:
            for number in range(1000):
                client.publish("mail", number)
            assert client.counts("mail").ready == 1000
            began, before = time.monotonic(), work_of(server)

            def has_slept() -> bool:
                """For a whole second, of which it had less than a quarter of a processor."""
                nonlocal began, before
                if time.monotonic() < began + 1:
                    return False
                work, before = before, work_of(server)
                began = time.monotonic()
                return before - work < 0.25

            until(has_slept)
        assert server.stop() == 0
