"""Queues and their policies: ``/v1/queues``, ``/v1/queues/{queue}`` and what steers it."""

from typing import Any

from yirangmq.admin import queue_reads
from yirangmq.admin.queue_lists import PAGE, SORTS
from yirangmq.broker.queries import STATES
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.ports import Transaction
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import CURSOR, Field, choice, text, whole
from yirangmq.doors.http.v1.schemas import COUNT, FLAG, TEXT, items, ref, table, thing
from yirangmq.format.json_codec import loads


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
    """Not null, which would mean the defaults: that is what DELETE is for."""
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
