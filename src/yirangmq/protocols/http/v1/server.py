"""Endpoints of the server: status, health, consumers, schedules, webhooks, alerts, bridges, failover pair.

Each calls a method of ``admin.registry``. Lists leave out queues that the client may not see, and the texts of health
reasons are shown only to clients that may look at the whole server. If the server has no alerts, no topics or no pair,
the endpoints of that part answer 404."""

from collections.abc import Callable
from typing import Any

from yirangmq.alerts.monitor import MAX_NAME_CHARS, MAX_NOTE_CHARS, STATES
from yirangmq.core.alerts import Level
from yirangmq.core.bridges import BridgeState
from yirangmq.core.consumer_registry import WISHES
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.topic_filter import MAX_TOPICS
from yirangmq.core.topics import MAX_SEQUENCE, Start
from yirangmq.core.validation import kind
from yirangmq.format.envelope import iso
from yirangmq.observe.trends import DEFAULT_RANGE, RANGES
from yirangmq.protocols.http.v1.endpoint import (
    BOOLEAN,
    BRIDGE,
    CONSUMER,
    MESSAGE_ID,
    QUEUE,
    QUEUE_NAME,
    BodyContent,
    Endpoint,
    EndpointCall,
    Field,
    choice,
    many,
    text,
    whole,
)
from yirangmq.protocols.http.v1.log import topics_of
from yirangmq.protocols.http.v1.queues import LISTED, QUEUES_PAGE
from yirangmq.protocols.http.v1.schemas import (
    COUNT,
    FLAG,
    INSTANT,
    LEVEL,
    NUMBER,
    TEXT,
    items,
    ref,
    some,
    struct,
    table,
)

# -- server ------------------------------------------------------------------------------------------------------------


def status(call: EndpointCall) -> None:
    may_see_all = call.may_see_all()
    call.call(
        "status",
        call.listing(),
        lambda found: call.reply(found if may_see_all else {name: found[name] for name in PUBLIC if name in found}),
    )


PUBLIC = ("server", "node", "role", "uptimeSec", "overdue", "queues", "cursor", "all")
"""Members of ``status`` for a client that may not look at the whole server."""


def health(call: EndpointCall) -> None:
    """Return the health report. Texts of reasons may name queues, so only clients with the scope ``look`` on the server
    get them."""
    may_see_all = call.may_see_all()

    def reply(found: dict[str, Any]) -> None:
        shown = found if may_see_all else {
            "status": found["status"],
            "reasons": [{"level": one["level"], "code": one["code"], "text": ""} for one in found["reasons"]],
        }  # fmt: skip
        call.reply(shown, 503 if found["status"] == "fail" else 200)

    call.call("health", call.values(), reply)


def connections(call: EndpointCall) -> None:
    call.call("connections", call.values(), lambda found: call.reply({"connections": found}))


def schedules(call: EndpointCall) -> None:
    may_see = call.may_see()
    call.call(
        "schedules",
        call.values(),
        lambda found: call.reply({"schedules": [row for row in found if may_see(row["queue"])]}),
    )


def webhooks(call: EndpointCall) -> None:
    may_see = call.may_see()
    call.call(
        "webhooks",
        call.values(),
        lambda found: call.reply({"webhooks": [row for row in found if may_see(row["queue"])]}),
    )


def sweep(call: EndpointCall) -> None:
    call.call("sweep", call.values(), lambda changed: call.reply({"changed": changed}))


def trends(call: EndpointCall) -> None:
    may_see = call.may_see()

    def reply(found: dict[str, Any]) -> None:
        call.reply({**found, "queues": {name: row for name, row in found["queues"].items() if may_see(name)}})

    call.call("trends", call.values(), reply)


# -- consumers ------------------------------------------------------------------------------------------------------


def consumers(call: EndpointCall) -> None:
    shown = _visible_rows(call)
    call.call(
        "consumer_list",
        call.values(),
        lambda rows: call.reply({"consumers": [_consumer_row(one) for one in shown(rows)]}),
    )


def one_consumer(call: EndpointCall) -> None:
    id = call.values()["id"]
    shown = _visible_rows(call)

    def reply(rows: list[dict[str, Any]]) -> None:
        for row in shown(rows):
            if row["consumerId"] == id:
                call.reply(_consumer_row(row))
                return
        raise NotFound(f"no consumer {id!r} has reported within the last hour", field="id")

    call.call("consumer_list", {}, reply)


def _visible_rows(call: EndpointCall) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return a filter of consumer rows: it keeps the queues that the client may see, and consumers with such queues."""
    if call.may_see_all():
        return lambda rows: rows
    may_see = call.may_see()

    def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen = [{**row, "queues": [name for name in row["queues"] if may_see(name)]} for row in rows]
        return [row for row in seen if row["queues"]]

    return shown


def heartbeat(call: EndpointCall) -> None:
    """Record a heartbeat of a consumer. Unknown members, which a newer consumer may send, are ignored."""
    document = call.document()
    if not isinstance(document, dict):
        raise BadInput(f"must be a JSON object, not {kind(document)}", field="body")
    given = {name: _whole(value) for name, value in document.items()}
    call.call(
        "consumer_beat", {**given, "consumerId": call.path["id"]}, lambda wish: call.reply({"wish": wish or None})
    )


def _whole(value: object) -> object:
    """Convert 1.0 to 1: both are the same whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _request_handler(wish: str) -> Callable[[EndpointCall], None]:
    def handler(call: EndpointCall) -> None:
        call.call("consumer_wish", {**call.values(), "wish": wish}, lambda row: call.reply(_consumer_row(row)))

    return handler


def _consumer_row(row: dict[str, Any]) -> dict[str, Any]:
    """Convert the times of a consumer row from ms to the ISO 8601 form of this API."""
    return row | {name: iso(min(row[name], LATEST)) for name in ("startedAt", "seenAt")}


LATEST = 253_402_300_799_000
"""Latest time that ISO 8601 writes with a four-digit year, in ms since 1970."""
SOME_QUEUE = Field("queue", QUEUE_NAME, "only of this queue")
ONE = "/v1/consumers/{id}"
HEALTH = struct(status=TEXT, reasons=items(struct(level=TEXT, code=TEXT, text=TEXT)))
TRENDS = struct(range=TEXT, at=items(INSTANT), all=table(items(some(NUMBER))), queues=table(table(items(some(NUMBER)))))
TREND_RANGE = Field(
    "range", choice(*RANGES),
    "the last ten minutes, hour, day or week; a slot of the last three has the highest value of each gauge",
    DEFAULT_RANGE,
)  # fmt: skip
ONLY_TOTALS = Field("onlyTotals", BOOLEAN, "only totals, without single queues", False, key="only_totals")
HEARTBEAT_BODY = BodyContent(
    {
        "application/json": {
            "type": "object",
            "properties": {
                "host": {"type": "string", "maxLength": 255},
                "pid": {"type": "integer", "minimum": 0, "maximum": 2**31},
                "queues": {"type": "array", "items": QUEUE_NAME.schema, "maxItems": 1000},
                "startedAt": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 2**53,
                    "description": "milliseconds since 1970",
                },
                "state": {"type": "string", "enum": ["running", "paused", "draining", "stopped"]},
                **{
                    name: {"type": "integer", "minimum": 0, "maximum": 2**53}
                    for name in ("inWork", "done", "failed", "lost", "stuck")
                },
            },
        }
    },
    "state of the consumer",
)
WISHED = {
    "pause": "Pause a consumer: it leases no more messages",
    "resume": "Resume a paused consumer",
    "drain": "Drain a consumer: it finishes its messages, then stops",
}

ENDPOINTS = (
    Endpoint("GET", "/v1/status", "Show the server and its queues", status, "server", "list",
             QUEUES_PAGE, query=(SOME_QUEUE, *LISTED), is_filtered=True),
    Endpoint("GET", "/v1/trends", "Get the counts and rates of queues over the last minutes, hour, day or week",
             trends, "server",
             "list", TRENDS, query=(SOME_QUEUE, TREND_RANGE, ONLY_TOTALS), is_filtered=True),
    Endpoint("GET", "/v1/health", "Show the health of the server, with reasons", health, "server", "greet", HEALTH,
             more={"503": HEALTH}),
    Endpoint("GET", "/v1/connections", "List connections", connections, "server", "admin",
             struct(connections=items({"type": "object"}))),
    Endpoint("GET", "/v1/schedules", "List schedules with their next times", schedules, "server", "look",
             struct(schedules=items(ref("Schedule"))), query=(SOME_QUEUE,), is_filtered=True),
    Endpoint("GET", "/v1/webhooks", "List webhooks and their results", webhooks, "server", "look",
             struct(webhooks=items(ref("Webhook"))), is_filtered=True),
    Endpoint("POST", "/v1/sweep", "Run the sweeper now: apply ended delays and expired leases", sweep, "server",
             "operate", struct(changed=COUNT)),
    Endpoint("GET", "/v1/consumers", "List consumers", consumers, "consumers", "look",
             struct(consumers=items(ref("Consumer"))), is_filtered=True),
    Endpoint("GET", ONE, "Show a consumer", one_consumer, "consumers", "look", ref("Consumer"), path_kinds=(CONSUMER,),
             refusals=("not_found",), is_filtered=True),
    Endpoint("PUT", ONE, "Report a consumer, about once per second; the answer contains the request of an operator",
             heartbeat,
             "consumers", "consume", struct(wish=some(TEXT)), path_kinds=(CONSUMER,), content=HEARTBEAT_BODY,
             is_filtered=True),
    *(
        Endpoint("POST", f"{ONE}/{wish}", WISHED[wish], _request_handler(wish), "consumers",
                 "operate", ref("Consumer"), path_kinds=(CONSUMER,), refusals=("not_found",))
        for wish in WISHES
    ),
)  # fmt: skip


# -- alerts ------------------------------------------------------------------------------------------------------------


def _with_alerts(call: EndpointCall) -> EndpointCall:
    if not call.context.methods.has("alerts"):
        raise NotFound("this server keeps no alerts")
    return call


def list_alerts(call: EndpointCall) -> None:
    _with_alerts(call).call("alerts", call.values(), call.reply)


def one_alert(call: EndpointCall) -> None:
    _with_alerts(call).call("alert_show", call.values(), call.reply)


def acknowledge(call: EndpointCall) -> None:
    _with_alerts(call).call("alert_ack", call.values(), call.reply)


def test(call: EndpointCall) -> None:
    _with_alerts(call).call("alert_test", call.values(), call.reply)


def rules(call: EndpointCall) -> None:
    _with_alerts(call).call("alert_rules", call.values(), lambda rows: call.reply({"rules": rows}))


ID = Field("id", MESSAGE_ID, "id of the alert", needed=True)
ONE_ALERT = "/v1/alerts/{id}"
SINK = struct(
    sink=TEXT,
    kind=TEXT,
    level=LEVEL,
    rules=items(TEXT),
    pending=COUNT,
    sent=COUNT,
    failed=COUNT,
    lost=COUNT,
    lastError=some(TEXT),
    lastAt=some(INSTANT),
)
RULE = struct(
    rule=TEXT, enabled=FLAG, level=TEXT, limit=some(NUMBER), unit=some(TEXT), queues=table(NUMBER), about=TEXT
)
TESTED = struct(sinks=items(struct(sink=TEXT, ok=FLAG, seconds=NUMBER, error=some(TEXT))))
GONE = ("not_found",)

ALERT_ENDPOINTS = (
    Endpoint("GET", "/v1/alerts", "List alerts, the highest level first, and the state of sinks", list_alerts, "alerts",
             "look", struct(enabled=FLAG, alerts=items(ref("Alert")), counts=table(COUNT), sinks=items(SINK)),
             query=(Field("state", choice(*STATES), "alerts that are open, over, or both", "open"),), refusals=GONE),
    Endpoint("POST", "/v1/alerts", "Send a test notice to all sinks or one, and return the results", test,
             "alerts", "operate", TESTED, body=(
                 Field("level", choice(*Level), "level of the notice", Level.INFO.value),
                 Field("sink", text(100), "name of the sink; empty: all sinks", ""),
             ), refusals=GONE),
    Endpoint("GET", ONE_ALERT, "Show an alert", one_alert, "alerts", "look", ref("Alert"), path_kinds=(ID,),
             refusals=GONE),
    Endpoint("POST", f"{ONE_ALERT}/ack", "Acknowledge an alert: no more reminders, unless it gets worse", acknowledge,
             "alerts", "operate", ref("Alert"), path_kinds=(ID,), body=(
                 Field("by", text(MAX_NAME_CHARS), "name of the person", ""), Field("note", text(MAX_NOTE_CHARS),
                       "note, for example what is being done", ""),
             ), refusals=("not_found", "wrong_state", "store_error")),
    Endpoint("GET", "/v1/alert-rules", "List alert rules and their limits", rules, "alerts", "look",
             struct(rules=items(RULE)), refusals=GONE),
)  # fmt: skip


# -- bridges -----------------------------------------------------------------------------------------------------------


def list_bridges(call: EndpointCall) -> None:
    topics_of(call)
    call.call("bridges", call.values(), lambda rows: call.reply({"bridges": rows}))


def _bridge_handler(method: str, status: int = 200) -> Callable[[EndpointCall], None]:
    def handler(call: EndpointCall) -> None:
        topics_of(call)
        call.call(method, call.values(), lambda row: call.reply(row, status))

    return handler


ONE_BRIDGE = "/v1/bridges/{name}"
START = Field("start", choice(*Start), "start position; sequence and time need at")
AT = Field("at", whole(0, MAX_SEQUENCE), "the sequence, or the time in nanoseconds since 1970")
ROW = struct(
    name=TEXT,
    queue=TEXT,
    topics=items(TEXT),
    groups=FLAG,
    state={"type": "string", "enum": [*BridgeState]},
    reason=TEXT,
    epoch=TEXT,
    sequence=COUNT,
    lag=COUNT,
    delivered=COUNT,
    refused=COUNT,
)
REFUSALS = ("not_found", "wrong_state", "store_error", "store_damaged", "retired")
NEW = (
    BRIDGE,
    QUEUE,
    Field("topics", many(text(200, 1), 0, MAX_TOPICS), "names and patterns of topics; empty: all topics"),
    Field("groups", BOOLEAN, "use the key of a record as group id of its message", True),
    START,
    AT,
)

BRIDGE_ENDPOINTS = (
    Endpoint("GET", "/v1/bridges", "List bridges and their states", list_bridges, "topics", "look",
             struct(bridges=items(ROW)), refusals=("not_found",)),
    Endpoint("POST", "/v1/bridges", "Add a bridge", _bridge_handler("bridge_add"), "topics", "admin", ROW,
             body=NEW, refusals=(*REFUSALS, "store_full")),
    Endpoint("GET", ONE_BRIDGE, "Show a bridge", _bridge_handler("bridge_show"), "topics", "look", ROW,
             path_kinds=(BRIDGE,), refusals=("not_found",)),
    Endpoint("DELETE", ONE_BRIDGE, "Remove a bridge; its messages are kept", _bridge_handler("bridge_remove"), "topics",
             "admin", ROW, path_kinds=(BRIDGE,), refusals=REFUSALS),
    Endpoint("POST", f"{ONE_BRIDGE}/pause", "Pause a bridge", _bridge_handler("bridge_pause"), "topics",
             "operate", ROW, path_kinds=(BRIDGE,), refusals=REFUSALS),
    Endpoint("POST", f"{ONE_BRIDGE}/resume", "Resume a bridge, at its cursor or at another position",
             _bridge_handler("bridge_resume"), "topics", "operate", ROW, path_kinds=(BRIDGE,), body=(START, AT),
             refusals=REFUSALS),
)  # fmt: skip


# -- failover pair -----------------------------------------------------------------------------------------------------

MAX_HISTORY = 1_000


def _with_pair(call: EndpointCall) -> EndpointCall:
    if not call.context.methods.has("pair_status"):
        raise NotFound("this server is not one of a pair")
    return call


def pair_status(call: EndpointCall) -> None:
    _with_pair(call).call("pair_status", call.values(), call.reply)


def history(call: EndpointCall) -> None:
    _with_pair(call).call("pair_history", call.values(), lambda lines: call.reply({"history": lines}))


LOAD = struct(cpu=NUMBER, memory=COUNT, depth=COUNT)
EVIDENCE = items({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2})
PEER = struct(
    node=TEXT,
    role=TEXT,
    status=TEXT,
    term=COUNT,
    heardSec=NUMBER,
    silent=FLAG,
    runningSec=NUMBER,
    clockAheadSec=NUMBER,
    addresses=items(TEXT),
    load=LOAD,
)
PAIR = struct(
    node=TEXT,
    role=TEXT,
    status=TEXT,
    term=COUNT,
    works=FLAG,
    runningSec=NUMBER,
    activeSec=NUMBER,
    switches=COUNT,
    witness=TEXT,
    linkDelayMs=some(NUMBER),
    longestGapSec=NUMBER,
    intervalSec=NUMBER,
    timeoutSec=NUMBER,
    keysDiffer=FLAG,
    withoutActiveSec=NUMBER,
    handover=FLAG,
    heartbeats=struct(sent=COUNT, heard=COUNT, refused=table(COUNT)),
    load=LOAD,
    evidence=EVIDENCE,
    peer=some(PEER),
    backlog=table(COUNT),
)

PAIR_ENDPOINTS = (
    Endpoint("GET", "/v1/pair", "Show both nodes of the pair, as this one knows them", pair_status, "server", "look",
             PAIR,
             refusals=("not_found",)),
    Endpoint("GET", "/v1/pair/history", "List the decisions of this node with their evidence, oldest first", history,
             "server", "look", struct(history=items(struct(("evidence",), at=INSTANT, event=TEXT, evidence=EVIDENCE))),
             query=(Field("limit", whole(1, MAX_HISTORY), "maximum number of the latest entries", 100),),
             refusals=("not_found",)),
)  # fmt: skip
