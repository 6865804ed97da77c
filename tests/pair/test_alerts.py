"""A pair that loses a node: who hears of it, and where it can be seen."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.pair.nodes import INTERVAL, Pair, pair
from tests.scenarios.daemons import run_command, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
SETTINGS = json.dumps({"everySec": 0.1, "settleSec": INTERVAL, "windowSec": 600, "rules": {"disk_low": False}})


def ask(two: Pair, name: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{two.http[name]}/v1/{path}", timeout=60) as answer:
        return json.load(answer)


def alerts(two: Pair, name: str, state: str = "open") -> dict[str, str]:
    return {one["rule"]: one["level"] for one in ask(two, name, f"alerts?state={state}")["alerts"]}


def test_a_dead_node_raises_alerts_at_the_other_one_and_its_return_ends_them(tmp_path: Path) -> None:
    with pair(tmp_path, "--alerts", SETTINGS) as two:
        two.begin()
        assert ask(two, "b", "health")["pair"]["peer"]["role"] == "ACTIVE"
        two.nodes["a"].kill()
        until(lambda: alerts(two, "b").get("peer_silent") == "CRITICAL")
        until(lambda: alerts(two, "b").get("takeover") == "WARNING")
        found = ask(two, "b", "health")
        assert "peer_silent" in [reason["code"] for reason in found["reasons"]]
        assert found["status"] == "degraded"
        seen = ask(two, "b", "pair")
        assert (seen["role"], seen["peer"]["node"], seen["peer"]["silent"]) == ("ACTIVE", "a", True)
        took = [line for line in ask(two, "b", "pair/history?limit=10")["history"] if line["event"] == "took-over"]
        assert "3 connection" in dict(took[0]["evidence"])
        text = run_command(tmp_path, "status", "--store", two.nodes["b"].address)
        assert "pair: b ACTIVE, RUNNING" in text.stdout
        assert "peer: a " in text.stdout
        assert "SILENT" in text.stdout
        assert "alert list" in text.stderr
        page = run_command(tmp_path, "metrics", "--store", two.nodes["b"].address).stdout
        assert "yirangmq_pair_active 1" in page
        assert "yirangmq_pair_heartbeats_total" in page
        two.start("a")
        until(lambda: "peer_silent" not in alerts(two, "b"))
        assert "peer_silent" in alerts(two, "b", "over")
        until(lambda: ask(two, "b", "health")["status"] == "ok")
