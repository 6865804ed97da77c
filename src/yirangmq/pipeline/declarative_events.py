"""Progress of micro-batches, and the state of the flows of a declarative pipeline.

A micro-batch is read from Spark's progress document, with position and lag from the offsets of the data source. Stream
jobs use it too (``pipeline.query_monitor``).

The state of a flow comes from the texts of the pipeline's events. Its rows and batches come from Spark's event log,
which is read from where the last read ended, whole lines only."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yirangmq.pipeline import spark_errors

# -- micro-batches -----------------------------------------------------------------------------------------------------

QUALITY = "quality"
"""Name of the observed metrics that ``process`` requests from Spark for each micro-batch."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Progress of one micro-batch.

    ``position``: every record up to this sequence is processed. ``lag``: number of records after it in the log. Both
    are None if the source has no sequences. ``late``: rows that a window or a deduplication dropped because they
    arrived too late. ``observed``: the query's own counts of its rows."""

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
        """Number of rows that went to the dead letters."""
        return int((self.observed.get(QUALITY) or {}).get("dead") or 0)

    def line(self) -> str:
        where = "" if self.position is None else f"  at {self.position:,}  lag {self.lag:,}"
        bad = f"  dead {self.dead:,}" if self.dead else ""
        late = f"  late {self.late:,}" if self.late else ""
        return (
            f"batch {self.batch}  {self.rows:,} rows  {self.rows_per_second:,.0f}/s  {self.batch_ms:,} ms"
            f"{where}{bad}{late}"
        )


def parse_batch_progress(progress: Mapping[str, Any]) -> BatchProgress:
    sources = progress.get("sources") or [{}]
    end, latest = _sequence(sources[0].get("endOffset")), _sequence(sources[0].get("latestOffset"))
    rows = int(progress.get("numInputRows") or sum(int(one.get("numInputRows") or 0) for one in sources))
    spent = int((progress.get("durationMs") or {}).get("triggerExecution") or progress.get("batchDuration") or 0)
    return BatchProgress(
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
    """Parse an offset, which Spark gives as a document or as its text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    found = offset.get("global_seq") if isinstance(offset, dict) else None
    return found if isinstance(found, int) else None


# -- flows -------------------------------------------------------------------------------------------------------------

FLOW_EVENT = re.compile(r"^Flow '?([^ ']+)'? (?:is|has) ([A-Z]+)\b\.?(.*)", re.DOTALL)
"""Pattern of a state event, such as ``Flow spark_catalog.default.orders is RUNNING.``"""
UNRESOLVED = re.compile(r"^Failed to resolve flow: '?([^ '\n]+?)'?\.?\s*\n(?:Error: )?(.+)", re.DOTALL)
"""Pattern of the event of an unresolved flow. Flows that only read from such a flow have other event texts."""
HOME = "spark_catalog.default."
PROGRESS = "QueryProgressEvent"
FINAL_STATES = ("COMPLETED", "FAILED", "SKIPPED", "STOPPED", "EXCLUDED", "IDLE")


@dataclass(frozen=True, slots=True)
class Flow:
    """State of a flow. ``rows`` is None if the flow is no stream."""

    name: str
    state: str = "QUEUED"
    rows: int | None = None
    batches: int = 0
    ms: int = 0
    last: BatchProgress | None = None
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in FINAL_STATES

    def line(self) -> str:
        reason = f"{self.name}  {self.state.lower()}"
        if self.rows is not None:
            speed = f"  {self.rows * 1000 / self.ms:,.0f}/s" if self.ms else ""
            reason += f"  {self.rows:,} rows in {self.batches} batches{speed}"
        if self.last is not None and self.last.position is not None:
            reason += f"  at {self.last.position:,}  lag {self.last.lag:,}"
        return reason + (f"  {self.error}" if self.error else "")

    def document(self) -> dict[str, Any]:
        last = self.last
        return {
            "flow": self.name,
            "state": self.state.lower(),
            "rows": self.rows,
            "batches": self.batches,
            "milliseconds": self.ms,
            "position": last.position if last else None,
            "lag": last.lag if last else None,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class UnresolvedFlow:
    """A flow that Spark cannot resolve, and the reason."""

    flow: str
    reason: str


def unresolved_of(text: str) -> UnresolvedFlow | None:
    found = UNRESOLVED.match(text)
    return UnresolvedFlow(short_name(found[1]), spark_errors.one_line(found[2])) if found else None


class FlowStates:
    """States of all flows of a run.

    ``on_event`` processes the text of an event, ``read`` processes what Spark has appended to its event log. Both
    return the flows that changed."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._offsets: dict[Path, int] = {}
        self.all: dict[str, Flow] = {}

    def on_event(self, text: str) -> Flow | None:
        found = FLOW_EVENT.match(text)
        if not found:
            return None
        name = short_name(found[1])
        before = self.all.get(name, Flow(name))
        error = spark_errors.one_line(found[3]) if found[2] == "FAILED" else None
        self.all[name] = replace(before, state=found[2], error=error)
        return self.all[name]

    def read(self) -> list[Flow]:
        changed = {}
        for path in sorted(self._events.glob("*")):
            for progress in self._new_progress(path):
                flow = self._apply(progress)
                changed[flow.name] = flow
        return list(changed.values())

    def _new_progress(self, path: Path) -> list[dict[str, Any]]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        return [json.loads(line)["progress"] for line in whole.splitlines() if PROGRESS.encode() in line[:120]]

    def _apply(self, progress: dict[str, Any]) -> Flow:
        batch_progress = parse_batch_progress(progress)
        name = short_name(str(progress.get("name")))
        before = self.all.get(name, Flow(name))
        self.all[name] = replace(
            before,
            rows=(before.rows or 0) + batch_progress.rows,
            batches=before.batches + (batch_progress.rows > 0),
            ms=before.ms + batch_progress.batch_ms,
            last=batch_progress,
        )
        return self.all[name]

    @property
    def rows(self) -> int:
        return sum(flow.rows or 0 for flow in self.all.values())


def short_name(name: str) -> str:
    """Remove the default catalog and database from a name."""
    return name.replace("`", "").removeprefix(HOME)
