"""Endpoints for pipelines: batches staged in parts and committed once, and the progress that pipelines report.

A batch is staged task by task, then committed as a whole, and is stored exactly once (``broker.sink_batches``). The
Spark sink uses it, and so can any program that writes in batches (see ``docs/http-topics.md``).

Progress reports are kept in memory only, the last one of each pipeline, for the dashboard. After a restart each
pipeline reports again within seconds. A running pipeline that is silent for ``LOST_AFTER_MS`` is shown as lost."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from yirangmq.broker import sink_batches
from yirangmq.broker.sink_batch_rows import Received
from yirangmq.broker.sink_batches import SinkBatches
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.ports import Clock
from yirangmq.core.sink_batches import BatchEntry, BatchStage, check_batch, check_query, check_stage
from yirangmq.core.validation import IDENTIFIER, QUEUE, Fields, check_id
from yirangmq.format.envelope import iso
from yirangmq.protocols.http.v1.endpoint import (
    QUEUE_NAME,
    BodyContent,
    Endpoint,
    EndpointCall,
    Field,
    ValueType,
    choice,
    many,
    text,
    whole,
)
from yirangmq.protocols.http.v1.schemas import COUNT, INSTANT, TEXT, items, ref, some, struct

# -- batches -----------------------------------------------------------------------------------------------------------

MAX_STAGES = 10_000
MAX_PIECES = 1_000_000
MAX_ROWS = 10**9
MAX_CHECKSUM = 2**32 - 1
TYPE = "application/vnd.yirangmq.records"
"""Content type of concatenated record frames (docs/log.md)."""


def _digits(least: int, most: int) -> ValueType:
    """Return the kind of a whole number in a path: decimal digits only, at most 16."""

    def check(value: object, field: str) -> int:
        written = str(value)
        if not (written.isascii() and written.isdecimal() and len(written) <= 16 and least <= int(written) <= most):
            raise BadInput(f"must be a whole number from {least} to {most}, not {written[:60]!r}", field=field)
        return int(written)

    return ValueType({"type": "integer", "minimum": least, "maximum": most}, check, lambda written, field: written)


def _check_stage(value: object, field: str) -> BatchStage:
    part = Fields(value, field)
    stage = BatchStage(
        check_stage(part.take("id", None)),
        part.whole("pieces", 0, least=0, most=MAX_PIECES),
        part.whole("rows", 0, least=0, most=MAX_ROWS),
        part.whole("checksum", 0, least=0, most=MAX_CHECKSUM),
    )
    part.done()
    return stage


STAGE_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"},
        "pieces": {**COUNT, "maximum": MAX_PIECES},
        "rows": {**COUNT, "maximum": MAX_ROWS},
        "checksum": {**COUNT, "maximum": MAX_CHECKSUM},
    },
    "additionalProperties": False,
}
STAGE = ValueType(STAGE_SCHEMA, _check_stage, lambda written, field: written)
PATH = (
    Field("query", ValueType({"type": "string", "pattern": f"^{QUEUE.pattern}$"}, lambda v, f: check_query(v),
                        lambda written, field: written), "id of the query", needed=True),
    Field("batch", _digits(0, 10**15), "number of the batch within its query", needed=True),
    Field("stage", ValueType({"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}, lambda v, f: check_stage(v),
                        lambda written, field: written), "stage: the part of one attempt of a task", needed=True),
    Field("piece", _digits(0, MAX_PIECES), "number of the piece within its stage", needed=True),
)  # fmt: skip
"""Path fields of these endpoints."""


class BatchRoutes:
    """Endpoints of batches. ``batches`` is None if the server takes no batches."""

    def __init__(self, batches: SinkBatches | None) -> None:
        self._sink_batches = batches

    @property
    def _batches(self) -> SinkBatches:
        if self._sink_batches is None:
            raise NotFound("this server takes no batches", field="path")
        return self._sink_batches

    def endpoints(self, max_body: int) -> tuple[Endpoint, ...]:
        one = "/v1/batches/{query}/{batch}"
        return (
            Endpoint("PUT", f"{one}/stages/{{stage}}/{{piece}}",
                     "Upload a piece of a stage; the answer is sent when it is on disk", self._put, "batches", "admin",
                     struct(rows=COUNT, checksum=COUNT), path_kinds=PATH,
                     content=BodyContent({TYPE: {"type": "string", "format": "binary"}}, "record frames", needed=False),
                     max_body=max_body, refusals=("store_full", "store_damaged")),
            Endpoint("POST", f"{one}/commit", "Commit a batch once: the stages in the body, in this order",
                     self._commit, "batches", "admin", ref("Batch"), path_kinds=PATH,
                     body=(Field("stages", many(STAGE, 0, MAX_STAGES), "stages of the batch", needed=True),
                           Field("badRowQueue", QUEUE_NAME,
                                 "rows that cannot be stored become dead letters of their own queue, or else of this "
                                 "one; without it such a row makes the batch fail")),
                     refusals=("not_found", "wrong_state", "too_large", "quota_exceeded", "store_full", "unavailable")),
            Endpoint("GET", "/v1/batches", "List the batches of the ledger", self._list, "batches", "look",
                     struct(batches=items(ref("Batch"))), query=(OF_QUERY,)),
        )  # fmt: skip

    def _put(self, call: EndpointCall) -> None:
        call.context.check_capacity()
        path: Mapping[str, Any] = call.path

        def reply(received: Received) -> None:
            call.reply({"rows": received.rows, "checksum": received.checksum})

        done = call.done_callback(reply)
        self._batches.put(path["query"], path["batch"], path["stage"], path["piece"], call.request.body, done)

    def _commit(self, call: EndpointCall) -> None:
        call.context.check_capacity()
        values = call.values()

        def reply(result: tuple[BatchEntry, bool]) -> None:
            entry, is_first = result
            call.reply({**_batch_document(entry), "first": is_first})

        done = call.done_callback(reply)
        batch, bad_queue = check_batch(values["batch"]), values.get("badRowQueue") or ""
        self._batches.commit(values["query"], batch, values["stages"], done, bad_queue)

    def _list(self, call: EndpointCall) -> None:
        query = call.query().get("query", "")
        call.submit(
            partial(sink_batches.entries, query=query),
            lambda found: call.reply({"batches": [{**_batch_document(entry), "first": False} for entry in found]}),
        )


OF_QUERY = Field("query", text(200), "only of this query")


def _batch_document(entry: BatchEntry) -> dict[str, Any]:
    return {
        "query": entry.query,
        "batch": entry.batch,
        "step": entry.step.value,
        "queueRows": entry.queue_rows,
        "deadRows": entry.dead_rows,
        "topicRows": entry.topic_rows,
        "refused": entry.refused,
        "at": iso(entry.at),
    }


# -- progress reports --------------------------------------------------------------------------------------------------

MAX_COUNT = 2**53
LOST_AFTER_MS = 60_000
"""Silence after which a running pipeline is shown as lost, in ms; it reports at least every 10 s."""
REPORT_TTL_MS = 7 * 86_400_000
"""Age after which a progress report is deleted, in ms: 7 days."""
MAX_REPORTS = 1000
"""Upper bound of stored progress reports; the oldest report is evicted first."""
NUMBER = whole(0, MAX_COUNT)
STATES = ("starting", "running", "done", "stopped", "failed")
NAME = Field("id", ValueType({"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}, check_id, lambda text, _: text),
             "name of the pipeline", needed=True)  # fmt: skip
REPORT_FIELDS = (
    Field("state", choice(*STATES), "state of the pipeline", needed=True),
    Field("kind", text(40), "kind: process or pipeline", "process"),
    Field("source", text(500), "source of the pipeline", ""),
    Field("target", text(500), "target of the pipeline", ""),
    Field("startedAt", text(40), "start time", ""),
    Field("rows", NUMBER, "rows since the start", 0),
    Field("dead", NUMBER, "rows that became dead letters", 0),
    Field("late", NUMBER, "rows that arrived too late for a window", 0),
    Field("batch", NUMBER, "number of the last micro-batch"),
    Field("batchMs", NUMBER, "duration of the last micro-batch, in milliseconds"),
    Field("rowsPerSecond", NUMBER, "rate of the last micro-batch"),
    Field("position", NUMBER, "last sequence that was written"),
    Field("lag", NUMBER, "number of sequences in the log after that"),
    Field("error", text(1000), "error of a failed pipeline"),
)
REPORT_SCHEMA = struct(
    pipeline=TEXT,
    state={"type": "string", "enum": [*STATES, "lost"]},
    kind=TEXT,
    source=TEXT,
    target=TEXT,
    startedAt=TEXT,
    seenAt=INSTANT,
    rows=COUNT,
    dead=COUNT,
    late=COUNT,
    batch=some(COUNT),
    batchMs=some(COUNT),
    rowsPerSecond=some(COUNT),
    position=some(COUNT),
    lag=some(COUNT),
    error=some(TEXT),
)


class PipelineRoutes:
    """Endpoints of pipeline progress reports, and the latest reports in memory. Loop thread only."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[int, dict[str, Any]]] = {}
        """Latest progress reports by pipeline: (time received in ms, values), in the order of reception."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/pipelines", "List the pipelines that reported within the last week", self._list,
                     "pipelines", "look", struct(pipelines=items(REPORT_SCHEMA))),
            Endpoint("PUT", "/v1/pipelines/{id}", "Report a pipeline, at least every ten seconds", self._put,
                     "pipelines", "admin", REPORT_SCHEMA, path_kinds=(NAME,), body=REPORT_FIELDS),
        )  # fmt: skip

    def _put(self, call: EndpointCall) -> None:
        values = call.values()
        name, now = values.pop("id"), call.context.clock.now_ms()
        self._reports.pop(name, None)
        self._reports[name] = now, values
        while len(self._reports) > MAX_REPORTS:
            self._reports.pop(next(iter(self._reports)))
        call.reply(_report_document(call.context.clock, name, now, values))

    def _list(self, call: EndpointCall) -> None:
        now = call.context.clock.now_ms()
        self._reports = {name: report for name, report in self._reports.items() if now - report[0] < REPORT_TTL_MS}
        found = [
            _report_document(call.context.clock, name, at, values)
            for name, (at, values) in sorted(self._reports.items())
        ]
        call.reply({"pipelines": found})


def _report_document(clock: Clock, name: str, at: int, values: dict[str, Any]) -> dict[str, Any]:
    is_lost = values["state"] in ("starting", "running") and clock.now_ms() - at > LOST_AFTER_MS
    report = {field.name: values.get(field.name) for field in REPORT_FIELDS}
    return {"pipeline": name, **report, "seenAt": iso(at + clock.ahead_ms()), **({"state": "lost"} if is_lost else {})}
