"""Putting messages in: ``POST /v1/queues/{queue}/messages``, one or many, in one commit."""

from functools import partial
from typing import Any

from yirangmq.broker.verbs import MOST_PER_CALL
from yirangmq.core.ports import Stored
from yirangmq.doors.http.v1.cloud import BATCH_TYPE, EVENT_TYPE
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import Field, seconds
from yirangmq.doors.http.v1.intake import HEADERS, Intake
from yirangmq.doors.http.v1.schemas import COUNT, TEXT, items, ref, thing
from yirangmq.format import cloudevents


def publish(ask: Ask) -> None:
    """One bad message refuses them all, and nothing is stored."""
    house, queue = ask.house, ask.path["queue"]
    house.check_room()
    times = ask.query() if ask.request.query else {}
    intake = Intake(queue, house.clock.now_ms(), house.ids, times.get("delay", 0), times.get("ttl"))
    envelopes = intake.envelopes(ask.request)
    verbs = house.desk.verbs
    ask.submit(lambda transaction: verbs.publish(transaction, queue, envelopes), partial(answer, ask))


def answer(ask: Ask, stored: list[Stored]) -> None:
    """What became of each, in order."""
    receipts = [_receipt(id, is_duplicate, refused) for _, id, is_duplicate, refused in stored]
    duplicates = sum(one["duplicate"] for one in receipts)
    refused = sum("refused" in one for one in receipts)
    counted = {"stored": len(stored) - duplicates - refused, "duplicates": duplicates, "refused": refused}
    ask.reply({"queue": ask.path["queue"], **counted, "messages": receipts})


def _receipt(id: str, is_duplicate: bool, refused: str) -> dict[str, Any]:
    receipt: dict[str, Any] = {"messageId": id, "duplicate": is_duplicate}
    return {**receipt, "refused": refused} if refused else receipt


def endpoints(max_body: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint("POST", "/v1/queues/{queue}/messages", "Publish one message or many", publish, "messages", "publish",
                 ANSWER, query=TIMES, content=BODY, headers=HEADERS, max_body=max_body,
                 refusals=("quota_exceeded", "store_full")),
    )  # fmt: skip


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
