"""Dead letters: found, counted, sent round again, set aside, given up. Either name of their queue will do."""

from typing import Any

from yirangmq.broker.dead_letters import KINDS
from yirangmq.core.errors import BadInput
from yirangmq.doors.http.v1 import shapes
from yirangmq.doors.http.v1.endpoint import Act, Ask, Endpoint
from yirangmq.doors.http.v1.fields import BOOLEAN, CURSOR, FILTER, LIMIT, MESSAGE_ID, Field, choice, many, whole
from yirangmq.doors.http.v1.messages import STORY, answer_page, one_look
from yirangmq.doors.http.v1.schemas import ref


def find(ask: Ask) -> None:
    ask.call("dlq_find", ask.values(), lambda page: answer_page(ask, page))


def show(ask: Ask) -> None:
    ask.call("dlq_show", ask.values(), lambda page: ask.respond(shapes.story(one_look(page))))


def stats(ask: Ask) -> None:
    ask.call("dlq_stats", ask.values(), ask.reply)


def _moving(method: str) -> Act:
    def act(ask: Ask) -> None:
        values = ask.values()
        _check_choice(values)

        def reply(moved: dict[str, Any]) -> None:
            ask.reply({"queue": values["queue"], **moved, "dryRun": values["dry_run"]})

        ask.call(method, values, reply)

    return act


def _check_choice(values: dict[str, Any]) -> None:
    """A forgotten filter must not move everything."""
    wants_all = values.pop("all")
    if wants_all and (values["filter"] or "ids" in values):
        raise BadInput("together with filter or ids; give one of them", field="all")
    if not (wants_all or values["filter"] or "ids" in values):
        raise BadInput('say which ones: filter, ids, or "all": true', field="filter")


DEAD_LETTERS = "/v1/queues/{queue}/dead-letters"
DEAD_LETTER_STATE = Field("state", choice(*KINDS), "the dead ones, those set aside (parked), or all", "dead")
WHICH = (
    FILTER,
    Field("ids", many(MESSAGE_ID), "these, whatever their state; all must be dead letters, or nothing moves"),
    Field("all", BOOLEAN, "all of them", False),
    Field("limit", whole(1, 10**9), "at most so many, the oldest first"),
    Field("dryRun", BOOLEAN, "say what would happen and change nothing", False, key="dry_run"),
)
REFUSALS = ("bad_filter", "not_found", "wrong_state")

DEAD_LETTER_ENDPOINTS = (
    Endpoint("GET", DEAD_LETTERS, "Dead letters, those of each queue oldest first", find, "dead letters", "look",
             ref("Page"), query=(FILTER, DEAD_LETTER_STATE, LIMIT, CURSOR), refusals=("bad_filter",)),
    Endpoint("GET", f"{DEAD_LETTERS}/stats", "How many, why, and how they grew by the day", stats, "dead letters",
             "look", ref("Stats")),
    Endpoint("GET", f"{DEAD_LETTERS}/{{id}}", "One dead letter and its history", show, "dead letters", "look", STORY,
             refusals=("not_found", "wrong_state")),
    Endpoint("POST", f"{DEAD_LETTERS}/redrive", "Back in line, first arrived first, attempts reset",
             _moving("dlq_requeue"), "dead letters", "operate", ref("Moved"), body=(*WHICH, DEAD_LETTER_STATE),
             refusals=REFUSALS),
    Endpoint("POST", f"{DEAD_LETTERS}/quarantine",
             "Set aside: they stay for good and move only when named", _moving("dlq_quarantine"), "dead letters",
             "operate", ref("Moved"), body=WHICH, refusals=REFUSALS),
    Endpoint("POST", f"{DEAD_LETTERS}/purge",
             "Give up for good", _moving("dlq_purge"), "dead letters", "admin", ref("Moved"),
             body=(*WHICH, DEAD_LETTER_STATE), refusals=REFUSALS),
)  # fmt: skip
