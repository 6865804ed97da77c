"""Batches of a pipeline: stages task by task, then one commit, each batch in once (``broker.sink_batches``).

Made for the Spark sink, usable by anybody who writes in batches: ``docs/http.md`` shows how."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from yirangmq.broker import sink_batches
from yirangmq.broker.sink_batch_rows import Received
from yirangmq.broker.sink_batches import Batches
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.sink_batches import Entry, Stage, check_batch, check_query, check_stage
from yirangmq.core.validation import IDENTIFIER, QUEUE, Fields
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import QUEUE_NAME, Field, Kind, many, text
from yirangmq.doors.http.v1.schemas import COUNT, items, ref, thing
from yirangmq.format.envelope import iso

MOST_STAGES = 10_000
MOST_PIECES = 1_000_000
MOST_ROWS = 10**9
LARGEST_CHECKSUM = 2**32 - 1
TYPE = "application/vnd.yirangmq.records"
"""Record frames, one after another (docs/log.md)."""


def _digits(least: int, most: int) -> Kind:
    """A whole number as it stands in a path."""

    def check(value: object, field: str) -> int:
        written = str(value)
        if not (written.isascii() and written.isdecimal() and len(written) <= 16 and least <= int(written) <= most):
            raise BadInput(f"must be a whole number from {least} to {most}, not {written[:60]!r}", field=field)
        return int(written)

    return Kind({"type": "integer", "minimum": least, "maximum": most}, check, lambda written, field: written)


def _check_stage(value: object, field: str) -> Stage:
    part = Fields(value, field)
    stage = Stage(
        check_stage(part.take("id", None)),
        part.whole("pieces", 0, least=0, most=MOST_PIECES),
        part.whole("rows", 0, least=0, most=MOST_ROWS),
        part.whole("checksum", 0, least=0, most=LARGEST_CHECKSUM),
    )
    part.done()
    return stage


STAGE_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"},
        "pieces": {**COUNT, "maximum": MOST_PIECES},
        "rows": {**COUNT, "maximum": MOST_ROWS},
        "checksum": {**COUNT, "maximum": LARGEST_CHECKSUM},
    },
    "additionalProperties": False,
}
STAGE = Kind(STAGE_SCHEMA, _check_stage, lambda written, field: written)
PATH = (
    Field("query", Kind({"type": "string", "pattern": f"^{QUEUE.pattern}$"}, lambda v, f: check_query(v),
                        lambda written, field: written), "whose batch it is", needed=True),
    Field("batch", _digits(0, 10**15), "its number within its query", needed=True),
    Field("stage", Kind({"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}, lambda v, f: check_stage(v),
                        lambda written, field: written), "which task's part it is", needed=True),
    Field("piece", _digits(0, MOST_PIECES), "its number within its stage", needed=True),
)  # fmt: skip
"""What stands in the paths of these endpoints."""


class BatchRoutes:
    """``batches`` is None where the server takes none."""

    def __init__(self, batches: Batches | None) -> None:
        self._given = batches

    @property
    def _batches(self) -> Batches:
        if self._given is None:
            raise NotFound("this server takes no batches", field="path")
        return self._given

    def endpoints(self, max_body: int) -> tuple[Endpoint, ...]:
        one = "/v1/batches/{query}/{batch}"
        return (
            Endpoint("PUT", f"{one}/stages/{{stage}}/{{piece}}", "Lay a piece of a stage down; it is on disk when this "
                     "answers", self._put, "batches", "admin", thing(rows=COUNT, checksum=COUNT), path_kinds=PATH,
                     content=Content({TYPE: {"type": "string", "format": "binary"}}, "record frames", needed=False),
                     max_body=max_body, refusals=("store_full", "store_damaged")),
            Endpoint("POST", f"{one}/commit", "Put a batch in, once: the stages named here, in this order",
                     self._commit, "batches", "admin", ref("Batch"), path_kinds=PATH,
                     body=(Field("stages", many(STAGE, 0, MOST_STAGES), "the parts it is made of", needed=True),
                           Field("badRowQueue", QUEUE_NAME, "bury rows that cannot be taken, in the dead letters of "
                                 "their own queue or else of this one; without it such a row refuses the batch")),
                     refusals=("not_found", "wrong_state", "too_large", "quota_exceeded", "store_full", "unavailable")),
            Endpoint("GET", "/v1/batches", "What the ledger remembers", self._list, "batches", "look",
                     thing(batches=items(ref("Batch"))), query=(OF_QUERY,)),
        )  # fmt: skip

    def _put(self, ask: Ask) -> None:
        ask.house.check_room()
        place: Mapping[str, Any] = ask.path

        def reply(got: Received) -> None:
            ask.reply({"rows": got.rows, "checksum": got.checksum})

        done = ask.told(reply)
        self._batches.put(place["query"], place["batch"], place["stage"], place["piece"], ask.request.body, done)

    def _commit(self, ask: Ask) -> None:
        ask.house.check_room()
        values = ask.values()

        def reply(result: tuple[Entry, bool]) -> None:
            entry, is_first = result
            ask.reply({**_shown_batch(entry), "first": is_first})

        done = ask.told(reply)
        batch, bad_queue = check_batch(values["batch"]), values.get("badRowQueue") or ""
        self._batches.commit(values["query"], batch, values["stages"], done, bad_queue)

    def _list(self, ask: Ask) -> None:
        query = ask.query().get("query", "")
        ask.submit(
            partial(sink_batches.entries, query=query),
            lambda found: ask.reply({"batches": [{**_shown_batch(entry), "first": False} for entry in found]}),
        )


OF_QUERY = Field("query", text(200), "of this query alone")


def _shown_batch(entry: Entry) -> dict[str, Any]:
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
