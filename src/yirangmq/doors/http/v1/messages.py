"""Messages seen without being taken, and given up: ``/v1/queues/{queue}/messages``."""

from typing import Any

from yirangmq.core.errors import NotFound, PayloadDamaged
from yirangmq.doors.http.payloads import ATTACHMENT, SANDBOX
from yirangmq.doors.http.v1 import shapes
from yirangmq.doors.http.v1.cloud import EVENT_TYPE, wants_events
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.fields import CURSOR, FILTER, LIMIT, MESSAGE_ID, STATE, Field, many
from yirangmq.doors.http.v1.schemas import FLAG, MESSAGE, TEXT, items, ref, thing
from yirangmq.doors.http.v1.settling import answer_results
from yirangmq.format import cloudevents
from yirangmq.format.delivery import Look
from yirangmq.format.envelope import damage
from yirangmq.wire.messages import error_of


def list_messages(ask: Ask) -> None:
    """Without a filter the page is read in one commit, with one it is searched for beside the others' work."""
    values = ask.values()
    method = "search" if values["filter"] else "peek"
    if method == "peek":
        del values["filter"]
    ask.call(method, values, lambda page: answer_page(ask, page))


def answer_page(ask: Ask, page: Any) -> None:
    found, cursor = shapes.looks(page)
    ask.respond(shapes.listing(ask.path["queue"], found, cursor))


def show_message(ask: Ask) -> None:
    ask.call("show", ask.values(), lambda page: _answer_one(ask, page))


def _answer_one(ask: Ask, page: Any) -> None:
    look = one_look(page)
    if look.envelope is not None and wants_events(ask.request):
        ask.respond(cloudevents.as_json(look.envelope), (("content-type", EVENT_TYPE),))
    else:
        ask.respond(shapes.story(look))


def one_look(page: Any) -> Look:
    [look], _ = shapes.looks(page)
    return look


def show_payload(ask: Ask) -> None:
    def reply(page: Any) -> None:
        sent = one_look(page).envelope
        if sent is None:
            raise NotFound("of this message only the id is remembered", field="id")
        wrong = damage(sent)
        if wrong:
            raise PayloadDamaged(f"message {sent.id} is not handed out: {wrong}")
        kind = cloudevents.content_type(sent) or "application/octet-stream"
        ask.respond(sent.payload, (("content-type", kind), *SANDBOX, *ATTACHMENT))

    ask.call("show", ask.values(), reply)


def drop_message(ask: Ask) -> None:
    values = ask.values()

    def reply(errors: list[list[str] | None]) -> None:
        if errors[0] is not None:
            raise error_of(*errors[0])
        ask.reply({"queue": values["queue"], "messageId": values["id"], "dropped": True})

    ask.call("drop", {"queue": values["queue"], "ids": [values["id"]]}, reply)


def drop_many(ask: Ask) -> None:
    values = ask.values()

    def reply(errors: list[list[str] | None]) -> None:
        answer_results(ask, "messageId", values["ids"], [None if one is None else error_of(*one) for one in errors])

    ask.call("drop", values, reply)


ALL = "/v1/queues/{queue}/messages"
ONE = f"{ALL}/{{id}}"
PAGE = (STATE, FILTER, LIMIT, CURSOR)
STORY = {**MESSAGE, "properties": {**MESSAGE["properties"], "history": items(ref("Step"))}}
IDS = Field("ids", many(MESSAGE_ID), "the ids of the messages", needed=True)

ENDPOINTS = (
    Endpoint("GET", ALL, "Messages of one state, without taking them", list_messages, "messages", "look", ref("Page"),
             query=PAGE, refusals=("bad_filter",)),
    Endpoint("POST", "/v1/queues/{queue}/search", "The same, asked for in a body", list_messages, "messages", "look",
             ref("Page"), body=PAGE, refusals=("bad_filter",)),
    Endpoint("GET", ONE, "One message and its history", show_message, "messages", "look", STORY,
             refusals=("not_found",), more={EVENT_TYPE: {"type": "object"}}),
    Endpoint("GET", f"{ONE}/payload", "The payload's bytes, exactly as sent", show_payload, "messages", "look",
             {}, refusals=("not_found", "payload_damaged"), media="*/*"),
    Endpoint("DELETE", ONE, "Give a message up, in whatever state", drop_message, "messages", "admin",
             thing(queue=TEXT, messageId=TEXT, dropped=FLAG), refusals=("not_found", "wrong_state")),
    Endpoint("POST", "/v1/queues/{queue}/drop", "Give many up", drop_many, "messages", "admin", ref("Results"),
             body=(IDS,), refusals=("not_found", "wrong_state")),
)  # fmt: skip
