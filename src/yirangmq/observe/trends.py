"""How the numbers of each queue went during the last minutes, so that a chart is full when somebody first looks at it.

Knows: rows of a status, the time it is given. Does not know: where they come from, who asks. Lost with the process."""

from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from yirangmq.format.envelope import iso

KEPT = 120
"""Samples; at one every ``EVERY_MS`` ten minutes."""
EVERY_MS = 5_000
PER_QUEUE_MS = 20
"""With many queues samples are taken less often, so that they take a thousandth of the server's time (measured: 24 µs
a queue)."""
MOST_SAMPLED = 1000
"""Queues in a sample: all of them, or of more those that a metric of their own is kept of."""
METRICS = ("waiting", "ageSec", "leased", "dead", "published", "acked", "failed")
"""The last three are totals since the queue exists: rates are their differences."""
NONE = -1
_sample = Struct(f"<{len(METRICS)}q")
"""A queue at one moment takes 56 bytes; as Python's numbers it would be five times that."""


class Trends:
    def __init__(self) -> None:
        self._taken: deque[tuple[int, dict[str, bytes], bytes]] = deque(maxlen=KEPT)
        """The moment, the queues, and all of them together."""

    def is_due(self, now: int) -> bool:
        if not self._taken:
            return True
        at, queues, _ = self._taken[-1]
        return not 0 <= now - at < max(EVERY_MS, PER_QUEUE_MS * len(queues))

    def add(self, rows: Sequence[Mapping[str, Any]], now: int, everything: Mapping[str, Any] | None = None) -> None:
        """A sample. What is older than a clock that was set back never was. ``everything``: what all queues are
        together, where ``rows`` may not be all of them."""
        while self._taken and self._taken[-1][0] >= now:
            self._taken.pop()
        whole = _sum(rows) if everything is None else {**everything, "headAgeSec": _oldest(rows)}
        self._taken.append((now, {row["queue"]: _packed(row) for row in rows}, _packed(whole)))

    def document(self, queue: str | None = None) -> dict[str, Any]:
        """``{"at": […], "all": {metric: […]}, "queues": {queue: {metric: […]}}}``, oldest first; null where a queue was
        not there, or nothing waited."""
        latest = self._taken[-1][1] if self._taken else {}
        names = [name for name in latest if queue in (None, name)]
        return {
            "at": [iso(at) for at, _, _ in self._taken],
            "all": self._columns([whole for _, _, whole in self._taken]),
            "queues": {
                name: self._columns([queues.get(name) for _, queues, _ in self._taken]) for name in sorted(names)
            },
        }

    def _columns(self, samples: Sequence[bytes | None]) -> dict[str, list[float | None]]:
        columns: dict[str, list[float | None]] = {metric: [] for metric in METRICS}
        for packed in samples:
            values = (NONE,) * len(METRICS) if packed is None else _sample.unpack(packed)
            for metric, value in zip(METRICS, values, strict=True):
                columns[metric].append(None if value == NONE else value / 1000 if metric == "ageSec" else value)
        return columns


def _packed(row: Mapping[str, Any]) -> bytes:
    age = row["headAgeSec"]
    totals = row["totals"]
    return _sample.pack(
        row["ready"] + row["delayed"] + row.get("held", 0),
        NONE if age is None else round(age * 1000),
        row["leased"],
        row["dead"],
        totals["published"],
        totals["acked"],
        totals["failed"],
    )


def _sum(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed = {name: sum(row.get(name, 0) for row in rows) for name in ("ready", "delayed", "held", "leased", "dead")}
    totals = {name: sum(row["totals"][name] for row in rows) for name in ("published", "acked", "failed")}
    return {**summed, "totals": totals, "headAgeSec": _oldest(rows)}


def _oldest(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return max((row["headAgeSec"] for row in rows if row["headAgeSec"] is not None), default=None)
