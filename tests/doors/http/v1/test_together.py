"""Publishers that come at the same time are served by one commit, and none of them can tell."""

import json
from typing import Any

import pytest

from tests.doors.http.v1.parts import Line, Web
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


def test_each_is_told_of_its_own_messages(web: Web) -> None:
    lines = crowd(web, {"n": 1}, [2, 3, 4], {"messageId": "five", "payload": 5})
    assert [line.status for line in lines] == [200, 200, 200]
    assert [line.document["stored"] for line in lines] == [1, 3, 1]
    assert lines[2].document["messages"] == [{"messageId": "five", "duplicate": False}]
    ids = [one["messageId"] for line in lines for one in line.document["messages"]]
    assert ids == [one["messageId"] for one in web.good("GET", MESSAGES)["messages"]]
    assert stored(web) == [{"n": 1}, 2, 3, 4, 5]
    metrics = web.server.observing.metrics
    assert (metrics.commit_requests.total, metrics.commit_messages.total) == (3, 5)


def test_one_alone_is_told_the_same_as_one_in_a_crowd(web: Web) -> None:
    alone = web.good("POST", MESSAGES, 1)
    [among, _] = crowd(web, 2, 3)
    assert list(among.document) == list(alone)
    assert {**among.document, "messages": []} == {**alone, "messages": []}


def test_the_same_id_twice_is_stored_once(web: Web) -> None:
    same = {"messageId": "a", "payload": 1}
    lines = crowd(web, same, [same, {"messageId": "b", "payload": 2}], 3)
    assert [line.document["duplicates"] for line in lines] == [0, 1, 0]
    assert stored(web) == [1, 2, 3]


def test_one_that_is_too_large_harms_no_other(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"maxBytes": 10})
    lines = crowd(web, 1, "x" * 20, 3)
    assert [line.status for line in lines] == [200, 413, 200]
    assert stored(web) == [1, 3]


def test_a_quota_takes_whom_it_has_room_for_and_counts_whom_it_refuses_once(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"quota": {"maxMessages": 2}})
    lines = crowd(web, 1, [2, 3], 4, 5)
    assert [line.status for line in lines] == [200, 429, 200, 429]
    assert stored(web) == [1, 4]
    assert web.server.observing.metrics.queues["mail"].refused == {"quota_exceeded": 3}


@pytest.mark.parametrize("failing", [(1, 2), (1, 2, 4)])
def test_what_the_store_refuses_together_is_tried_one_by_one(failing: tuple[int, ...]) -> None:
    store = FailingStore(MemoryStore())
    web = Web(store)
    for number in failing:
        store.fail_at(number)
    lines = crowd(web, 1, 2, 3)
    assert {line.status for line in lines} <= {200, 507}
    assert len(stored(web)) == [line.status for line in lines].count(200) >= 2


def test_requests_of_one_connection_are_done_in_their_order(web: Web) -> None:
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
