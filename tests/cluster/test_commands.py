"""``yirangmq cluster`` as a user types it, against real members and a node."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.troupe import Troupe
from tests.support.etcd import EtcdCluster, at, play
from tests.support.wait import PATIENCE, soon
from yirangmq.cli import output
from yirangmq.cli.commands.cluster_status import repair_text
from yirangmq.cluster.etcd.diagnostics import Repair, alarm_finding, check_version
from yirangmq.cluster.keys import Keys
from yirangmq.format.json_codec import loads

pytestmark = pytest.mark.process


class Commands:
    def __init__(self, etcds: EtcdCluster) -> None:
        self._store = f"etcd://{','.join(etcds.endpoints)}"

    def __call__(self, *words: str, code: int = output.OK) -> Any:
        command = [sys.executable, "-m", "yirangmq", "cluster", *words, "--store", self._store, "--json"]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
        assert done.returncode == code, done.stderr.decode()
        return loads((done.stdout or done.stderr).splitlines()[-1])

    def text(self, *words: str) -> str:
        command = [sys.executable, "-m", "yirangmq", "cluster", *words, "--store", self._store]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True).stdout.decode()


@pytest.fixture
def commands(etcd: EtcdCluster) -> Commands:
    return Commands(etcd)


def test_cli_cluster_manages_a_queue_from_its_creation_to_another_leader(
    etcd: EtcdCluster, commands: Commands, tmp_path: Path, queue: str
) -> None:
    (tmp_path / "policy.json").write_text('{"retry": {"limit": 1}}')
    assert commands("create", queue, "--policy", str(tmp_path / "policy.json"))["created"] is True
    assert commands("create", queue, "--long-keys")["created"] is False
    assert [one["long_keys"] for one in commands("status")["queues"] if one["queue"] == queue] == [True]
    assert commands("create", queue, "--no-long-keys")["created"] is False
    assert [one["long_keys"] for one in commands("status")["queues"] if one["queue"] == queue] == [False]
    (tmp_path / "policy.json").write_text('{"ttlSec": 1}')
    refused = commands("create", queue, "--policy", str(tmp_path / "policy.json"), code=2)
    assert (refused["code"], refused["field"]) == ("bad_policy", "ttlSec")
    assert commands("leader", queue, code=3)["code"] == "not_found"
    with Troupe(etcd, tmp_path / "troupe", queue, consumers=0) as troupe:
        etcd.ctl("put", f"/q/{queue}/p/ann/k1", "1")
        etcd.ctl("put", f"/queue/{queue}/input/ann/k2", "2")

        async def in_line() -> None:
            async with at(*etcd.endpoints) as client:

                async def both() -> bool:
                    found = await client.range(Keys(queue).base + b"0", Keys(queue).ordered_end, count_only=True)
                    return bool(found.count == 2)

                await soon(both, what=troupe.logs())

        play(in_line())
        [found] = [one for one in commands("status")["queues"] if one["queue"] == queue]
        wanted = {"inbox": 0, "line": 2, "waiting": 2, "given": 0, "again": 0, "dead": 0, "consumers": 0, "moved": 2}
        assert {name: found[name] for name in wanted} == wanted
        before = commands("leader", queue)["queues"][queue]
        assert before == found["leader"]
        moved = commands("move-leader", queue)
        assert moved["before"] == before
        assert moved["after"] != before
        assert commands("leader", queue)["queues"][queue] == moved["after"]
        assert queue in commands.text("status")


def test_cli_cluster_members_and_doctor_report_the_state_of_etcd(etcd: EtcdCluster, commands: Commands) -> None:
    [member] = commands("members")["members"]
    assert (member["name"], member["leads"], member["endpoint"]) == ("n0", True, etcd.endpoints[0])
    assert "leader" in commands.text("members")
    answer = commands("doctor")
    codes = {sign["code"]: sign["level"] for sign in answer["signs"]}
    assert codes["alone"] == "warn"
    assert codes["size"] == "ok"
    assert "latency" in codes
    nearly = commands("doctor", "--quota", "20000", code=output.UNHEALTHY)
    assert {"level": "fail", "code": "size"}.items() <= next(
        sign for sign in nearly["signs"] if sign["code"] == "size"
    ).items()


def test_cli_cluster_status_and_doctor_list_the_keys_that_no_node_acts_on(
    etcd: EtcdCluster, commands: Commands, queue: str
) -> None:
    place, name = f"/q/{queue}/inbox/ann/k", f"/q/{'x' * 1025}/p/k"
    etcd.ctl("put", place, "1")
    etcd.ctl("put", name, "1")
    try:
        reasons = {one["key"]: one["reason"] for one in commands("status")["ignored"]}
        assert reasons[place] == "no queue uses this key"
        assert reasons[name] == "queue: must have 1 to 1024 bytes, not 1025"
        assert f"ignored: {place}: {reasons[place]}" in commands.text("status").splitlines()
        metrics = commands.text("status", "--metrics").splitlines()
        assert f"yirangmq_cluster_ignored_keys {len(reasons)}" in metrics
        assert f'yirangmq_cluster_inbox{{queue="{queue}"}} 0' in metrics
        signs = commands("doctor")["signs"]
        assert {one["text"] for one in signs if one["code"] == "ignored_key"} == {
            f"{key}: {reason}" for key, reason in reasons.items()
        }
    finally:
        etcd.ctl("del", place)
        etcd.ctl("del", name)


def test_cli_cluster_commands_accept_every_name_of_a_dispatched_queue(commands: Commands, queue: str) -> None:
    for name in ("작업", " a b", "/eu"):
        assert commands("create", queue + name)["created"] is True
        assert commands("create", (queue + name).replace("/", "%2F"))["created"] is False
        assert commands("leader", queue + name, code=3)["code"] == "not_found"
        lines = commands("roles", "print", queue + name, "--producer", "ann")["commands"]
        role = f"yirangmq-{queue + name}-producer-ann".replace("/", "%2F")
        assert [shlex.split(line)[-1] for line in lines[4:6]] == [role, f"/q/{queue}{name.replace('/', '%2F')}/p/ann/"]
    assert commands("create", "x" * 1025, code=2)["field"] == "QUEUE"


def test_cli_cluster_repair_frees_the_space_of_history(commands: Commands, etcd: EtcdCluster, queue: str) -> None:
    async def fill() -> None:
        async with at(*etcd.endpoints) as client:
            for _ in range(40):
                await client.put(f"/t/{queue}".encode(), bytes(200_000))

    play(fill())
    done = commands("repair")
    [endpoint] = done["before"]
    assert done["after"][endpoint] < done["before"][endpoint]
    assert done["freed"] == {endpoint: done["before"][endpoint] - done["after"][endpoint]}
    assert done["leftOut"] == []


def test_cli_cluster_repair_prints_the_sizes_of_each_member_and_those_that_were_left_out(tmp_path: Path) -> None:
    """A file that grew freed nothing; the sizes of members are not added up."""
    with EtcdCluster(tmp_path / "etcd", 3) as three:
        for _ in range(10):
            three.ctl("put", "/t/k", given=b"x" * 600_000)
        commands = Commands(three)
        lines = commands.text("repair").splitlines()
        sizes = {endpoint: line for line in lines for endpoint in three.endpoints if line.startswith(f"{endpoint}: ")}
        assert set(sizes) == set(three.endpoints)
        for line in sizes.values():
            before, after, freed = map(float, re.findall(r"([0-9.]+) MiB", line))
            assert before > 5 > 2 > after
            assert abs(before - after - freed) < 0.11
        assert lines[-1] == "no alarm was raised"
        commands._store = f"etcd://{three.endpoints[0]}"
        [left] = [line for line in commands.text("repair").splitlines() if "not repaired" in line]
        assert "n1, n2" in left
    grown = Repair(9, {"h1": 20_480, "h2": 5 << 20}, {"h1": 24_576, "h2": 1 << 20}, 2, False, ())
    assert grown.freed == {"h1": 0, "h2": 4 << 20}
    assert repair_text(grown).splitlines() == [
        "h1: 0.0 MiB before, 0.0 MiB after, 0.0 MiB freed",
        "h2: 5.0 MiB before, 1.0 MiB after, 4.0 MiB freed",
        "2 alarms lifted",
    ]


def test_cli_cluster_without_a_reachable_member_fails_with_exit_code_10(queue: str) -> None:
    command = [sys.executable, "-m", "yirangmq", "cluster", "status", "--store", "etcd://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 10
    assert b"no member" in done.stderr


@pytest.mark.parametrize(
    ("version", "users", "codes"),
    [
        ("3.5.0", False, ["loses_data"]),
        ("3.5.1", False, ["loses_data"]),
        ("3.5.2", False, ["loses_data"]),
        ("3.5.3", False, ["known_bad"]),
        ("3.5.5", False, ["known_bad"]),
        ("3.5.6", False, ["version"]),
        ("3.4.20", False, ["known_bad", "end_of_life"]),
        ("3.4.21", False, ["known_bad", "end_of_life"]),
        ("3.4.22", False, ["end_of_life"]),
        ("3.4.23", False, ["end_of_life"]),
        ("3.4.23", True, ["roles_void", "end_of_life"]),
        ("3.4.41", True, ["roles_void", "end_of_life"]),
        ("3.4.42", True, ["roles_leak", "end_of_life"]),
        ("3.4.44", True, ["end_of_life"]),
        ("3.5.16", True, ["roles_void"]),
        ("3.5.16", False, ["version"]),
        ("3.5.27", True, ["roles_void"]),
        ("3.5.28", True, ["roles_leak"]),
        ("3.5.29", True, ["roles_leak"]),
        ("3.5.30", True, ["version"]),
        ("3.6.0-rc.1", True, ["roles_void"]),
        ("3.6.8", True, ["roles_void"]),
        ("3.6.9", True, ["roles_leak"]),
        ("3.6.11", True, ["version"]),
        ("3.7.1", True, ["version"]),
        ("4.0.0", True, ["version"]),
        ("3.3.25", True, ["known_bad", "roles_void"]),
        ("2.3.8", False, ["known_bad"]),
        ("", False, ["known_bad"]),
    ],
)
def test_cli_cluster_doctor_warns_of_etcd_releases_with_known_faults(
    version: str, users: bool, codes: list[str]
) -> None:
    signs = check_version(version, "h1", users)
    assert [sign.code for sign in signs] == codes
    assert all("h1" in sign.text for sign in signs)


@pytest.mark.parametrize(
    ("version", "says"),
    [("3.3.25", "take 3.5.30"), ("3.4.23", "take 3.4.44"), ("3.5.16", "take 3.5.30"), ("3.6.1", "take 3.6.11")],
)
def test_cli_cluster_doctor_names_the_etcd_release_to_take_instead(version: str, says: str) -> None:
    assert any(says in sign.text for sign in check_version(version, "h1", has_users=True) if sign.code == "roles_void")


def test_cli_cluster_doctor_says_what_to_do_about_an_alarm() -> None:
    assert "yirangmq cluster repair" in alarm_finding(1, 7).text
    assert "damaged" in alarm_finding(2, 7).text
