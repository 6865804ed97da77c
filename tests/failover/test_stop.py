"""An orderly stop of a node (SIGTERM): the standby takes its place, or it is reported that none did."""

import json
import signal
import time
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from tests.failover.test_alerts import SETTINGS, alerts
from tests.failover.test_switch import Load
from tests.support.pair import INTERVAL, Pair, pair
from tests.support.server_process import run_command, until
from yirangmq import NewMessage
from yirangmq.client.connect import connect
from yirangmq.config.settings import Settings

pytestmark = pytest.mark.process
DEPLOY = Path(__file__).parents[2] / "deploy"


def logged(two: Pair, name: str, event: str) -> list[dict[str, Any]]:
    return [line for line in two.nodes[name].events() if line["event"] == event]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_of_the_active_node_hands_over_to_the_standby(tmp_path: Path, number: signal.Signals) -> None:
    with pair(tmp_path) as two:
        two.begin()
        begun = time.monotonic()
        assert two.nodes["a"].stop(number) == 0
        assert two.works("b"), "it is active before the other one has ended"
        assert time.monotonic() - begun < two.status("b")["timeoutSec"] + 60
        assert two.evidence("a", "handed-over")["order"] == "this node is being stopped"
        assert "consents" in two.evidence("b", "took-over")["consent"]
        assert two.request("b", "health")["status"] == "ok"
        two.nodes["a"].start()
        until(lambda: two.hears("a"))
        assert two.works("b"), "the node that was stopped comes back as the standby"


def test_stop_of_the_active_node_under_load_loses_nothing(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        load = Load(two)
        for stopped, active in (("a", "b"), ("b", "a")):
            before = len(load.published)
            until(lambda count=before: len(load.published) > count + 30)
            assert two.nodes[stopped].stop() == 0
            assert two.works(active)
            two.start(stopped)
            until(lambda name=stopped: two.hears(name))
        before = len(load.published)
        until(lambda: len(load.published) > before + 30)
        load.stop()
        assert len(load.acked) == len(set(load.acked)), "delivered and acked twice"
        assert [len(two.history(name, "took-over")) for name in ("a", "b")] == [2, 1]
        assert two.status("a")["backlog"] == two.status("b")["backlog"] == {"work": 0}


def test_stop_of_the_active_node_keeps_what_no_consumer_takes_on_its_disk(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        with connect(two.begin().nodes["a"].address) as client:
            client.publish("work", NewMessage(payload=b"1", id="m1"))
        assert two.nodes["a"].stop() == 0
        assert two.works("b")
        two.nodes["a"].start()
        until(lambda: two.hears("a"))
        assert two.status("a")["backlog"] == {"work": 1}


def is_critical(two: Pair, name: str, rule: str, *words: str) -> bool:
    found = alerts(two, name).get(rule)
    return found is not None and found["level"] == "CRITICAL" and all(word in found["text"] for word in words)


def test_stop_without_a_handover_is_critical_at_the_standby(tmp_path: Path) -> None:
    """S-03: a pair without an active node is one alert, health names the reason, and an order ends it."""
    with pair(tmp_path, "--alerts", SETTINGS, "--no-handover") as two:
        two.begin()
        assert two.request("b", "health")["status"] == "ok"
        assert two.nodes["a"].stop() == 0
        assert logged(two, "a", "handover_skipped")
        until(lambda: is_critical(two, "b", "no_active_node", "STOPPED, by an operator: no takeover unless ordered"))
        found = two.request("b", "health")
        [reason] = [one for one in found["reasons"] if one["code"] == "no_active_node"]
        assert found["status"] != "ok"
        assert "STOPPED, by an operator: no takeover unless ordered" in reason["text"]
        assert two.status("b")["withoutActiveSec"] > 4 * INTERVAL
        assert (
            "no node is known to be active"
            in run_command(two.folder, "pair", "status", "--store", two.nodes["b"].address).stdout
        )
        assert not two.works("b")
        assert two.command("b", "switch").returncode == 0
        until(lambda: "no_active_node" not in alerts(two, "b"))
        assert two.request("b", "health")["status"] == "ok"


def test_stop_of_both_nodes_hands_nothing_over_if_it_was_switched_off(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        assert two.status("a")["handover"] is True
        off = two.command("a", "handover", "off")
        assert (off.returncode, json.loads(off.stdout)["handover"]) == (0, False), off
        assert two.status("a")["handover"] is False
        for name in ("a", "b"):
            assert two.nodes[name].stop() == 0
        assert two.history("b", "took-over") == []
        two.start("a")
        two.wait_for("a", of=("a",))
        assert two.status("a")["handover"] is True, "the setting counts again"


def test_stop_of_a_node_without_a_ready_standby_says_why_and_does_not_wait(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        two.signal("b", signal.SIGSTOP)
        assert two.nodes["a"].stop() == 0
        [skipped] = logged(two, "a", "handover_skipped")
        assert skipped["reason"] == "peer: no standby is ready: no answer at the peer's TCP port"
        assert two.history("a", "handed-over") == []


def test_stop_timeouts_of_the_unit_and_the_container_leave_time_for_the_handover() -> None:
    """A supervisor that kills a node in its hand-over would leave the takeover to the missed heartbeats."""
    default = Settings()
    seconds = default.pair_drain_seconds + 2 * default.stop_seconds + default.pair_interval_seconds
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "yirangmq.service")
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert int(unit["Service"]["TimeoutStopSec"]) > seconds
    assert "STOPSIGNAL SIGTERM" in (DEPLOY / "Containerfile").read_text()
    for file, word in (("Containerfile", "--stop-timeout "), ("compose.yaml", "stop_grace_period: ")):
        found = (DEPLOY / file).read_text().partition(word)[2].split()[0]
        assert int(found.removesuffix("s")) > seconds, file
