"""The dispatch of a queue over HTTP: looked at, changed, and what waiting leases get by it."""

import pytest

from tests.support.http_api import Web


def test_dispatch_strategy_is_set_shown_and_removed_and_rejected_if_invalid(web: Web) -> None:
    web.good("POST", "/v1/queues/mail/messages", 1)
    assert web.good("GET", "/v1/queues/mail/dispatch")["strategy"] is None
    changed = web.good("PATCH", "/v1/queues/mail/dispatch", {"strategy": "priority", "weights": {"big": 3}})
    assert (changed["strategy"], changed["weights"]) == ("priority", {"big": 3})
    assert web.good("GET", "/v1/queues/mail")["strategy"] == "priority"
    assert web.good("PATCH", "/v1/queues/mail/dispatch", {"strategy": "none"})["strategy"] is None
    assert web.refused("PATCH", "/v1/queues/mail/dispatch", {"strategy": "fifo"}) == (
        400,
        "bad_policy",
        "dispatch.strategy",
    )
    assert web.refused("PATCH", "/v1/queues/mail/dispatch", [1]) == (400, "bad_input", "members")
    both = {"strategy": "none", "weights": {"big": 3}}
    assert web.refused("PATCH", "/v1/queues/mail/dispatch", both) == (400, "bad_policy", "dispatch.strategy")
    unknown = (400, "bad_input", "dispatch.stratgy")
    assert web.refused("PATCH", "/v1/queues/mail/dispatch", {"stratgy": "none"}) == unknown


def test_dispatch_consumers_are_registered_and_deregistered(web: Web) -> None:
    web.good("PATCH", "/v1/queues/mail/dispatch", {"strategy": "broadcast"})
    web.good("POST", "/v1/queues/mail/messages", 1)
    assert web.good("PUT", "/v1/queues/mail/dispatch/consumers/ledger")["changed"] is True
    assert web.good("PUT", "/v1/queues/mail/dispatch/consumers/ledger")["changed"] is False
    [row] = web.good("GET", "/v1/queues/mail/dispatch")["consumers"]
    assert (row["consumerId"], row["registered"], row["here"]) == ("ledger", True, False)
    assert web.good("DELETE", "/v1/queues/mail/dispatch/consumers/ledger")["changed"] is True
    assert web.refused("PUT", "/v1/queues/none/dispatch/consumers/ledger") == (404, "not_found", "queue")


@pytest.mark.parametrize("strategy", ["round_robin", "load_balance", "random", "priority"])
def test_dispatch_strategy_distributes_messages_over_waiting_leases(web: Web, strategy: str) -> None:
    web.good("PATCH", "/v1/queues/mail/dispatch", {"strategy": strategy})
    waiting = [
        web.ask("POST", "/v1/queues/mail/lease", {"max": 1, "waitSec": 30, "consumer": name}) for name in ("a", "b")
    ]
    web.good("POST", "/v1/queues/mail/messages", [{"n": 1}, {"n": 2}])
    assert sorted(line.document["messages"][0]["message"]["payload"]["n"] for line in waiting) == [1, 2]
    under_way = web.good("GET", "/v1/deliveries?queue=mail&status=DELIVERING")["deliveries"]
    assert sorted(row["consumerId"] for row in under_way) == ["a", "b"]
    lease = waiting[0].document["messages"][0]["lease"]["leaseId"]
    web.good("POST", "/v1/queues/mail/ack", {"leases": [lease]})
    [done] = web.good("GET", "/v1/deliveries?consumer=a&status=DELIVERED")["deliveries"]
    assert (done["became"], done["leaseId"], done["endedAt"] is None) == ("done", lease, False)
    assert web.refused("GET", "/v1/deliveries?status=LOST") == (400, "bad_input", "status")


def test_programs_list_is_empty_on_a_server_without_an_access_table(web: Web) -> None:
    assert web.good("GET", "/v1/programs") == {"programs": [], "refused": {"counts": [], "latest": []}}
