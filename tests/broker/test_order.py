"""Who goes first: priority, arrival, delays, and where those go that come back."""

import pytest

from tests.support.queues import SECOND, take, taken
from yirangmq.broker.queues import Queues
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock


def test_priority_zero_is_delivered_first_and_no_priority_last(queues: Queues) -> None:
    priorities = [None, 5, 0, None, 1, 0, 10, 2]
    queues.publish_many("mail", [NewMessage(payload=p, priority=p) for p in priorities])
    assert taken(queues) == ["m-3", "m-6", "m-5", "m-8", "m-2", "m-7", "m-1", "m-4"]


def test_priority_ties_are_delivered_in_order_of_arrival(queues: Queues, clock: ManualClock) -> None:
    for _ in range(3):
        queues.publish_many("mail", [NewMessage(payload=1, priority=n % 2) for n in range(4)])
        clock.advance(1)
    assert taken(queues) == [f"m-{n}" for n in (1, 3, 5, 7, 9, 11, 2, 4, 6, 8, 10, 12)]


def test_priority_of_a_late_urgent_message_overtakes_waiting_messages(queues: Queues) -> None:
    queues.publish_many("mail", [1, 2])
    assert taken(queues, 1) == ["m-1"]
    queues.publish("mail", NewMessage(payload=3, priority=0))
    assert taken(queues, 2) == ["m-3", "m-2"]


def test_delayed_message_is_not_delivered_before_its_delay_ends(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", NewMessage(payload=1, delay=5))
    queues.publish("mail", 2)
    assert taken(queues) == ["m-2"]
    clock.advance(5 * SECOND - 1)
    assert taken(queues) == []
    assert queues.counts("mail").delayed == 1
    clock.advance(1)
    assert taken(queues) == ["m-1"]


def test_delayed_message_joins_the_end_of_its_priority_when_its_delay_ends(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", NewMessage(payload=1, delay=1))
    queues.publish_many("mail", [2, 3])
    queues.publish("mail", NewMessage(payload=4, delay=1, priority=7))
    clock.advance(SECOND)
    assert taken(queues) == ["m-4", "m-2", "m-3", "m-1"]


def test_delayed_messages_whose_delays_end_together_keep_the_order_of_publishing(
    queues: Queues, clock: ManualClock
) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, delay=1) for n in range(5)])
    clock.advance(SECOND)
    assert taken(queues) == ["m-1", "m-2", "m-3", "m-4", "m-5"]


def test_delayed_messages_whose_delays_ended_at_different_times_are_in_that_order(
    queues: Queues, clock: ManualClock
) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, delay=5 - n) for n in range(5)])
    clock.advance(10 * SECOND)
    assert taken(queues) == ["m-5", "m-4", "m-3", "m-2", "m-1"]


@pytest.mark.parametrize(("requeue", "order"), [("back", ["m-2", "m-3", "m-1"]), ("front", ["m-1", "m-2", "m-3"])])
@pytest.mark.parametrize("how", ["nack at once", "nack and wait", "lapse"])
def test_requeue_puts_a_returned_message_at_the_back_unless_the_policy_keeps_its_place(
    queues: Queues, clock: ManualClock, how: str, requeue: str, order: list[str]
) -> None:
    queues.set_policy("mail", {"requeue": requeue})
    queues.publish_many("mail", [1, 2, 3])
    lease = take(queues).lease_id
    if how == "lapse":
        clock.advance(30 * SECOND)
    else:
        queues.nack(lease, delay=0 if how == "nack at once" else 1)
        clock.advance(SECOND)
    assert taken(queues) == order


def test_requeue_keeps_the_priority_of_a_returned_message(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, priority=n // 2) for n in range(4)])
    queues.nack(take(queues).lease_id, delay=0)
    assert taken(queues) == ["m-2", "m-1", "m-3", "m-4"]


def test_poison_message_does_not_block_the_head_of_the_queue(queues: Queues) -> None:
    queues.publish_many("mail", ["poison", 2, 3])
    for _ in range(2):
        queues.nack([d.lease_id for d in queues.lease("mail") if d.id == "m-1"], delay=0)
    assert taken(queues, 1) == ["m-3"]


def test_priority_order_holds_over_a_thousand_messages(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, priority=n * 7 % 11) for n in range(1000)])
    expected = sorted(range(1000), key=lambda n: (n * 7 % 11, n))
    found: list[str] = []
    while batch := taken(queues, 170):
        found += batch
    assert found == [f"m-{n + 1}" for n in expected]
