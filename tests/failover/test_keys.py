"""Two nodes whose keys differ: neither takes the other one for dead, and each says what is wrong. With real servers."""

import json
from pathlib import Path

import pytest

from tests.failover.test_alerts import SETTINGS, alerts
from tests.failover.test_stop import is_critical, logged
from tests.support.pair import Pair, pair
from tests.support.server_process import run_command, until

pytestmark = pytest.mark.process


def set_key(two: Pair, name: str, key: str) -> None:
    (two.nodes[name].folder / "key").write_text(f"{key}\n")


def is_told(two: Pair, name: str) -> bool:
    found = two.request(name, "health")
    codes = [reason["code"] for reason in found["reasons"]]
    return found["status"] != "ok" and "pair_keys_differ" in codes and two.status(name)["keysDiffer"]


def test_health_pair_keys_differ_and_no_takeover_if_the_standby_returns_with_another_key(tmp_path: Path) -> None:
    """S-19: a datagram or an answer with another key shows that the peer lives. S-03: one alert at each node."""
    with pair(tmp_path, "--alerts", SETTINGS) as two:
        two.begin()
        two.nodes["b"].kill()
        set_key(two, "b", "another key of sixteen characters")
        two.start("b")
        for name in ("a", "b"):
            until(lambda one=name: is_critical(two, one, "pair_keys_differ", "the keys differ"))
            until(lambda one=name: is_told(two, one))
            assert {"peer_silent", "no_active_node"} & set(alerts(two, name)) <= {"peer_silent"}
            printed = run_command(two.folder, "pair", "status", "--store", two.nodes[name].address).stdout
            assert "the keys differ" in printed
            until(lambda one=name: logged(two, one, "peer_heartbeat_rejected"))  # an answer over TCP may come first
            assert logged(two, name, "peer_heartbeat_rejected")[0]["level"] == "error"
        until(lambda: "key" in dict(two.status("b")["evidence"]))
        assert [two.works(name) for name in ("a", "b")] == [True, False]
        assert two.history("b", "took-over") == []
        ordered = two.command("b", "switch", "--seconds", "2")
        assert ordered.returncode == 10, ordered
        told = json.loads(ordered.stderr)
        assert (told["code"], told["field"]) == ("unavailable", "switch"), "it is not the server that is missing"
        assert told["error"].startswith("switch: not done in time: ")
        assert "signed with another key" in told["error"]
        two.nodes["b"].stop()
        set_key(two, "b", "a key that both nodes share")
        two.start("b")
        until(lambda: two.hears("b"))
        until(lambda: not two.status("a")["keysDiffer"])


def test_takeover_does_not_follow_answers_over_tcp_with_another_key(tmp_path: Path) -> None:
    """S-19: no datagram arrives; the answers to the tests of the connection show that the peer lives."""
    with pair(tmp_path) as two:
        set_key(two, "b", "another key of sixteen characters")
        for way in two.cable.ways.values():
            way.loss = 1.0
        two.start()
        for name in ("a", "b"):
            until(lambda one=name: two.status(one)["heartbeats"]["refused"].get("not_allowed", 0) > 2)
        until(lambda: dict(two.status("b")["evidence"]).keys() & {"key", "3 connection"})
        assert two.history("b", "took-over") == []
        until(lambda: "no_active_node" in str(two.request("b", "health")))
