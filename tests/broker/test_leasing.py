"""Publish, lease, ack, extend: the way it goes when it goes well, and whose message it is meanwhile."""

import pytest

from tests.support.queues import SECOND, state, take, taken
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadInput, LeaseExpired, LeaseMismatch, NotFound, WrongState
from yirangmq.core.message import Counts
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock


def test_a_message_is_published_leased_and_acked(queues: Queues, clock: ManualClock) -> None:
    receipt = queues.publish("mail", {"to": "you"})
    assert (receipt.id, receipt.duplicate, receipt.refused) == ("m-1", False, "")
    delivery = take(queues)
    assert (delivery.id, delivery.queue, delivery.attempt, delivery.consumer) == ("m-1", "mail", 1, "tester")
    assert delivery.value() == {"to": "you"}
    assert delivery.lease_until == (clock.now_ms() + 30 * SECOND) / 1000
    assert delivery.policy["visibilityTimeoutSec"] == 30
    queues.ack(delivery.lease_id)
    assert queues.lease("mail") == []
    assert queues.counts("mail") == Counts(done=1, published=1, acked=1)


def test_bytes_go_through_untouched(queues: Queues) -> None:
    payload = bytes(range(256))
    queues.publish("mail", payload)
    assert take(queues).payload == payload


def test_a_leased_message_is_nobody_elses(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    take(queues)
    assert queues.lease("mail", consumer="another") == []
    clock.advance(30 * SECOND - 1)
    assert queues.lease("mail", consumer="another") == []


def test_many_are_taken_at_once_in_order(queues: Queues) -> None:
    queues.publish_many("mail", range(10))
    assert taken(queues, 4) == ["m-1", "m-2", "m-3", "m-4"]
    assert taken(queues, 100) == [f"m-{n}" for n in range(5, 11)]
    assert taken(queues, 100) == []


def test_queues_do_not_mix(queues: Queues) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 2)
    assert taken(queues, queue="post") == ["m-2"]
    assert taken(queues, queue="mail") == ["m-1"]
    assert queues.queues() == ["mail", "post"]


def test_a_lease_may_be_shorter_or_longer_than_the_policy_says(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", [1, 2])
    short, long = queues.lease("mail", lease_seconds=0.5)[0], queues.lease("mail", lease_seconds=100)[0]
    clock.advance(500)
    assert taken(queues) == [short.id]
    clock.advance(90 * SECOND)
    queues.ack(long.lease_id)


def test_the_policy_says_how_long_a_lease_is(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"visibilityTimeoutSec": 2})
    queues.publish("mail", 1)
    delivery = take(queues)
    clock.advance(2 * SECOND)
    with pytest.raises(LeaseExpired):
        queues.ack(delivery.lease_id)
    assert take(queues).attempt == 2


def test_an_extended_lease_keeps_the_message_away(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    delivery = take(queues)
    clock.advance(29 * SECOND)
    queues.extend(delivery.lease_id)
    clock.advance(29 * SECOND)
    assert queues.lease("mail") == []
    queues.extend(delivery.lease_id, 5)
    clock.advance(5 * SECOND)
    assert take(queues).attempt == 2


def test_a_lapsed_lease_cannot_be_extended(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    delivery = take(queues)
    clock.advance(30 * SECOND)
    with pytest.raises(LeaseExpired):
        queues.extend(delivery.lease_id)
    assert take(queues).attempt == 2


def test_a_consumer_that_dies_loses_its_message_to_another(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    first = take(queues)
    clock.advance(30 * SECOND)
    [second] = queues.lease("mail", consumer="another")
    assert (second.attempt, second.id) == (2, first.id)
    assert second.lease_id != first.lease_id
    for verb in (queues.ack, queues.nack, queues.extend):
        with pytest.raises(LeaseExpired):
            verb(first.lease_id)
    queues.ack(second.lease_id)


def test_a_lease_belongs_to_its_consumer(queues: Queues) -> None:
    queues.publish("mail", 1)
    delivery = take(queues)
    for verb in (queues.ack, queues.nack, queues.extend):
        with pytest.raises(LeaseMismatch):
            verb(delivery.lease_id, consumer="another")
    queues.ack(delivery.lease_id, consumer="tester")


def test_a_lease_that_never_was_is_not_found(queues: Queues) -> None:
    for verb in (queues.ack, queues.nack, queues.extend):
        with pytest.raises(NotFound):
            verb("77-1")


def test_one_stale_lease_in_a_batch_harms_no_other(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", range(3))
    stale = queues.lease("mail", lease_seconds=1)[0]
    clock.advance(SECOND)
    good = queues.lease("mail", 2)
    errors = queues.ack_many([good[0].lease_id, stale.lease_id, "999-1", good[1].lease_id])
    assert [type(error) for error in errors] == [type(None), LeaseExpired, NotFound, type(None)]
    assert queues.counts("mail")._replace(failed=0) == Counts(ready=1, done=2, published=3, acked=2, bytes=1)
    with pytest.raises(LeaseExpired):
        queues.ack([stale.lease_id])


def test_a_batch_of_leases_may_be_of_many_queues(queues: Queues) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 1)
    leases = [take(queues, "post").lease_id, take(queues, "mail").lease_id]
    queues.ack(leases)
    assert queues.counts("mail").done == queues.counts("post").done == 1


@pytest.mark.parametrize("name", ["ack_many", "nack_many", "extend_many"])
def test_an_empty_batch_is_no_trouble(queues: Queues, name: str) -> None:
    assert getattr(queues, name)([]) == []
    assert queues.publish_many("mail", []) == []


def test_the_same_lease_twice_in_a_call_is_refused(queues: Queues) -> None:
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    with pytest.raises(BadInput) as caught:
        queues.ack([lease, lease])
    assert caught.value.field == "leases"
    assert state(queues) is State.LEASED


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_a_message_can_be_given_up_in_any_state_but_done(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", delay=60 * (n == 0)) for n in range(4)])
    leased, done = queues.lease("mail", 2)
    queues.ack(done.lease_id)
    errors = queues.drop("mail", ["m0", "m3", leased.id, done.id, "nobody"])
    assert [type(error) for error in errors] == [type(None)] * 3 + [WrongState, NotFound]
    assert queues.counts("mail") == Counts(done=1, published=4, acked=1, dropped=3)
    assert queues.drop("mail", ["m0", "m3"]) == [None, None]
    for verb in (queues.ack, queues.nack, queues.extend):
        with pytest.raises(LeaseExpired):
            verb(leased.lease_id)


def test_a_message_can_be_looked_at_without_being_taken(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, priority=9 - n) for n in range(5)])
    assert [look.message.id for look in queues.peek("mail", 2)] == ["m-5", "m-4"]
    assert queues.show("mail", "m-1").row()["priority"] == 9
    assert len(list(queues.walk("mail", "ready", batch=2))) == 5
    assert taken(queues, 1) == ["m-5"]
    with pytest.raises(NotFound):
        queues.show("mail", "nobody")


def test_a_deleted_queue_is_gone(queues: Queues) -> None:
    queues.set_policy("mail", {"ttlSec": 5})
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    queues.delete_queue("mail")
    assert queues.queues() == []
    assert queues.counts("mail") == Counts()
    assert queues.policy("mail")["ttlSec"] == 0
    with pytest.raises(NotFound):
        queues.ack(lease)
