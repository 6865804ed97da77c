"""Files, folders and sockets are for their owner alone from the moment they are made, whatever the umask."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import yirangmq
from tests.support.credentials import TOKEN
from tests.support.file_modes import loose_in, mode_of
from tests.support.server_process import Daemon, daemon
from tests.support.wait import PATIENCE, until
from yirangmq.alerts.monitor import AlertFile
from yirangmq.client.connect import connect
from yirangmq.fsio.permissions import GROUP, OWNER, access_in, describe_wide_mode, make_folder, make_folders, open_file
from yirangmq.stores.cursors import FileCursors
from yirangmq.stores.staging import StageFiles

ROOT = Path(__file__).parents[2]
EVERYTHING = (
    "--http", "unix:{d}/http.sock", "--stomp", "127.0.0.1:0", "--feed-socket", "{d}/feed.sock", "--files-by-date", "on",
    "--events-topic", "events", "--topic-cursors", "sqlite:{d}/cursors.db", "--node", "a", "--pair-peer", "127.0.0.1:9",
    "--pair-listen", "127.0.0.1:0", "--pair-key", TOKEN, "--pair-interval-seconds", "0.5", "--pair-misses", "2",
    "--pair-drain-seconds", "0",
    "--pair-witness", "file:{d}/witness", "--bridges", '[{"name": "b", "queue": "from-topic", "topics": ["trades"]}]',
)  # fmt: skip


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# -- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_permissions_of_new_files_and_folders_do_not_depend_on_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        for name, access in (("owner", OWNER), ("group", GROUP)):
            make_folder(tmp_path / name, access)
            make_folders(tmp_path / name / "a" / "b")
            os.close(open_file(tmp_path / name / "a" / "file", os.O_WRONLY))
            assert mode_of(tmp_path / name) == mode_of(tmp_path / name / "a" / "b") == access.folder
            assert mode_of(tmp_path / name / "a" / "file") == access.file


@pytest.mark.parametrize(("mode", "access"), [(0o2770, GROUP), (0o2771, GROUP), (0o770, OWNER), (0o2777, OWNER)])
def test_permissions_are_for_the_group_only_in_a_set_group_id_folder_closed_to_writes_of_others(
    tmp_path: Path, mode: int, access: object
) -> None:
    """Write access alone may come from a umask of 002; with the set-group-ID bit it is meant."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(mode)
    assert access_in(tmp_path / "d") == access_in(tmp_path / "d" / "not" / "there") == access


def test_permissions_of_existing_files_are_reported_if_loose_and_never_changed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(0o755)
    (tmp_path / "d" / "q.db").touch()
    (tmp_path / "d" / "q.db").chmod(0o644)
    with yirangmq.open(f"sqlite:{tmp_path}/d/q.db") as queues:
        queues.publish("mail", 1)
    assert (mode_of(tmp_path / "d"), mode_of(tmp_path / "d" / "q.db")) == (0o755, 0o644)
    assert "0755" in describe_wide_mode(tmp_path / "d")
    assert f"chmod 0600 {tmp_path}/d/q.db" in describe_wide_mode(tmp_path / "d" / "q.db")


# -- stores without a server ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite:{d}/a/q.db", "files:{d}/a/q"])
def test_permissions_of_a_store_without_a_server_are_for_the_owner_alone(tmp_path: Path, url: str) -> None:
    """On the version before: folders 0777, files 0666."""
    folder = tmp_path / "d"
    if url.startswith("sqlite"):
        make_folders(folder / "a")
    else:
        make_folder(folder)
    with umask(0), yirangmq.open(url.format(d=folder)) as queues:
        queues.set_policy("mail", {"retry": {"limit": 0}})
        queues.publish_many("mail", [1, 2, 3, 4])
        queues.publish("mail", yirangmq.NewMessage(payload=5, delay=60, group="g", deduplication_key="k"))
        queues.ack(queues.lease("mail")[0].lease_id)
        queues.nack(queues.lease("mail")[0].lease_id)
        assert list(queues.check()) == []
        assert loose_in(folder) == []


def test_permissions_of_alerts_stages_and_consumer_reports_are_for_the_owner_alone(tmp_path: Path) -> None:
    """What a server makes only after a while, or for Spark."""
    make_folder(tmp_path / "d")
    with umask(0):
        AlertFile(tmp_path / "d" / "alerts").save({"alerts": []})
        StageFiles(tmp_path / "d" / "stages").put("query", 1, "stage", 0, b"x")
        FileCursors(tmp_path / "d" / "cursors").close()
        with yirangmq.open(f"sqlite:{tmp_path}/d/q.db") as queues:
            queues.publish("mail", 1)
            queues.consumer_beat({"consumerId": "a", "queues": ["mail"]})
    assert len(list((tmp_path / "d").rglob("*"))) > 8
    assert loose_in(tmp_path / "d") == []


def test_permissions_of_a_store_in_a_shared_folder_admit_its_group(tmp_path: Path) -> None:
    make_folder(tmp_path / "d", GROUP)
    with umask(0o077):
        for url in (f"sqlite:{tmp_path}/d/q.db", f"files:{tmp_path}/d/q"):
            with yirangmq.open(url) as queues:
                queues.publish("mail", 1)
                for path in (tmp_path / "d").rglob("*"):
                    assert mode_of(path) == (GROUP.folder if path.is_dir() else GROUP.file), path


# -- a whole server -------------------------------------------------------------------------------------------------


class Watched(Daemon):
    """``tests.support.file_modes``: a umask of 000, and a note of each file that is loose when it is made."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder, *(one.replace("{d}", str(folder / "d")) for one in options))
        self.program = "tests.support.file_modes"
        self.notes = folder / "modes.log"
        self.env = {"PYTHONPATH": str(ROOT), "MODES_LOG": str(self.notes), "MODES_ROOT": str(folder / "d")}

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", self.program, *words]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.process
@pytest.mark.parametrize("store", ["sqlite:{d}/queue.db", "files:{d}/queues"])
def test_permissions_of_everything_a_server_makes_are_for_the_owner_alone(tmp_path: Path, store: str) -> None:
    server = Watched(tmp_path, "--store", store, *EVERYTHING)
    try:
        server.start(**server.env)
        with connect(server.address) as client:
            until(lambda: client.call("status")["pair"]["role"] == "ACTIVE")
            for number in range(5):
                client.publish("mail", number)
            client.ack(client.lease("mail")[0].lease_id)
            client.nack(client.lease("mail")[0].lease_id)
            client.topics.publish("trades", {"n": 1})
            until(lambda: client.counts("from-topic").ready == 1)
            assert not [one for one in client.call("health")["reasons"] if one["code"] == "permissions"]
            assert loose_in(tmp_path / "d") == []
        made = {path.name for path in (tmp_path / "d").rglob("*")}
        assert made >= {"yirangmq.sock", "http.sock", "feed.sock", "topics", "by-date", "pair", "term.json", "witness"}
        assert server.stop() == 0
    finally:
        server.kill()
    url = store.replace("{d}", str(tmp_path / "d"))
    server.run("check", "--store", url)
    server.run("export", str(tmp_path / "d" / "backup.jsonl"), "--store", url)
    assert loose_in(tmp_path / "d") == []
    assert server.notes.read_text() == ""


@pytest.mark.process
def test_permissions_of_a_server_for_a_group_admit_it_and_health_reports_loose_files_and_folders(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o644)
    options = ("--file-access", "group", "--http", "off", "--token-file", str(tmp_path / "token"))
    with daemon(tmp_path, *options) as server, connect(server.address) as client:
        client.publish("mail", 1)
        data = tmp_path / "d"
        assert mode_of(data) == GROUP.folder
        assert mode_of(data / "queue.db") == mode_of(data / "yirangmq.sock") == GROUP.file

        def told() -> list[str]:
            return [one["text"] for one in client.call("health")["reasons"] if one["code"] == "permissions"]

        assert told() == [f"{tmp_path}/token (token_file) has mode 0644; run: chmod o= {tmp_path}/token"]
        (tmp_path / "token").chmod(0o640)
        assert told() == []
        data.chmod(0o2775)
        assert told() == [f"{data} has mode 2775, so that other users may read it; run: chmod 2770 {data}"]
        assert client.call("health")["status"] == "degraded"
        data.chmod(0o700)
        assert told() == [f"file_access is group, and the group may not use {data}; run: chmod 2770 {data}"]


CALLS = r"O_CREAT|os\.mkdir\(|makedirs\(|write_bytes\(|write_text\(|\.touch\(|(?<!disk)\.mkdir\("
MAKES = re.compile(rf"{CALLS}|(?<!fd)open\([^)]*[\"'][wax]b?\+?[\"']")
MAY_MAKE = {
    "fsio/permissions.py",
    "cli/commands/token.py",
    "stores/files/store.py",
    "cli/commands/pipeline/batch_jobs.py",
}
"""The rule itself; a token's file, always 0600; a lock, opened by the rule; a report that its reader names."""


def test_permissions_of_every_file_are_set_by_one_module() -> None:
    """What Spark and its jobs write follows the umask, and ``torture`` works on copies."""
    package = ROOT / "src" / "yirangmq"
    files = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    kept = {name: text for name, text in files.items() if not name.startswith(("pipeline/", "crashtest/"))}
    assert {name for name, text in kept.items() if MAKES.search(text)} <= MAY_MAKE
