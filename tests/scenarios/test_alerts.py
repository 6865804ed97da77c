"""Alerts of a whole server: raised, seen, acknowledged, kept through a kill, over."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import Daemon, daemon, run_command, until
from yirangmq.client.connect import connect
from yirangmq.core.errors import NotAllowed

pytestmark = pytest.mark.process
TOKEN = "a-token-of-the-server"
KEEP = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"


def settings(tmp_path: Path) -> str:
    sink = {"kind": "command", "run": [sys.executable, "-c", KEEP, str(tmp_path / "told")], "timeoutSec": 60}
    rules = {"disk_low": False, "slow_commits": False, "clock_jump": False, "queue_depth": {"limit": 2}}
    return json.dumps({"everySec": 0.1, "settleSec": 0.2, "windowSec": 1, "rules": rules, "sinks": [sink]})


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def told(tmp_path: Path) -> list[tuple[str, str]]:
    return [(line["notice"], line["alert"]["rule"]) for line in lines(tmp_path)]


def command(server: Daemon, *words: str) -> Any:
    done = run_command(server.folder, *words, "--json", f"--store={server.url}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def opened(server: Daemon) -> dict[str, dict[str, Any]]:
    with closing(connect(server.address, retries=0)) as client:
        return {one["rule"]: one for one in client.call("alerts")["alerts"]}


def box(server: Daemon) -> dict[str, Any]:
    with closing(connect(server.address, retries=0)) as client:
        [found] = [one for one in client.call("alerts")["sinks"] if one["sink"] == "command"]
        return dict(found)


def over(server: Daemon) -> list[str]:
    """The states of the alerts that are over."""
    found = server.request("GET", "/v1/alerts?state=over", token=TOKEN)[1]
    return [one["state"] for one in found["alerts"]]


def test_alert_is_raised_acknowledged_kept_through_a_server_kill_and_recovered(tmp_path: Path) -> None:
    options = ("--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--token", TOKEN, "--alerts", settings(tmp_path))
    with daemon(tmp_path, *options) as server:
        with closing(connect(server.address)) as client:
            for number in range(3):
                client.publish("orders", number)
        until(lambda: told(tmp_path) == [("opened", "queue_depth")])
        [alert] = command(server, "alert", "list")["alerts"]
        assert (alert["rule"], alert["subject"], alert["state"]) == ("queue_depth", "orders", "open")
        id = alert["id"]
        until(lambda: box(server)["pending"] == 0)  # what was sent is not sent again after the kill
        assert command(server, "alert", "ack", id, "--by", "ann", "--note", "on it")["alert"]["acknowledgedBy"] == "ann"
        server.kill()
        server.start()
        found = command(server, "alert", "show", id)["alert"]
        assert (found["acknowledgedBy"], found["note"], found["state"]) == ("ann", "on it", "open")
        assert server.request("GET", "/v1/status", token=TOKEN)[1]["alerts"] == {
            "open": 1,
            "critical": 0,
            "unacknowledged": 0,
        }
        assert run_command(tmp_path, "alert", "ack", "99", f"--store={server.url}").returncode == 3
        with closing(connect(server.address)) as client:
            client.ack([one.lease_id for one in client.lease("orders", 3)])
        until(lambda: told(tmp_path) == [("opened", "queue_depth"), ("recovered", "queue_depth")])
        text = command(server, "metrics")["metrics"]
        assert 'yirangmq_alerts_total{event="recovered"} 1' in text
        assert 'yirangmq_alert_notices_total{sink="command",outcome="sent"} 1' in text
        until(lambda: over(server) == ["over"])
        assert server.stop() == 0


def test_alerts_for_dead_letters_and_refused_clients_are_raised_once_and_a_test_reaches_the_sink(
    tmp_path: Path,
) -> None:
    options = ("--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--token", TOKEN, "--alerts", settings(tmp_path))
    with daemon(tmp_path, *options) as server:
        with closing(connect(server.address)) as client:
            client.publish("orders", 1)
            [taken] = client.lease("orders", 1)
            client.nack(taken.lease_id, "REJECTED")
        tcp = server.address_of("tcp")
        with pytest.raises(NotAllowed):
            connect(tcp, token="not-the-token", retries=0)
        assert server.request("GET", "/v1/status", token="another-one")[0] == 401
        until(lambda: {"dead_letters", "client_refused"} <= {rule for _, rule in told(tmp_path)})
        until(lambda: opened(server) == {})
        until(lambda: box(server)["pending"] == 0)
        by_alert: dict[str, list[str]] = {}
        for line in lines(tmp_path):
            by_alert.setdefault(line["alert"]["id"], []).append(line["notice"])
        assert list(by_alert.values()) == [["opened", "recovered"]] * len(by_alert)
        assert {rule for _, rule in told(tmp_path)} == {"dead_letters", "client_refused"}
        tested = server.request("POST", "/v1/alerts", {"sink": "command"}, token=TOKEN)[1]
        assert [(one["sink"], one["ok"]) for one in tested["sinks"]] == [("command", True)]
        assert told(tmp_path)[-1] == ("test", "test")
        assert server.request("GET", "/v1/pair", token=TOKEN)[0] == 404, "it is not one of a pair"
        rules = command(server, "alert", "rules")["rules"]
        assert {rule["rule"]: rule["enabled"] for rule in rules}["disk_low"] is False


def test_alerts_can_be_disabled_and_a_sink_that_fails_is_reported(tmp_path: Path) -> None:
    off = json.dumps({"enabled": False, "sinks": [{"kind": "command", "run": ["false"], "timeoutSec": 60}]})
    with daemon(tmp_path, "--alerts", off) as server:
        assert command(server, "alert", "list")["enabled"] is False
        done = run_command(tmp_path, "alert", "test", f"--store={server.url}")
        assert (done.returncode, done.stdout.splitlines()[1]) == (11, "command: false ended with 1")


def test_alert_rule_with_an_unknown_name_keeps_the_server_from_starting(tmp_path: Path) -> None:
    done = run_command(tmp_path, "serve", "--alerts", '{"rules": {"queue_agee": {}}}')
    assert done.returncode == 2
    assert "did you mean 'queue_age'?" in done.stderr


def test_cli_finds_the_store_of_a_killed_server_in_its_folder(tmp_path: Path) -> None:
    with (
        daemon(tmp_path, data="yirang-data") as server,
        closing(connect(f"unix:{tmp_path}/yirang-data/yirangmq.sock")) as client,
    ):
        client.publish("orders", 1)
        server.kill()
    done = run_command(tmp_path, "status", "--json")
    assert json.loads(done.stdout)["store"] == "sqlite:yirang-data/queue.db"
    assert json.loads(done.stdout)["queues"][0]["ready"] == 1
    run_command(tmp_path, "publish", "--db", "yirang.db", "--queue", "mine", "1")
    assert json.loads(run_command(tmp_path, "status", "--json").stdout)["unusedStore"] == "yirang.db"
