"""Whole queues: all that failed, everything that is there, and what a changed policy means for it."""

from typing import Any

import pytest

from tests.broker.two_step.counter import Counter
from yirangmq.broker import bulk, expiry_sweeper
from yirangmq.broker.bulk import failed_page
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.core.errors import BadPolicy
from yirangmq.core.policy import Defaults


def fail_many(counter: Counter, count: int, queue: str = "mail") -> list[str]:
    ids = [counter.put(b"%d" % number, queue=queue) for number in range(count)]
    taken = [counter.take(queue) for _ in ids]
    for id in reversed(taken):
        counter.fail(id, queue)
    return ids


def listed(counter: Counter, limit: int = 3) -> list[str]:
    found: list[str] = []
    cursor, is_first = "", True
    while cursor or is_first:
        ids, cursor = counter.run(lambda work, at=cursor: failed_page(work, "mail", at, limit))  # type: ignore[misc]
        found += ids
        is_first = False
    return found


def test_dead_letter_list_starts_with_the_oldest_failure(counter: Counter) -> None:
    ids = fail_many(counter, 7)
    assert sorted(listed(counter)) == sorted(ids)
    counter.renew(ids[0])
    counter.pass_time(1)
    assert counter.take() == ids[0]
    counter.fail(ids[0])
    assert listed(counter)[-1] == ids[0]


def test_quarantine_lists_parked_messages_last_and_redrive_all_leaves_them_parked(counter: Counter) -> None:
    ids = fail_many(counter, 4)
    DeadLetters(counter.queues).quarantine("mail", ids=[ids[1]])
    assert listed(counter)[-1] == ids[1]
    assert len(listed(counter)) == 4
    assert counter.queues.bulk.redrive_failed("mail") == 3
    assert counter.stats() == {"ready": 3, "parked": 1}
    counter.renew(ids[1])
    assert counter.stats() == {"ready": 4}


def test_redrive_all_keeps_the_order_of_first_arrival(counter: Counter) -> None:
    ids = fail_many(counter, 7)
    other = counter.put(b"other")
    assert counter.queues.bulk.redrive_failed("mail") == 7
    assert counter.ordered() == [other, *ids]


def test_redrive_all_and_abandon_all_handle_more_than_a_page(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PER_PAGE", 5)
    for queue in ("mail", "other"):
        counter.queues.publish_many(queue, [b"%d" % number for number in range(21)])
        counter.queues.nack_many([one.lease_id for one in counter.queues.lease(queue, 21)], "REJECTED")
    assert counter.queues.bulk.redrive_failed("mail") == 21
    assert [one.envelope.payload for one in counter.queues.lease("mail", 30)] == [b"%d" % n for n in range(21)]
    assert counter.queues.bulk.drop_failed("other") == 21
    assert counter.stats("other") == {}
    assert counter.queues.bulk.drop_failed("other") == 0


def test_abandon_can_be_repeated_after_abandon_all(counter: Counter) -> None:
    [id] = fail_many(counter, 1)
    counter.queues.bulk.drop_failed("mail")
    counter.abandon(id)
    assert listed(counter) == []


def test_redrive_all_and_abandon_all_ignore_dead_letters_of_another_queue_listed_here(counter: Counter) -> None:
    """Though they are listed under our name elsewhere."""
    counter.put(b"")
    counter.queues.set_policy("source", {"dlq": {"queue": "mail"}})
    fail_many(counter, 2, "source")
    assert counter.queues.bulk.redrive_failed("mail") == 0
    assert counter.queues.bulk.drop_failed("mail") == 0
    assert counter.stats("source") == {"dead": 2}


@pytest.mark.parametrize("page", [10, 500])
def test_clear_empties_a_queue_and_keeps_its_policy(
    counter: Counter, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PER_PAGE", page)
    counter.queues.set_policy("mail", {"visibilityTimeoutSec": 7, "retry": {"limit": None}})
    done = counter.put(b"done")
    counter.take()
    counter.complete(done)
    counter.queues.publish_many("mail", [b"%d" % number for number in range(40)])
    fail_id, active = counter.take(), counter.take()
    counter.fail(fail_id)
    draft = counter.draft()
    counter.queues.bulk.clear("mail")
    assert counter.stats() == {}
    assert not any(counter.queues.counts("mail"))
    assert counter.queues.policy("mail")["visibilityTimeoutSec"] == 7
    for id in (done, fail_id, active, draft):
        assert counter.run(lambda work, id=id: work.by_id("mail", [id])) == [None]  # type: ignore[misc]
    assert list(counter.store.check(repair=False)) == []


def test_clear_of_an_unknown_queue_succeeds_and_creates_no_queue(counter: Counter) -> None:
    counter.queues.bulk.clear("nowhere")
    assert counter.queues.queues() == []


TIMES = {"draftSec": ("draft", 60_000), "claimSec": ("claimed", 60_000), "activeSec": ("leased", 300_000)}


@pytest.mark.parametrize("member", TIMES)
def test_timeout_changed_in_the_policy_applies_to_drafts_claims_and_leases_in_flight(
    counter: Counter, member: str
) -> None:
    state, usual = TIMES[member]
    for _ in range(3):
        counter.draft() if state == "draft" else counter.put(b"")
        if state != "draft":
            counter.order() if state == "claimed" else counter.take()
    counter.pass_time(2_000)
    counter.queues.bulk.configure("mail", "", member, 5)
    counter.pass_time(2_999)
    assert counter.stats() == {state: 3}
    counter.queues.bulk.configure("mail", "", member, 7)
    counter.pass_time(1_000)
    assert counter.stats() == {state: 3}
    counter.queues.bulk.configure("mail", "", member, None)
    counter.pass_time(usual - 6_000)
    assert counter.stats() == {state: 3}
    counter.pass_time(1)
    assert state not in counter.stats()


def test_timeout_changed_in_the_policy_does_not_apply_to_a_lease_of_another_protocol(counter: Counter) -> None:
    counter.put(b"")
    [delivery] = counter.queues.lease("mail", lease_seconds=100)
    counter.queues.bulk.configure("mail", "", "activeSec", 1)
    counter.pass_time(99_999)
    counter.queues.ack(delivery.lease_id)


def test_timeout_defaults_changed_in_the_server_apply_to_messages_in_flight(counter: Counter) -> None:
    counter.draft()
    counter.put(b"")
    counter.put(b"")
    counter.take()
    counter.order()
    counter.queues.bulk.configure("other", "", "draftSec", 100)
    counter.draft("other")
    other = Counter(counter.store, counter.clock, Defaults(draft_ms=5_000, claim_ms=6_000, active_ms=7_000))
    other.queues.bulk.adopt_defaults()
    for milliseconds, expected in (
        (5_000, {"claimed": 1, "leased": 1}),
        (1_000, {"ready": 1, "leased": 1}),
        (1_000, {"ready": 2}),
    ):
        other.pass_time(milliseconds)
        assert other.stats() == expected
    assert other.stats("other") == {"draft": 1}
    counter.queues.bulk.adopt_defaults()
    assert counter.run(lambda work: work.note(expiry_sweeper.TIMEOUTS_NOTE)) == "60000/60000/300000"


def test_policy_configure_changes_one_member_and_keeps_the_others(counter: Counter) -> None:
    configure = counter.queues.bulk.configure
    configure("mail", "", "unique", True)
    configure("mail", "", "concurrency", 3)
    configure("mail", "", "unique", None)
    configure("mail", "", "unique", None)
    policy = counter.queues.policy("mail")
    assert (policy["unique"], policy["concurrency"], policy["retry"]["limit"]) == (None, 3, None)


@pytest.mark.parametrize(("member", "value"), [("activeSec", -1), ("unique", "yes"), ("concurrency", 1.5)])
def test_policy_configure_refuses_an_invalid_value_and_changes_nothing(
    counter: Counter, member: str, value: Any
) -> None:
    counter.queues.bulk.configure("mail", "", "draftSec", 9)
    before = counter.queues.policy("mail")
    with pytest.raises(BadPolicy, match=member):
        counter.queues.bulk.configure("mail", "", member, value)
    assert counter.queues.policy("mail") == before


def test_policy_configure_that_removes_an_unset_member_keeps_the_retry_default(counter: Counter) -> None:
    counter.queues.publish("mail", b"")
    counter.queues.bulk.configure("mail", "", "unique", None)
    assert counter.queues.policy("mail")["retry"]["limit"] == 5
