"""JSON Schemas of the answers of the native HTTP API: the ``components`` of its OpenAPI document.

Tests validate every answer against them. An object may get further members in later versions."""

from collections.abc import Sequence
from typing import Any

from yirangmq.broker.queries import STATES, TOTALS
from yirangmq.core.alerts import Level
from yirangmq.core.states import STORED_STATES
from yirangmq.protocols.http.v1.endpoint import Schema
from yirangmq.protocols.http.v1.rendering import ERROR_SCHEMA

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
INSTANT: Schema = {"type": "string", "format": "date-time"}
ANY: Schema = {}
STATE: Schema = {"type": "string", "enum": [*(state.value for state in STORED_STATES), "dropped"]}


def some(schema: Schema) -> Schema:
    """Return the schema of a nullable value."""
    return {"anyOf": [schema, {"type": "null"}]}


def items(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def table(schema: Schema) -> Schema:
    """Return the schema of an object with members of any name."""
    return {"type": "object", "additionalProperties": schema}


def struct(_optional: Sequence[str] = (), /, **members: Schema) -> Schema:
    """Return the schema of an object with these members; later versions may add further ones."""
    needed = [name for name in members if name not in _optional]
    return {"type": "object", "required": needed, "properties": members}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


ENVELOPE: Schema = {
    "type": "object",
    "description": "docs/envelope.md; members that are not listed here are kept unchanged",
    "properties": {
        "messageId": TEXT,
        "timestamp": TEXT,
        "queue": TEXT,
        "type": TEXT,
        "version": COUNT,
        "attributes": {"type": "object"},
        "traceId": TEXT,
        "deduplicationKey": TEXT,
        "contentType": TEXT,
        "groupId": TEXT,
        "targetConsumerId": TEXT,
        "payload": ANY,
        "payloadBase64": TEXT,
    },
}
FAILURE = struct(
    ("traceback",),
    reasonCode=TEXT,
    reasonMessage=TEXT,
    failedAt=INSTANT,
    attempt=COUNT,
    consumerId=some(TEXT),
    traceback=TEXT,
)
STEP = struct(("attempt", "consumerId", "reasonCode", "reasonMessage"), at=INSTANT, what=TEXT)
MESSAGE = struct(
    messageId=TEXT,
    queue=TEXT,
    state=STATE,
    priority=some(COUNT),
    attempt=COUNT,
    leases=COUNT,
    publishedAt=some(INSTANT),
    availableAt=some(INSTANT),
    expiresAt=some(INSTANT),
    changedAt=INSTANT,
    dueAt=some(INSTANT),
    consumerId=some(TEXT),
    reasonCode=some(TEXT),
    seq=COUNT,
    bytes=some(COUNT),
    dlqQueue=TEXT,
    failure=some(ref("Failure")),
    message=some(ref("Envelope")),
)
QUEUE = struct(
    ("counts", "policy", "set", "consumers"),
    queue=TEXT,
    exists=FLAG,
    backlog=COUNT,
    **dict.fromkeys(STATES, COUNT),
    headAgeSec=some(NUMBER),
    paused=FLAG,
    strategy=some(TEXT),
    dlqQueue=TEXT,
    policyError=some(TEXT),
    totals=struct((), **dict.fromkeys(TOTALS, COUNT)),
    rates=ANY,
    consumers=COUNT,
    counts=table(COUNT),
)
LEASE = struct(leaseId=TEXT, leaseUntil=INSTANT, consumerId=TEXT, attempt=COUNT)
DELIVERY = struct(lease=ref("Lease"), message=ref("Envelope"))
RESULT = struct(("error", "leaseId", "messageId"), ok=FLAG, error=ref("Problem"), leaseId=TEXT, messageId=TEXT)
RECEIPT = struct(("refused",), messageId=TEXT, duplicate=FLAG, refused=TEXT)
CONSUMER = struct(
    consumerId=TEXT,
    state=TEXT,
    queues=items(TEXT),
    inWork=COUNT,
    done=COUNT,
    failed=COUNT,
    lost=COUNT,
    stuck=COUNT,
    host=TEXT,
    pid=COUNT,
    startedAt=INSTANT,
    seenAt=INSTANT,
    silentSec=NUMBER,
    wish=some(TEXT),
)
SCHEDULE = struct(
    queue=TEXT, name=TEXT, cron=TEXT, timezone=TEXT, nextAt=some(INSTANT), nextLocal=some(TEXT), error=some(TEXT)
)

WEBHOOK = struct(
    queue=TEXT,
    url=TEXT,
    inFlight=COUNT,
    delivered=COUNT,
    rejected=COUNT,
    failed=COUNT,
    lastStatus=some(COUNT),
    lastError=some(TEXT),
    lastAt=some(INSTANT),
    heldSec=NUMBER,
)
BATCH: Schema = struct(
    query=TEXT,
    batch=COUNT,
    step=TEXT,
    first=FLAG,
    queueRows=COUNT,
    deadRows=COUNT,
    topicRows=COUNT,
    refused=COUNT,
    at=INSTANT,
)
LOG: Schema = struct(
    epoch=TEXT, first=COUNT, last=COUNT, state=TEXT, gaps=items({"type": "array", "items": COUNT, "minItems": 2})
)
CURSOR: Schema = struct(name=TEXT, epoch=TEXT, sequence=COUNT, filter=TEXT, at=INSTANT)
TOPIC: Schema = struct(
    topic=TEXT, topicSequence=COUNT, sequence=COUNT, at=INSTANT, records=COUNT, bytes=COUNT, publishedPerSec=NUMBER
)
RECORD: Schema = struct(
    ("payload", "payloadBase64"),
    sequence=COUNT,
    topicSequence=COUNT,
    at=INSTANT,
    topic=TEXT,
    key=some(TEXT),
    headers=table(TEXT),
    payload=ANY,
    payloadBase64=TEXT,
)
LEVEL: Schema = {"type": "string", "enum": [*Level]}
ALERT: Schema = struct(
    id=TEXT,
    rule=TEXT,
    subject=some(TEXT),
    level=LEVEL,
    state={"type": "string", "enum": ["open", "settling", "over"]},
    text=TEXT,
    openedAt=INSTANT,
    seenAt=INSTANT,
    closedAt=some(INSTANT),
    returns=COUNT,
    notices=COUNT,
    withheld=FLAG,
    acknowledgedAt=some(INSTANT),
    acknowledgedBy=some(TEXT),
    note=some(TEXT),
)
COMPONENTS: dict[str, Schema] = {
    "Alert": ALERT,
    "Batch": BATCH,
    "Cursor": CURSOR,
    "Log": LOG,
    "Record": RECORD,
    "Topic": TOPIC,
    "Error": ERROR_SCHEMA,
    "Problem": ERROR_SCHEMA["properties"]["error"],
    "Envelope": ENVELOPE,
    "Failure": FAILURE,
    "Step": STEP,
    "Message": MESSAGE,
    "Queue": QUEUE,
    "Lease": LEASE,
    "Delivery": DELIVERY,
    "Result": RESULT,
    "Receipt": RECEIPT,
    "Consumer": CONSUMER,
    "Schedule": SCHEDULE,
    "Webhook": WEBHOOK,
    "Policy": {"type": "object", "description": "docs/policy.md; every member is optional"},
    "Page": struct(queue=TEXT, messages=items(ref("Message")), cursor=some(TEXT)),
    "Results": struct(("error",), error=ref("Problem"), failed=COUNT, results=items(ref("Result"))),
    "Moved": struct(queue=TEXT, count=COUNT, ids=items(TEXT), dryRun=FLAG),
    "PolicyInForce": struct(queue=TEXT, policy=ref("Policy"), set=some(ref("Policy"))),
    "Stats": struct(
        queue=some(TEXT),
        sources=items(TEXT),
        total=COUNT,
        parked=COUNT,
        byQueue=items(struct(queue=TEXT, total=COUNT, parked=COUNT)),
        byReason=table(COUNT),
        byDay=items(struct(day=TEXT, total=COUNT, byReason=table(COUNT))),
        oldest=some(INSTANT),
        newest=some(INSTANT),
    ),
}


def members_of(schema: Schema) -> dict[str, Any]:
    """Return the properties of a component, for documents and tests."""
    found: dict[str, Any] = schema["properties"]
    return found
