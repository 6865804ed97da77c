"""Whether messages are taken now: running, paused, draining. Told by the operator, a signal or the program itself."""

import threading
from collections.abc import Callable

from yirangmq.core.consumer_registry import WISHES, ConsumerState


class Gate:
    """Safe to share between threads. Once it drains it never runs again."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._state = ConsumerState.RUNNING
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Called after each move, by whoever moved it."""
        self._listeners.append(listener)

    @property
    def state(self) -> ConsumerState:
        return self._state

    @property
    def is_open(self) -> bool:
        return self._state is ConsumerState.RUNNING

    @property
    def is_shut(self) -> bool:
        """For good."""
        return self._state in (ConsumerState.DRAINING, ConsumerState.STOPPED)

    def follow(self, wish: str) -> bool:
        """Do as wished: ``pause``, ``resume`` or ``drain``; False if that changes nothing."""
        return self.move(WISHES[wish])

    def move(self, state: ConsumerState) -> bool:
        with self._moved:
            if state is self._state or (self.is_shut and state is not ConsumerState.STOPPED):
                return False
            self._state = state
            self._moved.notify_all()
        for listener in self._listeners:
            listener()
        return True

    def wait_open(self) -> bool:
        """Until messages may be taken; False if they never will be again."""
        with self._moved:
            self._moved.wait_for(lambda: self._state is not ConsumerState.PAUSED)
            return self.is_open

    def rest(self, seconds: float) -> None:
        """A while, or until the gate moves."""
        with self._moved:
            before = self._state
            self._moved.wait_for(lambda: self._state is not before, seconds)
