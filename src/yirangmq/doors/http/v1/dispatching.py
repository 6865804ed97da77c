"""How a queue's messages are given out: ``/v1/queues/{queue}/dispatch``, its consumers, and ``/v1/deliveries``."""

from typing import Any

from yirangmq.core.dispatch import Strategy
from yirangmq.core.events import Status
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import CONSUMER, CONSUMER_ID, LIMIT, MESSAGE_ID, QUEUE_NAME, Field, choice
from yirangmq.doors.http.v1.schemas import COUNT, FLAG, INSTANT, NUMBER, TEXT, items, some, table, thing
from yirangmq.format.envelope import iso


def look(ask: Ask) -> None:
    ask.call("dispatch", ask.values(), ask.reply)


def change(ask: Ask) -> None:
    ask.call("dispatch_set", {"queue": ask.path["queue"], "members": ask.document()}, ask.reply)


def _registering(method: str, comes: bool) -> Any:
    def act(ask: Ask) -> None:
        queue, consumer = ask.path["queue"], ask.path["id"]
        about = {"queue": queue, "consumerId": consumer, "registered": comes}
        ask.call(
            method, {"queue": queue, "consumer": consumer}, lambda changed: ask.reply({**about, "changed": changed})
        )

    return act


def deliveries(ask: Ask) -> None:
    given = {name: value for name, value in ask.values().items() if value is not None}
    sees = ask.sees()
    ask.call(
        "deliveries",
        given,
        lambda rows: ask.reply({"deliveries": [_row(row) for row in rows if sees(row["queue"])]}),
    )


def programs(ask: Ask) -> None:
    ask.call("programs", ask.values(), ask.reply)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "begunAt": iso(row["begunAt"]), "endedAt": None if row["endedAt"] is None else iso(row["endedAt"])}


ONE_DISPATCH = "/v1/queues/{queue}/dispatch"
STRATEGIES = choice(*Strategy, "none").schema
DISPATCH = thing(
    queue=TEXT,
    strategy=some(TEXT),
    weights=table(COUNT),
    key=some(TEXT),
    graceSec=NUMBER,
    outcomes=some(TEXT),
    consumers=items(
        thing(consumerId=TEXT, registered=FLAG, here=FLAG, awaySec=some(NUMBER), inFlight=COUNT, weight=COUNT)
    ),
    deliveries=table(COUNT),
    inFlight=COUNT,
)
MEMBERS = Content(
    {
        "application/json": {
            "type": "object",
            "properties": {
                "strategy": STRATEGIES,
                "weights": table(COUNT),
                "key": some(TEXT),
                "graceSec": NUMBER,
                "outcomes": some(TEXT),
            },
            "additionalProperties": False,
        }
    },
    "members of the policy's dispatch (docs/policy.md); what it does not say stays",
)
REGISTERED = thing(queue=TEXT, consumerId=TEXT, registered=FLAG, changed=FLAG)
DELIVERY = thing(
    queue=TEXT,
    messageId=TEXT,
    leaseId=TEXT,
    consumerId=TEXT,
    attempt=COUNT,
    status=choice(*Status).schema,
    begunAt=INSTANT,
    endedAt=some(INSTANT),
    reason=some(TEXT),
    text=some(TEXT),
    became=TEXT,
)
PROGRAM = thing(name=TEXT, addresses=items(TEXT), hasToken=FLAG, queues=items(TEXT), sendsTo=items(TEXT))
REFUSED = thing(
    counts=items(thing(door=TEXT, reason=TEXT, count=COUNT)),
    latest=items(thing(at=INSTANT, door=TEXT, address=TEXT, program=some(TEXT), reason=TEXT, text=TEXT, count=COUNT)),
)
WHICH = (
    Field("queue", QUEUE_NAME, "of this queue only"),
    Field("id", MESSAGE_ID, "of this message only"),
    Field("consumer", CONSUMER_ID, "to this consumer only"),
    Field("status", choice(*Status), "in this status only"),
    LIMIT,
)

DISPATCH_ENDPOINTS = (
    Endpoint("GET", ONE_DISPATCH, "By which strategy messages are given out, and to whom", look, "consumers", "look",
             DISPATCH),
    Endpoint("PATCH", ONE_DISPATCH, "Change how they are given out, while consumers are at work", change,
             "consumers", "admin", DISPATCH, content=MEMBERS, refusals=("bad_policy",)),
    Endpoint("PUT", f"{ONE_DISPATCH}/consumers/{{id}}", "Register a consumer: it is one also while it is away",
             _registering("dispatch_register", True), "consumers", "operate", REGISTERED, path_kinds=(CONSUMER,),
             refusals=("not_found",)),
    Endpoint("DELETE", f"{ONE_DISPATCH}/consumers/{{id}}", "Deregister a consumer",
             _registering("dispatch_deregister", False), "consumers", "operate", REGISTERED, path_kinds=(CONSUMER,),
             refusals=("not_found",)),
    Endpoint("GET", "/v1/deliveries",
             "The latest deliveries of queues with a strategy, the newest first", deliveries, "consumers", "look",
             thing(deliveries=items(DELIVERY)), query=WHICH, is_filtered=True),
    Endpoint("GET", "/v1/programs",
             "Which programs may come, who may send to whom, and who was refused", programs, "server", "admin",
             thing(programs=items(PROGRAM), refused=REFUSED)), )  # fmt: skip
