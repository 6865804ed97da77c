"""Putting messages in: ``POST /v1/queues/{queue}/messages``, one or many, in one commit."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from yirangmq.broker.operations import Verbs
from yirangmq.broker.settle import MOST_PER_CALL
from yirangmq.core.errors import QueueError, StoreError
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Stored, Transaction
from yirangmq.doors.http.together import Together
from yirangmq.doors.http.v1.cloud import BATCH_TYPE, EVENT_TYPE
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import Field, seconds
from yirangmq.doors.http.v1.intake import HEADERS, Intake
from yirangmq.doors.http.v1.schemas import COUNT, TEXT, items, ref, thing
from yirangmq.format import cloudevents
from yirangmq.format.json_codec import dumps


class Publishing:
    """Calls that come at the same time are stored as one, as far as nobody can tell."""

    def __init__(self, verbs: Verbs, together: Together) -> None:
        self._verbs = verbs
        self._together = together
        self._work = self._store_all

    def publish(self, ask: Ask) -> None:
        """One bad message refuses all of its call, and nothing is stored."""
        house = ask.house
        house.check_room()
        times = ask.query() if ask.request.query else {}
        intake = Intake(ask.path["queue"], house.clock.now_ms(), house.ids, times.get("delay", 0), times.get("ttl"))
        self._together.ask(ask, intake.envelopes(ask.request), self._work, answer)

    def _store_all(
        self, transaction: Transaction, queue: str, calls: Sequence[list[Envelope]]
    ) -> Sequence[list[Stored] | QueueError]:
        if len(calls) > 1:
            self._verbs.gate.clear(transaction, queue, [one for call in calls for one in call])
        if len(calls) > 1 and not transaction.policy(queue).quota.is_set:  # a quota may take some and refuse others
            try:
                stored = iter(self._verbs.publish(transaction, queue, [one for call in calls for one in call]))
                return [list(islice(stored, len(call))) for call in calls]
            except StoreError:
                raise
            except QueueError:
                pass  # of one of them
        return list(self._store_each(transaction, queue, calls))

    def _store_each(
        self, transaction: Transaction, queue: str, calls: Sequence[list[Envelope]]
    ) -> Iterator[list[Stored] | QueueError]:
        for call in calls:
            try:
                yield self._verbs.publish(transaction, queue, call)
            except StoreError:
                raise
            except QueueError as error:
                yield error

    def endpoints(self, max_body: int) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/queues/{queue}/messages", "Publish one message or many", self.publish, "messages",
                     "publish", ANSWER, query=TIMES, content=BODY, headers=HEADERS, max_body=max_body, joins=True,
                     refusals=("quota_exceeded", "store_full")),
        )  # fmt: skip


def answer(ask: Ask, stored: list[Stored]) -> None:
    """What became of each, in order."""
    if len(stored) == 1 and not stored[0].duplicate and not stored[0].refused:
        ask.respond(ONE_STORED % (dumps(ask.path["queue"]), dumps(stored[0].id)))
        return
    receipts = [_receipt(id, is_duplicate, refused) for _, id, is_duplicate, refused in stored]
    duplicates = sum(one["duplicate"] for one in receipts)
    refused = sum("refused" in one for one in receipts)
    counted = {"stored": len(stored) - duplicates - refused, "duplicates": duplicates, "refused": refused}
    ask.reply({"queue": ask.path["queue"], **counted, "messages": receipts})


def _receipt(id: str, is_duplicate: bool, refused: str) -> dict[str, Any]:
    receipt: dict[str, Any] = {"messageId": id, "duplicate": is_duplicate}
    return {**receipt, "refused": refused} if refused else receipt


ONE_STORED = b'{"queue":%b,"stored":1,"duplicates":0,"refused":0,"messages":[{"messageId":%b,"duplicate":false}]}'
TIMES = (
    Field("delaySec", seconds(), "until they may be taken", key="delay"),
    Field("ttlSec", seconds(0.001), "after which they are given up if nobody took them", key="ttl"),
)
EVENT = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1, "maxLength": cloudevents.MAX_TEXT},
        "source": {"type": "string", "minLength": 1, "maxLength": cloudevents.MAX_TEXT},
        "type": {"type": "string", "minLength": 1, "maxLength": 255},
        "time": {"type": "string", "format": "date-time"},
        "subject": {"type": "string", "minLength": 1},
        "dataschema": {"type": "string", "minLength": 1},
        "datacontenttype": {"type": "string", "minLength": 1, "maxLength": 255},
        "data": {},
        "data_base64": {"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"},
    },
    "propertyNames": {"pattern": "^([a-z0-9]{1,20}|data_base64)$"},
    "additionalProperties": {"type": ["string", "boolean", "integer", "null"]},
}
"""Further members are extension attributes."""
BODY = Content(
    {
        "application/json": {
            "description": "an envelope, a bare payload, or an array of them",
            "anyOf": [
                {"type": "array", "minItems": 1, "maxItems": MOST_PER_CALL},
                {"type": ["object", "string", "number", "boolean", "null"]},
            ],
        },
        "application/x-ndjson": {"type": "string", "description": "an envelope or a bare payload a line"},
        EVENT_TYPE: {**EVENT, "description": "a CloudEvent"},
        BATCH_TYPE: {**items(EVENT), "description": "CloudEvents"},
        "*/*": {"description": "any bytes: the payload of one message"},
    },
    "what to publish",
)
ANSWER = thing(queue=TEXT, stored=COUNT, duplicates=COUNT, refused=COUNT, messages=items(ref("Receipt")))
