"""Trends: samples of the queues' numbers over the last ten minutes, hour, day and week, for charts.

A sample is taken every 5 s, or less often if there are many queues. Each range is a ring buffer of fixed length: a
sample is a slot of the range ``minutes``, and is merged into the current slot of the longer ranges. A slot keeps the
highest backlog, age, leased and dead count of its samples, so that no peak is lost, and the latest totals.

A queue takes 28 KB: 504 slots of 56 bytes. The rings are bounded by ``MOST_SAMPLED`` queues. They are in memory: a
chart has data when it is first opened, and begins again after a restart of the server."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput
from yirangmq.format.envelope import iso

SAMPLE_MS = 5_000
PER_QUEUE_MS = 20
"""Minimum sample interval per queue, in ms. With many queues samples are taken less often, so that they take about a
thousandth of the server's time (measured: 24 µs per queue to read it, 3 µs to store it in all ranges)."""
MOST_SAMPLED = 1000
"""Maximum number of queues in a sample. If there are more, the queues with separate metrics are sampled."""
METRICS = ("waiting", "ageSec", "leased", "dead", "published", "acked", "failed")
"""Sampled numbers of a queue. The last three are totals since the queue was created: rates are their differences."""
NONE = -1
_WIDTH = len(METRICS)
_GAUGES = METRICS.index("published")
"""Numbers before this index are merged by their maximum, the totals after it by the latest value."""
Numbers = Mapping[str, "array[int]"]
"""Numbers of one sample by queue, in the order of ``METRICS``."""


class TrendRange(NamedTuple):
    """Length of a range. ``slot_ms`` is 0 if each sample has its own slot."""

    slot_ms: int
    slots: int


RANGES: dict[str, TrendRange] = {
    "minutes": TrendRange(0, 120),
    "hour": TrendRange(30_000, 120),
    "day": TrendRange(15 * 60_000, 96),
    "week": TrendRange(3_600_000, 168),
}
"""Ranges by name. ``minutes`` are ten at one sample every ``SAMPLE_MS``."""
DEFAULT_RANGE = "minutes"


class TrendRing:
    """Ring buffer of one range: the times of its slots, and ``METRICS`` of each slot, by queue and for all together."""

    def __init__(self, range: TrendRange) -> None:
        self._range = range
        self._started = 0
        """Number of slots started; the latest is ``(_started - 1) % slots``."""
        self._times = array("q", [0]) * range.slots
        """Time of the latest sample of each slot, in ms."""
        self._whole = self._empty()
        self._queues: dict[str, array[int]] = {}

    def _empty(self) -> "array[int]":
        return array("q", [NONE]) * (self._range.slots * _WIDTH)

    @property
    def latest_at(self) -> int | None:
        """Time of the latest sample in ms; None if there is none."""
        return self._times[(self._started - 1) % self._range.slots] if self._started else None

    @property
    def queue_count(self) -> int:
        return len(self._queues)

    def add(self, queues: Numbers, whole: "array[int]", now: int) -> None:
        """Add a sample. Slots later than ``now`` are dropped: the clock was set back. Queues that are not in the sample
        were deleted and are forgotten."""
        while self._started and self._times[(self._started - 1) % self._range.slots] >= now:
            self._started -= 1
        latest, slot_ms = self.latest_at, self._range.slot_ms
        is_new = latest is None or not slot_ms or latest // slot_ms != now // slot_ms
        if is_new:
            self._started += 1
        slot = (self._started - 1) % self._range.slots
        self._times[slot] = now
        store = _write if is_new else _merge
        store(self._whole, slot * _WIDTH, whole)
        for name in self._queues.keys() - queues.keys():
            del self._queues[name]
        for name, numbers in queues.items():
            ring = self._queues.get(name)
            if ring is None:
                ring = self._queues[name] = self._empty()
            store(ring, slot * _WIDTH, numbers)

    def document(self, names: Iterable[str]) -> dict[str, Any]:
        """Return ``{"at": […], "all": {metric: […]}, "queues": {queue: {metric: […]}}}``, oldest slot first.

        A value is null if the queue did not exist, or if it had no backlog to measure the age of."""
        return {
            "at": [iso(at) for at in self._in_order(self._times)],
            "all": self._columns(self._whole),
            "queues": {name: self._columns(self._queues[name]) for name in sorted(names) if name in self._queues},
        }

    @property
    def names(self) -> Iterable[str]:
        return self._queues.keys()

    def _columns(self, ring: "array[int]") -> dict[str, list[float | None]]:
        columns: dict[str, list[float | None]] = {}
        for index, metric in enumerate(METRICS):
            scale = 1000 if metric == "ageSec" else 1
            values = self._in_order(ring[index::_WIDTH])
            columns[metric] = [None if value == NONE else value if scale == 1 else value / scale for value in values]
        return columns

    def _in_order(self, values: "array[int]") -> "array[int]":
        """Return the values of the slots in use, oldest first."""
        slots = self._range.slots
        if self._started <= slots:
            return values[: self._started]
        oldest = self._started % slots
        return values[oldest:] + values[:oldest]


def _write(ring: "array[int]", begin: int, numbers: "array[int]") -> None:
    ring[begin : begin + _WIDTH] = numbers


def _merge(ring: "array[int]", begin: int, numbers: "array[int]") -> None:
    for index in range(_GAUGES):
        if numbers[index] > ring[begin + index]:
            ring[begin + index] = numbers[index]
    ring[begin + _GAUGES : begin + _WIDTH] = numbers[_GAUGES:]


class Trends:
    """Ring buffers of all ranges. Used from one thread at a time."""

    def __init__(self) -> None:
        self._rings = {name: TrendRing(range) for name, range in RANGES.items()}

    def is_due(self, now: int) -> bool:
        ring = self._rings[DEFAULT_RANGE]
        if ring.latest_at is None:
            return True
        return not 0 <= now - ring.latest_at < max(SAMPLE_MS, PER_QUEUE_MS * ring.queue_count)

    def add(self, rows: Sequence[Mapping[str, Any]], now: int, everything: Mapping[str, Any] | None = None) -> None:
        """Add a sample to every range.

        ``everything`` has the sums of all queues. It is required if ``rows`` does not have all of them."""
        for add in self.steps(rows, now, everything):
            add()

    def steps(
        self, rows: Sequence[Mapping[str, Any]], now: int, everything: Mapping[str, Any] | None = None
    ) -> list[Callable[[], None]]:
        """Return one function per range that adds the sample to it, so that other work runs in between."""
        whole = _sum(rows) if everything is None else {**everything, "headAgeSec": _oldest(rows)}
        numbers, sums = {row["queue"]: _numbers(row) for row in rows}, _numbers(whole)
        return [partial(ring.add, numbers, sums, now) for ring in self._rings.values()]

    def document(
        self, queue: str | None = None, range: str = DEFAULT_RANGE, *, only_totals: bool = False
    ) -> dict[str, Any]:
        """Return the slots of a range as ``TrendRing.document`` has them, of all queues, one, or only their sums."""
        ring = self._rings.get(range)
        if ring is None:
            raise BadInput(f"must be one of {', '.join(RANGES)}, not {range[:60]!r}", field="range")
        names = [] if only_totals else ring.names if queue is None else [queue]
        return {"range": range, **ring.document(names)}


def _numbers(row: Mapping[str, Any]) -> "array[int]":
    age = row["headAgeSec"]
    totals = row["totals"]
    return array("q", (
        row["ready"] + row["delayed"] + row.get("held", 0),
        NONE if age is None else round(age * 1000),
        row["leased"],
        row["dead"],
        totals["published"],
        totals["acked"],
        totals["failed"],
    ))  # fmt: skip


def _sum(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed = {name: sum(row.get(name, 0) for row in rows) for name in ("ready", "delayed", "held", "leased", "dead")}
    totals = {name: sum(row["totals"][name] for row in rows) for name in ("published", "acked", "failed")}
    return {**summed, "totals": totals, "headAgeSec": _oldest(rows)}


def _oldest(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return max((row["headAgeSec"] for row in rows if row["headAgeSec"] is not None), default=None)
