"""Exponential backoff with jitter: the delay before the next attempt.

Pure: ``chance`` is a random number from 0 to 1. Delays have the unit of ``first`` and ``limit``."""

from dataclasses import dataclass

MOST_STEPS = 40
"""The delay grows no further after so many steps: a power of 2 that no limit reaches, and far from an overflow."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """``first``, then ``factor`` times as much after each failure, up to ``limit``; then ±``jitter`` (0.5: ±50 %), so
    that waiting processes do not keep step."""

    first: float
    limit: float
    factor: float = 2
    jitter: float = 0.0

    def delay(self, failures: int, chance: float = 0.5) -> float:
        """After the ``failures``-th failure in a row, counted from 1; by default without jitter."""
        return backoff_delay(self.first, self.limit, self.factor, self.jitter, failures, chance)


def backoff_delay(first: float, limit: float, factor: float, jitter: float, failures: int, chance: float) -> float:
    """``Backoff.delay`` for numbers that are kept elsewhere (a queue's policy), without an object for each call."""
    grown: float = first * factor ** (failures - 1 if failures <= MOST_STEPS else MOST_STEPS)
    return (grown if grown < limit else limit) * (1 + jitter * (2 * chance - 1))
