"""What happens to a message that fails: waits, attempts, poison, the dead letters."""

import pytest

from tests.support.queues import SECOND, dead_letters, exhaust, state, take, taken
from yirangmq.broker.queues import Queues
from yirangmq.core.message import Counts, Reason
from yirangmq.core.states import State
from yirangmq.testing import CountingIds, ManualClock


def waits(queues: Queues, clock: ManualClock, count: int) -> list[int]:
    """How many milliseconds each of ``count`` failures keeps the message away, to the millisecond."""
    found = []
    for _ in range(count):
        queues.nack(take(queues).lease_id)
        wait = queues.show("mail", "m-1").message.due_at - clock.now_ms()
        clock.advance(wait - 1)
        assert queues.lease("mail") == []
        clock.advance(1)
        found.append(wait)
    return found


def test_backoff_waits_1_2_4_8_16_seconds_and_the_sixth_failure_makes_a_dead_letter(
    queues: Queues, clock: ManualClock
) -> None:
    queues.publish("mail", 1)
    assert waits(queues, clock, 5) == [1_000, 2_000, 4_000, 8_000, 16_000]
    last = take(queues)
    assert last.attempt == 6
    queues.nack(last.lease_id, text="still broken")
    look = queues.show("mail", "m-1")
    assert (look.message.state, look.message.reason) == (State.DEAD, Reason.HANDLER_ERROR)
    record = look.record()
    assert record is not None
    assert record["failure"]["attempt"] == 6
    assert record["failure"]["reasonMessage"] == "still broken"
    assert record["failure"]["consumerId"] == "tester"
    assert record["routing"] == {"sourceQueue": "mail", "dlqQueue": "mail-dlq"}
    assert queues.counts("mail") == Counts(dead=1, published=1, failed=6)


def test_retry_counts_expired_leases_as_attempts_and_the_last_makes_a_timeout_dead_letter(
    queues: Queues, clock: ManualClock
) -> None:
    queues.publish("mail", 1)
    for attempt in range(1, 7):
        assert take(queues).attempt == attempt
        clock.advance(30 * SECOND)
    assert queues.lease("mail") == []
    look = queues.show("mail", "m-1")
    assert (look.message.state, look.message.reason) == (State.DEAD, Reason.TIMEOUT)
    record = look.record()
    assert record is not None
    assert record["failure"]["consumerId"] == "tester"


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        ({"backoff": "linear", "initialDelaySec": 2, "maxDelaySec": 5}, [2_000, 4_000, 5_000, 5_000]),
        ({"backoff": "fixed", "initialDelaySec": 0.25}, [250, 250, 250, 250]),
        ({"initialDelaySec": 10, "maxDelaySec": 30}, [10_000, 20_000, 30_000, 30_000]),
    ],
)
def test_backoff_follows_the_policy(
    queues: Queues, clock: ManualClock, retry: dict[str, object], expected: list[int]
) -> None:
    queues.set_policy("mail", {"retry": retry})
    queues.publish("mail", 1)
    assert waits(queues, clock, 4) == expected


@pytest.mark.parametrize(("chance", "expected"), [(0.0, [500, 1_000]), (0.5, [1_000, 2_000]), (1.0, [1_500, 3_000])])
def test_backoff_jitter_spreads_the_delays(
    queues: Queues, clock: ManualClock, ids: CountingIds, chance: float, expected: list[int]
) -> None:
    ids.chance = chance
    queues.set_policy("mail", {"retry": {"jitter": 0.5}})
    queues.publish("mail", 1)
    assert waits(queues, clock, 2) == expected


def test_nack_with_a_delay_overrides_the_backoff(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    queues.nack(take(queues).lease_id, delay=7.5)
    clock.advance(7_499)
    assert queues.lease("mail") == []
    clock.advance(1)
    queues.nack(take(queues).lease_id, delay=0)
    assert take(queues).attempt == 3


def test_nack_reason_that_is_not_valid_text_is_stored_with_replacement_characters(queues: Queues) -> None:
    queues.publish("mail", 1)
    queues.nack(take(queues).lease_id, text="no such file: caf\udce9 \x00")
    failure = queues.show("mail", "m-1").failure
    assert failure is not None
    assert failure.reason_message == "no such file: caf? \x00"


def test_retry_limit_of_zero_allows_one_attempt(queues: Queues) -> None:
    queues.set_policy("mail", {"retry": {"limit": 0}})
    queues.publish("mail", 1)
    queues.nack(take(queues).lease_id)
    assert state(queues) is State.DEAD


def test_poison_message_with_the_same_failure_three_times_in_a_row_becomes_a_dead_letter(
    queues: Queues, clock: ManualClock
) -> None:
    queues.set_policy("mail", {"retry": {"limit": 99, "poisonAfter": 3, "backoff": "fixed"}})
    queues.publish("mail", 1)
    for reason in ("HANDLER_ERROR", "HANDLER_ERROR", "TIMEOUT", "TIMEOUT", "HANDLER_ERROR", "TIMEOUT", "TIMEOUT"):
        queues.nack(take(queues).lease_id, reason)
        assert state(queues) is State.DELAYED
        clock.advance(SECOND)
    take(queues)
    clock.advance(30 * SECOND)  # a lease that lapses is a time-out too
    queues.sweep()
    look = queues.show("mail", "m-1")
    assert (look.message.state, look.message.reason, look.message.attempt) == (State.DEAD, Reason.POISON, 8)


@pytest.mark.parametrize("reason", ["VALIDATION_ERROR", "REJECTED", "CORRUPT"])
def test_nack_with_a_final_reason_makes_a_dead_letter_at_once(queues: Queues, reason: str) -> None:
    queues.publish("mail", 1)
    exhaust(queues, reason=reason)
    look = queues.show("mail", "m-1")
    assert (look.message.state, look.message.reason, look.message.attempt) == (State.DEAD, reason, 1)


@pytest.mark.parametrize(("when_disabled", "expected"), [("drop", State.DROPPED), ("park", State.PARKED)])
@pytest.mark.parametrize("how", ["nack", "lapse"])
def test_retry_limit_without_dead_letters_drops_or_parks_and_never_leaves_a_message_leased(
    queues: Queues, clock: ManualClock, when_disabled: str, expected: State, how: str
) -> None:
    queues.set_policy(
        "mail", {"retry": {"limit": 0}, "dlq": {"enabled": False, "whenDisabled": when_disabled}, "archive": {}}
    )
    queues.publish("mail", 1)
    delivery = take(queues)
    if how == "nack":
        queues.nack(delivery.lease_id)
    else:
        clock.advance(30 * SECOND)
        queues.sweep()
    assert state(queues) is expected
    assert queues.counts("mail").leased == 0
    clock.advance(365 * 86_400 * SECOND)
    queues.sweep()
    assert queues.counts("mail").parked == (expected is State.PARKED)


# -- redriving --------------------------------------------------------------------------------------------------------


def test_redrive_starts_a_message_again_with_its_priority(queues: Queues, clock: ManualClock) -> None:
    queues.publish_text("mail", [b'{"messageId":"old","payload":1,"attributes":{"priority":1}}'])
    old = exhaust(queues)
    queues.publish_text("mail", [b'{"messageId":"new","payload":1,"attributes":{"priority":1}}', b"2"])
    assert dead_letters(queues).redrive("mail-dlq", all=True).ids == ["old"]
    first, second, third = queues.lease("mail", 9)
    assert [first.id, second.id, third.id] == ["new", "old", "m-3"]
    assert (second.attempt, queues.show("mail", "old").message.reason) == (1, "")
    assert second.lease_id != old.lease_id
    assert queues.counts("mail").redriven == 1


def test_redrive_gives_a_message_as_many_attempts_as_a_new_message(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"retry": {"limit": 1, "poisonAfter": 2}})
    queues.publish("mail", 1)
    for _ in range(2):
        queues.nack(take(queues).lease_id, "TIMEOUT")
        clock.advance(SECOND)
        queues.nack(take(queues).lease_id, "HANDLER_ERROR")
        assert state(queues) is State.DEAD
        dead_letters(queues).redrive("mail", all=True)
    assert taken(queues) == ["m-1"]


def test_redrive_puts_messages_behind_waiting_messages_in_order_of_arrival(queues: Queues) -> None:
    queues.publish_many("mail", range(3))
    deliveries = queues.lease("mail", 3)
    for delivery in reversed(deliveries):
        queues.nack(delivery.lease_id, "REJECTED")
    queues.publish("mail", "waiting")
    dead_letters(queues).redrive("mail", all=True)
    assert taken(queues) == ["m-4", "m-1", "m-2", "m-3"]
