"""What was published just now, kept in memory: a consumer that waits is handed it without a look into the tables.

Knows: envelopes by their numbers. Does not know: who took them; what is kept longer than needed goes with the rest."""

from collections.abc import Sequence

from yirangmq.core.message import Envelope

MOST_BYTES = 4 * 1024 * 1024
"""Of payloads and headers; past it everything is let go and read back when it is wanted."""


class Arrivals:
    def __init__(self) -> None:
        self._sent: dict[int, Envelope] = {}
        self._size = 0

    def add(self, first: int, envelopes: Sequence[Envelope], size: int) -> None:
        """Those with the numbers from ``first`` on, of so many bytes."""
        if self._size + size > MOST_BYTES:
            self.clear()
        if size <= MOST_BYTES:
            self._sent.update(enumerate(envelopes, first))
            self._size += size

    def find(self, first: int, count: int) -> list[Envelope] | None:
        """All of these, or None."""
        sent = self._sent
        if first not in sent:
            return None
        try:
            return [sent[seq] for seq in range(first, first + count)]
        except KeyError:
            return None

    def drop(self, first: int, last: int) -> None:
        """They are out of line."""
        if self._sent:
            for seq in range(first, last + 1):
                gone = self._sent.pop(seq, None)
                if gone is not None:
                    self._size -= len(gone[8]) + len(gone[7])

    def clear(self) -> None:
        self._sent.clear()
        self._size = 0
