"""Bridges: topics that feed queues. ``/v1/bridges`` and below."""

from collections.abc import Callable

from yirangmq.core.bridges import BridgeState
from yirangmq.core.topic_filter import MOST_TOPICS
from yirangmq.core.topics import MOST_SEQUENCE, Start
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.fields import BOOLEAN, BRIDGE, QUEUE, Field, choice, many, text, whole
from yirangmq.doors.http.v1.log import topics_of
from yirangmq.doors.http.v1.schemas import COUNT, FLAG, TEXT, items, thing


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
