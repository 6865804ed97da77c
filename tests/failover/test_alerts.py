"""A pair that loses a node: who hears of it, and where it can be seen."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pair import INTERVAL, Pair, pair
from tests.support.server_process import run_command, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
SETTINGS = json.dumps({"everySec": 0.1, "settleSec": INTERVAL, "windowSec": 600, "rules": {"disk_low": False}})


def alerts(two: Pair, name: str, state: str = "open") -> dict[str, Any]:
    return {one["rule"]: one for one in two.request(name, f"alerts?state={state}")["alerts"]}


def says(two: Pair, name: str, rule: str, level: str, text: str) -> bool:
    """One of the open alerts of the rule: each switch has its own."""
    found = two.request(name, "alerts?state=open")["alerts"]
    return any((one["rule"], one["level"]) == (rule, level) and text in one["text"] for one in found)


def switches(two: Pair, name: str) -> int:
    return sum(len(two.history(name, event)) for event in ("took-over", "stood-down", "handed-over"))


def is_unwell(two: Pair, name: str) -> bool:
    found = two.request(name, "health")
    return found["status"] == "degraded" and "peer_silent" in [reason["code"] for reason in found["reasons"]]


def printed(two: Pair, name: str, command: str, *words: str) -> bool:
    done = run_command(two.folder, command, "--store", two.nodes[name].address)
    return all(word in done.stdout + done.stderr for word in words)


def test_health_peer_silent_and_alerts_report_a_dead_node_until_its_return(tmp_path: Path) -> None:
    """On a machine that stands still now and then a node may stand down by itself and take over again: each of these
    is so sooner or later."""
    with pair(tmp_path, "--alerts", SETTINGS) as two:
        two.begin()
        assert two.request("b", "health")["pair"]["peer"]["node"] == "a"
        assert two.command("a", "switch").returncode == 0
        until(lambda: says(two, "b", "takeover", "INFO", "took-over") or switches(two, "b") > 1)  # it was ordered
        two.nodes["b"].kill()
        until(lambda: says(two, "a", "peer_silent", "CRITICAL", "no heartbeat of b for"))
        until(lambda: says(two, "a", "takeover", "WARNING", "took-over") or switches(two, "a") > 5)
        until(lambda: is_unwell(two, "a"))
        until(lambda: two.request("a", "pair")["role"] == "ACTIVE")
        peer = two.request("a", "pair")["peer"]
        assert (peer["node"], peer["silent"]) == ("b", True)
        took = [line for line in two.request("a", "pair/history?limit=10")["history"] if line["event"] == "took-over"]
        assert "3 connection" in dict(took[-1]["evidence"])
        until(lambda: printed(two, "a", "status", "pair: a ACTIVE, RUNNING", "peer: b ", "SILENT", "alert list"))
        until(lambda: printed(two, "a", "metrics", "yirangmq_pair_active 1", 'yirangmq_alerts_open{level="CRITICAL"} '))
        two.start("b")
        until(lambda: "peer_silent" not in alerts(two, "a"))
        assert "peer_silent" in alerts(two, "a", "over")
        until(lambda: not is_unwell(two, "a"))
