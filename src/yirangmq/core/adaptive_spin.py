"""Adaptive spin: how long to busy-wait for an expected event before blocking.

A sleep/wake cycle costs tens of µs, about as long as many of the waits. The caller therefore spins for up to twice the
usual wait, a moving average, and at most ``max_spin``; if the wait is usually longer, it blocks without spinning.

After another process has kept the processor for too long, the caller blocks for the next 16 waits, then 32, up to
1,024. Measurements: docs/decisions/0018-adaptive-spin.md. Pure: the callers measure time and spin
(``client.blocking_transport``, ``observe.event_loop``)."""

WEIGHT = 0.25
"""Weight of the latest wait in the moving average."""
MIN_UNSPUN_WAITS, MAX_UNSPUN_WAITS = 16, 1024
"""Waits that block without spinning after another process took the processor: it keeps it for much longer than a
wake-up takes. The number starts at 16, doubles each time this happens again up to 1,024, and falls by one for each wait
that was spun for."""


class AdaptiveSpin:
    """Adaptive spin for one kind of wait: a moving average of its duration.

    A wait that usually takes more than ``max_spin`` seconds is not spun for. At first the average is above
    ``max_spin``, so the caller blocks."""

    __slots__ = (
        "_max_sample",
        "_max_spin",
        "_next_unspun",
        "_unspun_left",
        "average_wait",
        "preemption_seconds",
        "seconds",
    )

    def __init__(self, max_spin: float) -> None:
        self._max_spin = max_spin
        self._max_sample = 2 * max_spin
        """Upper bound of one sample, in seconds: after a pause, a few short waits are enough to spin again."""
        self.average_wait = self._max_sample
        self._unspun_left, self._next_unspun = 0, MIN_UNSPUN_WAITS
        self.seconds = 0.0
        """Longest spin before blocking, in seconds; 0: block immediately."""
        self.preemption_seconds = max_spin / 2
        """Seconds without the processor after which ``note_preemption`` is to be called."""

    def note_preemption(self) -> None:
        """Note that another process has had the processor for ``preemption_seconds`` seconds or more."""
        self._unspun_left, self._next_unspun = self._next_unspun, min(2 * self._next_unspun, MAX_UNSPUN_WAITS)
        self.seconds = 0.0

    def add_wait(self, seconds: float) -> None:
        """Add a wait of this duration to the average."""
        if self._unspun_left:
            self._unspun_left -= 1
        elif self._next_unspun > MIN_UNSPUN_WAITS and self.average_wait <= self._max_spin:
            self._next_unspun -= 1
        self.average_wait += (min(seconds, self._max_sample) - self.average_wait) * WEIGHT
        is_short = self.average_wait <= self._max_spin and not self._unspun_left
        self.seconds = min(2 * self.average_wait, self._max_spin) if is_short else 0.0
