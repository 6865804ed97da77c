"""When to look at the policies again: at a time that was set, and at once when one of them was changed here.

Knows: the desk. Does not know: what is looked for."""

from collections.abc import Callable, Sequence

from yirangmq.broker.desk import Desk
from yirangmq.core.events import Event, Steered


class Alarm:
    """Used from the desk's thread: ``start``, ``stop``, and again where duty comes and goes. ``look`` is called only
    between the two."""

    def __init__(self, desk: Desk, look: Callable[[], None]) -> None:
        self._desk = desk
        self._look = look
        self._round = 0
        self._is_on = False
        self._listens = False

    def start(self) -> None:
        self._is_on = True
        if not self._listens:
            self._listens = True
            self._desk.verbs.happened.listen(self._hear, [Steered])
        self._look()

    def stop(self) -> None:
        self._is_on = False

    def set(self, seconds: float) -> None:
        """The latest call counts; earlier alarms find that they are out of date."""
        self._round += 1
        number = self._round
        self._desk.later(seconds, lambda: self._ring(number))

    def _ring(self, number: int) -> None:
        if self._is_on and number == self._round:
            self._look()

    def _hear(self, events: Sequence[Event]) -> None:
        """Somebody steered a queue."""
        self.set(0.0)
