"""A server with files by date: killed under load, every message that was confirmed stands in them once; operators see
them, hour by hour and day by day."""

import json
import random
import shutil
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.scenarios import clients
from tests.support.queues import unsettled
from tests.support.server_process import Daemon, daemon, run_command, until
from tests.support.wait import PATIENCE
from tests.support.worker_processes import crew
from yirangmq import NewMessage
from yirangmq.client.connect import connect
from yirangmq.format.journal_line import payload_of, read
from yirangmq.stores.journal import files

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
ON = ("--files-by-date", "on")
KILLS = 5


def records(server: Daemon) -> list[dict[str, Any]]:
    root = server.folder / "d" / "by-date"
    return [read(line) for name in files.files(root) for line in files.lines(root / name)]


def test_files_by_date_contain_every_confirmed_message_once_after_kills_under_load(tmp_path: Path) -> None:
    chance = random.Random(20261115)
    stops = [tmp_path / "stop-producing", tmp_path / "stop-consuming"]
    with daemon(tmp_path, *ON) as server, crew() as team:
        with connect(server.address) as client:
            retry = {"limit": 1_000_000, "initialDelaySec": 0, "maxDelaySec": 0, "backoff": "fixed"}
            client.set_policy("work", {"visibilityTimeoutSec": 2, "retry": retry})
        producers = [team.start(clients.produce, server.address, f"p{n}", str(stops[0])) for n in range(2)]
        consumer = team.start(clients.consume, server.address, "c0", str(stops[1]))
        facts: list[tuple[str, Any]] = []
        hearing = threading.Thread(target=lambda: facts.extend(team.hear_all([*producers, consumer])))
        hearing.start()
        with connect(server.address) as client:
            until(lambda: client.counts("work").published > 0, PATIENCE)  # the producers have begun
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 0.4))  # the moment of the kill is the point of the test
            server.kill()
            server.start()
        stops[0].touch()
        until(lambda: not any(worker.process.is_alive() for worker in producers), PATIENCE)
        with connect(server.address) as client:
            until(lambda: unsettled(client, "work") == 0, PATIENCE)
        stops[1].touch()
        hearing.join(PATIENCE)
        assert not hearing.is_alive()
        checked = run_command(tmp_path, "files", "check", "--store", server.address, "--json")
        assert (checked.returncode, json.loads(checked.stdout)["findings"]) == (0, [])
        assert server.stop() == 0
    found = records(server)
    times = Counter(one["messageId"] for one in found if one["record"] == "accepted")
    ends = Counter(one["messageId"] for one in found if one.get("state") == "done")
    published = {id for what, ids in facts if what == "published" for id in ids}
    acked = {id for what, several in facts if what == "acked" for id, _ in several}
    assert len(published) > KILLS
    assert [id for id in published if times[id] != 1] == [], "confirmed, and not there once"
    assert [id for id in acked if ends[id] != 1] == [], "acked, and not told once"
    assert set(times.values()) == {1}


def test_files_by_date_are_listed_shown_checked_and_cleaned_with_and_without_a_server(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 3
    with daemon(tmp_path, *ON) as server:
        store = ("--store", server.url)
        with connect(server.address) as client:
            client.publish("atm", NewMessage(payload=payload, id="binary"))
            client.publish("atm", NewMessage(payload={"amount": 5}, id="text"))
            client.ack(client.lease("atm")[0].lease_id)
        folder = tmp_path / "d" / "by-date"
        until(lambda: list(folder.glob("*/counts-*.json")), PATIENCE)
        listed = json.loads(run_command(tmp_path, "files", "list", "--json", *store).stdout)
        assert listed["folder"] == str(folder)
        assert sum(day["files"] for day in listed["days"]) >= 1
        story = run_command(tmp_path, "files", "show", "--id", "binary", "--json", *store).stdout.splitlines()
        assert [json.loads(line)["record"] for line in story] == ["accepted", "outcome"]
        assert payload_of(json.loads(story[0])) == payload
        shown = run_command(tmp_path, "files", "show", "--queue", "atm", *store)
        assert '{"amount":5}' in shown.stdout
        assert "DELIVERED" in shown.stdout
        kept = json.loads(run_command(tmp_path, "files", "housekeep", "--dry-run", "--json", *store).stdout)
        assert (kept["removed"], kept["dryRun"]) == ([], True)
        busy = run_command(tmp_path, "files", "housekeep", "--folder", str(folder), *store)
        assert (busy.returncode, "a server holds this store" in busy.stderr) == (2, True)
        with connect(server.address) as client:
            assert client.call("status")["filesByDate"]["folder"] == str(folder)
        [snapshot] = [json.loads(path.read_text()) for path in folder.glob("*/counts-*.json")][:1]
        assert snapshot.keys() == {"at", "node", "total", "queues"}
        assert server.stop() == 0
    # The same without a server, and a copy without a store.
    assert run_command(tmp_path, "files", "check", *store).returncode == 0
    assert json.loads(run_command(tmp_path, "files", "housekeep", "--json", *store).stdout)["removed"] == []
    copy = shutil.copytree(folder, tmp_path / "copy")
    [name] = [name for name in files.files(copy) if (copy / name).stat().st_size][:1]
    text = (copy / name).read_bytes()
    (copy / name).write_bytes(text.replace(b"amount", b"tnuoma", 1))
    wrong = run_command(tmp_path, "files", "check", "--folder", str(copy))
    assert (wrong.returncode, "is not the one that was accepted" in wrong.stdout) == (5, True)


def test_files_by_date_command_reports_a_server_that_has_none(tmp_path: Path) -> None:
    with daemon(tmp_path) as server:
        found = run_command(tmp_path, "files", "list", "--store", server.address)
        assert (found.returncode, "files_by_date" in found.stderr) == (3, True)
        assert not (tmp_path / "d" / "by-date").exists()


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "local"])
def test_files_by_date_zone_is_that_of_the_setting_or_of_the_machine(tmp_path: Path, zone: str) -> None:
    """These two zones are a day apart, so that one of them has another date than UTC at any time."""
    there = ZoneInfo("Pacific/Kiritimati" if zone == "local" else zone)
    made = Daemon(tmp_path, *ON, "--files-by-date-zone", zone)
    try:
        made.start(TZ=there.key)
        before = datetime.now(there).date().isoformat()
        with connect(made.address) as client:
            client.publish("atm", b"1")
            assert client.call("files_status")["zone"] == zone
        folder = tmp_path / "d" / "by-date"
        until(lambda: list(folder.glob("*/counts-*.json")), PATIENCE)
        days = {before, datetime.now(there).date().isoformat()}  # midnight may have passed
        assert {path.parent.name for path in folder.glob("*/*")} <= days
    finally:
        made.kill()


def test_files_by_date_zone_that_the_machine_does_not_know_is_refused_at_the_start(tmp_path: Path) -> None:
    found = run_command(tmp_path, "serve", "--data", "d", *ON, "--files-by-date-zone", "Mars/Olympus")
    assert found.returncode == 2
    assert "files_by_date_zone: 'Mars/Olympus' is not a time zone of this machine" in found.stderr
