"""A server hears of changes by other processes while somebody waits for them, and not otherwise."""

import threading

from tests.patience import PATIENCE
from yirangmq.cli.listener import Listener


class Watched:
    """A store that changes all the time."""

    def __init__(self) -> None:
        self.waits = 0
        self.was_waited_for = threading.Event()

    def wait(self, timeout: float) -> None:
        self.waits += 1
        self.was_waited_for.set()


def test_nobody_waits_nobody_listens() -> None:
    asked, told = threading.Semaphore(0), threading.Event()
    is_awaited = threading.Event()

    def awaited() -> bool:
        asked.release()
        return is_awaited.is_set()

    store = Watched()
    listener = Listener(store, told.set, awaited)  # type: ignore[arg-type]
    try:
        for _ in range(4):
            assert asked.acquire(timeout=PATIENCE)
        assert (store.waits, told.is_set()) == (0, False)
        is_awaited.set()
        assert store.was_waited_for.wait(PATIENCE)
        assert told.wait(PATIENCE)
    finally:
        listener.stop()
