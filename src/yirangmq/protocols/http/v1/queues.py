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
from yirangmq.core.events import DeliveryStatus
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
    BodyContent,
    Endpoint,
    EndpointCall,
    Field,
    choice,
    text,
    whole,
)
from yirangmq.protocols.http.v1.publish import BODY, DOCUMENT_AS, HEADERS, BodyParser
from yirangmq.protocols.http.v1.schemas import COUNT, FLAG, INSTANT, NUMBER, TEXT, items, ref, some, struct, table

# -- queues ------------------------------------------------------------------------------------------------------------


def all_queues(call: EndpointCall) -> None:
    call.call(
        "status",
        call.listing(),
        lambda status: call.reply({name: status[name] for name in ("queues", "cursor", "all")}),
    )


def one_queue(call: EndpointCall) -> None:
    def reply(status: dict[str, Any]) -> None:
        [row] = status["queues"]
        if not row["exists"]:
            raise NotFound(f"there is no queue {row['queue']!r}", field="queue")
        counts = call.context.committer.read(lambda transaction: transaction.counts(row["queue"]))
        call.reply({**row, "counts": counts._asdict()})

    call.call("status", call.values(), reply)


def delete_queue(call: EndpointCall) -> None:
    queue = call.path["queue"]
    call.call("delete_queue", call.values(), lambda gone: call.reply({"queue": queue, "deleted": gone}))


# -- policies -------------------------------------------------------------------------------------------------------


def show_policy(call: EndpointCall) -> None:
    given = call.values()
    call.submit(lambda transaction: _in_force(transaction, given), call.reply)


def _in_force(transaction: Transaction, given: dict[str, Any]) -> dict[str, Any]:
    stored = queue_reads.policy_text(transaction, given)
    return {
        "queue": given["queue"],
        "policy": queue_reads.policy(transaction, given),
        "set": None if stored is None else loads(stored.encode()),
    }


def put_policy(call: EndpointCall) -> None:
    _set(call, _policy(call))


def reset_policy(call: EndpointCall) -> None:
    _set(call, None)


def _set(call: EndpointCall, document: object) -> None:
    queue = call.values()["queue"]
    call.call(
        "set_policy",
        {"queue": queue, "document": document},
        lambda full: call.reply({"queue": queue, "policy": full, "set": document}),
    )


def check_policy(call: EndpointCall) -> None:
    queue, document = call.values()["queue"], _policy(call)
    call.call(
        "check_policy",
        {"queue": queue, "document": document},
        lambda full: call.reply({"queue": queue, "policy": full, "set": document}),
    )


def _policy(call: EndpointCall) -> object:
    """Return the policy document of the body. Refuse null, which would restore the defaults as DELETE does."""
    document = call.document()
    if document is None:
        raise BadInput("must be a policy, not null", field="body")
    return document


def _pause_handler(method: str, paused: bool) -> Any:
    def handler(call: EndpointCall) -> None:
        queue = call.path["queue"]
        call.call(
            method, call.values(), lambda changed: call.reply({"queue": queue, "paused": paused, "changed": changed})
        )

    return handler


POLICY = BodyContent({"application/json": ref("Policy")}, "a policy; members that are absent have their defaults")
ONE = "/v1/queues/{queue}"
PAUSED = struct(queue=TEXT, paused=FLAG, changed=FLAG)
IN_FORCE = ref("PolicyInForce")

LISTED = (
    Field("limit", whole(1, PAGE), "maximum number", PAGE),
    CURSOR,
    Field("prefix", text(200), "only queues whose names start with this", ""),
    Field("find", text(200), "only queues whose names contain this; case-insensitive", ""),
    Field(
        "sort",
        choice(*SORTS, *(f"-{name}" for name in SORTS[1:])),
        "order: by name or by a count; with - the largest first. A cursor is valid for the order of its page",
        SORTS[0],
    ),
)
ALL_QUEUES = struct(queues=COUNT, backlog=COUNT, totals=table(COUNT), **dict.fromkeys(STATES, COUNT))
QUEUES_PAGE = struct(queues=items(ref("Queue")), cursor=TEXT, all=ALL_QUEUES)

ENDPOINTS = (
    Endpoint("GET", "/v1/queues", "List queues with their counts and rates, in pages", all_queues, "queues", "list",
             QUEUES_PAGE, query=LISTED, is_filtered=True),
    Endpoint("GET", ONE, "Show a queue", one_queue, "queues", "list", ref("Queue"), refusals=("not_found",)),
    Endpoint("DELETE", ONE, "Delete a queue, all its messages and its policy", delete_queue, "queues", "admin",
             struct(queue=TEXT, deleted=COUNT)),
    Endpoint("GET", f"{ONE}/policy", "Show the policy of a queue, with all defaults, and as it was set", show_policy,
             "policies", "look", IN_FORCE),
    Endpoint("PUT", f"{ONE}/policy", "Set the policy of a queue", put_policy, "policies", "admin", IN_FORCE,
             content=POLICY, refusals=("bad_policy", "missing_extra")),
    Endpoint("DELETE", f"{ONE}/policy", "Reset the policy of a queue to the defaults", reset_policy, "policies",
             "admin", IN_FORCE),
    Endpoint("POST", f"{ONE}/policy/check", "Check a policy without setting it", check_policy,
             "policies", "admin", IN_FORCE, content=POLICY, refusals=("bad_policy", "missing_extra")),
    Endpoint("POST", f"{ONE}/pause", "Pause a queue: no delivery until it is resumed; publishing continues",
             _pause_handler("queue_pause", True), "queues", "operate", PAUSED, refusals=("not_found",)),
    Endpoint("POST", f"{ONE}/resume", "Resume a paused queue", _pause_handler("queue_resume", False), "queues",
             "operate",
             PAUSED, refusals=("not_found",)),
)  # fmt: skip


# -- dispatch ----------------------------------------------------------------------------------------------------------


def show_dispatch(call: EndpointCall) -> None:
    call.call("dispatch", call.values(), call.reply)


def update_dispatch(call: EndpointCall) -> None:
    call.call("dispatch_set", {"queue": call.path["queue"], "members": call.document()}, call.reply)


def _register_handler(method: str, registered: bool) -> Any:
    def handler(call: EndpointCall) -> None:
        queue, consumer = call.path["queue"], call.path["id"]
        about = {"queue": queue, "consumerId": consumer, "registered": registered}
        call.call(
            method, {"queue": queue, "consumer": consumer}, lambda changed: call.reply({**about, "changed": changed})
        )

    return handler


def deliveries(call: EndpointCall) -> None:
    given = {name: value for name, value in call.values().items() if value is not None}
    may_see = call.may_see()
    call.call(
        "deliveries",
        given,
        lambda rows: call.reply({"deliveries": [_row(row) for row in rows if may_see(row["queue"])]}),
    )


def programs(call: EndpointCall) -> None:
    call.call("programs", call.values(), call.reply)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "begunAt": iso(row["begunAt"]), "endedAt": None if row["endedAt"] is None else iso(row["endedAt"])}


ONE_DISPATCH = "/v1/queues/{queue}/dispatch"
STRATEGIES = choice(*Strategy, "none").schema
DISPATCH = struct(
    queue=TEXT,
    strategy=some(TEXT),
    weights=table(COUNT),
    key=some(TEXT),
    graceSec=NUMBER,
    outcomes=some(TEXT),
    consumers=items(
        struct(consumerId=TEXT, registered=FLAG, here=FLAG, awaySec=some(NUMBER), inFlight=COUNT, weight=COUNT)
    ),
    deliveries=table(COUNT),
    inFlight=COUNT,
)
MEMBERS = BodyContent(
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
    "members of the policy's dispatch (docs/policy.md); absent members do not change",
)
REGISTERED = struct(queue=TEXT, consumerId=TEXT, registered=FLAG, changed=FLAG)
DELIVERY = struct(
    queue=TEXT,
    messageId=TEXT,
    leaseId=TEXT,
    consumerId=TEXT,
    attempt=COUNT,
    status=choice(*DeliveryStatus).schema,
    begunAt=INSTANT,
    endedAt=some(INSTANT),
    reason=some(TEXT),
    text=some(TEXT),
    became=TEXT,
)
PROGRAM = struct(name=TEXT, addresses=items(TEXT), hasToken=FLAG, queues=items(TEXT), sendsTo=items(TEXT))
REFUSED = struct(
    counts=items(struct(door=TEXT, reason=TEXT, count=COUNT)),
    latest=items(struct(at=INSTANT, door=TEXT, address=TEXT, program=some(TEXT), reason=TEXT, text=TEXT, count=COUNT)),
)
WHICH = (
    Field("queue", QUEUE_NAME, "only of this queue"),
    Field("id", MESSAGE_ID, "only of this message"),
    Field("consumer", CONSUMER_ID, "only to this consumer"),
    Field("status", choice(*DeliveryStatus), "only with this status"),
    LIMIT,
)

DISPATCH_ENDPOINTS = (
    Endpoint("GET", ONE_DISPATCH, "Show the dispatch strategy of a queue and its consumers", show_dispatch, "consumers",
             "look", DISPATCH),
    Endpoint("PATCH", ONE_DISPATCH, "Change the dispatch strategy of a queue; consumers may stay connected",
             update_dispatch,
             "consumers", "admin", DISPATCH, content=MEMBERS, refusals=("bad_policy",)),
    Endpoint("PUT", f"{ONE_DISPATCH}/consumers/{{id}}",
             "Register a consumer: it is a member of the queue also while it is absent",
             _register_handler("dispatch_register", True), "consumers", "operate", REGISTERED, path_kinds=(CONSUMER,),
             refusals=("not_found",)),
    Endpoint("DELETE", f"{ONE_DISPATCH}/consumers/{{id}}", "Deregister a consumer",
             _register_handler("dispatch_deregister", False), "consumers", "operate", REGISTERED,
             path_kinds=(CONSUMER,), refusals=("not_found",)),
    Endpoint("GET", "/v1/deliveries",
             "List the latest deliveries of queues with a strategy, newest first", deliveries, "consumers", "look",
             struct(deliveries=items(DELIVERY)), query=WHICH, is_filtered=True),
    Endpoint("GET", "/v1/programs",
             "List the programs with their routes, and the latest refusals", programs, "server", "admin",
             struct(programs=items(PROGRAM), refused=REFUSED)), )  # fmt: skip


# -- admission checks --------------------------------------------------------------------------------------------------

ROW = struct(**{"queue": TEXT, "from": TEXT, "processor": {"type": "object", "description": "docs/processor.md"}})
TRIED = struct(
    ("code", "error", "field"),
    ok=FLAG, bytes=COUNT, sha256=TEXT, produces=items(struct(queue=TEXT, hook=TEXT)), code=TEXT, error=TEXT,
    field=some(TEXT),
)  # fmt: skip
MESSAGES = BodyContent(
    {**BODY.types, "application/json": {"description": "an envelope, a bare payload, or an array of them"}},
    "messages to check",
)
SOME_QUEUE = Field("queue", QUEUE_NAME, "only of this queue")


def processors(call: EndpointCall) -> None:
    may_see = call.may_see()
    call.call(
        "processors",
        call.values(),
        lambda rows: call.reply(
            {"processors": [row for row in rows if row["queue"] == EVERY or may_see(row["queue"])]}
        ),
    )


def check(call: EndpointCall) -> None:
    context, queue = call.context, call.path["queue"]
    read_as = call.query().get("read_as") if call.request.query else None
    envelopes = BodyParser(queue, context.clock.now_ms(), context.ids, 0, None, read_as).envelopes(call.request)
    queue_methods.check_admission(context.committer, queue, envelopes, call.done_callback(call.reply))


def endpoints(max_body: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint("GET", "/v1/processors", "List queues with checks or hooks", processors, "policies",
                 "look", struct(processors=items(ROW)), query=(SOME_QUEUE,), is_filtered=True),
        Endpoint("POST", "/v1/queues/{queue}/check", "Check whether messages would be stored, without storing them",
                 check, "messages",
                 "publish", struct(queue=TEXT, processor=FLAG, refused=COUNT, messages=items(TRIED)),
                 query=(DOCUMENT_AS,), content=MESSAGES, headers=HEADERS, max_body=max_body,
                 refusals=("hook_failed",)),
    )  # fmt: skip
