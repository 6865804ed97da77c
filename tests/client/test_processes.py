"""Whole servers killed and started again, and programs that fork."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.server_process import Daemon
from tests.support.wait import PATIENCE
from yirangmq import LeaseLost, Unreachable
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process


def test_reconnect_lets_a_client_start_before_its_server(daemon: Daemon) -> None:
    with connect(daemon.address, retries=100) as client:
        assert client.publish("mail", 1).duplicate is False


def test_reconnect_during_publish_many_to_a_server_killed_repeatedly_loses_and_repeats_nothing(daemon: Daemon) -> None:
    kills = 0

    def messages() -> Iterator[int]:
        nonlocal kills
        for n in range(4000):
            if n % 1000 == 500:
                daemon.kill()
                daemon.launch()
                kills += 1
            yield n

    with connect(daemon.address, retries=100) as client:
        stored = client.publish_many("mail", messages())
        got: list[int] = []
        while batch := client.lease("mail", 1000):
            got += [delivery.value() for delivery in batch]
            client.ack_many([delivery.lease_id for delivery in batch])
    assert (len(stored), kills) == (4000, 4)
    assert not any(one.duplicate for one in stored)
    assert got == list(range(4000))


def test_reconnect_of_a_subscription_continues_with_the_restarted_server(daemon: Daemon) -> None:
    with connect(daemon.address, retries=100) as client:
        client.set_policy("mail", {"visibilityTimeoutSec": 1, "retry": {"limit": 1000, "initialDelaySec": 0.01}})
        client.publish_many("mail", range(300))
        seen: list[int] = []
        with client.subscribe("mail", 20) as subscription:
            until = time.monotonic() + PATIENCE
            while client.counts("mail").done < 300 and time.monotonic() < until:
                delivery = subscription.next(1)
                if delivery is None:
                    continue
                seen.append(delivery.value())
                with contextlib.suppress(LeaseLost):  # the server was away for longer than the lease
                    client.ack(delivery.lease_id)
                if len(seen) in (100, 200):
                    daemon.kill()
                    daemon.launch()
        assert set(seen) == set(range(300))
        assert client.counts("mail").done == 300


def test_reconnect_waits_for_a_server_that_was_shut_down_in_order(daemon: Daemon) -> None:
    with connect(daemon.address, retries=100) as client:
        client.publish("mail", 1)
        daemon.stop()
        with pytest.raises(Unreachable):
            connect(daemon.address, retries=0)
        daemon.launch()
        assert [delivery.value() for delivery in client.lease("mail", wait=PATIENCE)] == [1]


def test_fork_gives_the_child_process_its_own_connection(daemon: Daemon) -> None:
    program = """if True:
        import os, sys, yirangmq
        client = yirangmq.connect(sys.argv[1], retries=100)
        client.publish("mail", "parent")
        child = os.fork()
        if not child:
            for n in range(50):
                client.publish("mail", "child")
            client.close()
            os._exit(0)
        for n in range(50):
            client.publish("mail", "parent")
        assert os.waitpid(child, 0)[1] == 0
        client.publish("mail", "parent")
        print(client.counts("mail").ready, len(client.call("connections")))
        client.close()
    """
    command = [sys.executable, "-W", "error", "-c", program, daemon.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=dict(os.environ))
    assert (done.stderr, done.stdout) == ("", "102 1\n")


def test_import_of_yirangmq_loads_no_heavy_modules() -> None:
    heavy = "{'asyncio', 'ssl', 'socket', 'yirangmq.client', 'yirangmq.broker'}"
    program = f"import sys, yirangmq; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
