"""Publish, lease, ack, extend: the way it goes when it goes well, and whose message it is meanwhile."""

import pytest

from tests.support.queues import SECOND, state, take, taken
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadInput, LeaseExpired, LeaseMismatch, NotFound, WrongState
from yirangmq.core.message import Counts
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock


def test_lease_and_ack_move_a_published_message_to_done(queues: Queues, clock: ManualClock) -> None:
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


def test_lease_delivers_payload_bytes_unchanged(queues: Queues) -> None:
    payload = bytes(range(256))
    queues.publish("mail", payload)
    assert take(queues).payload == payload


def test_lease_hides_the_message_from_other_consumers_until_it_ends(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    take(queues)
    assert queues.lease("mail", consumer="another") == []
    clock.advance(30 * SECOND - 1)
    assert queues.lease("mail", consumer="another") == []


def test_lease_of_many_messages_at_once_returns_them_in_order(queues: Queues) -> None:
    queues.publish_many("mail", range(10))
    assert taken(queues, 4) == ["m-1", "m-2", "m-3", "m-4"]
    assert taken(queues, 100) == [f"m-{n}" for n in range(5, 11)]
    assert taken(queues, 100) == []


def test_lease_returns_only_messages_of_its_queue(queues: Queues) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 2)
    assert taken(queues, queue="post") == ["m-2"]
    assert taken(queues, queue="mail") == ["m-1"]
    assert queues.queues() == ["mail", "post"]


def test_lease_duration_given_by_the_consumer_overrides_the_policy(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", [1, 2])
    short, long = queues.lease("mail", lease_seconds=0.5)[0], queues.lease("mail", lease_seconds=100)[0]
    clock.advance(500)
    assert taken(queues) == [short.id]
    clock.advance(90 * SECOND)
    queues.ack(long.lease_id)


def test_visibility_timeout_of_the_policy_sets_the_lease_duration(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"visibilityTimeoutSec": 2})
    queues.publish("mail", 1)
    delivery = take(queues)
    clock.advance(2 * SECOND)
    with pytest.raises(LeaseExpired):
        queues.ack(delivery.lease_id)
    assert take(queues).attempt == 2


def test_lease_extension_keeps_the_message_leased_until_its_new_end(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    delivery = take(queues)
    clock.advance(29 * SECOND)
    queues.extend(delivery.lease_id)
    clock.advance(29 * SECOND)
    assert queues.lease("mail") == []
    queues.extend(delivery.lease_id, 5)
    clock.advance(5 * SECOND)
    assert take(queues).attempt == 2


def test_lease_extension_of_an_expired_lease_is_rejected(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    delivery = take(queues)
    clock.advance(30 * SECOND)
    with pytest.raises(LeaseExpired):
        queues.extend(delivery.lease_id)
    assert take(queues).attempt == 2


def test_lease_that_expires_goes_to_another_consumer_and_the_old_lease_is_rejected(
    queues: Queues, clock: ManualClock
) -> None:
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


def test_lease_can_be_settled_only_by_its_own_consumer(queues: Queues) -> None:
    queues.publish("mail", 1)
    delivery = take(queues)
    for verb in (queues.ack, queues.nack, queues.extend):
        with pytest.raises(LeaseMismatch):
            verb(delivery.lease_id, consumer="another")
    queues.ack(delivery.lease_id, consumer="tester")


def test_lease_id_that_never_existed_is_not_found(queues: Queues) -> None:
    for verb in (queues.ack, queues.nack, queues.extend):
        with pytest.raises(NotFound):
            verb("77-1")


def test_ack_batch_with_an_expired_or_unknown_lease_acks_the_others(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", range(3))
    stale = queues.lease("mail", lease_seconds=1)[0]
    clock.advance(SECOND)
    good = queues.lease("mail", 2)
    errors = queues.ack_many([good[0].lease_id, stale.lease_id, "999-1", good[1].lease_id])
    assert [type(error) for error in errors] == [type(None), LeaseExpired, NotFound, type(None)]
    assert queues.counts("mail")._replace(failed=0) == Counts(ready=1, done=2, published=3, acked=2, bytes=1)
    with pytest.raises(LeaseExpired):
        queues.ack([stale.lease_id])


def test_ack_batch_may_contain_leases_of_several_queues(queues: Queues) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 1)
    leases = [take(queues, "post").lease_id, take(queues, "mail").lease_id]
    queues.ack(leases)
    assert queues.counts("mail").done == queues.counts("post").done == 1


@pytest.mark.parametrize("name", ["ack_many", "nack_many", "extend_many"])
def test_ack_nack_extend_and_publish_accept_an_empty_batch(queues: Queues, name: str) -> None:
    assert getattr(queues, name)([]) == []
    assert queues.publish_many("mail", []) == []


def test_ack_of_the_same_lease_twice_in_a_call_is_rejected(queues: Queues) -> None:
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    with pytest.raises(BadInput) as caught:
        queues.ack([lease, lease])
    assert caught.value.field == "leases"
    assert state(queues) is State.LEASED


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_drop_removes_a_message_in_any_state_but_done(queues: Queues) -> None:
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


def test_peek_show_and_walk_return_messages_without_leasing_them(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, priority=9 - n) for n in range(5)])
    assert [look.message.id for look in queues.peek("mail", 2)] == ["m-5", "m-4"]
    assert queues.show("mail", "m-1").row()["priority"] == 9
    assert len(list(queues.walk("mail", "ready", batch=2))) == 5
    assert taken(queues, 1) == ["m-5"]
    with pytest.raises(NotFound):
        queues.show("mail", "nobody")


def test_delete_queue_removes_its_messages_policy_and_leases(queues: Queues) -> None:
    queues.set_policy("mail", {"ttlSec": 5})
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    queues.delete_queue("mail")
    assert queues.queues() == []
    assert queues.counts("mail") == Counts()
    assert queues.policy("mail")["ttlSec"] == 0
    with pytest.raises(NotFound):
        queues.ack(lease)
