"""A queue that is as full as its policy allows: refused, or the oldest goes."""

import pytest

from tests.support.queues import exhaust, state, take, taken
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import NotFound, QuotaExceeded
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage


def allow(queues: Queues, messages: int = 0, size: int = 0, on_full: str = "reject") -> None:
    queues.set_policy("mail", {"quota": {"maxMessages": messages, "maxBytes": size, "onFull": on_full}})


def fill(queues: Queues, *priorities: int | None) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, priority=one) for n, one in enumerate(priorities)])


# -- reject -----------------------------------------------------------------------------------------------------------


def test_quota_refuses_a_batch_that_does_not_fit_and_stores_none_of_it(queues: Queues) -> None:
    allow(queues, messages=3)
    queues.publish_many("mail", [1, 2])
    with pytest.raises(QuotaExceeded, match="try again in 5 s") as caught:
        queues.publish_many("mail", [3, 4])
    assert (caught.value.code, caught.value.retry_after) == ("quota_exceeded", 5.0)
    assert queues.counts("mail").ready == 2
    queues.publish("mail", 5)
    assert queues.counts("mail").ready == 3


def test_quota_counts_all_unfinished_messages(queues: Queues) -> None:
    allow(queues, messages=3)
    queues.publish("mail", 1)
    take(queues)
    queues.publish("mail", NewMessage(payload=2, delay=60))
    queues.publish("mail", 3)
    with pytest.raises(QuotaExceeded):
        queues.publish("mail", 4)


def test_quota_does_not_count_acked_dead_or_dropped_messages(queues: Queues) -> None:
    allow(queues, messages=1)
    queues.publish("mail", 1)
    queues.ack(take(queues).lease_id)
    queues.publish("mail", 2)
    exhaust(queues)
    queues.publish("mail", 3)
    queues.drop("mail", ["m-3"])
    queues.publish("mail", 4)
    assert queues.counts("mail").ready == 1


def test_quota_accepts_a_repeated_publish_that_had_succeeded(queues: Queues) -> None:
    allow(queues, messages=2)
    queues.publish_many("mail", [NewMessage(payload=1, id="a"), NewMessage(payload=2, id="b")])
    again = queues.publish_many("mail", [NewMessage(payload=1, id="a"), NewMessage(payload=2, id="b")])
    assert [receipt.duplicate for receipt in again] == [True, True]
    with pytest.raises(QuotaExceeded):
        queues.publish_many("mail", [NewMessage(payload=1, id="a"), NewMessage(payload=3, id="c")])
    with pytest.raises(NotFound):
        queues.show("mail", "c")


def test_quota_lowered_later_still_accepts_a_repeated_publish(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, id=f"a{n}") for n in range(3)])
    for on_full in ("reject", "dropOldest"):
        allow(queues, messages=1, on_full=on_full)
        assert queues.publish("mail", NewMessage(payload=0, id="a0")).duplicate
    assert taken(queues) == ["a0", "a1", "a2"]


def test_quota_refuses_a_batch_larger_than_the_queue_as_never_fitting(queues: Queues) -> None:
    for on_full in ("reject", "dropOldest"):
        allow(queues, messages=2, on_full=on_full)
        with pytest.raises(QuotaExceeded, match="never fits") as caught:
            queues.publish_many("mail", [1, 2, 3])
        assert caught.value.retry_after is None


def test_quota_of_a_queue_does_not_affect_other_queues(queues: Queues) -> None:
    allow(queues, messages=1)
    queues.publish("mail", 1)
    queues.publish_many("post", [1, 2, 3])
    assert queues.counts("post").ready == 3


def test_quota_lowered_below_the_backlog_refuses_until_there_is_space(queues: Queues) -> None:
    queues.publish_many("mail", [1, 2, 3])
    allow(queues, messages=2)
    with pytest.raises(QuotaExceeded):
        queues.publish("mail", 4)
    queues.ack([take(queues).lease_id, take(queues).lease_id])
    queues.publish("mail", 5)


# -- drop the oldest --------------------------------------------------------------------------------------------------


def test_quota_with_drop_oldest_drops_the_oldest_messages_and_counts_them(queues: Queues) -> None:
    allow(queues, messages=3, on_full="dropOldest")
    fill(queues, None, None, None)
    queues.publish_many("mail", [3, 4])
    assert taken(queues) == ["m-3", "m-4", "m-5"]
    assert queues.counts("mail").dropped == 2
    assert state(queues, "m-1") is State.DROPPED


def test_quota_with_drop_oldest_drops_the_lowest_priority_first_and_then_the_next(queues: Queues) -> None:
    allow(queues, messages=6, on_full="dropOldest")
    fill(queues, 0, 7, None, 3, None, 7)  # m-1 to m-6
    queues.publish("mail", NewMessage(payload=6, priority=0))
    assert state(queues, "m-3") is State.DROPPED
    fill(queues, 0, 0, 0)
    assert [state(queues, f"m-{n}") for n in (5, 2, 6)] == [State.DROPPED] * 3
    assert taken(queues) == ["m-1", "m-7", "m-8", "m-9", "m-10", "m-4"]


def test_quota_with_drop_oldest_drops_by_priority_for_any_number(queues: Queues) -> None:
    numbers = [5, 2**53 - 1, 2**40, 1, 2**52, 17, 0]
    allow(queues, messages=len(numbers), on_full="dropOldest")
    fill(queues, *numbers)
    gone = []
    for _ in range(4):
        queues.publish("mail", NewMessage(payload=1, priority=0))
        gone.append(min(n for n, _ in enumerate(numbers) if n not in gone and state(queues, f"m-{n + 1}") == "dropped"))
    assert [numbers[n] for n in gone] == [2**53 - 1, 2**52, 2**40, 17]


def test_quota_with_drop_oldest_never_drops_leased_messages(queues: Queues) -> None:
    allow(queues, messages=2, on_full="dropOldest")
    fill(queues, None, None)
    held = take(queues)
    queues.publish("mail", 3)
    assert [state(queues, f"m-{n}") for n in (1, 2, 3)] == [State.LEASED, State.DROPPED, State.READY]
    take(queues)
    with pytest.raises(QuotaExceeded, match="full of leased messages"):
        queues.publish("mail", 4)
    queues.ack(held.lease_id)
    queues.publish("mail", 5)


def test_quota_with_drop_oldest_drops_delayed_messages_when_none_is_ready(queues: Queues) -> None:
    allow(queues, messages=2, on_full="dropOldest")
    queues.publish_many("mail", [NewMessage(payload=1, delay=60), NewMessage(payload=2)])
    queues.publish("mail", 3)
    assert [state(queues, f"m-{n}") for n in (1, 2)] == [State.DELAYED, State.DROPPED]
    queues.publish_many("mail", [4, 5])
    assert [state(queues, f"m-{n}") for n in (1, 3)] == [State.DROPPED, State.DROPPED]


def test_quota_with_drop_oldest_drops_nothing_for_a_repeated_publish(queues: Queues) -> None:
    allow(queues, messages=2, on_full="dropOldest")
    batch = [NewMessage(payload=1, id="a"), NewMessage(payload=2, id="b")]
    queues.publish_many("mail", batch)
    queues.publish_many("mail", batch)
    assert taken(queues) == ["a", "b"]


def test_quota_with_drop_oldest_drops_a_thousand_messages_at_once(queues: Queues) -> None:
    allow(queues, messages=1_200, on_full="dropOldest")
    queues.publish_many("mail", list(range(1_200)))
    queues.publish_many("mail", list(range(1_100)))
    assert queues.counts("mail").ready == 1_200
    assert taken(queues, 101)[99:] == ["m-1200", "m-1201"]


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_quota_of_bytes_is_exact_for_messages_of_equal_size(queues: Queues) -> None:
    allow(queues, size=1_000)
    for _ in range(10):
        queues.publish("mail", b"x" * 100)
    with pytest.raises(QuotaExceeded, match="1000 bytes"):
        queues.publish("mail", b"x" * 100)
    queues.ack(take(queues).lease_id)
    queues.publish("mail", b"x" * 100)
    assert queues.counts("mail").ready == 10


def test_quota_of_bytes_samples_messages_that_were_there_before(queues: Queues) -> None:
    queues.publish_many("mail", [b"x" * 100] * 8)
    take(queues)
    allow(queues, size=1_000)
    queues.publish_many("mail", [b"x" * 100] * 2)
    with pytest.raises(QuotaExceeded):
        queues.publish("mail", b"x")


def test_quota_of_bytes_follows_the_mean_size_of_new_messages(queues: Queues) -> None:
    allow(queues, size=1_000)
    queues.publish_many("mail", [b"x" * 10] * 10)
    queues.publish("mail", b"x" * 900)
    with pytest.raises(QuotaExceeded):
        queues.publish("mail", b"x")


def test_quota_of_bytes_counts_the_envelope(queues: Queues) -> None:
    allow(queues, size=1_000)
    with pytest.raises(QuotaExceeded, match="never fits"):
        queues.publish("mail", NewMessage(payload=1, attributes={"note": "x" * 1_000}))


def test_quota_of_bytes_drops_the_oldest_messages_until_the_new_message_fits(queues: Queues) -> None:
    allow(queues, size=1_000, on_full="dropOldest")
    queues.publish_many("mail", [b"x" * 100] * 10)
    queues.publish("mail", b"x" * 250)
    assert taken(queues) == [f"m-{n}" for n in range(4, 12)]
