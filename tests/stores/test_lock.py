"""Who holds a store: one server, known by its lock, forgotten when it is gone."""

import errno
import os
from pathlib import Path

import pytest

from yirangmq.core.errors import StoreBusy, StoreError, StoreFull
from yirangmq.stores.lock import Holder, StoreLock, find_holder, lock_path

HOLDER = Holder(4711, "unix:/run/y.sock", "north", "2026-01-13T09:21:00Z")


@pytest.mark.parametrize(
    ("url", "name"), [("sqlite:a/queue.db", "a/queue.db.lock"), ("files:a/queues/", "a/queues.lock")]
)
def test_store_lock_file_lies_beside_the_store(url: str, name: str) -> None:
    assert lock_path(url) == Path(name)


def test_store_lock_of_a_memory_store_needs_no_file() -> None:
    assert lock_path("memory:") is None
    StoreLock("memory:", HOLDER).close()
    assert find_holder("memory:") is None


def test_store_lock_refuses_a_second_server_and_names_the_first(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'queue.db'}"
    first = StoreLock(url, HOLDER)
    with pytest.raises(
        StoreBusy, match=r"process 4711 \(north\) since 2026-01-13T09:21:00Z; reach it at unix:/run/y.sock"
    ):
        StoreLock(url, HOLDER)
    assert find_holder(url) == HOLDER
    first.close()
    assert find_holder(url) is None
    StoreLock(url, HOLDER).close()


def test_store_lock_of_a_starting_server_shows_no_address_until_it_is_set(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'queue.db'}"
    lock = StoreLock(url, HOLDER._replace(address=""))
    assert find_holder(url) is None
    lock.write_holder(HOLDER)
    assert find_holder(url) == HOLDER
    lock.close()


@pytest.mark.parametrize(
    "left", [b"", b"nonsense", b'{"pid": 1}', b'{"pid":1,"address":"unix:/x","node":"n","since":"s"}']
)
def test_store_lock_ignores_the_content_of_a_stale_lock_file(tmp_path: Path, left: bytes) -> None:
    url = f"sqlite:{tmp_path / 'queue.db'}"
    (tmp_path / "queue.db.lock").write_bytes(left)
    assert find_holder(url) is None
    lock = StoreLock(url, HOLDER)
    assert find_holder(url) == HOLDER
    lock.close()


def test_store_lock_in_a_missing_folder_raises_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be made"):
        StoreLock(f"sqlite:{tmp_path / 'none' / 'queue.db'}", HOLDER)
    assert find_holder(f"sqlite:{tmp_path / 'none' / 'queue.db'}") is None


def test_store_lock_on_a_full_disk_raises_store_full_and_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    url = f"sqlite:{tmp_path / 'q.db'}"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreFull, match="no space left"):
            StoreLock(url, HOLDER)
    StoreLock(url, HOLDER).close()
