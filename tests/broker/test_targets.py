"""Messages for one consumer: nobody else sees them handed out, and they take their turn among those for anyone."""

import threading

import pytest

from tests.support.queues import SECOND, dead_letters, state, taken
from tests.support.wait import PATIENCE
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadInput
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock


def given(queues: Queues, consumer: str, limit: int = 100) -> list[str]:
    return [delivery.id for delivery in queues.lease("mail", limit, consumer=consumer)]


def test_target_message_is_delivered_only_to_its_consumer(queues: Queues) -> None:
    queues.publish_many(
        "mail", [NewMessage(payload=n, target=target) for n, target in enumerate(["anna", None, "anna"])]
    )
    assert given(queues, "berta") == ["m-2"]
    assert taken(queues) == []
    assert given(queues, "Anna") == []
    assert given(queues, "anna") == ["m-1", "m-3"]


def test_target_message_is_ordered_by_priority_and_arrival_among_the_others(queues: Queues) -> None:
    for target, priority in [(None, 5), ("anna", 5), ("anna", 0), (None, None), ("anna", None), (None, 0)]:
        queues.publish("mail", NewMessage(payload=1, target=target, priority=priority))
    assert given(queues, "anna", 4) == ["m-3", "m-6", "m-1", "m-2"]
    assert given(queues, "anna") == ["m-4", "m-5"]


@pytest.mark.parametrize("how", ["nack at once", "nack and wait", "lapse", "release", "redrive"])
def test_target_message_returns_to_the_same_consumer(queues: Queues, clock: ManualClock, how: str) -> None:
    queues.publish("mail", NewMessage(payload=1, target="anna"))
    [delivery] = queues.lease("mail", consumer="anna")
    assert delivery.header["targetConsumerId"] == "anna"
    match how:
        case "lapse":
            clock.advance(30 * SECOND)
        case "release":
            queues.release(delivery.lease_id)
        case "redrive":
            queues.nack(delivery.lease_id, "REJECTED")
            dead_letters(queues).redrive("mail", all=True)
        case _:
            queues.nack(delivery.lease_id, delay=0 if how == "nack at once" else 1)
            clock.advance(SECOND)
    assert given(queues, "berta") == []
    assert given(queues, "anna") == ["m-1"]


def test_target_message_may_be_delayed_and_may_expire(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", NewMessage(payload=1, target="anna", delay=5))
    queues.publish("mail", NewMessage(payload=2, target="anna", ttl=5))
    clock.advance(5 * SECOND)
    assert given(queues, "anna") == ["m-1"]
    assert state(queues, "m-2") is State.DROPPED


def test_target_of_several_consumers_in_one_group_keeps_the_order_of_the_group(queues: Queues) -> None:
    """Its order goes before everything: who is next may be somebody who is not there."""
    for n, target in enumerate(["anna", "berta", None]):
        queues.publish("mail", NewMessage(payload=n, group="g", target=target))
    assert (given(queues, "berta"), given(queues, "anna")) == ([], ["m-1"])
    queues.drop("mail", ["m-1"])
    assert (given(queues, "anna"), given(queues, "berta")) == ([], ["m-2"])
    queues.drop("mail", ["m-2"])
    assert given(queues, "anna") == ["m-3"]


def test_target_messages_are_visible_to_peek_walk_and_counts(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, target="anna" if n % 2 else None) for n in range(4)])
    assert [look.message.id for look in queues.peek("mail")] == ["m-1", "m-3", "m-2", "m-4"]
    assert [look.message.id for look in queues.walk("mail", "ready", batch=1)] == ["m-1", "m-3", "m-2", "m-4"]
    assert queues.counts("mail").ready == 4


def test_target_message_wakes_its_own_waiting_consumer_though_another_waits_longer(queues: Queues) -> None:
    got: dict[str, list[str]] = {}

    def wait(consumer: str) -> None:
        got[consumer] = [delivery.id for delivery in queues.lease("mail", wait=PATIENCE, consumer=consumer)]

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("anna", "berta")]
    for thread in threads:
        thread.start()
    queues.publish("mail", NewMessage(payload=1, target="berta"))
    threads[1].join()
    assert got == {"berta": ["m-1"]}
    queues.publish("mail", 2)
    threads[0].join()
    assert got["anna"] == ["m-2"]


@pytest.mark.parametrize("target", ["", "two words", ".hidden", "x" * 65, 7])
def test_target_that_is_not_a_consumer_name_is_rejected(queues: Queues, target: object) -> None:
    with pytest.raises(BadInput) as caught:
        queues.publish("mail", NewMessage(payload=1, target=target))  # type: ignore[arg-type]
    assert caught.value.field == "targetConsumerId"
    assert queues.counts("mail").published == 0
