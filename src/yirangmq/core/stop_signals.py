"""Repeated stop signals: which SIGTERM or SIGINT begins an orderly stop, and which one ends the process at once.

A stop often arrives twice: ``timeout`` and many wrappers signal the child and then its process group, and a terminal
sends Ctrl-C to a wrapper that forwards it. Signals within ``SIGNAL_REPEAT_SECONDS`` of the first are therefore the same
stop; a later one asks for an immediate end. Pure: the caller handles the signals and gives the time."""

from enum import Enum

SIGNAL_REPEAT_SECONDS = 1.0


class StopStep(Enum):
    """What a process does with a stop signal."""

    BEGIN = "begin"
    """First signal: stop in good order."""
    IGNORE = "ignore"
    """A copy of the first signal."""
    FORCE = "force"
    """A later signal: end now."""


class StopSignals:
    """The stop signals of one process or of one run. Not thread-safe: for the thread that handles signals."""

    __slots__ = ("_first_at",)

    def __init__(self) -> None:
        self._first_at: float | None = None

    def receive(self, now: float) -> StopStep:
        """Record a signal. ``now`` is in seconds of a monotonic clock."""
        if self._first_at is None:
            self._first_at = now
            return StopStep.BEGIN
        return StopStep.FORCE if now - self._first_at > SIGNAL_REPEAT_SECONDS else StopStep.IGNORE

    @property
    def is_stopping(self) -> bool:
        return self._first_at is not None

    def clear(self) -> None:
        """Forget the signals of an earlier run."""
        self._first_at = None
