"""The server itself: its state, its health, its consumers, clients and schedules."""

from collections.abc import Callable
from typing import Any

from yirangmq.core.consumer_registry import WISHES
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.validation import kind
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import CONSUMER, QUEUE_NAME, Field
from yirangmq.doors.http.v1.queues import LISTED, QUEUES_PAGE
from yirangmq.doors.http.v1.schemas import COUNT, INSTANT, NUMBER, TEXT, items, ref, some, table, thing
from yirangmq.format.envelope import iso


def status(ask: Ask) -> None:
    sees_all = ask.sees_all()
    ask.call(
        "status",
        ask.listing(),
        lambda found: ask.reply(found if sees_all else {name: found[name] for name in PUBLIC if name in found}),
    )


PUBLIC = ("server", "node", "role", "uptimeSec", "overdue", "queues", "cursor", "all")
"""What ``status`` says of the server to a client that may not look at it as a whole."""


def health(ask: Ask) -> None:
    """Reasons may name queues: their texts are for clients that may look at the server as a whole."""
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
    """Consumers of queues that the client may look at, and of their queues only these."""
    if ask.sees_all():
        return lambda cards: cards
    sees = ask.sees()

    def shown(cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen = [{**card, "queues": [name for name in card["queues"] if sees(name)]} for card in cards]
        return [card for card in seen if card["queues"]]

    return shown


def beat(ask: Ask) -> None:
    """Members a newer consumer may add are passed over, as everywhere."""
    document = ask.document()
    if not isinstance(document, dict):
        raise BadInput(f"must be a JSON object, not {kind(document)}", field="body")
    given = {name: _whole(value) for name, value in document.items()}
    ask.call("consumer_beat", {**given, "consumerId": ask.path["id"]}, lambda wish: ask.reply({"wish": wish or None}))


def _whole(value: object) -> object:
    """1.0 is a whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wishing(wish: str) -> Callable[[Ask], None]:
    def act(ask: Ask) -> None:
        ask.call("consumer_wish", {**ask.values(), "wish": wish}, lambda card: ask.reply(_card(card)))

    return act


def _card(card: dict[str, Any]) -> dict[str, Any]:
    """Instants as everywhere in this API."""
    return card | {name: iso(min(card[name], LATEST)) for name in ("startedAt", "seenAt")}


LATEST = 253_402_300_799_000
"""The last second that ISO 8601 writes with four digits of year."""
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
