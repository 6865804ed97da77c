"""Witness of a failover pair: a record outside of both nodes, of which at most one node is the holder.

The holder renews the record. The other node may take it when it was not renewed for the whole timeout, measured by that
node's clock. No clock is compared with another. ``failover.witness`` reads and writes the record. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Witness(StrEnum):
    """State of the witness, from the view of this node."""

    NONE = "none"
    """No witness is configured."""
    OURS = "ours"
    FREE = "free"
    """It was not renewed for the whole timeout: this node may request it."""
    THEIRS = "theirs"
    UNREACHABLE = "away"
    """It cannot be read."""


@dataclass(frozen=True, slots=True)
class WitnessRecord:
    """Record of the witness. ``renewal`` changes with every renewal. ``holder`` "": released."""

    holder: str
    term: int
    renewal: int


class WitnessRequest(StrEnum):
    WATCH = "watch"
    HOLD = "hold"
    """Renew the record, or take it if it is free."""
    RELEASE = "give-back"


class WitnessView:
    """One node's view of the witness record. ``timeout`` is in milliseconds."""

    def __init__(self, node: str, timeout: int) -> None:
        self._node = node
        self._timeout = timeout
        self._last: WitnessRecord | None = None
        self._since: int | None = None
        self.term = 0
        """Highest term that this node saw with another holder."""

    def exchange(
        self, record: WitnessRecord | None, wish: WitnessRequest, term: int, now: int
    ) -> tuple[Witness, WitnessRecord | None]:
        """Return the state of the witness, and the record to write (None: write nothing).

        ``record`` was just read, and the caller holds its lock until the result is written. A missing record counts as
        one that is not renewed."""
        found = self._observe(record, now)
        if wish is WitnessRequest.HOLD and found in (Witness.OURS, Witness.FREE):
            after = WitnessRecord(self._node, term, (record.renewal if record is not None else 0) + 1)
            self._last, self._since = after, now
            return Witness.OURS, after
        if wish is WitnessRequest.RELEASE and found is Witness.OURS and record is not None:
            return Witness.FREE, WitnessRecord("", record.term, record.renewal + 1)
        if found is Witness.OURS:
            return Witness.FREE, None  # held by an earlier run of this node, or released: free to take again
        return found, None

    def _observe(self, record: WitnessRecord | None, now: int) -> Witness:
        if self._since is None or record != self._last:
            self._last, self._since = record, now
        if record is not None and record.holder == self._node:
            return Witness.OURS
        self.term = max(self.term, record.term if record is not None else 0)
        if record is not None and not record.holder:
            return Witness.FREE
        return Witness.FREE if now - self._since > self._timeout else Witness.THEIRS
