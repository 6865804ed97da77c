"""Queues, policies, messages and dead letters, as an operator sees and steers them."""

from typing import Any

import pytest

from tests.support.http_api import Web

MESSAGES, DEAD = "/v1/queues/mail/messages", "/v1/queues/mail/dead-letters"


def bury(web: Web, count: int, reason: str = "REJECTED") -> list[str]:
    """So many messages published, taken and given up; their ids."""
    sent = web.good("POST", MESSAGES, [{"n": n} for n in range(count)])
    taken = web.good("POST", "/v1/queues/mail/lease", {"max": count})["messages"]
    leases = [one["lease"]["leaseId"] for one in taken]
    web.good("POST", "/v1/queues/mail/nack", {"leases": leases, "reason": reason, "text": "no such street"})
    return [one["messageId"] for one in sent["messages"]]


# -- queues and policies --------------------------------------------------------------------------------------------


def test_queue_list_counts_reported_and_waiting_consumers_once_and_not_silent_ones(web: Web) -> None:
    web.good("POST", MESSAGES, [1])
    assert web.good("GET", "/v1/queues/mail")["consumers"] == 0
    web.good("PUT", "/v1/consumers/worker-1", {"queues": ["mail", "other"], "state": "running"})
    web.good("PUT", "/v1/consumers/worker-2", {"queues": ["other"], "state": "running"})
    assert web.good("GET", "/v1/queues/mail")["consumers"] == 1
    web.good("POST", "/v1/queues/mail/lease", {})
    for consumer in ("worker-1", "poller", "poller"):
        web.ask("POST", "/v1/queues/mail/lease", {"waitSec": 30, "consumer": consumer})
    [row] = web.good("GET", "/v1/status")["queues"]
    assert row["consumers"] == 2
    web.server.clock.advance(10_001)
    assert web.good("GET", "/v1/queues/mail")["consumers"] == 2, "a silent consumer that waits still counts"
    web.server.turns.advance(30_000)
    assert web.good("GET", "/v1/queues/mail")["consumers"] == 0


def test_queue_list_has_counts_and_rates(web: Web) -> None:
    web.good("POST", MESSAGES, [1, 2])
    [row] = web.good("GET", "/v1/queues")["queues"]
    assert (row["queue"], row["ready"], row["totals"]["published"], row["rates"]["publishedPerSec"]) == (
        "mail",
        2,
        2,
        2,
    )
    assert web.good("GET", "/v1/queues/mail")["counts"]["ready"] == 2
    assert web.refused("GET", "/v1/queues/other") == (404, "not_found", "queue")


def test_queue_deletion_removes_its_messages_and_its_policy(web: Web) -> None:
    web.good("POST", MESSAGES, [1, 2])
    web.good("PUT", "/v1/queues/mail/policy", {"maxBytes": 9})
    assert web.good("DELETE", "/v1/queues/mail") == {"queue": "mail", "deleted": 2}
    assert web.good("GET", "/v1/queues")["queues"] == []
    assert web.good("GET", "/v1/queues/mail/policy")["set"] is None


def test_policy_is_set_shown_and_reset(web: Web) -> None:
    answer = web.good("PUT", "/v1/queues/mail/policy", {"retry": {"limit": 2}})
    assert answer == web.good("GET", "/v1/queues/mail/policy")
    assert (answer["set"], answer["policy"]["retry"]["limit"]) == ({"retry": {"limit": 2}}, 2)
    assert answer["policy"]["visibilityTimeoutSec"] == 30
    assert web.good("DELETE", "/v1/queues/mail/policy")["policy"]["retry"]["limit"] == 5
    assert web.good("GET", "/v1/queues/mail/policy")["set"] is None


def test_policy_check_validates_without_setting(web: Web) -> None:
    assert web.good("POST", "/v1/queues/mail/policy/check", {"ttlSec": 5})["policy"]["ttlSec"] == 5
    assert web.good("GET", "/v1/queues/mail/policy")["policy"]["ttlSec"] == 0
    for method, path in (("POST", "/v1/queues/mail/policy/check"), ("PUT", "/v1/queues/mail/policy")):
        assert web.refused(method, path, {"retry": {"limits": 3}}) == (400, "bad_policy", "retry.limits")
        assert web.refused(method, path, [1]) == (400, "bad_policy", "document")
        for body in (b"{", b"null", b""):
            assert web.refused(method, path, body) == (400, "bad_input", "body")


def test_pause_of_a_queue_stops_delivery_until_resume(web: Web) -> None:
    assert web.refused("POST", "/v1/queues/mail/pause") == (404, "not_found", "queue")
    web.good("POST", MESSAGES, 1)
    assert web.good("POST", "/v1/queues/mail/pause") == {"queue": "mail", "paused": True, "changed": True}
    assert not web.good("POST", "/v1/queues/mail/pause")["changed"]
    line = web.ask("POST", "/v1/queues/mail/lease", {"waitSec": 60})
    assert line.response is None
    web.good("POST", "/v1/queues/mail/resume")
    assert len(line.document["messages"]) == 1


# -- messages -------------------------------------------------------------------------------------------------------


def test_paging_of_messages_has_every_message_once_in_order(web: Web) -> None:
    web.good("POST", MESSAGES, list(range(25)))
    seen: list[Any] = []
    cursor = ""
    while True:
        page = web.good("GET", f"{MESSAGES}?limit=10&cursor={cursor}")
        seen += [one["message"]["payload"] for one in page["messages"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == list(range(25))


def test_filter_finds_the_same_messages_in_query_and_body(web: Web) -> None:
    web.good("POST", MESSAGES, [{"n": n} for n in range(10)])
    by_query = web.good("GET", f"{MESSAGES}?filter=payload.n%3E%3D8")
    by_body = web.good("POST", "/v1/queues/mail/search", {"filter": "payload.n>=8"})
    assert by_query == by_body
    assert [one["message"]["payload"]["n"] for one in by_body["messages"]] == [8, 9]
    assert web.refused("GET", f"{MESSAGES}?filter=atempt%3E3")[:2] == (400, "bad_filter")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=lost", "state"),
        ("limit=0", "limit"),
        ("limit=ten", "limit"),
        ("limit=1&limit=2", "query"),
        ("cursor=nonsense", "cursor"),
        ("order=up", "order"),
        ("&&", "query"),
        ("filter=%ff", "query"),
        ("limit=1_0", "limit"),
    ],
)
def test_query_parameter_invalid_is_rejected_by_name(web: Web, query: str, field: str) -> None:
    assert web.refused("GET", f"{MESSAGES}?{query}") == (400, "bad_input", field)


def test_message_is_shown_with_its_history_and_failure(web: Web) -> None:
    [id] = bury(web, 1)
    found = web.good("GET", f"{MESSAGES}/{id}")
    assert (found["state"], found["attempt"], found["reasonCode"]) == ("dead", 1, "REJECTED")
    assert found["failure"]["reasonMessage"] == "no such street"
    assert [step["what"] for step in found["history"]] == ["published", "failed", "dead"]
    assert found["message"]["payload"] == {"n": 0}
    assert web.refused("GET", f"{MESSAGES}/nobody") == (404, "not_found", None)


def test_drop_of_one_and_of_many_messages_with_unknown_ids_reported(web: Web) -> None:
    ids = [one["messageId"] for one in web.good("POST", MESSAGES, [1, 2, 3])["messages"]]
    assert web.good("DELETE", f"{MESSAGES}/{ids[0]}") == {"queue": "mail", "messageId": ids[0], "dropped": True}
    assert web.refused("DELETE", f"{MESSAGES}/nobody") == (404, "not_found", None)
    line = web.ask("POST", "/v1/queues/mail/drop", {"ids": [ids[1], "nobody", ids[2]]})
    assert (line.status, [one["ok"] for one in line.document["results"]]) == (404, [True, False, True])
    assert web.good("GET", MESSAGES)["messages"] == []


def test_purge_drops_the_backlog_after_a_dry_run(web: Web) -> None:
    ids = [one["messageId"] for one in web.good("POST", MESSAGES, [1, 2, 3])["messages"]]
    path = "/v1/queues/mail/purge"
    assert web.refused("POST", path, {}) == (400, "bad_input", "filter")
    assert web.refused("POST", path, {"all": True, "state": "dead"}) == (400, "bad_input", "state")
    assert web.refused("POST", "/v1/queues/nowhere/purge", {"all": True})[:2] == (404, "not_found")
    dry = web.good("POST", path, {"all": True, "limit": 2, "dryRun": True})
    assert dry == {"queue": "mail", "count": 2, "ids": ids[:2], "dryRun": True}
    assert len(web.good("GET", MESSAGES)["messages"]) == 3
    assert web.good("POST", path, {"all": True})["count"] == 3
    assert web.good("GET", MESSAGES)["messages"] == []


# -- dead letters ---------------------------------------------------------------------------------------------------


def test_dead_letter_is_found_under_either_queue_name(web: Web) -> None:
    ids = bury(web, 3)
    for path in (DEAD, "/v1/queues/mail-dlq/dead-letters"):
        page = web.good("GET", f"{path}?filter=payload.n%3E0")
        assert [one["messageId"] for one in page["messages"]] == ids[1:]
        assert web.good("GET", f"{path}/{ids[0]}")["failure"]["reasonMessage"] == "no such street"
    assert web.refused("GET", f"{DEAD}/nobody") == (404, "not_found", None)


def test_dead_letter_stats_count_by_reason_and_day(web: Web) -> None:
    bury(web, 2)
    bury(web, 1, "POISON")
    stats = web.good("GET", f"{DEAD}/stats")
    assert (stats["total"], stats["byReason"]) == (3, {"REJECTED": 2, "POISON": 1})
    assert [(day["day"], day["total"]) for day in stats["byDay"]] == [("2026-01-13", 3)]


def test_dead_letter_stats_of_all_queues_count_each_queue(web: Web) -> None:
    bury(web, 2)
    stats = web.good("GET", "/v1/dead-letters/stats")
    assert (stats["queue"], stats["total"]) == (None, 2)
    assert stats["byQueue"] == [{"queue": "mail", "total": 2, "parked": 0}]


@pytest.mark.parametrize(("verb", "after"), [("redrive", "ready"), ("quarantine", "parked"), ("purge", "dropped")])
def test_dead_letter_dry_run_moves_nothing_and_then_filter_ids_or_all_move_them(
    web: Web, verb: str, after: str
) -> None:
    ids = bury(web, 5)
    dry = web.good("POST", f"{DEAD}/{verb}", {"filter": "payload.n>=1", "limit": 3, "dryRun": True})
    assert dry == {"queue": "mail", "count": 3, "ids": ids[1:4], "dryRun": True}
    assert len(web.good("GET", DEAD)["messages"]) == 5
    assert web.good("POST", f"{DEAD}/{verb}", {"filter": "payload.n>=1", "limit": 3})["count"] == 3
    assert web.good("POST", f"{DEAD}/{verb}", {"ids": ids[:1]})["count"] == 1
    assert [one["messageId"] for one in web.good("GET", DEAD)["messages"]] == ids[4:]
    assert web.good("POST", f"{DEAD}/{verb}", {"all": True})["count"] == 1
    assert web.good("GET", f"{MESSAGES}/{ids[0]}")["state"] == after


def test_quarantine_messages_are_redriven_only_if_the_state_parked_is_named(web: Web) -> None:
    bury(web, 2)
    web.good("POST", f"{DEAD}/quarantine", {"all": True})
    assert web.good("POST", f"{DEAD}/redrive", {"all": True})["count"] == 0
    assert web.good("POST", f"{DEAD}/redrive", {"all": True, "state": "parked"})["count"] == 2


def test_dead_letter_move_without_a_valid_filter_is_rejected_and_moves_nothing(web: Web) -> None:
    bury(web, 1)
    for verb in ("redrive", "quarantine", "purge"):
        assert web.refused("POST", f"{DEAD}/{verb}") == (400, "bad_input", "filter")
        assert web.refused("POST", f"{DEAD}/{verb}", {"all": True, "filter": "attempt=1"}) == (400, "bad_input", "all")
        assert web.refused("POST", f"{DEAD}/{verb}", {"filter": "x="})[:2] == (400, "bad_filter")
        assert web.refused("POST", f"{DEAD}/{verb}", {"ids": ["nobody"]})[:2] == (404, "not_found")
    assert len(web.good("GET", DEAD)["messages"]) == 1
