"""The server's own endpoints, paths that lead nowhere, and who may come in."""

import re

import pytest

from tests.support.http_api import Web
from yirangmq.core.access import ANYWHERE
from yirangmq.core.errors import NotAllowed, every_error
from yirangmq.protocols.http.types import Request
from yirangmq.protocols.http.v1.rendering import STATUS_OF

CARD = {"host": "h", "pid": 1, "queues": ["mail"], "startedAt": 1_768_296_060_000, "state": "running", "inWork": 2}


def test_error_codes_all_have_a_status() -> None:
    assert set(STATUS_OF) == {error.code for error in every_error()}


def test_status_health_connections_and_schedules_are_reported(web: Web) -> None:
    web.good("POST", "/v1/queues/mail/messages", 1)
    status = web.good("GET", "/v1/status")
    assert (status["node"], [row["queue"] for row in status["queues"]]) == ("here", ["mail"])
    assert web.good("GET", "/v1/status?queue=other")["queues"][0]["exists"] is False
    assert web.good("GET", "/v1/health") == {"status": "ok", "reasons": []}
    assert web.good("GET", "/v1/connections") == {"connections": []}
    schedule = {"name": "nightly", "cron": "30 2 * * *", "message": {"kind": "daily"}}
    web.good("PUT", "/v1/queues/mail/policy", {"schedules": [schedule]})
    [row] = web.good("GET", "/v1/schedules")["schedules"]
    assert (row["queue"], row["name"], row["nextAt"]) == ("mail", "nightly", "2026-01-14T02:30:00.000+00:00")
    assert web.good("GET", "/v1/schedules?queue=other") == {"schedules": []}


def test_sweeper_runs_on_request_and_returns_the_number_of_changes(web: Web) -> None:
    web.good("POST", "/v1/queues/mail/messages?delaySec=1", [1, 2])
    web.server.clock.advance(1_000)
    assert web.good("POST", "/v1/sweep") == {"changed": 2}


def test_consumer_reports_are_shown_and_answered_with_pause_resume_and_drain_requests(web: Web) -> None:
    assert web.good("PUT", "/v1/consumers/worker-1", CARD) == {"wish": None}
    [card] = web.good("GET", "/v1/consumers")["consumers"]
    assert card == web.good("GET", "/v1/consumers/worker-1")
    assert (card["state"], card["inWork"], card["startedAt"]) == ("running", 2, "2026-01-13T09:21:00.000+00:00")
    assert web.good("POST", "/v1/consumers/worker-1/pause")["wish"] == "pause"
    assert web.good("PUT", "/v1/consumers/worker-1", CARD) == {"wish": "pause"}
    assert web.good("PUT", "/v1/consumers/worker-1", CARD | {"state": "paused"}) == {"wish": None}
    for wish in ("resume", "drain"):
        assert web.good("POST", f"/v1/consumers/worker-1/{wish}")["wish"] == wish
    assert web.refused("GET", "/v1/consumers/worker-2")[:2] == (404, "not_found")
    assert web.refused("POST", "/v1/consumers/worker-2/pause")[:2] == (404, "not_found")
    assert web.refused("PUT", "/v1/consumers/worker-2", [1]) == (400, "bad_input", "body")
    assert web.refused("PUT", "/v1/consumers/worker-2", {"pid": "x"}) == (400, "bad_input", "pid")


def test_consumer_report_with_a_far_future_start_time_is_shown(web: Web) -> None:
    web.good("PUT", "/v1/consumers/worker-1", CARD | {"startedAt": 2**53})
    assert web.good("GET", "/v1/consumers/worker-1")["startedAt"].startswith("9999-12-31")


# -- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/nothing", "/v1/queues/", "/v1/queues/mail/nothing", "/v1/queues//policy", "/v1/queues/a/b/c"],
)
def test_unknown_path_is_answered_404(web: Web, path: str) -> None:
    assert web.refused("GET", path) == (404, "not_found", "path")


def test_method_not_allowed_is_answered_405_with_the_allowed_methods(web: Web) -> None:
    assert web.refused("POST", "/v1/queues/mail/policy") == (405, "bad_input", "method")
    assert web.ask("POST", "/v1/queues/mail/policy").headers["allow"] == "DELETE, GET, PUT"
    line = web.ask("OPTIONS", "/v1/queues")
    assert (line.status, line.headers["allow"]) == (204, "GET")


def test_head_request_is_answered_where_there_is_a_get(web: Web) -> None:
    assert web.ask("HEAD", "/v1/queues").status == 200
    assert web.refused("HEAD", "/v1/queues/mail/lease") == (405, "bad_input", "method")


def test_head_request_changes_nothing_on_every_get_route(web: Web) -> None:
    """Wherever there is a GET, of whatever it speaks; and nobody follows or waits because of it."""

    def state() -> tuple[object, ...]:
        queues, counts = web.server.desk.read(lambda transaction: (transaction.queues(), transaction.counts("mail")))
        return queues, counts, web.api.open_streams, web.api.waiting

    web.good("POST", "/v1/queues/mail/messages", [1, 2])
    [taken] = web.good("POST", "/v1/queues/mail/lease", {})["messages"]
    before, id = state(), taken["message"]["messageId"]
    paths = [one.path for one in web.api.table.endpoints if one.method == "GET"]
    assert len(paths) > 20
    for path in paths:
        asked = path.replace("{queue}", "mail").replace("{id}", id)
        asked = re.sub(r"{\w+}", "other", asked)
        line = web.ask("HEAD", asked)
        assert line.status < 500 or line.document["error"]["code"] == "unavailable", (asked, line.body)
        line.leave()
    assert state() == before


# -- who may --------------------------------------------------------------------------------------------------------


def test_guard_checks_the_scope_and_the_decoded_queue_name_of_each_request() -> None:
    seen: list[tuple[str, str | None]] = []

    def guard(request: Request, scope: str, queue: str | None) -> None:
        seen.append((scope, queue))
        if queue == "secret":
            raise NotAllowed("not this one")

    web = Web(guard=guard)
    web.good("POST", "/v1/queues/mail/messages", 1)
    web.good("POST", "/v1/queues/mail/lease")
    web.good("GET", "/v1/queues")
    assert seen == [("publish", "mail"), ("consume", "mail"), ("list", ANYWHERE), ("list", ANYWHERE)]
    assert web.refused("POST", "/v1/queues/secret/messages", 1) == (403, "not_allowed", None)
    assert web.refused("POST", "/v1/queues/s%65cret/messages", 1) == (403, "not_allowed", None)
