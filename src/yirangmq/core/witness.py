"""What a third party tells a node of a pair: a record that its holder renews, and that another may take when it has not
been renewed for the whole time-out, by the taker's own clock.

Knows: records, the time handed in. Does not know: where the record is kept. No clock is compared
with another."""

from dataclasses import dataclass
from enum import StrEnum

from yirangmq.core.pairing import Witness


@dataclass(frozen=True, slots=True)
class Record:
    """``renewal`` changes with every renewal. ``holder`` "": given back."""

    holder: str
    term: int
    renewal: int


class Wish(StrEnum):
    WATCH = "watch"
    HOLD = "hold"
    """Renew it, or take it if it is free."""
    GIVE_BACK = "give-back"


class Watching:
    """One node's view of the record. ``timeout`` in milliseconds."""

    def __init__(self, node: str, timeout: int) -> None:
        self._node = node
        self._timeout = timeout
        self._last: Record | None = None
        self._since: int | None = None
        self.term = 0
        """The highest that another holder was seen with."""

    def exchange(self, record: Record | None, wish: Wish, term: int, now: int) -> tuple[Witness, Record | None]:
        """The record as just read, while nobody else may write it: what it says, and what to write, if anything. No
        record is the same as one that nobody renews."""
        found = self._saw(record, now)
        if wish is Wish.HOLD and found in (Witness.OURS, Witness.FREE):
            after = Record(self._node, term, (record.renewal if record is not None else 0) + 1)
            self._last, self._since = after, now
            return Witness.OURS, after
        if wish is Wish.GIVE_BACK and found is Witness.OURS and record is not None:
            return Witness.FREE, Record("", record.term, record.renewal + 1)
        if found is Witness.OURS:
            return Witness.FREE, None  # from an earlier life, or given up: ours to take again
        return found, None

    def _saw(self, record: Record | None, now: int) -> Witness:
        if self._since is None or record != self._last:
            self._last, self._since = record, now
        if record is not None and record.holder == self._node:
            return Witness.OURS
        self.term = max(self.term, record.term if record is not None else 0)
        if record is not None and not record.holder:
            return Witness.FREE
        return Witness.FREE if now - self._since > self._timeout else Witness.THEIRS
