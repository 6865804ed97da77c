"""The inbox of a queue as its dispatcher knows it, in order of arrival. Pure. What does not fit into memory is known by
its key alone, and read when its turn comes."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

HELD_BYTES = 32_000_000
"""Of messages in the inbox whose content is kept at hand."""


class Arrival(NamedTuple):
    """A message in the inbox. ``value`` is None where it is still to be read."""

    key: bytes
    sender: bytes
    name: bytes
    revision: int
    value: bytes | None


class Arrivals:
    """``stuck``: keys of messages that are too large to be moved."""

    def __init__(self) -> None:
        self._known: dict[bytes, Arrival] = {}
        self._bytes = 0
        self.stuck: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._known.values())

    def arrive(self, arrival: Arrival) -> None:
        """It was written, or written anew; what is older than what we know says nothing."""
        known = self._known.get(arrival.key)
        if known is not None:
            if known.revision >= arrival.revision:
                return
            self._bytes -= len(known.value or b"")
            self.stuck.discard(arrival.key)
        if self._bytes >= HELD_BYTES:
            arrival = arrival._replace(value=None)
        self._bytes += len(arrival.value or b"")
        self._known[arrival.key] = arrival

    def fill(self, arrival: Arrival, value: bytes) -> None:
        """What it holds, unless it was written anew meanwhile."""
        known = self._known.get(arrival.key)
        if known is not None and known.revision == arrival.revision and known.value is None:
            self._known[arrival.key] = known._replace(value=value)
            self._bytes += len(value)

    def leave(self, arrival: Arrival) -> None:
        """It is not there any longer as it was."""
        known = self._known.get(arrival.key)
        if known is not None and known.revision == arrival.revision:
            del self._known[arrival.key]
            self._bytes -= len(known.value or b"")
            self.stuck.discard(arrival.key)

    def unread(self, among: int, most: int) -> list[Arrival]:
        """Of the first so many that can be moved those that are still to be read."""
        moving = islice((one for one in self if one.key not in self.stuck), among)
        return [one for one in moving if one.value is None][:most]

    def held_up(self, most: int) -> list[Arrival]:
        return [self._known[key] for key in islice(self.stuck, most)]
