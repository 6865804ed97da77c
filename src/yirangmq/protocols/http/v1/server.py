"""Endpoints of the server: status, health, consumers, schedules, webhooks, alerts, bridges, failover pair.

Each calls a method of ``admin.registry``. Lists leave out queues that the client may not see, and the texts of health
reasons are shown only to clients that may look at the whole server. If the server has no alerts, no topics or no pair,
the endpoints of that part answer 404."""

from collections.abc import Callable
from typing import Any

from yirangmq.alerts.monitor import LONGEST_NAME, LONGEST_NOTE, STATES
from yirangmq.core.alerts import Level
from yirangmq.core.bridges import BridgeState
from yirangmq.core.consumer_registry import WISHES
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.topic_filter import MOST_TOPICS
from yirangmq.core.topics import MOST_SEQUENCE, Start
from yirangmq.core.validation import kind
from yirangmq.format.envelope import iso
from yirangmq.protocols.http.v1.endpoint import (
    BOOLEAN,
    BRIDGE,
    CONSUMER,
    MESSAGE_ID,
    QUEUE,
    QUEUE_NAME,
    Ask,
    Content,
    Endpoint,
    Field,
    choice,
    many,
    text,
    whole,
)
from yirangmq.protocols.http.v1.log import topics_of
from yirangmq.protocols.http.v1.queues import LISTED, QUEUES_PAGE
from yirangmq.protocols.http.v1.schemas import COUNT, FLAG, INSTANT, LEVEL, NUMBER, TEXT, items, ref, some, table, thing

# -- server ------------------------------------------------------------------------------------------------------------


def status(ask: Ask) -> None:
    sees_all = ask.sees_all()
    ask.call(
        "status",
        ask.listing(),
        lambda found: ask.reply(found if sees_all else {name: found[name] for name in PUBLIC if name in found}),
    )


PUBLIC = ("server", "node", "role", "uptimeSec", "overdue", "queues", "cursor", "all")
"""Members of ``status`` for a client that may not look at the whole server."""


def health(ask: Ask) -> None:
    """Return the health report. Texts of reasons may name queues, so only clients that may look at the whole server
    get them."""
    sees_all = ask.sees_all()

    def reply(found: dict[str, Any]) -> None:
        shown = found if sees_all else {
            "status": found["status"],
            "reasons": [{"level": one["level"], "code": one["code"], "text": ""} for one in found["reasons"]],
        }  # fmt: skip
        ask.reply(shown, 503 if found["status"] == "fail" else 200)

    ask.call("health", ask.values(), reply)


def connections(ask: Ask) -> None:
    ask.call("connections", ask.values(), lambda found: ask.reply({"connections": found}))


def schedules(ask: Ask) -> None:
    sees = ask.sees()
    ask.call(
        "schedules",
        ask.values(),
        lambda found: ask.reply({"schedules": [row for row in found if sees(row["queue"])]}),
    )


def webhooks(ask: Ask) -> None:
    sees = ask.sees()
    ask.call(
        "webhooks",
        ask.values(),
        lambda found: ask.reply({"webhooks": [row for row in found if sees(row["queue"])]}),
    )


def sweep(ask: Ask) -> None:
    ask.call("sweep", ask.values(), lambda changed: ask.reply({"changed": changed}))


def trends(ask: Ask) -> None:
    sees = ask.sees()

    def reply(found: dict[str, Any]) -> None:
        ask.reply({**found, "queues": {name: row for name, row in found["queues"].items() if sees(name)}})

    ask.call("trends", ask.values(), reply)


# -- consumers ------------------------------------------------------------------------------------------------------


def consumers(ask: Ask) -> None:
    shown = _shown(ask)
    ask.call(
        "consumer_list", ask.values(), lambda cards: ask.reply({"consumers": [_card(one) for one in shown(cards)]})
    )


def one_consumer(ask: Ask) -> None:
    id = ask.values()["id"]
    shown = _shown(ask)

    def reply(cards: list[dict[str, Any]]) -> None:
        for card in shown(cards):
            if card["consumerId"] == id:
                ask.reply(_card(card))
                return
        raise NotFound(f"no consumer {id!r} has told of itself within the last hour", field="id")

    ask.call("consumer_list", {}, reply)


def _shown(ask: Ask) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return a filter of consumer rows: it keeps the queues that the client may see, and consumers with such queues."""
    if ask.sees_all():
        return lambda cards: cards
    sees = ask.sees()

    def shown(cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen = [{**card, "queues": [name for name in card["queues"] if sees(name)]} for card in cards]
        return [card for card in seen if card["queues"]]

    return shown


def beat(ask: Ask) -> None:
    """Record a heartbeat of a consumer. Unknown members, which a newer consumer may send, are ignored."""
    document = ask.document()
    if not isinstance(document, dict):
        raise BadInput(f"must be a JSON object, not {kind(document)}", field="body")
    given = {name: _whole(value) for name, value in document.items()}
    ask.call("consumer_beat", {**given, "consumerId": ask.path["id"]}, lambda wish: ask.reply({"wish": wish or None}))


def _whole(value: object) -> object:
    """Convert 1.0 to 1: both are the same whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wishing(wish: str) -> Callable[[Ask], None]:
    def act(ask: Ask) -> None:
        ask.call("consumer_wish", {**ask.values(), "wish": wish}, lambda card: ask.reply(_card(card)))

    return act


def _card(card: dict[str, Any]) -> dict[str, Any]:
    """Convert the times of a consumer row from ms to the ISO 8601 form of this API."""
    return card | {name: iso(min(card[name], LATEST)) for name in ("startedAt", "seenAt")}


LATEST = 253_402_300_799_000
"""Latest time that ISO 8601 writes with a four-digit year, in ms since 1970."""
SOME_QUEUE = Field("queue", QUEUE_NAME, "of this queue only")
ONE = "/v1/consumers/{id}"
HEALTH = thing(status=TEXT, reasons=items(thing(level=TEXT, code=TEXT, text=TEXT)))
TRENDS = thing(at=items(INSTANT), all=table(items(some(NUMBER))), queues=table(table(items(some(NUMBER)))))
CARD = Content(
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
    "what the consumer does",
)
WISHED = {"pause": "take nothing more", "resume": "go on", "drain": "finish what is in work, then stop"}

ENDPOINTS = (
    Endpoint("GET", "/v1/status", "The server and its queues", status, "server", "list",
             QUEUES_PAGE, query=(SOME_QUEUE, *LISTED), is_filtered=True),
    Endpoint("GET", "/v1/trends", "How the numbers of queues went during the last ten minutes", trends, "server",
             "list", TRENDS, query=(SOME_QUEUE,), is_filtered=True),
    Endpoint("GET", "/v1/health", "Whether it is well, and why not", health, "server", "greet", HEALTH,
             more={"503": HEALTH}),
    Endpoint("GET", "/v1/connections", "Who is connected", connections, "server", "admin",
             thing(connections=items({"type": "object"}))),
    Endpoint("GET", "/v1/schedules", "What is published by the clock, and when next", schedules, "server", "look",
             thing(schedules=items(ref("Schedule"))), query=(SOME_QUEUE,), is_filtered=True),
    Endpoint("GET", "/v1/webhooks", "Where messages are pushed to, and how that goes", webhooks, "server", "look",
             thing(webhooks=items(ref("Webhook"))), is_filtered=True),
    Endpoint("POST", "/v1/sweep", "Do now what time brings: delays that end, leases that lapse", sweep, "server",
             "operate", thing(changed=COUNT)),
    Endpoint("GET", "/v1/consumers", "The consumers at work", consumers, "consumers", "look",
             thing(consumers=items(ref("Consumer"))), is_filtered=True),
    Endpoint("GET", ONE, "One consumer", one_consumer, "consumers", "look", ref("Consumer"), path_kinds=(CONSUMER,),
             refusals=("not_found",), is_filtered=True),
    Endpoint("PUT", ONE, "A consumer tells of itself, about once a second; what is wished of it", beat, "consumers",
             "consume", thing(wish=some(TEXT)), path_kinds=(CONSUMER,), content=CARD, is_filtered=True),
    *(
        Endpoint("POST", f"{ONE}/{wish}", f"Ask a consumer to {WISHED[wish]}", _wishing(wish), "consumers", "operate",
                 ref("Consumer"), path_kinds=(CONSUMER,), refusals=("not_found",))
        for wish in WISHES
    ),
)  # fmt: skip


# -- alerts ------------------------------------------------------------------------------------------------------------


def _with_alerts(ask: Ask) -> Ask:
    if not ask.house.methods.has("alerts"):
        raise NotFound("this server keeps no alerts")
    return ask


def list_alerts(ask: Ask) -> None:
    _with_alerts(ask).call("alerts", ask.values(), ask.reply)


def one_alert(ask: Ask) -> None:
    _with_alerts(ask).call("alert_show", ask.values(), ask.reply)


def acknowledge(ask: Ask) -> None:
    _with_alerts(ask).call("alert_ack", ask.values(), ask.reply)


def test(ask: Ask) -> None:
    _with_alerts(ask).call("alert_test", ask.values(), ask.reply)


def rules(ask: Ask) -> None:
    _with_alerts(ask).call("alert_rules", ask.values(), lambda rows: ask.reply({"rules": rows}))


ID = Field("id", MESSAGE_ID, "the id of the alert", needed=True)
ONE_ALERT = "/v1/alerts/{id}"
SINK = thing(
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
RULE = thing(rule=TEXT, enabled=FLAG, level=TEXT, limit=some(NUMBER), unit=some(TEXT), queues=table(NUMBER), about=TEXT)
TESTED = thing(sinks=items(thing(sink=TEXT, ok=FLAG, seconds=NUMBER, error=some(TEXT))))
GONE = ("not_found",)

ALERT_ENDPOINTS = (
    Endpoint("GET", "/v1/alerts", "What is wrong, the worst first, and how sinks take it", list_alerts, "alerts",
             "look", thing(enabled=FLAG, alerts=items(ref("Alert")), counts=table(COUNT), sinks=items(SINK)),
             query=(Field("state", choice(*STATES), "alerts that are open, over, or all", "open"),), refusals=GONE),
    Endpoint("POST", "/v1/alerts", "Send a test notice to every sink, or to one, and say what became of it", test,
             "alerts", "operate", TESTED, body=(
                 Field("level", choice(*Level), "that it has", Level.INFO.value),
                 Field("sink", text(100), "to this one only; empty: to all", ""),
             ), refusals=GONE),
    Endpoint("GET", ONE_ALERT, "One alert", one_alert, "alerts", "look", ref("Alert"), path_kinds=(ID,), refusals=GONE),
    Endpoint("POST", f"{ONE_ALERT}/ack", "Acknowledge an alert: no more reminders, unless it gets worse", acknowledge,
             "alerts", "operate", ref("Alert"), path_kinds=(ID,), body=(
                 Field("by", text(LONGEST_NAME), "who", ""), Field("note", text(LONGEST_NOTE), "what is done", ""),
             ), refusals=("not_found", "wrong_state", "store_error")),
    Endpoint("GET", "/v1/alert-rules", "What is watched, and its limits", rules, "alerts", "look",
             thing(rules=items(RULE)), refusals=GONE),
)  # fmt: skip


# -- bridges -----------------------------------------------------------------------------------------------------------


def list_bridges(ask: Ask) -> None:
    topics_of(ask)
    ask.call("bridges", ask.values(), lambda rows: ask.reply({"bridges": rows}))


def _asking(method: str, status: int = 200) -> Callable[[Ask], None]:
    def act(ask: Ask) -> None:
        topics_of(ask)
        ask.call(method, ask.values(), lambda row: ask.reply(row, status))

    return act


ONE_BRIDGE = "/v1/bridges/{name}"
START = Field("start", choice(*Start), "where it begins: new, beginning, sequence or time; the last two with at")
AT = Field("at", whole(0, MOST_SEQUENCE), "the sequence, or the nanosecond since 1970")
ROW = thing(
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
    Field("topics", many(text(200, 1), 0, MOST_TOPICS), "names and patterns; none: all topics"),
    Field("groups", BOOLEAN, "a record's key becomes its message's group", True),
    START,
    AT,
)

BRIDGE_ENDPOINTS = (
    Endpoint("GET", "/v1/bridges", "Topics that feed queues, and how that goes", list_bridges, "topics", "look",
             thing(bridges=items(ROW)), refusals=("not_found",)),
    Endpoint("POST", "/v1/bridges", "Let topics feed a queue", _asking("bridge_add"), "topics", "admin", ROW,
             body=NEW, refusals=(*REFUSALS, "store_full")),
    Endpoint("GET", ONE_BRIDGE, "One bridge", _asking("bridge_show"), "topics", "look", ROW, path_kinds=(BRIDGE,),
             refusals=("not_found",)),
    Endpoint("DELETE", ONE_BRIDGE, "Remove a bridge; its messages stay", _asking("bridge_remove"), "topics", "admin",
             ROW, path_kinds=(BRIDGE,), refusals=REFUSALS),
    Endpoint("POST", f"{ONE_BRIDGE}/pause", "Bring nothing more over", _asking("bridge_pause"), "topics", "operate",
             ROW, path_kinds=(BRIDGE,), refusals=REFUSALS),
    Endpoint("POST", f"{ONE_BRIDGE}/resume", "Go on, from where it was or from another place", _asking("bridge_resume"),
             "topics", "operate", ROW, path_kinds=(BRIDGE,), body=(START, AT), refusals=REFUSALS),
)  # fmt: skip


# -- failover pair -----------------------------------------------------------------------------------------------------

MOST_HISTORY = 1_000


def _with_pair(ask: Ask) -> Ask:
    if not ask.house.methods.has("pair_status"):
        raise NotFound("this server is not one of a pair")
    return ask


def pair_status(ask: Ask) -> None:
    _with_pair(ask).call("pair_status", ask.values(), ask.reply)


def history(ask: Ask) -> None:
    _with_pair(ask).call("pair_history", ask.values(), lambda lines: ask.reply({"history": lines}))


LOAD = thing(cpu=NUMBER, memory=COUNT, depth=COUNT)
EVIDENCE = items({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2})
PEER = thing(
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
PAIR = thing(
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
    heartbeats=thing(sent=COUNT, heard=COUNT, refused=table(COUNT)),
    load=LOAD,
    evidence=EVIDENCE,
    peer=some(PEER),
    backlog=table(COUNT),
)

PAIR_ENDPOINTS = (
    Endpoint("GET", "/v1/pair", "Both nodes of the pair, as this one knows them", pair_status, "server", "look", PAIR,
             refusals=("not_found",)),
    Endpoint("GET", "/v1/pair/history", "The decisions of this node with their evidence, the oldest first", history,
             "server", "look", thing(history=items(thing(("evidence",), at=INSTANT, event=TEXT, evidence=EVIDENCE))),
             query=(Field("limit", whole(1, MOST_HISTORY), "the latest so many", 100),), refusals=("not_found",)),
)  # fmt: skip
