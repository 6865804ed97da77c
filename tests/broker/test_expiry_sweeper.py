"""What time takes away: messages past their time to live, history, dead letters, remembered ids."""

import pytest

from tests.support.queues import DAY, SECOND, dead_letters, exhaust, state, take, taken
from yirangmq.broker.expiry_sweeper import MAX_PER_SWEEP
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import NotFound
from yirangmq.core.message import Counts, Reason
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock


def ack_all(queues: Queues, count: int = 1) -> None:
    queues.ack([delivery.lease_id for delivery in queues.lease("mail", count)])


# -- time to live -----------------------------------------------------------------------------------------------------


def test_expiry_drops_a_message_past_its_time_to_live_instead_of_delivering_it(
    queues: Queues, clock: ManualClock
) -> None:
    queues.publish_many("mail", [NewMessage(payload=1, ttl=5), NewMessage(payload=2, ttl=5.001), 3])
    clock.advance(5 * SECOND)
    assert taken(queues) == ["m-2", "m-3"]
    assert state(queues) is State.DROPPED
    assert queues.counts("mail").dropped == 1


def test_expiry_makes_a_dead_letter_when_the_policy_says_so(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"onExpire": "dead", "ttlSec": 5})
    queues.publish("mail", 1)
    clock.advance(5 * SECOND)
    assert taken(queues) == []
    look = queues.show("mail", "m-1")
    assert (look.message.state, look.message.reason) == (State.DEAD, Reason.EXPIRED)
    record = look.record()
    assert record is not None
    assert record["failure"]["attempt"] == 0
    assert record["failure"]["consumerId"] is None


def test_expiry_prefers_the_time_to_live_of_the_message_to_that_of_the_policy(
    queues: Queues, clock: ManualClock
) -> None:
    queues.set_policy("mail", {"ttlSec": 5})
    queues.publish_many("mail", [NewMessage(payload=1, ttl=60), NewMessage(payload=2, ttl=1), 3])
    clock.advance(4 * SECOND)
    assert [look.message.id for look in queues.peek("mail")] == ["m-1", "m-2", "m-3"]
    assert taken(queues, 1) == ["m-1"]
    clock.advance(SECOND)
    assert taken(queues) == []


def test_expiry_does_not_remove_a_leased_message(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", NewMessage(payload=1, ttl=5))
    delivery = take(queues)
    clock.advance(20 * SECOND)
    queues.sweep()
    assert state(queues) is State.LEASED
    queues.ack(delivery.lease_id)
    assert state(queues) is State.DONE


@pytest.mark.parametrize("how", ["nack", "lapse"])
def test_expiry_drops_a_message_that_returns_after_its_time_to_live(
    queues: Queues, clock: ManualClock, how: str
) -> None:
    queues.publish("mail", NewMessage(payload=1, ttl=20))
    delivery = take(queues)
    clock.advance(20 * SECOND)
    if how == "nack":
        queues.nack(delivery.lease_id)
    else:
        clock.advance(10 * SECOND)
        queues.sweep()
    assert state(queues) is State.DROPPED


def test_expiry_drops_a_delayed_message_before_its_delay_ends(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", [NewMessage(payload=1, delay=10, ttl=5), NewMessage(payload=2, delay=5, ttl=10)])
    clock.advance(5 * SECOND)
    assert taken(queues) == ["m-2"]
    assert state(queues) is State.DROPPED


def test_expiry_of_more_messages_than_a_sweep_handles_delivers_none_of_them(queues: Queues, clock: ManualClock) -> None:
    count = 2 * MAX_PER_SWEEP + 50
    queues.publish_many("mail", [NewMessage(payload=n, ttl=1, priority=1) for n in range(count)])
    queues.publish("mail", NewMessage(payload="alive", priority=2))
    clock.advance(SECOND)
    assert taken(queues, 10) == [f"m-{count + 1}"]


def test_expiry_does_not_apply_to_a_redriven_message(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"onExpire": "dead"})
    queues.publish("mail", NewMessage(payload=1, ttl=5))
    clock.advance(5 * SECOND)
    queues.sweep()
    dead_letters(queues).redrive("mail", all=True)
    clock.advance(DAY)
    assert taken(queues) == ["m-1"]


# -- history ----------------------------------------------------------------------------------------------------------


def test_history_is_kept_for_seven_days(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", "kept")
    ack_all(queues)
    clock.advance(7 * DAY - 1)
    queues.sweep()
    look = queues.show("mail", "m-1")
    assert look.envelope is not None
    assert queues.counts("mail").done == 1
    clock.advance(1)
    queues.sweep()
    with pytest.raises(NotFound):
        queues.show("mail", "m-1")
    assert queues.counts("mail") == Counts(published=1, acked=1)


def test_history_that_is_disabled_keeps_only_the_id_until_the_tombstone_window_ends(
    queues: Queues, clock: ManualClock
) -> None:
    queues.set_policy("mail", {"archive": {"enabled": False}})
    queues.publish("mail", 1)
    ack_all(queues)
    look = queues.show("mail", "m-1")
    assert (look.message.state, look.envelope) == (State.DONE, None)
    assert queues.counts("mail") == Counts(published=1, acked=1)
    clock.advance(600 * SECOND)
    queues.sweep()
    with pytest.raises(NotFound):
        queues.show("mail", "m-1")


def test_history_keeps_at_most_the_configured_number_of_messages(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"archive": {"maxMessages": 3}})
    for n in range(5):
        queues.publish("mail", n)
        ack_all(queues)
        clock.advance(SECOND)
    queues.sweep()
    assert queues.counts("mail").done == 3
    kept = [queues.show("mail", f"m-{n}").envelope is not None for n in range(1, 6)]
    assert kept == [False, False, True, True, True]
    clock.advance(600 * SECOND)
    queues.sweep()
    assert queues.counts("mail").done == 3
    with pytest.raises(NotFound):
        queues.show("mail", "m-1")


def test_history_is_pruned_by_other_operations_without_a_sweep(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"archive": {"maxMessages": 10}})
    for _ in range(4):
        queues.publish_many("mail", range(100))
        ack_all(queues, 100)
        clock.advance(2 * SECOND)
    queues.lease("mail")
    assert queues.counts("mail").done == 10


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_stay_on_day_13_and_are_gone_on_day_15(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    exhaust(queues)
    clock.advance(13 * DAY)
    queues.sweep()
    assert state(queues) is State.DEAD
    clock.advance(2 * DAY)
    queues.sweep()
    assert list(dead_letters(queues).list("mail-dlq")) == []
    assert queues.show("mail", "m-1").envelope is None
    assert queues.counts("mail") == Counts(published=1, failed=1, dropped=1)


def test_dead_letter_is_dropped_exactly_at_the_end_of_its_retention(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"dlq": {"retentionDays": 1}})
    queues.publish("mail", 1)
    exhaust(queues)
    clock.advance(DAY - 1)
    queues.sweep()
    assert state(queues) is State.DEAD
    clock.advance(1)
    queues.sweep()
    assert state(queues) is State.DROPPED
    clock.advance(600 * SECOND)
    queues.sweep()
    with pytest.raises(NotFound):
        queues.show("mail", "m-1")


def test_retention_never_removes_a_parked_message(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    exhaust(queues)
    dead_letters(queues).quarantine("mail", all=True)
    clock.advance(3650 * DAY)
    queues.sweep()
    assert state(queues) is State.PARKED


def test_sweeper_applies_all_due_transitions_however_many_there_are(queues: Queues, clock: ManualClock) -> None:
    count = MAX_PER_SWEEP + 10
    queues.publish_many("mail", [NewMessage(payload=n, delay=1) for n in range(count)])
    clock.advance(SECOND)
    assert queues.sweep() == count
    assert queues.counts("mail").ready == count
    assert queues.sweep() == 0
