"""Endpoints of queues: counts and policies, pause, dispatch strategies and deliveries, admission checks.

They are below ``/v1/queues``, with ``/v1/deliveries``, ``/v1/programs`` and ``/v1/processors``. Lists leave out
queues that the client may not see. The check endpoint is a dry run: it reports whether messages would be stored, and
stores none."""

from typing import Any

from yirangmq.admin import queue_methods, queue_reads
from yirangmq.admin.queue_lists import PAGE, SORTS
from yirangmq.broker.queries import STATES
from yirangmq.core.dispatch import Strategy
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.events import Status
from yirangmq.core.ports import Transaction
from yirangmq.core.processor import EVERY
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import loads
from yirangmq.protocols.http.v1.endpoint import (
    CONSUMER,
    CONSUMER_ID,
    CURSOR,
    LIMIT,
    MESSAGE_ID,
    QUEUE_NAME,
    Ask,
    Content,
    Endpoint,
    Field,
    choice,
    text,
    whole,
)
from yirangmq.protocols.http.v1.publish import BODY, HEADERS, Intake
from yirangmq.protocols.http.v1.schemas import COUNT, FLAG, INSTANT, NUMBER, TEXT, items, ref, some, table, thing

# -- queues ------------------------------------------------------------------------------------------------------------


def all_queues(ask: Ask) -> None:
    ask.call(
        "status",
        ask.listing(),
        lambda status: ask.reply({name: status[name] for name in ("queues", "cursor", "all")}),
    )


def one_queue(ask: Ask) -> None:
    def reply(status: dict[str, Any]) -> None:
        [row] = status["queues"]
        if not row["exists"]:
            raise NotFound(f"there is no queue {row['queue']!r}", field="queue")
        counts = ask.house.desk.read(lambda transaction: transaction.counts(row["queue"]))
        ask.reply({**row, "counts": counts._asdict()})

    ask.call("status", ask.values(), reply)


def delete_queue(ask: Ask) -> None:
    queue = ask.path["queue"]
    ask.call("delete_queue", ask.values(), lambda gone: ask.reply({"queue": queue, "deleted": gone}))


# -- policies -------------------------------------------------------------------------------------------------------


def show_policy(ask: Ask) -> None:
    given = ask.values()
    ask.submit(lambda transaction: _in_force(transaction, given), ask.reply)


def _in_force(transaction: Transaction, given: dict[str, Any]) -> dict[str, Any]:
    stored = queue_reads.policy_text(transaction, given)
    return {
        "queue": given["queue"],
        "policy": queue_reads.policy(transaction, given),
        "set": None if stored is None else loads(stored.encode()),
    }


def put_policy(ask: Ask) -> None:
    _set(ask, _policy(ask))


def reset_policy(ask: Ask) -> None:
    _set(ask, None)


def _set(ask: Ask, document: object) -> None:
    queue = ask.values()["queue"]
    ask.call(
        "set_policy",
        {"queue": queue, "document": document},
        lambda full: ask.reply({"queue": queue, "policy": full, "set": document}),
    )


def check_policy(ask: Ask) -> None:
    queue, document = ask.values()["queue"], _policy(ask)
    ask.call(
        "check_policy",
        {"queue": queue, "document": document},
        lambda full: ask.reply({"queue": queue, "policy": full, "set": document}),
    )


def _policy(ask: Ask) -> object:
    """Return the policy document of the body. Refuse null, which would restore the defaults as DELETE does."""
    document = ask.document()
    if document is None:
        raise BadInput("must be a policy, not null", field="body")
    return document


def _pausing(method: str, paused: bool) -> Any:
    def act(ask: Ask) -> None:
        queue = ask.path["queue"]
        ask.call(
            method, ask.values(), lambda changed: ask.reply({"queue": queue, "paused": paused, "changed": changed})
        )

    return act


POLICY = Content({"application/json": ref("Policy")}, "a policy document; what it does not say is as by default")
ONE = "/v1/queues/{queue}"
PAUSED = thing(queue=TEXT, paused=FLAG, changed=FLAG)
IN_FORCE = ref("PolicyInForce")

LISTED = (
    Field("limit", whole(1, PAGE), "at most so many", PAGE),
    CURSOR,
    Field("prefix", text(200), "queues whose names begin so", ""),
    Field("find", text(200), "queues with this in their names, in letters of any case", ""),
    Field(
        "sort",
        choice(*SORTS, *(f"-{name}" for name in SORTS[1:])),
        "by name, or by a count, with - the largest first; a cursor goes with the order that it came from",
        SORTS[0],
    ),
)
ALL_QUEUES = thing(queues=COUNT, backlog=COUNT, totals=table(COUNT), **dict.fromkeys(STATES, COUNT))
QUEUES_PAGE = thing(queues=items(ref("Queue")), cursor=TEXT, all=ALL_QUEUES)

ENDPOINTS = (
    Endpoint("GET", "/v1/queues", "Queues with their counts and rates, a page at a time", all_queues, "queues", "list",
             QUEUES_PAGE, query=LISTED, is_filtered=True),
    Endpoint("GET", ONE, "One queue", one_queue, "queues", "list", ref("Queue"), refusals=("not_found",)),
    Endpoint("DELETE", ONE, "Delete a queue, all its messages and its policy", delete_queue, "queues", "admin",
             thing(queue=TEXT, deleted=COUNT)),
    Endpoint("GET", f"{ONE}/policy", "The policy in force, every member spelled out, and as it was set", show_policy,
             "policies", "look", IN_FORCE),
    Endpoint("PUT", f"{ONE}/policy", "Put a policy in force", put_policy, "policies", "admin", IN_FORCE,
             content=POLICY, refusals=("bad_policy", "missing_extra")),
    Endpoint("DELETE", f"{ONE}/policy", "Go back to the defaults", reset_policy, "policies", "admin", IN_FORCE),
    Endpoint("POST", f"{ONE}/policy/check", "What a policy would be, without putting it in force", check_policy,
             "policies", "admin", IN_FORCE, content=POLICY, refusals=("bad_policy", "missing_extra")),
    Endpoint("POST", f"{ONE}/pause", "Hand nothing out until it is resumed; publishing goes on",
             _pausing("queue_pause", True), "queues", "operate", PAUSED, refusals=("not_found",)),
    Endpoint("POST", f"{ONE}/resume", "Hand out again", _pausing("queue_resume", False), "queues", "operate", PAUSED,
             refusals=("not_found",)),
)  # fmt: skip


# -- dispatch ----------------------------------------------------------------------------------------------------------


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


# -- admission checks --------------------------------------------------------------------------------------------------

ROW = thing(**{"queue": TEXT, "from": TEXT, "processor": {"type": "object", "description": "docs/processor.md"}})
TRIED = thing(
    ("code", "error", "field"),
    ok=FLAG, bytes=COUNT, sha256=TEXT, produces=items(thing(queue=TEXT, hook=TEXT)), code=TEXT, error=TEXT,
    field=some(TEXT),
)  # fmt: skip
MESSAGES = Content(
    {**BODY.types, "application/json": {"description": "an envelope, a bare payload, or an array of them"}},
    "what would be published",
)
SOME_QUEUE = Field("queue", QUEUE_NAME, "of this queue only")


def processors(ask: Ask) -> None:
    sees = ask.sees()
    ask.call(
        "processors",
        ask.values(),
        lambda rows: ask.reply({"processors": [row for row in rows if row["queue"] == EVERY or sees(row["queue"])]}),
    )


def check(ask: Ask) -> None:
    house, queue = ask.house, ask.path["queue"]
    envelopes = Intake(queue, house.clock.now_ms(), house.ids, 0, None).envelopes(ask.request)
    queue_methods.try_out(house.desk, queue, envelopes, ask.told(ask.reply))


def endpoints(max_body: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint("GET", "/v1/processors", "Queues that demand something of messages, and what", processors, "policies",
                 "look", thing(processors=items(ROW)), query=(SOME_QUEUE,), is_filtered=True),
        Endpoint("POST", "/v1/queues/{queue}/check", "Would these messages be stored? Nothing is", check, "messages",
                 "publish", thing(queue=TEXT, processor=FLAG, refused=COUNT, messages=items(TRIED)), content=MESSAGES,
                 headers=HEADERS, max_body=max_body, refusals=("hook_failed",)),
    )  # fmt: skip
