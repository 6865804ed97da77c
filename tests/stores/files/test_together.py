"""Several openers of one folder: they see the same, hear of each other, and nobody needs a watch to be right."""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores.files.parts import drop, open_queues
from tests.support.wait import PATIENCE
from yirangmq.core.errors import StoreBusy, StoreError
from yirangmq.stores.files.store import FilesStore


def test_two_openers_of_a_folder_share_all_messages_and_counts(tmp_path: Path) -> None:
    with open_queues(tmp_path) as one, open_queues(tmp_path) as other:
        one.publish_many("mail", list(range(10)))
        mine, yours = one.lease("mail", 3), other.lease("mail", 3)
        assert [delivery.value() for delivery in mine + yours] == list(range(6))
        other.ack([delivery.lease_id for delivery in mine])
        one.nack([delivery.lease_id for delivery in yours], "REJECTED")
        assert one.counts("mail") == other.counts("mail")
        assert (one.counts("mail").done, one.counts("mail").dead) == (3, 3)
        other.delete_queue("mail")
        assert one.queues() == []
        one.publish("post", 1)
        assert [delivery.value() for delivery in other.lease("post")] == [1]


def test_store_lock_held_by_a_write_transaction_makes_another_opener_time_out_as_store_busy(tmp_path: Path) -> None:
    sitting = FilesStore(tmp_path)
    other = FilesStore(tmp_path, busy_seconds=0.05)
    with sitting.transaction(), pytest.raises(StoreBusy), other.transaction():
        pass
    with sitting.transaction(write=False), other.transaction(write=False):
        pass
    with other.transaction():
        pass
    sitting.close()
    other.close()


def test_transaction_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    store = FilesStore(tmp_path)
    with store.transaction(), pytest.raises(StoreError, match="inside"), store.transaction():
        pass
    with store.transaction():
        pass
    store.close()


def test_inbox_file_wakes_a_waiting_lease_also_in_a_new_queue(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        for queue in ("mail", "mail", "later"):
            found: list[object] = []

            def take(queue: str = queue, found: list[object] = found) -> None:
                found.extend(delivery.value() for delivery in queues.lease(queue, wait=PATIENCE))

            waiter = threading.Thread(target=take)
            waiter.start()
            drop(tmp_path / queue / "inbox", "a.json", queue)
            waiter.join()
            assert found == [queue]


def test_inotify_missing_still_lets_a_waiting_lease_receive_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(name: object, **options: object) -> None:
        raise OSError("this system has neither inotify nor syncfs")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    with open_queues(tmp_path) as queues, open_queues(tmp_path) as other:
        inbox = tmp_path / "mail" / "inbox"
        sends: list[Callable[[], object]] = [lambda: drop(inbox, "a.json", 1), lambda: other.publish("mail", 2)]
        for number, send in enumerate(sends, 1):
            found: list[object] = []

            def take(found: list[object] = found) -> None:
                found.extend(delivery.value() for delivery in queues.lease("mail", wait=PATIENCE))

            waiter = threading.Thread(target=take)
            waiter.start()
            send()
            waiter.join()
            assert found == [number]


def test_inotify_watch_on_a_recreated_file_still_reports_commits(tmp_path: Path) -> None:
    """The watched file is taken away and made anew by others: what they do is still heard of."""
    store = FilesStore(tmp_path)
    with open_queues(tmp_path) as queues:
        (tmp_path / ".index" / "state").unlink()
        queues.publish("mail", 1)
        store.wait(60)
        with store.transaction(write=False) as transaction:
            assert len(transaction.heads("mail", 1)) == 1
    store.close()


@pytest.mark.process
def test_store_lock_of_a_forked_child_is_separate_from_its_parents(tmp_path: Path) -> None:
    store = FilesStore(tmp_path, busy_seconds=0.05)
    with store.transaction():
        child = os.fork()
        if child == 0:
            busy = 1
            try:
                store._lock._held = False
                store._lock._thread_lock = threading.RLock()
                with store.transaction():
                    pass
            except StoreBusy:
                busy = 0
            finally:
                os._exit(busy)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()
