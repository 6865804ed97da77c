"""A switch by hand under load; a standby's doors; the backlog of a dead node. With real servers."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import request_json
from tests.support.pages import code_blocks
from tests.support.pair import Pair, pair
from tests.support.server_process import run_command, until
from tests.support.wait import PATIENCE
from yirangmq import NewMessage
from yirangmq.client.connect import connect
from yirangmq.core.errors import LeaseLost, Unavailable

pytestmark = pytest.mark.process


class Load:
    """A producer and a consumer with the list of both nodes, at work until told to stop."""

    def __init__(self, two: Pair) -> None:
        self._addresses = two.addresses
        self._is_over = threading.Event()
        self._is_drained = threading.Event()
        self.published: list[str] = []
        self.acked: list[str] = []
        self.trouble: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(one,)) for one in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.trouble.append(error)

    def _produce(self) -> None:
        with connect(self._addresses) as client:
            while not self._is_over.is_set():
                id = f"m{len(self.published)}"
                client.publish("work", NewMessage(payload=b"x" * 200, id=id))
                self.published.append(id)

    def _consume(self) -> None:
        with connect(self._addresses) as client:
            while not self._is_drained.is_set():
                for one in client.lease("work", 10, wait=0.1):
                    try:
                        client.ack(one.lease_id)
                        self.acked.append(one.id)
                    except LeaseLost:
                        continue  # asked again after an answer was lost: it is done, or it comes again

    def stop(self) -> None:
        self._is_over.set()
        self._threads[0].join(PATIENCE)
        until(lambda: bool(self.trouble) or set(self.acked) >= set(self.published), PATIENCE)
        self._is_drained.set()
        self._threads[1].join(PATIENCE)
        assert self.trouble == []


def test_switch_by_hand_under_load_loses_nothing(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        load = Load(two)
        for asked, active in (("a", "b"), ("a", "a")):
            before = len(load.published)
            until(lambda count=before: len(load.published) > count + 30)
            done = two.command(asked, "switch")
            assert done.returncode == 0, done
            found = json.loads(done.stdout)
            assert (found["active"], found["left"]) == (active, {})
            assert found["term"] == two.status(active)["term"], "the new term, also said by the old node"
            other = two.status(two.other(active))
            assert other["term"] == other["peer"]["term"], "a standby has the highest term that it has heard"
            two.wait_for(active)
        before = len(load.published)
        until(lambda: len(load.published) > before + 30)
        load.stop()
        assert len(load.acked) == len(set(load.acked)), "delivered and acked twice"
        assert [event["event"] for event in two.history("a", "handed-over")] == ["handed-over"]
        assert two.evidence("b", "handed-over")["order"] == "a was ordered to take over"
        assert two.status("a")["term"] == 3


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_standby_refuses_work_over_every_protocol_and_names_the_active_node(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        active = f"the active node is a at tcp://127.0.0.1:{two.tcp['a']}, http://127.0.0.1:{two.http['a']}"
        with connect(two.nodes["b"].address, retries=0) as client:
            for work in (
                lambda: client.publish("work", b"1"),
                lambda: client.lease("work"),
                lambda: client.lease("work", wait=5),
                lambda: client.set_policy("work", {"visibilityTimeoutSec": 5}),
            ):
                with pytest.raises(Unavailable, match=active):
                    work()
            assert client.queues() == []
            found = client.call("status")["pair"]
            assert (found["role"], found["status"], found["works"]) == ("STANDBY", "RUNNING", False)
            assert (found["term"], found["peer"]["node"], found["peer"]["role"]) == (1, "a", "ACTIVE")
            health = client.call("health")
            assert health["status"] == "ok", health
        ask = partial(request_json, f"http://127.0.0.1:{two.http['b']}")
        code, answer = ask("POST", "/v1/queues/jobs/messages", {"payload": 1})
        refused = answer["error"]
        assert (code, refused["code"], refused["active"]["node"]) == (503, "not_active", "a")
        assert refused["active"]["addresses"][1] == f"http://127.0.0.1:{two.http['a']}"
        assert ask("POST", "/v1/queues/jobs/lease", {})[0] == 503
        assert ask("POST", "/v1/topics/prices/records", {"payload": 1})[0] == 503
        assert ask("PUT", "/v1/queues/jobs/policy", {})[0] == 503
        assert ask("POST", "/mq/jobs/messages", {"priority": None})[0] == 503
        assert ask("GET", "/v1/status")[0] == ask("GET", "/health")[0] == 200
        assert [is_open(two.stomp[name]) for name in ("a", "b")] == [True, False]
        with connect(f"tcp://127.0.0.1:{two.tcp['b']}") as client:
            client.publish("work", b"2")  # follows the name to the active node
        assert two.status("a")["backlog"] == {"work": 1}
        assert two.status("b")["backlog"] == {}


def test_switch_lets_a_subscribed_consumer_continue_at_the_other_node(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        got: list[str] = []

        def follow() -> None:
            with connect(two.addresses) as client, client.subscribe("work", 10) as subscription:
                for one in subscription:
                    subscription.ack_nowait([one])
                    got.append(one.id)
                    if one.id == "last":
                        return

        thread = threading.Thread(target=follow)
        thread.start()
        with connect(two.addresses) as client:
            client.publish("work", NewMessage(payload=b"1", id="first"))
            until(lambda: got == ["first"])
            assert two.command("a", "switch").returncode == 0
            begun = time.monotonic()
            client.publish("work", NewMessage(payload=b"2", id="last"))
        thread.join(PATIENCE)
        assert got == ["first", "last"]
        assert time.monotonic() - begun < 60


PAGE = (Path(__file__).parents[2] / "docs" / "pair.md").read_text()


def page_runs(two: Pair, store: str) -> None:
    """The commands of docs/pair.md, said to b while a is dead. (Its switch is the one of the test above.)"""
    blocks = "".join(code_blocks(PAGE, "sh"))
    found = [line for line in blocks.splitlines() if line.startswith("yirangmq pair") and "--store" not in line]
    assert len(found) == 6
    for line in found:
        words = line.replace("sqlite:/mnt/old/queue.db", store).replace("gateway-1", "a").split()
        command = [sys.executable, "-m", *words]
        env = os.environ | {"YIRANGMQ_STORE": two.nodes["b"].address}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == (4 if "switch" in words else 0), (line, done)


def test_adoption_of_the_backlog_of_a_dead_node_delivers_each_message_once(tmp_path: Path) -> None:
    with pair(tmp_path) as two, connect(two.begin().addresses) as client:
        for n in range(3):
            client.publish("work", NewMessage(payload=b"\x00\xff" * n, id=f"m{n}"))
        [held] = client.lease("work")
        assert held.id == "m0"
        two.nodes["a"].kill()
        client.publish("work", NewMessage(payload=b"", id="m2"))  # as a client does whose answer was lost
        store = two.nodes["a"].url
        dry = two.command("b", "adopt", store, "--node", "a", "--dry-run")
        assert {key: json.loads(dry.stdout)[key] for key in ("messages", "known")} == {"messages": 2, "known": 1}
        done = two.command("b", "adopt", store, "--node", "a")
        assert done.returncode == 0, done
        assert {key: json.loads(done.stdout)[key] for key in ("messages", "known")} == {"messages": 2, "known": 1}
        taken = client.lease("work", 10)
        assert {one.id: one.payload for one in taken} == {"m0": b"", "m1": b"\x00\xff", "m2": b""}
        for one in taken:
            client.ack(one.lease_id)
        page_runs(two, store)
        again = json.loads(two.command("b", "adopt", store, "--node", "a").stdout)
        assert again["messages"] == 0
        two.nodes["a"].start()
        until(lambda: (two.status("a")["peer"] or {}).get("role") == "ACTIVE")
        assert two.status("a")["backlog"] == {"work": 0}
        assert two.command("a", "switch").returncode == 0
        two.wait_for("a")
        assert client.lease("work", 10) == [], "nothing is delivered by both"
        assert [event["messages"] for event in two.history("b", "adopted")] == [2, 0, 0]


def test_adoption_from_a_running_node_is_refused(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        refused = two.command("a", "adopt", two.nodes["b"].url, "--node", "b")
        assert (refused.returncode, "is held by a server" in refused.stderr + refused.stdout) == (5, True), refused
        at_standby = two.command("b", "adopt", two.nodes["a"].url, "--node", "a")
        told = json.loads(at_standby.stdout + at_standby.stderr)
        assert (at_standby.returncode, told["code"]) == (4, "wrong_state"), at_standby
        assert "a store is adopted by the active node" in told["error"]
        assert "the active node is a at tcp://" in told["error"]
        assert two.command("a", "adopt", "sqlite:/nowhere/queue.db", "--node", "b").returncode == 3


def test_cli_pair_shows_status_and_history_and_refuses_a_switch_without_a_peer(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        status = json.loads(two.command("b", "status").stdout)
        assert (status["role"], status["peer"]["node"], status["peer"]["role"]) == ("STANDBY", "a", "ACTIVE")
        assert status["linkDelayMs"] is not None
        two.nodes["b"].stop(signal.SIGTERM)
        until(lambda: two.status("a")["peer"]["status"] == "STOPPED")
        nobody = two.command("a", "switch")
        assert nobody.returncode == 4, nobody
        assert two.works("a"), "a switch that cannot be done changes nothing"
        lines = [json.loads(line) for line in two.command("a", "history").stdout.splitlines()]
        assert [line["event"] for line in lines][:2] == ["started", "took-over"]
        folder = two.nodes["b"].folder / "d" / "pair"
        text = run_command(tmp_path, "pair", "history", "--folder", str(folder)).stdout
        assert "started" in text
        assert "stopped" in text


def test_adoption_that_was_broken_off_keeps_the_store_from_being_served(tmp_path: Path) -> None:
    from yirangmq import open as open_queues
    from yirangmq.broker.expiry_sweeper import ADOPTION_MARK

    with open_queues(f"sqlite:{tmp_path / 'queue.db'}") as queues:
        queues.publish("work", b"1")
        queues.run(lambda transaction: transaction.set_note(ADOPTION_MARK, "b"))
    done = run_command(tmp_path, "serve", "--data", str(tmp_path))
    assert done.returncode == 4, done
    assert "pair adopt" in done.stderr


def test_failover_moves_a_consumer_process_to_the_other_node(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    with pair(tmp_path) as two:
        two.begin()
        words = ("consume", "--store", two.addresses, "--queue", "work", "--raw", "--exec", f"tee -a {out}")
        process = subprocess.Popen([sys.executable, "-m", "yirangmq", *words], stdout=subprocess.DEVNULL)
        try:
            with connect(two.addresses) as client:
                client.publish("work", b"first\n")
                until(lambda: out.read_text() == "first\n")
                two.nodes["a"].kill()
                client.publish("work", b"second\n")
                until(lambda: out.read_text() == "first\nsecond\n")
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0
