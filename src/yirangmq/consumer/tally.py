"""What a consumer has done so far, in numbers. Every message it took ends in exactly one of them."""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Summary:
    """``failed``: given back or dead because the work failed, took too long or did not fit; ``lost``: another consumer
    may have it, because the lease was lost; ``released``: never worked on, back in line."""

    done: int = 0
    retried: int = 0
    rejected: int = 0
    failed: int = 0
    lost: int = 0
    released: int = 0

    @property
    def total(self) -> int:
        return self.done + self.retried + self.rejected + self.failed + self.lost + self.released


class Tally:
    """Counted from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._summary = Summary()

    def add(self, **counts: int) -> None:
        with self._guard:
            now = self._summary
            self._summary = replace(now, **{name: getattr(now, name) + count for name, count in counts.items()})

    @property
    def summary(self) -> Summary:
        return self._summary
