"""A server hears of changes by other processes while somebody waits for them, and not otherwise."""

import threading

from tests.support.wait import PATIENCE
from yirangmq.server.lifecycle import StoreListener


class Watched:
    """A store that changes all the time."""

    def __init__(self) -> None:
        self.waits = 0
        self.was_waited_for = threading.Event()

    def wait(self, timeout: float) -> None:
        self.waits += 1
        self.was_waited_for.set()


def test_change_listener_waits_on_the_store_only_while_a_consumer_waits() -> None:
    asked, told = threading.Semaphore(0), threading.Event()
    is_awaited = threading.Event()

    def awaited() -> bool:
        asked.release()
        return is_awaited.is_set()

    store = Watched()
    listener = StoreListener(store, told.set, awaited)  # type: ignore[arg-type]
    listener.start()
    try:
        for _ in range(4):
            assert asked.acquire(timeout=PATIENCE)
        assert (store.waits, told.is_set()) == (0, False)
        is_awaited.set()
        assert store.was_waited_for.wait(PATIENCE)
        assert told.wait(PATIENCE)
    finally:
        listener.stop()


def test_change_listener_continues_after_an_error_of_the_store() -> None:
    """A read that fails once used to end its thread: changes by other processes were not heard of until a restart."""
    told = threading.Semaphore(0)

    class Failing(Watched):
        def wait(self, timeout: float) -> None:
            super().wait(timeout)
            if self.waits == 1:
                raise OSError(5, "Input/output error")

    listener = StoreListener(Failing(), told.release, lambda: True)  # type: ignore[arg-type]
    listener.start()
    try:
        for _ in range(2):
            assert told.acquire(timeout=PATIENCE)
    finally:
        listener.stop()
