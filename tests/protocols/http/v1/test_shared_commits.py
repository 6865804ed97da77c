"""Publishers that come at the same time are served by one commit, and none of them can tell."""

import json
from typing import Any

import pytest

from tests.support.http_api import Line, Web
from yirangmq.core.errors import StoreBusy, StoreFull
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore

MESSAGES = "/v1/queues/mail/messages"


def crowd(web: Web, *bodies: Any) -> list[Line]:
    """A publish each, all in one turn, each by a connection of its own."""
    lines = []
    for number, body in enumerate(bodies):
        web.peer = f"127.0.0.1:{number + 1}"
        lines.append(web.send("POST", MESSAGES, body))
    web.server.turn()
    return lines


def stored(web: Web) -> list[Any]:
    return [one["message"]["payload"] for one in web.good("GET", MESSAGES)["messages"]]


def test_coalescing_answers_each_publish_with_its_own_messages(web: Web) -> None:
    lines = crowd(web, {"n": 1}, [2, 3, 4], {"messageId": "five", "payload": 5})
    assert [line.status for line in lines] == [200, 200, 200]
    assert [line.document["stored"] for line in lines] == [1, 3, 1]
    assert lines[2].document["messages"] == [{"messageId": "five", "duplicate": False}]
    ids = [one["messageId"] for line in lines for one in line.document["messages"]]
    assert ids == [one["messageId"] for one in web.good("GET", MESSAGES)["messages"]]
    assert stored(web) == [{"n": 1}, 2, 3, 4, 5]
    metrics = web.server.observing.metrics
    assert (metrics.commit_requests.total, metrics.commit_messages.total) == (3, 5)


def test_coalescing_answers_a_publish_the_same_as_without_coalescing(web: Web) -> None:
    alone = web.good("POST", MESSAGES, 1)
    [among, _] = crowd(web, 2, 3)
    assert list(among.document) == list(alone)
    assert {**among.document, "messages": []} == {**alone, "messages": []}


def test_coalescing_stores_a_repeated_id_once(web: Web) -> None:
    same = {"messageId": "a", "payload": 1}
    lines = crowd(web, same, [same, {"messageId": "b", "payload": 2}], 3)
    assert [line.document["duplicates"] for line in lines] == [0, 1, 0]
    assert stored(web) == [1, 2, 3]


def test_group_commit_of_a_message_too_large_leaves_the_others_unharmed(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"maxBytes": 10})
    lines = crowd(web, 1, "x" * 20, 3)
    assert [line.status for line in lines] == [200, 413, 200]
    assert stored(web) == [1, 3]


def test_quota_in_coalesced_publishes_stores_what_fits_and_counts_each_rejection_once(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"quota": {"maxMessages": 2}})
    lines = crowd(web, 1, [2, 3], 4, 5)
    assert [line.status for line in lines] == [200, 429, 200, 429]
    assert stored(web) == [1, 4]
    assert web.server.observing.metrics.queues["mail"].refused == {"quota_exceeded": 3}


@pytest.mark.parametrize("failing", [(1, 2), (1, 2, 4)])
def test_coalescing_retries_a_batch_rejected_by_the_store_request_by_request(failing: tuple[int, ...]) -> None:
    store = FailingStore(MemoryStore())
    web = Web(store)
    for number in failing:
        store.fail_at(number)
    lines = crowd(web, 1, 2, 3)
    assert {line.status for line in lines} <= {200, 507}
    assert len(stored(web)) == [line.status for line in lines].count(200) >= 2


def test_coalescing_keeps_the_order_of_the_requests_of_a_connection(web: Web) -> None:
    """Though another publisher came before them."""
    web.peer = "127.0.0.1:1"
    other = web.send("POST", MESSAGES, 1)
    web.peer = "127.0.0.1:2"
    mine = web.send("POST", MESSAGES, 2)
    lease = web.send("POST", "/v1/queues/mail/lease", {"max": 10})
    later = web.send("POST", MESSAGES, 3)
    web.server.turn()
    assert [one.status for one in (other, mine, lease, later)] == [200] * 4
    assert [one["message"]["payload"] for one in lease.document["messages"]] == [1, 2]
    assert json.dumps(stored(web)) == "[3]"


# -- consumers --------------------------------------------------------------------------------------------------------


def by_each(web: Web, verb: str, *bodies: Any) -> list[Line]:
    lines = []
    for number, body in enumerate(bodies):
        web.peer = f"127.0.0.1:{number + 1}"
        lines.append(web.send("POST", f"/v1/queues/mail/{verb}", body))
    web.server.turn()
    return lines


def payloads(line: Line) -> list[Any]:
    return [one["message"]["payload"] for one in line.document["messages"]]


def lease_ids(line: Line) -> list[str]:
    return [one["lease"]["leaseId"] for one in line.document["messages"]]


def test_coalescing_of_leases_serves_them_in_order_of_arrival(web: Web) -> None:
    crowd(web, 1, 2, 3)
    lines = by_each(web, "lease", *[{}] * 5)
    assert [payloads(line) for line in lines] == [[1], [2], [3], [], []]
    assert len({id for line in lines for id in lease_ids(line)}) == 3


def test_coalescing_of_leases_with_different_options_honours_each(web: Web) -> None:
    crowd(web, [1, 2, 3, 4, 5])
    lines = by_each(web, "lease", {"consumer": "a"}, {"max": 2}, {"leaseSec": 7}, {"policy": True})
    assert [payloads(line) for line in lines] == [[1], [2, 3], [4], [5]]
    assert [line.document["messages"][0]["lease"]["consumerId"] for line in lines] == ["a", "http", "http", "http"]
    assert [line for line in lines if "policy" in line.document] == lines[3:]


def test_coalescing_of_leases_keeps_a_targeted_message_from_other_consumers(web: Web) -> None:
    crowd(web, {"messageId": "m", "targetConsumerId": "b", "payload": 1}, 2)
    mine, other, third = by_each(web, "lease", {"consumer": "a"}, {"consumer": "b"}, {"consumer": "a"})
    assert sorted(payloads(mine) + payloads(other) + payloads(third)) == [1, 2]
    assert 1 not in payloads(mine) + payloads(third)


def test_coalescing_of_leases_skips_a_disconnected_client_and_serves_the_others(web: Web) -> None:
    crowd(web, 1, 2)
    web.peer = "127.0.0.1:1"
    gone = web.send("POST", "/v1/queues/mail/lease", {})
    web.peer = "127.0.0.1:2"
    there = web.send("POST", "/v1/queues/mail/lease", {})
    gone.leave()
    web.server.turn()
    assert payloads(there) == [2]
    assert stored(web) == [1]


def test_coalescing_of_acks_answers_each_with_its_own_leases(web: Web) -> None:
    crowd(web, [1, 2, 3, 4])
    ids = lease_ids(web.ask("POST", "/v1/queues/mail/lease", {"max": 4}))
    web.good("POST", "/v1/queues/mail/release", {"leases": [ids[3]]})
    lines = by_each(web, "ack", {"leases": [ids[1]]}, {"leases": [ids[0], ids[3]]}, {"leases": [ids[2]]})
    assert [line.status for line in lines] == [200, 409, 200]
    told = [[(one["leaseId"], one["ok"]) for one in line.document["results"]] for line in lines]
    assert told == [[(ids[1], True)], [(ids[0], True), (ids[3], False)], [(ids[2], True)]]
    assert stored(web) == [4]


def test_coalescing_of_acks_with_the_same_lease_acks_it_once_and_both_succeed(web: Web) -> None:
    crowd(web, [1, 2])
    ids = lease_ids(web.ask("POST", "/v1/queues/mail/lease", {"max": 2}))
    lines = by_each(web, "ack", {"leases": ids[:1]}, {"leases": ids[:1]}, {"leases": ids[1:]})
    assert [line.status for line in lines] == [200] * 3
    assert web.good("GET", "/v1/queues/mail")["counts"]["acked"] == 2


def test_pipelining_of_publishes_and_leases_on_one_connection_runs_in_order(web: Web) -> None:
    """One after the other without waiting for answers, three times over."""
    lines = []
    for number in range(3):
        lines.append(web.send("POST", MESSAGES, number))
        lines.append(web.send("POST", "/v1/queues/mail/lease", {}))
    web.server.turn()
    assert [payloads(line) for line in lines[1::2]] == [[0], [1], [2]]


# -- transactions that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [False, True], ids=["at the start", "at the commit"])
@pytest.mark.parametrize("crowded", [1, 3])
@pytest.mark.parametrize("error", [StoreFull("full"), OSError(5, "EIO")], ids=["full", "eio"])
def test_coalescing_of_publishes_in_a_failed_transaction_answers_them_and_the_next_ones(
    error: Exception, crowded: int, commit: bool
) -> None:
    """A batch whose transaction never began used to stay open: every later publish of the queue joined it and hung."""
    store = FailingStore(MemoryStore())
    web = Web(store)
    for number in range(2 + crowded):
        store.fail_at(1 + number, error, commit=commit)
    lines = crowd(web, *range(crowded))
    assert all(line.status >= 500 for line in lines)
    later = crowd(web, "a", "b")
    assert [line.status for line in later] == [200, 200]
    assert stored(web) == ["a", "b"]


def test_coalescing_of_publishes_waits_for_a_busy_store_and_stores_them_in_order() -> None:
    """Another process holds the store's lock: that is no failure, the committer tries again by a timer."""
    store = FailingStore(MemoryStore())
    web = Web(store)
    for number in range(3):
        store.fail_at(1 + number, StoreBusy("locked"), commit=False)
    lines = [*crowd(web, 1, 2), *crowd(web, 3)]
    assert all(line.response is None for line in lines)
    for _ in range(3):
        web.server.turns.advance(100)
    assert [line.status for line in [*lines, *crowd(web, 4)]] == [200] * 4
    assert stored(web) == [1, 2, 3, 4]


@pytest.mark.parametrize("verb", ["lease", "ack"])
def test_coalescing_of_leases_or_acks_in_a_failed_transaction_answers_them_and_the_next_ones(verb: str) -> None:
    store = FailingStore(MemoryStore())
    web = Web(store)
    crowd(web, 1)
    body = {"leases": lease_ids(web.ask("POST", "/v1/queues/mail/lease", {}))} if verb == "ack" else {}
    store.fail_at(1, commit=False)
    [refused] = by_each(web, verb, body)
    assert refused.status == 507
    assert [line.status for line in by_each(web, verb, body, body)] == [200, 200]
