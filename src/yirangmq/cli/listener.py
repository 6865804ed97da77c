"""Hears of changes that other processes make to the store of a running server, in a small thread."""

import threading
from collections.abc import Callable

from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Store

WAIT_SECONDS = 0.25
"""How long one wait lasts at most, and so how long stopping may take."""
PAUSE_SECONDS = 0.02
"""Between two pieces of news: the server's own commits are heard too, and must cost nothing."""


class Listener:
    """Calls ``tell``, from its own thread, when the store may have changed; not while nobody waits for what others
    bring (``is_awaited``): the server's own commits are heard too."""

    def __init__(self, store: Store, tell: Callable[[], object], is_awaited: Callable[[], bool]) -> None:
        self._store = store
        self._tell = tell
        self._is_awaited = is_awaited
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._end.wait(PAUSE_SECONDS if self._is_awaited() else WAIT_SECONDS):
            if self._is_awaited():
                try:
                    self._store.wait(WAIT_SECONDS)
                except (OSError, QueueError):  # users of the store get the error; check again, as after a change
                    self._end.wait(WAIT_SECONDS)
                if not self._end.is_set():
                    self._tell()

    def stop(self) -> None:
        """Returns when the store is no longer listened to."""
        self._end.set()
        self._thread.join()
