"""Consumers that wait on an empty queue: woken by a change, here or in another process, never by a busy loop."""

import threading
import time

from yirangmq.core.ports import Store


class Waiters:
    """One listener at a time asks the store for news of other processes and tells everybody else here."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._news = threading.Condition()
        self._generation = 0
        self._listening = False

    @property
    def generation(self) -> int:
        """Read this before looking into the queue, hand it to ``wait`` after finding nothing."""
        return self._generation

    def ring(self) -> None:
        with self._news:
            self._generation += 1
            self._news.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Until something changed since ``seen``, or the time is over."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with self._news:
                if self._generation != seen:
                    return
                if self._listening:
                    self._news.wait(left)
                    continue
                self._listening = True
            try:
                self._store.wait(left)
            finally:
                with self._news:
                    self._listening = False
                    self._generation += 1
                    self._news.notify_all()
