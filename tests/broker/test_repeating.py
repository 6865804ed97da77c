"""Saying something twice: repeated calls, known ids, deduplication keys, and how long each is remembered."""

import pytest

from tests.support.queues import SECOND, dead_letters, take, taken
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import LeaseExpired, NotFound
from yirangmq.core.message import Counts
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock


def test_ack_repeated_succeeds_and_counts_once(queues: Queues) -> None:
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    for _ in range(3):
        queues.ack(lease)
    assert queues.counts("mail") == Counts(done=1, published=1, acked=1)


@pytest.mark.parametrize("archive", [{"enabled": False}, {"enabled": True, "retentionDays": 0}, {"maxMessages": 0}])
def test_ack_is_remembered_for_the_tombstone_window_regardless_of_the_archive(
    queues: Queues, clock: ManualClock, archive: dict[str, object]
) -> None:
    queues.set_policy("mail", {"archive": archive})
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    queues.ack(lease)
    clock.advance(600 * SECOND - 1)
    queues.sweep()
    queues.ack(lease)
    clock.advance(1)
    queues.sweep()
    with pytest.raises(NotFound):
        queues.ack(lease)


def test_nack_repeated_succeeds_and_counts_once(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    queues.nack(lease)
    queues.nack(lease, "REJECTED")
    assert queues.counts("mail") == Counts(delayed=1, published=1, failed=1, bytes=1)
    clock.advance(SECOND)
    queues.sweep()
    queues.nack(lease)
    assert queues.counts("mail") == Counts(ready=1, published=1, failed=1, bytes=1)


@pytest.mark.parametrize("dlq", [{"enabled": True}, {"enabled": False}, {"enabled": False, "whenDisabled": "park"}])
def test_nack_of_the_last_attempt_can_be_repeated(queues: Queues, dlq: dict[str, object]) -> None:
    queues.set_policy("mail", {"retry": {"limit": 0}, "dlq": dlq})
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    queues.nack(lease)
    counts = queues.counts("mail")
    queues.nack(lease)
    assert queues.counts("mail") == counts


def test_nack_after_an_ack_and_ack_after_a_nack_are_rejected_as_expired(queues: Queues) -> None:
    queues.publish_many("mail", [1, 2])
    acked, nacked = queues.lease("mail", 2)
    queues.ack(acked.lease_id)
    queues.nack(nacked.lease_id)
    for verb, lease in ((queues.nack, acked), (queues.extend, acked), (queues.ack, nacked), (queues.extend, nacked)):
        with pytest.raises(LeaseExpired):
            verb(lease.lease_id)


@pytest.mark.parametrize("limit", [0, 5])
def test_lease_that_expired_cannot_be_acked_nacked_or_extended(queues: Queues, clock: ManualClock, limit: int) -> None:
    queues.set_policy("mail", {"retry": {"limit": limit}})
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    clock.advance(30 * SECOND)
    for _ in range(2):  # before anybody has noticed, and after
        for verb in (queues.ack, queues.nack, queues.extend):
            with pytest.raises(LeaseExpired):
                verb(lease)
        queues.sweep()
    assert queues.counts("mail").failed == 1


def test_lease_of_an_earlier_attempt_stays_expired_after_retry_and_redrive(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    old = [take(queues).lease_id]
    queues.nack(old[0], delay=0)
    old.append(take(queues).lease_id)
    queues.nack(old[1], "REJECTED")
    dead_letters(queues).redrive("mail", all=True)
    current = take(queues).lease_id
    for lease in old:
        for verb in (queues.ack, queues.nack, queues.extend):
            with pytest.raises(LeaseExpired):
                verb(lease)
    queues.ack(current)
    assert len({*old, current}) == 3


# -- ids --------------------------------------------------------------------------------------------------------------


def test_dedup_stores_messages_with_the_same_id_once(queues: Queues) -> None:
    first = queues.publish("mail", NewMessage(payload="first", id="one"))
    again = queues.publish("mail", NewMessage(payload="second", id="one"))
    assert (first.duplicate, again.duplicate, again.id) == (False, True, "one")
    assert take(queues).value() == "first"
    assert queues.counts("mail").published == 1


def test_dedup_knows_a_finished_id_until_its_tombstone_window_ends(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"archive": {"enabled": False}, "tombstoneSec": 60})
    queues.publish("mail", NewMessage(payload=1, id="one"))
    queues.ack(take(queues).lease_id)
    clock.advance(60 * SECOND - 1)
    queues.sweep()
    assert queues.publish("mail", NewMessage(payload=1, id="one")).duplicate
    clock.advance(1)
    queues.sweep()
    assert not queues.publish("mail", NewMessage(payload=1, id="one")).duplicate


# -- deduplication ----------------------------------------------------------------------------------------------------


def keyed(key: str = "k") -> NewMessage:
    return NewMessage(payload=1, deduplication_key=key)


def test_dedup_stores_messages_with_the_same_key_within_the_window_once(queues: Queues, clock: ManualClock) -> None:
    first = queues.publish("mail", keyed())
    clock.advance(300 * SECOND - 1)
    again = queues.publish("mail", keyed())
    assert (again.duplicate, again.id) == (True, first.id)
    assert taken(queues) == [first.id]


def test_dedup_key_is_new_after_its_window(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", keyed())
    clock.advance(300 * SECOND)
    second = queues.publish("mail", keyed())
    assert not second.duplicate
    clock.advance(300 * SECOND - 1)
    assert queues.publish("mail", keyed()).id == second.id


def test_dedup_key_outlives_the_message_that_introduced_it(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"archive": {"enabled": False}, "tombstoneSec": 0})
    queues.publish("mail", keyed())
    queues.ack(take(queues).lease_id)
    clock.advance(SECOND)
    queues.sweep()
    assert queues.publish("mail", keyed()).duplicate


def test_dedup_keys_apply_within_a_batch_and_only_within_their_queue(queues: Queues) -> None:
    receipts = queues.publish_many("mail", [keyed(), keyed("l"), keyed(), keyed("l")])
    assert [receipt.id for receipt in receipts] == ["m-1", "m-2", "m-1", "m-2"]
    assert not queues.publish("post", keyed()).duplicate


def test_dedup_window_is_that_of_the_policy(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"dedupWindowSec": 1})
    queues.publish("mail", keyed())
    clock.advance(SECOND)
    assert not queues.publish("mail", keyed()).duplicate
    queues.set_policy("mail", {"dedupWindowSec": 0})
    assert [one.duplicate for one in queues.publish_many("mail", [keyed("a"), keyed("a")])] == [False, False]


def test_dedup_keys_whose_window_ended_are_removed_by_the_sweeper(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", [keyed(f"k{n}") for n in range(3)])
    assert queues.sweep() == 0
    clock.advance(300 * SECOND)
    assert queues.sweep() == 3
