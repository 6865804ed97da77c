"""How many messages of a queue may be at work at the same time, whoever has them."""

import pytest

from tests.broker.two_step.counter import Counter
from yirangmq.core.policy import Defaults


@pytest.fixture
def two(counter: Counter) -> Counter:
    """Five messages, of which two may be at work."""
    counter.queues.set_policy("mail", {"concurrency": 2, "retry": {"limit": None}})
    for number in range(5):
        counter.put(b"%d" % number)
    return counter


def test_concurrency_limit_counts_only_claimed_and_leased_messages(two: Counter) -> None:
    first = two.take()
    second = two.order()
    assert second is not None
    assert two.order() is None
    assert two.stats() == {"ready": 3, "claimed": 1, "leased": 1}
    two.fail(first)
    assert two.order() is not None
    assert two.order() is None


def test_concurrency_limit_counts_leases_of_other_protocols(two: Counter) -> None:
    assert len(two.queues.lease("mail", 5)) == 2
    assert two.queues.lease("mail") == []
    assert two.order() is None


@pytest.mark.parametrize("end", ["complete", "fail", "abandon", "ack", "nack", "release", "lapse", "expired claim"])
def test_concurrency_limit_wakes_waiting_consumers_when_a_place_becomes_free(two: Counter, end: str) -> None:
    id = two.order()
    assert id is not None
    [delivery] = two.queues.lease("mail")
    if end in ("complete", "fail"):
        two.get(id)
    two.context.wake_queues.clear()
    match end:
        case "complete" | "fail" | "abandon":
            getattr(two, end)(id)
        case "ack" | "nack" | "release":
            getattr(two.queues, end)(delivery.lease_id)
        case "lapse":
            two.pass_time(30_000)
            two.queues.sweep()
        case "expired claim":
            two.queues.extend(delivery.lease_id, 600)
            two.context.wake_queues.clear()
            two.pass_time(60_000)
            two.queues.sweep()
    assert two.context.wake_queues == {"mail"}
    assert two.order() is not None
    assert two.order() is None


def test_concurrency_limit_of_zero_delivers_nothing(two: Counter) -> None:
    two.queues.set_policy("mail", {"concurrency": 0})
    assert two.order() is None


@pytest.mark.parametrize("defaults", [Defaults(concurrency=1)])
def test_concurrency_limit_of_the_server_applies_where_the_queue_sets_none(counter: Counter) -> None:
    for queue in ("mail", "other"):
        counter.put(b"1", queue=queue)
        counter.put(b"2", queue=queue)
    assert len(counter.ordered()) == 1
    assert len(counter.ordered("other")) == 1
    counter.queues.set_policy("mail", {"concurrency": 2})
    assert len(counter.ordered()) == 1
    assert len(counter.ordered("other")) == 0


def test_concurrency_limit_that_is_lowered_takes_no_message_away(two: Counter) -> None:
    two.order()
    two.order()
    two.queues.set_policy("mail", {"concurrency": 1})
    assert two.order() is None
    assert two.stats() == {"ready": 3, "claimed": 2}
