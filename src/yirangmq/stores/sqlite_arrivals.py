"""What was published just now, kept in memory: a consumer that waits is handed it without a look into the tables.

Knows: envelopes by their numbers. Does not know: who took them; what is kept longer than needed goes with the rest."""

from collections.abc import Sequence
from itertools import repeat

from yirangmq.core.message import Envelope, total_size

EACH = 300
"""Bytes that a message takes beside payload and header."""
MOST_ARRIVED_BYTES = 8 * 1024 * 1024
"""Of payloads and headers. What comes when it is full is read back when it is wanted: those that came before it are
wanted first. Only when as much again has passed and nobody wanted any of them, all are let go."""


class Arrivals:
    def __init__(self) -> None:
        self._sent: dict[int, Envelope] = {}
        self._size = 0
        self._passed = 0
        """Bytes that found no room since something was last found here."""

    def add(self, first: int, envelopes: Sequence[Envelope], size: int) -> None:
        """Those with the numbers from ``first`` on, of so many bytes, if there is room."""
        size += EACH * len(envelopes)
        if self._size + size > MOST_ARRIVED_BYTES:
            self._passed += size
            if self._passed <= MOST_ARRIVED_BYTES:
                return
            self.clear()
        if size <= MOST_ARRIVED_BYTES:
            self._sent.update(enumerate(envelopes, first))
            self._size += size

    def find(self, first: int, count: int) -> list[Envelope] | None:
        """All of these, or None."""
        sent = self._sent
        if first not in sent:
            return None
        try:
            found = [sent[seq] for seq in range(first, first + count)]
        except KeyError:
            return None
        self._passed = 0
        return found

    def drop(self, first: int, last: int) -> None:
        """They are out of line."""
        if self._sent:
            gone = map(self._sent.pop, range(first, last + 1), repeat(None))
            found = [one for one in gone if one is not None]
            self._size -= total_size(found) + EACH * len(found)

    def clear(self) -> None:
        self._sent.clear()
        self._size = self._passed = 0
