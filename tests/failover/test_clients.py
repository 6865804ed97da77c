"""Clients that know both nodes of a pair: the real ``stomp.py`` with its list of addresses, and our own library. They
reach the node that takes over, also when the other one is frozen and answers to nothing."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.failover.traffic import Program
from tests.support.credentials import certificate
from tests.support.pair import INTERVAL, Pair, pair
from tests.support.server_process import until
from yirangmq import NewMessage
from yirangmq.client.connect import connect

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
TRUE_INTERVAL = 5.0
WITHIN = 5.0
"""Seconds after the takeover, with the true interval; with shorter ones nobody measures."""
LONG = 600.0
"""A time-out that no test waits for: what is noticed sooner is noticed by signs of life."""


@contextmanager
def programs(two: Pair) -> Iterator[Program]:
    program = Program([two.stomp["a"], two.stomp["b"]]).start()
    try:
        yield program
    finally:
        program.stop()


def killed(two: Pair) -> None:
    two.nodes["a"].kill()


def frozen(two: Pair) -> None:
    two.signal("a", signal.SIGSTOP)


def switched(two: Pair) -> None:
    two.switch("b")


SLOW = pytest.mark.slow


@pytest.mark.parametrize("fault", [killed, *(pytest.param(fault, marks=SLOW) for fault in (frozen, switched))])
def test_failover_moves_a_stomp_client_to_the_other_node(tmp_path: Path, fault: Callable[[Pair], None]) -> None:
    with pair(tmp_path) as two, programs(two.begin()) as program:
        program.send("before")
        until(lambda: b"before" in program.got)
        fault(two)
        program.send("after")
        until(lambda: b"after" in program.got)
        seconds = datetime.now().astimezone().timestamp() - took_over(two, "b")
        assert two.works("b")
        assert program.got.count(b"after") == 1
        if INTERVAL >= TRUE_INTERVAL:
            assert seconds <= WITHIN


def took_over(two: Pair, name: str) -> float:
    return datetime.fromisoformat(two.history(name, "took-over")[-1]["at"]).timestamp()


@pytest.mark.parametrize("fault", [frozen, pytest.param(killed, marks=SLOW)])
def test_failover_moves_clients_of_our_library_to_the_other_node(tmp_path: Path, fault: Callable[[Pair], None]) -> None:
    """One that asks, one that waits for messages and one that follows a topic, none of which would wait any less than
    ten minutes for an answer."""
    with pair(tmp_path) as two:
        two.begin()
        got: list[str] = []
        heard: list[bytes] = []
        back: list[float] = []
        is_over = threading.Event()

        def consume() -> None:
            with connect(two.addresses, timeout=LONG) as client, client.subscribe("work", 10) as subscription:
                for one in subscription:
                    subscription.ack_nowait([one])
                    got.append(one.id)
                    if one.id == "after":
                        return

        def follow() -> None:
            with connect(two.addresses, timeout=LONG) as client, following(client) as subscription:
                while not is_over.is_set():
                    record = subscription.next(0.2)
                    if record is not None:
                        heard.append(bytes(record.payload))

        threads = [threading.Thread(target=one) for one in (consume, follow)]
        for thread in threads:
            thread.start()
        try:
            with connect(two.addresses, timeout=LONG) as client:
                client.publish("work", NewMessage(payload=b"1", id="before"))
                until(lambda: got == ["before"])
                until(lambda: _told(client, b"first", heard))
                until(lambda: client.counts("work").leased == 0)  # its ack has come, so that it is not sent to b
                fault(two)
                client.publish("work", NewMessage(payload=b"2", id="after"))
                back.append(datetime.now().astimezone().timestamp() - took_over(two, "b"))
                until(lambda: got == ["before", "after"], 120)
                until(lambda: _told(client, b"second", heard), 120)
        finally:
            is_over.set()
            for thread in threads:
                thread.join(120)
        if INTERVAL >= TRUE_INTERVAL:
            assert back[0] <= WITHIN


def _told(client: Any, payload: bytes, heard: list[bytes]) -> bool:
    """The logs of two nodes are two: a follower that comes to the other one begins with it."""
    client.topics.publish("prices", payload)
    return payload in heard


def following(client: Any) -> Any:
    return client.topics.subscribe("prices", new_epoch="follow")


def test_failover_client_whose_first_address_is_the_standby_publishes_to_the_active_node(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        turned = f"tcp://127.0.0.1:{two.tcp['b']},127.0.0.1:{two.tcp['a']}"
        with connect(turned) as client:
            client.publish("work", b"1")
            two.switch("b")
            client.publish("work", b"2")  # the node it speaks to is the standby now
            two.switch("a")
            client.publish("work", b"3")
        assert [sum(two.status(name)["backlog"].values()) for name in ("a", "b")] == [2, 1]


# -- the recipes of docs/stomp.md --------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples"
LARGE = "large" + "x" * 1_000_000
"""More than the receive buffer of a socket holds: a write of it to a frozen node may block."""


class Recipe:
    """One of the example programs, as a process."""

    def __init__(self, name: str, addresses: str, verb: str, **env: str) -> None:
        command = [sys.executable, str(EXAMPLES / name), addresses, verb, "work"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | env
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("name", ["stomp_two_nodes.py", "stomp_two_nodes_asyncio.py"])
def test_failover_stomp_recipe_leaves_a_frozen_active_node(tmp_path: Path, name: str, is_tls: bool) -> None:
    """A producer and a consumer that were connected to the frozen node, and a producer that starts while it is frozen;
    its address is the first of the list, and it goes on accepting connections."""
    pytest.importorskip("stomp" if name == "stomp_two_nodes.py" else "stompman")
    made, key = certificate(tmp_path)
    options = ("--tls-cert", str(made), "--tls-key", str(key)) if is_tls else ()
    env = {"YIRANGMQ_CA": str(made)} if is_tls else {}
    with pair(tmp_path, *options) as two, ExitStack() as stack:
        two.begin()
        addresses = f"localhost:{two.stomp['a']},localhost:{two.stomp['b']}"

        def run(verb: str) -> Recipe:
            recipe = Recipe(name, addresses, verb, **env)
            stack.callback(recipe.stop)
            return recipe

        consumer, producer = run("receive"), run("send")
        producer.write("before")
        until(lambda: "confirmed before" in producer.lines and "before" in consumer.lines)
        two.signal("a", signal.SIGSTOP)
        producer.write(LARGE)
        producer.write("after")
        late = run("send")
        late.write("late")
        until(lambda: "confirmed after" in producer.lines and "confirmed late" in late.lines)
        until(lambda: {"after", "late", LARGE[:60]} <= {*consumer.lines})
        assert two.works("b")
        assert sorted(consumer.lines) == sorted({*consumer.lines}), "each once"
