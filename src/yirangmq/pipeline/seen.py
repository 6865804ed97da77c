"""What is seen of one micro-batch: from the document that Spark makes of a progress.

Knows: that document, and our offsets. Does not know: Spark itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

QUALITY = "quality"
"""The name of the counts that ``process`` asks Spark for with each micro-batch."""


@dataclass(frozen=True, slots=True)
class Seen:
    """``position``: everything up to this sequence is in; ``lag``: how many follow it in the log; both are None where
    the source has no sequences. ``late``: rows that a window or a deduplication left out because they came too late.
    ``observed``: what the query counts of its own rows."""

    batch: int
    at: str
    rows: int
    rows_per_second: float
    batch_ms: int
    position: int | None
    lag: int | None
    observed: Mapping[str, Any]
    late: int = 0

    @property
    def dead(self) -> int:
        """Rows that went to the dead letters."""
        return int((self.observed.get(QUALITY) or {}).get("dead") or 0)

    def line(self) -> str:
        where = "" if self.position is None else f"  at {self.position:,}  lag {self.lag:,}"
        bad = f"  dead {self.dead:,}" if self.dead else ""
        late = f"  late {self.late:,}" if self.late else ""
        return (
            f"batch {self.batch}  {self.rows:,} rows  {self.rows_per_second:,.0f}/s  {self.batch_ms:,} ms"
            f"{where}{bad}{late}"
        )


def seen_of(progress: Mapping[str, Any]) -> Seen:
    sources = progress.get("sources") or [{}]
    end, latest = _sequence(sources[0].get("endOffset")), _sequence(sources[0].get("latestOffset"))
    rows = int(progress.get("numInputRows") or sum(int(one.get("numInputRows") or 0) for one in sources))
    spent = int((progress.get("durationMs") or {}).get("triggerExecution") or progress.get("batchDuration") or 0)
    return Seen(
        batch=int(progress.get("batchId", -1)),
        at=str(progress.get("timestamp", "")),
        rows=rows,
        rows_per_second=rows * 1000 / spent if spent else 0.0,
        batch_ms=spent,
        position=end,
        lag=None if end is None else max(0, (latest if latest is not None else end) - end),
        observed=progress.get("observedMetrics") or {},
        late=sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in progress.get("stateOperators") or ()),
    )


def _sequence(offset: object) -> int | None:
    """Spark gives an offset as a document, or as its text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    found = offset.get("global_seq") if isinstance(offset, dict) else None
    return found if isinstance(found, int) else None
