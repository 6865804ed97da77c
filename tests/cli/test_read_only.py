"""Stores that cannot be written, looked at with the command line: a read-only file system, files of another user, what
a killed server left behind. Writes are refused with ``store_read_only``."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.sqlite import OrderedIds, redo_of, served
from yirangmq.stores.open import open_store
from yirangmq.testing import ManualClock, open_for_test

ANOTHER_USER = 65534
Unwritable = Callable[[Path], AbstractContextManager[None]]


@contextmanager
def bound(folder: Path) -> Iterator[None]:
    """A read-only file system. Root may write whatever the permission bits say, so it has to be one."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True, capture_output=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


@contextmanager
def of_another_user(folder: Path) -> Iterator[None]:
    """Folders and files that all may read and only their owner may write."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    os.seteuid(ANOTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with bound(Path(folder)):
                return True
        except (subprocess.CalledProcessError, OSError):
            return False


IS_ROOT = os.geteuid() == 0
WAYS: dict[str, Unwritable] = {
    **({"read-only file system": bound} if IS_ROOT and _can_mount() else {}),
    **({"files of another user": of_another_user} if IS_ROOT else {}),
}
pytestmark = pytest.mark.skipif(not WAYS, reason="only root can make a store that this process cannot write")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where another user may look, unlike in pytest's own folders."""
    made = Path(tempfile.mkdtemp(prefix="yirangmq-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def fill(url: str) -> None:
    """Two ready messages, a dead one, an acked one."""
    with open_for_test(store=open_store(url), clock=ManualClock()) as queues:
        queues.publish_many("mail", [{"n": n} for n in range(4)])
        first, second = queues.lease("mail", 2)
        queues.ack(first.lease_id)
        queues.nack(second.lease_id, "REJECTED", "no")


def left_by_a_kill(url: str, folder: Path) -> None:
    """The files as they lie there while a process that was killed had the store open."""
    scheme, _, place = url.partition(":")
    if scheme == "files":
        fill(url)
        state = Path(place) / ".index" / "state"
        state.write_bytes(b"\0" * len(state.read_bytes()))
        return
    live = folder.with_name(f"{folder.name}-live")
    live.mkdir()
    try:
        store = served(live)
        queues = open_for_test(store=store, clock=ManualClock(), ids=OrderedIds())
        queues.publish_many("mail", [{"n": n} for n in range(4)])
        redo_of(store).run_background_commit()
        first, second = queues.lease("mail", 2)
        queues.ack(first.lease_id)
        queues.nack(second.lease_id, "REJECTED", "no")
        for path in live.iterdir():
            if not path.name.endswith("-shm"):
                shutil.copyfile(path, folder / path.name)
        queues.close()
    finally:
        shutil.rmtree(live)


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", ["closed", "killed"])
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_read_only_store_can_be_inspected_and_refuses_writes(
    cli: Cli, folder: Path, scheme: str, made: str, way: str
) -> None:
    url = f"{scheme}:{folder / ('queue.db' if scheme == 'sqlite' else 'queues')}"
    if made == "closed":
        fill(url)
    else:
        left_by_a_kill(url, folder)
    before = listing(folder)
    with WAYS[way](folder):
        status = cli(f"status --json --store {url}")
        assert status.code == 0, status.err
        [queue] = status.json["queues"]
        assert (queue["ready"], queue["dead"], queue["done"]) == (2, 1, 1)
        peeked = cli(f"peek --queue mail --json --store {url}")
        assert [one["message"]["payload"] for one in peeked.lines] == [{"n": 2}, {"n": 3}]
        letters = cli(f"dlq list --queue mail --json --store {url}")
        assert letters.code == 0, letters.err
        assert len(letters.out.splitlines()) >= 1
        assert "REJECTED" in letters.out
        exported = cli(f"export --store {url} -")
        assert exported.code == 0, exported.err
        assert exported.lines[-1] == {"kind": "end", "messages": 4}
        found = cli(f"check --json --store {url}").json["findings"]
        assert {one["kind"] for one in found} <= {"permissions"}, "others may look at these files"
        health = cli(f"health --json --store {url}")
        assert health.json["status"] == "fail"
        assert {one["code"] for one in health.json["reasons"]} - {"permissions"} == {"store_read_only"}
        for line in ("publish --queue mail {}", "consume --queue mail --max 1", "queue pause mail"):
            refused = cli(f"{line} --json --store {url}")
            assert refused.complaint["code"] == "store_read_only", line
            assert "read-write" in refused.complaint["error"]
    assert listing(folder) == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_read_only_folder_without_a_store_refuses_publish_and_allows_status(
    cli: Cli, folder: Path, scheme: str, way: str
) -> None:
    with WAYS[way](folder):
        refused = cli(f"publish --queue mail {{}} --json --store {scheme}:{folder / 'none'}")
        assert refused.complaint["code"] == "store_read_only"
        assert cli(f"status --json --store {scheme}:{folder / 'none'}").code == 0
