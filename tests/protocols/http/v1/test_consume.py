"""Taking messages over the API: at once, waiting, leaving while waiting; and what is said of them afterwards."""

from typing import Any

import pytest

from tests.support.http_api import Web

MESSAGES, LEASE = "/v1/queues/mail/messages", "/v1/queues/mail/lease"


def taken(web: Web, **body: Any) -> list[str]:
    """The lease ids of what is there now."""
    return [one["lease"]["leaseId"] for one in web.good("POST", LEASE, {"max": 100, **body})["messages"]]


def counts(web: Web) -> dict[str, int]:
    found: dict[str, int] = web.good("GET", "/v1/queues/mail")["counts"]
    return {name: found[name] for name in ("ready", "delayed", "leased", "dead", "done")}


def test_lease_returns_messages_with_their_lease(web: Web) -> None:
    web.good("POST", MESSAGES, [{"n": 1}, {"n": 2}, {"n": 3}])
    answer = web.good("POST", LEASE, {"max": 2, "leaseSec": 5, "consumer": "worker-1"})
    assert [one["message"]["payload"]["n"] for one in answer["messages"]] == [1, 2]
    lease = answer["messages"][0]["lease"]
    assert (lease["consumerId"], lease["attempt"]) == ("worker-1", 1)
    assert lease["leaseUntil"] == "2026-01-13T09:21:05.000+00:00"
    assert "policy" not in answer


def test_lease_request_without_a_body_takes_one_message(web: Web) -> None:
    web.good("POST", MESSAGES, [1, 2])
    [only] = web.good("POST", LEASE)["messages"]
    assert (only["message"]["payload"], only["lease"]["consumerId"]) == (1, "http")


def test_lease_response_includes_the_policy_on_request(web: Web) -> None:
    web.good("POST", MESSAGES, 1)
    assert web.good("POST", LEASE, {"policy": True})["policy"]["visibilityTimeoutSec"] == 30


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max": 0}, "max"),
        ({"max": 10_001}, "max"),
        ({"max": True}, "max"),
        ({"waitSec": -1}, "waitSec"),
        ({"leaseSec": 0}, "leaseSec"),
        ({"consumer": ""}, "consumer"),
        ({"limit": 3}, "limit"),
        ([], "document"),
    ],
)
def test_lease_request_with_an_invalid_field_is_rejected_and_takes_nothing(web: Web, body: Any, field: str) -> None:
    web.good("POST", MESSAGES, 1)
    assert web.refused("POST", LEASE, body) == (400, "bad_input", field)
    assert counts(web)["ready"] == 1


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_lease_that_waits_gets_the_next_message_or_an_empty_answer_after_its_wait(web: Web) -> None:
    first = web.ask("POST", LEASE, {"waitSec": 30})
    second = web.ask("POST", LEASE, {"waitSec": 30})
    assert first.response is None
    assert web.api.waiting == 2
    web.good("POST", MESSAGES, ["a"])
    assert [one["message"]["payload"] for one in first.document["messages"]] == ["a"]
    assert second.response is None
    web.server.turns.advance(30_000)
    assert second.document["messages"] == []
    assert web.api.waiting == 0


def test_lease_of_a_client_that_disconnects_while_waiting_takes_nothing(web: Web) -> None:
    line = web.ask("POST", LEASE, {"waitSec": 30})
    line.leave()
    web.good("POST", MESSAGES, 1)
    assert counts(web)["ready"] == 1
    assert web.api.waiting == 0


def test_lease_of_a_client_that_disconnects_before_the_response_takes_nothing(web: Web) -> None:
    web.good("POST", MESSAGES, 1)
    for body in ({}, {"waitSec": 30}):
        line = web.send("POST", LEASE, body)
        line.is_disconnected = True
        web.server.turn()
        assert counts(web)["ready"] == 1
    [message] = web.good("GET", MESSAGES)["messages"]
    assert message["attempt"] == 0


def test_lease_that_waits_is_answered_empty_when_the_server_stops(web: Web) -> None:
    line = web.ask("POST", LEASE, {"waitSec": 30})
    web.api.stop()
    assert (line.status, line.document["messages"]) == (200, [])
    web.good("POST", MESSAGES, 1)
    assert counts(web)["ready"] == 1


# -- settling ---------------------------------------------------------------------------------------------------------


def test_ack_nack_extend_and_release_take_many_leases_at_a_time(web: Web) -> None:
    web.good("POST", MESSAGES, [1, 2, 3, 4, 5, 6])
    leases = taken(web)
    assert web.good("POST", "/v1/queues/mail/ack", {"leases": leases[:2]}) == {
        "failed": 0,
        "results": [{"leaseId": leases[0], "ok": True}, {"leaseId": leases[1], "ok": True}],
    }
    web.good("POST", "/v1/queues/mail/nack", {"leases": leases[2:3], "text": "not now", "delaySec": 9})
    web.good("POST", "/v1/queues/mail/nack", {"leases": leases[3:4], "reason": "REJECTED"})
    web.good("POST", "/v1/queues/mail/release", {"leases": leases[4:5]})
    web.good("POST", "/v1/queues/mail/extend", {"leases": leases[5:], "leaseSec": 99})
    assert counts(web) == {"ready": 1, "delayed": 1, "leased": 1, "dead": 1, "done": 2}
    [held] = web.good("GET", f"{MESSAGES}?state=leased")["messages"]
    assert held["dueAt"] == "2026-01-13T09:22:39.000+00:00"
    [late] = web.good("GET", f"{MESSAGES}?state=delayed")["messages"]
    assert (late["dueAt"][17:19], late["failure"]["reasonMessage"]) == ("09", "not now")


def test_ack_of_an_unknown_lease_sets_the_status_and_leaves_the_other_leases_unharmed(web: Web) -> None:
    web.good("POST", MESSAGES, [1, 2])
    leases = taken(web)
    line = web.ask("POST", "/v1/queues/mail/ack", {"leases": [leases[0], "999-1", leases[1]]})
    document = line.document
    assert line.status == 404
    assert document["error"]["code"] == "not_found"
    assert document["failed"] == 1
    assert [one["ok"] for one in document["results"]] == [True, False, True]
    assert document["results"][1]["error"]["code"] == "not_found"
    assert counts(web)["done"] == 2


def test_ack_of_an_expired_lease_is_answered_409(web: Web) -> None:
    web.good("POST", MESSAGES, 1)
    leases = taken(web, leaseSec=1)
    web.server.turns.advance(2_000)
    line = web.ask("POST", "/v1/queues/mail/ack", {"leases": leases})
    assert (line.status, line.document["results"][0]["error"]["code"]) == (409, "lease_expired")


def test_ack_repeated_succeeds(web: Web) -> None:
    web.good("POST", MESSAGES, 1)
    leases = taken(web)
    for _ in range(2):
        assert web.good("POST", "/v1/queues/mail/ack", {"leases": leases})["failed"] == 0


def test_lease_of_another_queue_is_answered_404_for_every_verb(web: Web) -> None:
    web.good("POST", MESSAGES, 1)
    leases = taken(web)
    for verb in ("ack", "nack", "extend", "release"):
        line = web.ask("POST", f"/v1/queues/other/{verb}", {"leases": leases})
        assert (line.status, line.document["results"][0]["error"]["code"]) == (404, "not_found")
    assert counts(web)["leased"] == 1


def test_ack_with_a_lease_of_another_named_consumer_is_rejected(web: Web) -> None:
    web.good("POST", MESSAGES, 1)
    leases = taken(web, consumer="ann")
    line = web.ask("POST", "/v1/queues/mail/ack", {"leases": leases, "consumer": "bob"})
    assert (line.status, line.document["error"]["code"]) == (409, "lease_mismatch")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "leases"),
        ({"leases": "1-1"}, "leases"),
        ({"leases": []}, "leases"),
        ({"leases": [5]}, "leases[0]"),
        ({"leases": ["nonsense"]}, "leaseId"),
        ({"leases": ["1-1", "1-1"]}, "leases"),
        ({"leases": ["1-1"], "reason": "TIRED"}, "reason"),
    ],
)
def test_nack_with_an_invalid_field_is_rejected_by_name(web: Web, body: Any, field: str) -> None:
    assert web.refused("POST", "/v1/queues/mail/nack", body) == (400, "bad_input", field)
