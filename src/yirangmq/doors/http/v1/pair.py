"""The pair, as this node of it knows it. ``/v1/pair`` and below."""

from yirangmq.core.errors import NotFound
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.fields import Field, whole
from yirangmq.doors.http.v1.schemas import COUNT, FLAG, INSTANT, NUMBER, TEXT, items, some, table, thing

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
