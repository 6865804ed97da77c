"""Exponential backoff with jitter: the delay before the next attempt.

Pure: ``chance`` is a random number from 0 to 1. Delays have the unit of ``first`` and ``limit``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from yirangmq.core.policy import RetryPolicy

MAX_STEPS = 40
"""Failures after which the delay grows no further: 2**40 is above every limit, and far from an overflow."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: ``first``, multiplied by ``factor`` after each failure, up to ``limit``.

    ``jitter`` (0.5: ±50 %) is applied last, so that processes do not retry in step."""

    first: float
    limit: float
    factor: float = 2
    jitter: float = 0.0

    def delay(self, failures: int, chance: float = 0.5) -> float:
        """Return the delay after the ``failures``-th failure in a row, counted from 1; by default without jitter."""
        return backoff_delay(self.first, self.limit, self.factor, self.jitter, failures, chance)


def backoff_delay(first: float, limit: float, factor: float, jitter: float, failures: int, chance: float) -> float:
    """Compute ``Backoff.delay`` from plain numbers (of a queue's policy), without an object per call."""
    grown: float = first * factor ** (failures - 1 if failures <= MAX_STEPS else MAX_STEPS)
    return (grown if grown < limit else limit) * (1 + jitter * (2 * chance - 1))


# -- retries by a policy -----------------------------------------------------------------------------------------------


class RandomFraction(NamedTuple):
    """Random number from 0 to 1, passed in by the caller. Only jitter uses it."""

    fraction: float = 0.5


def backoff_ms(retry: "RetryPolicy", attempt: int, chance: RandomFraction = RandomFraction()) -> int:  # noqa: B008
    """Return the delay in ms after the ``attempt``-th failure: 1, 2, 4, 8, 16 … s by default, up to ``max_ms``."""
    first, factor = retry.initial_ms, 1
    if retry.backoff == "exponential":
        factor = 2
    elif retry.backoff == "linear":
        first *= attempt
    return round(backoff_delay(first, retry.max_ms, factor, retry.jitter, attempt, chance.fraction))
