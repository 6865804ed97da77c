"""Endpoints to read and drop messages, for dead letters, and for messages as record frames.

They are below ``/v1/queues/{queue}``: ``messages``, ``search``, ``drop``, ``dead-letters`` and ``records``. Reading
does not lease. A dead-letter endpoint takes the name of the queue or that of its dead-letter queue.

``records`` returns a page of messages as record frames, with byte-exact payloads, for pipelines that read many. In a
frame, the topic is the queue, the key is the message id, and the sequence is its number in the store. The headers are
the message's state and the members of its envelope, all as text. The header ``X-MQ-Cursor`` has the cursor of the next
page; it is empty at the end."""

from collections.abc import Iterable
from typing import Any

from yirangmq.broker.dead_letters import KINDS
from yirangmq.broker.message_moves import BACKLOG, MAX_MOVED
from yirangmq.core.errors import NotFound, PayloadDamaged
from yirangmq.core.topics import NewRecord
from yirangmq.format import cloudevents
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import digest_problem, header_of
from yirangmq.format.json_codec import dumps
from yirangmq.protocols.http.responses import ATTACHMENT, SANDBOX
from yirangmq.protocols.http.v1 import rendering
from yirangmq.protocols.http.v1.consume import answer_results
from yirangmq.protocols.http.v1.endpoint import (
    BOOLEAN,
    CURSOR,
    EVENT_TYPE,
    FILTER,
    LIMIT,
    MESSAGE_ID,
    STATE,
    Endpoint,
    EndpointCall,
    EndpointHandler,
    Field,
    choice,
    many,
    wants_cloudevents,
    whole,
)
from yirangmq.protocols.http.v1.schemas import FLAG, MESSAGE, TEXT, items, ref, struct
from yirangmq.wire.messages import error_of
from yirangmq.wire.records import encode_batch

# -- messages ----------------------------------------------------------------------------------------------------------


def list_messages(call: EndpointCall) -> None:
    """Return a page of messages. Without a filter it is read in one commit; with one, a paged search runs."""
    values = call.values()
    method = "search" if values["filter"] else "peek"
    if method == "peek":
        del values["filter"]
    call.call(method, values, lambda page: answer_page(call, page))


def answer_page(call: EndpointCall, page: Any) -> None:
    found, cursor = rendering.decode_views(page)
    call.respond(rendering.listing(call.path["queue"], found, cursor))


def show_message(call: EndpointCall) -> None:
    call.call("show", call.values(), lambda page: _answer_one(call, page))


def _answer_one(call: EndpointCall, page: Any) -> None:
    view = single_view(page)
    if view.envelope is not None and wants_cloudevents(call.request):
        call.respond(cloudevents.as_json(view.envelope), (("content-type", EVENT_TYPE),))
    else:
        call.respond(rendering.encode_with_history(view))


def single_view(page: Any) -> MessageView:
    [view], _ = rendering.decode_views(page)
    return view


def show_payload(call: EndpointCall) -> None:
    def reply(page: Any) -> None:
        sent = single_view(page).envelope
        if sent is None:
            raise NotFound("only the id of this message is still known", field="id")
        wrong = digest_problem(sent)
        if wrong:
            raise PayloadDamaged(f"message {sent.id} is not delivered: {wrong}")
        kind = cloudevents.content_type(sent) or "application/octet-stream"
        call.respond(sent.payload, (("content-type", kind), *SANDBOX, *ATTACHMENT))

    call.call("show", call.values(), reply)


def drop_message(call: EndpointCall) -> None:
    values = call.values()

    def reply(errors: list[list[str] | None]) -> None:
        if errors[0] is not None:
            raise error_of(*errors[0])
        call.reply({"queue": values["queue"], "messageId": values["id"], "dropped": True})

    call.call("drop", {"queue": values["queue"], "ids": [values["id"]]}, reply)


def drop_many(call: EndpointCall) -> None:
    values = call.values()

    def reply(errors: list[list[str] | None]) -> None:
        answer_results(call, "messageId", values["ids"], [None if one is None else error_of(*one) for one in errors])

    call.call("drop", values, reply)


ALL = "/v1/queues/{queue}/messages"
ONE = f"{ALL}/{{id}}"
PAGE = (STATE, FILTER, LIMIT, CURSOR)
STORY = {**MESSAGE, "properties": {**MESSAGE["properties"], "history": items(ref("Step"))}}
IDS = Field("ids", many(MESSAGE_ID), "ids of the messages", needed=True)

ENDPOINTS = (
    Endpoint("GET", ALL, "List messages in a state, without leasing them", list_messages, "messages", "look",
             ref("Page"),
             query=PAGE, refusals=("bad_filter",)),
    Endpoint("POST", "/v1/queues/{queue}/search", "List messages in a state, with the parameters in a body",
             list_messages, "messages", "look",
             ref("Page"), body=PAGE, refusals=("bad_filter",)),
    Endpoint("GET", ONE, "Show a message and its history", show_message, "messages", "look", STORY,
             refusals=("not_found",), more={EVENT_TYPE: {"type": "object"}}),
    Endpoint("GET", f"{ONE}/payload", "Get the payload, exactly as published", show_payload, "messages", "look",
             {}, refusals=("not_found", "payload_damaged"), media="*/*"),
    Endpoint("DELETE", ONE, "Drop a message, in any state", drop_message, "messages", "admin",
             struct(queue=TEXT, messageId=TEXT, dropped=FLAG), refusals=("not_found", "wrong_state")),
    Endpoint("POST", "/v1/queues/{queue}/drop", "Drop messages", drop_many, "messages", "admin", ref("Results"),
             body=(IDS,), refusals=("not_found", "wrong_state")),
)  # fmt: skip


# -- dead letters and the backlog --------------------------------------------------------------------------------------


def find(call: EndpointCall) -> None:
    call.call("dlq_find", call.values(), lambda page: answer_page(call, page))


def show(call: EndpointCall) -> None:
    call.call("dlq_show", call.values(), lambda page: call.respond(rendering.encode_with_history(single_view(page))))


def stats(call: EndpointCall) -> None:
    call.call("dlq_stats", call.values(), call.reply)


def _move_handler(method: str) -> EndpointHandler:
    def handler(call: EndpointCall) -> None:
        values = call.values()

        def reply(moved: dict[str, Any]) -> None:
            call.reply({"queue": values["queue"], **moved, "dryRun": values["dry_run"]})

        call.call(method, values, reply)

    return handler


DEAD_LETTERS = "/v1/queues/{queue}/dead-letters"
DEAD_LETTER_STATE = Field("state", choice(*KINDS), "dead messages, parked messages, or both", "dead")
HOW = (
    FILTER,
    Field("all", BOOLEAN, "all messages; required if neither a filter nor ids select them", False),
    Field("limit", whole(1, MAX_MOVED), "maximum number, oldest first"),
    Field("dryRun", BOOLEAN, "report the result without a change", False, key="dry_run"),
)
WHICH = (
    *HOW,
    Field("ids", many(MESSAGE_ID), "ids, in any state; if one is not a dead letter, nothing is changed"),
)
BACKLOG_STATE = Field("state", choice(*BACKLOG), "state of the messages; backlog is all three", "backlog")
REFUSALS = ("bad_filter", "not_found", "wrong_state")

DEAD_LETTER_ENDPOINTS = (
    Endpoint("GET", DEAD_LETTERS, "List dead letters, those of each queue oldest first", find, "dead letters", "look",
             ref("Page"), query=(FILTER, DEAD_LETTER_STATE, LIMIT, CURSOR), refusals=("bad_filter",)),
    Endpoint("GET", f"{DEAD_LETTERS}/stats", "Count dead letters by reason and by day", stats, "dead letters",
             "look", ref("Stats")),
    Endpoint("GET", "/v1/dead-letters/stats", "Count dead letters of all queues by reason and by day", stats,
             "dead letters", "look", ref("Stats")),
    Endpoint("GET", f"{DEAD_LETTERS}/{{id}}", "Show a dead letter and its history", show, "dead letters", "look", STORY,
             refusals=("not_found", "wrong_state")),
    Endpoint("POST", f"{DEAD_LETTERS}/redrive", "Redrive dead letters, oldest first; attempts are reset",
             _move_handler("dlq_requeue"), "dead letters", "operate", ref("Moved"), body=(*WHICH, DEAD_LETTER_STATE),
             refusals=REFUSALS),
    Endpoint("POST", f"{DEAD_LETTERS}/quarantine",
             "Park dead letters: they are kept until an operator redrives or drops them",
             _move_handler("dlq_quarantine"), "dead letters",
             "operate", ref("Moved"), body=WHICH, refusals=REFUSALS),
    Endpoint("POST", f"{DEAD_LETTERS}/purge",
             "Drop dead letters", _move_handler("dlq_purge"), "dead letters", "admin", ref("Moved"),
             body=(*WHICH, DEAD_LETTER_STATE), refusals=REFUSALS),
    Endpoint("POST", "/v1/queues/{queue}/purge", "Drop the ready, delayed and held messages",
             _move_handler("queue_purge"), "messages", "admin", ref("Moved"), body=(*HOW, BACKLOG_STATE),
             refusals=("bad_filter", "not_found")),
)  # fmt: skip


# -- record frames -----------------------------------------------------------------------------------------------------

TYPE = "application/vnd.yirangmq.records"
CURSOR_HEADER = "x-mq-cursor"


def list_records(call: EndpointCall) -> None:
    values = call.values()
    method = "search" if values["filter"] else "peek"
    if method == "peek":
        del values["filter"]
    call.call(method, values, lambda page: _answer(call, page))


def _answer(call: EndpointCall, page: Any) -> None:
    found, cursor = rendering.decode_views(page)
    call.respond(frames(found), (("content-type", TYPE), (CURSOR_HEADER, cursor)))


def frames(found: Iterable[MessageView]) -> bytes:
    """Return concatenated record frames; the sequence of a frame is the number of its message."""
    parts = []
    for view in found:
        record = NewRecord(view.message.queue, _payload(view), view.message.id, headers_of(view))
        at_ns = view.message.changed_at * 1_000_000
        parts.append(encode_batch([record], view.message.seq, at_ns, {}, synced=False).data)
    return b"".join(parts)


def _payload(view: MessageView) -> bytes:
    return b"" if view.envelope is None else view.envelope.payload


def headers_of(view: MessageView) -> dict[str, str]:
    """Return the headers of a record frame. Empty values are left out. A value that is not text becomes JSON."""
    members: dict[str, Any] = {name: value for name, value in view.row().items() if name not in ("messageId", "queue")}
    if view.envelope is not None:
        members["enqueuedAt"] = view.envelope.published_at
        members |= {
            name: value for name, value in header_of(view.envelope).items() if name not in ("messageId", "queue")
        }
        members["isJson"] = view.envelope.is_json
    if view.failure is not None:
        members["reasonMessage"] = view.failure.reason_message
        members["failedAt"] = view.failure.failed_at
    return {
        name: value if isinstance(value, str) else dumps(value).decode()
        for name, value in members.items()
        if value is not None and value != ""
    }


RECORD_ENDPOINTS = (
    Endpoint("GET", "/v1/queues/{queue}/records", "List messages in a state as record frames, without leasing them",
             list_records, "messages", "look", {"type": "string", "format": "binary"}, query=PAGE,
             refusals=("bad_filter",), media=TYPE),
)  # fmt: skip
