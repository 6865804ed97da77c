"""Messages pushed within a credit window, whatever becomes of the connection."""

from typing import Any

import pytest

from tests.client.parts import BadLine, Connect, ToTheirEnd
from tests.support.server import RunningServer
from tests.support.wait import PATIENCE
from yirangmq.core.errors import BadInput, LeaseExpired
from yirangmq.testing import ManualClock
from yirangmq.wire.frames import FrameKind

QUIET = 0.15
"""Seconds without a message after which there is none."""


@pytest.fixture
def queues(everyones: Any) -> Any:
    return everyones


class Pushed(ToTheirEnd):
    def __init__(self, queues: Any, *given: Any, **named: Any) -> None:
        super().__init__(queues, queues.subscribe("mail", *given, **named))

    def take(self, count: int) -> list[Any]:
        """So many, and there are no more."""
        found = [self._run(self._it.next(PATIENCE)) for _ in range(count)]
        return found + self.rest()

    def rest(self) -> list[Any]:
        """Whatever comes before it falls silent."""
        found = []
        while (delivery := self._run(self._it.next(QUIET))) is not None:
            found.append(delivery)
        return found


def values(deliveries: list[Any]) -> list[Any]:
    return [delivery.value() for delivery in deliveries]


def leases(deliveries: list[Any]) -> list[str]:
    return [delivery.lease_id for delivery in deliveries]


def settled(pushed: Pushed, delivery: Any) -> None:
    pushed.ack_nowait(delivery)
    pushed.settle()


def test_messages_are_pushed_as_they_come(queues: Any) -> None:
    queues.publish_many("mail", range(5))
    pushed = Pushed(queues)
    assert values(pushed.take(5)) == [0, 1, 2, 3, 4]
    queues.publish("mail", 5)
    assert values(pushed.take(1)) == [5]


def test_it_ends_when_nothing_came_for_a_while(queues: Any) -> None:
    assert Pushed(queues, idle=QUIET).next() is None


def test_no_more_are_in_hand_than_the_credit_says(queues: Any) -> None:
    queues.publish_many("mail", range(20))
    pushed = Pushed(queues, 5)
    first = pushed.take(5)
    assert values(first) == [0, 1, 2, 3, 4]
    assert queues.counts("mail").leased == 5
    queues.ack_many(leases(first[:2]))
    second = pushed.take(2)
    assert values(second) == [5, 6]
    queues.nack_many(leases(first[2:3]), delay=99)
    queues.release_many(leases(second))
    assert values(pushed.take(3)) == [7, 8, 9]
    assert queues.counts("mail").leased == 5


def test_a_lapsed_lease_gives_its_credit_back(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", range(5))
    pushed = Pushed(queues, 2, lease_seconds=10)
    assert values(pushed.take(2)) == [0, 1]
    clock.advance(10_000)
    queues.sweep()
    assert values(pushed.take(2)) == [2, 3]


def test_an_extended_lease_keeps_its_credit(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", range(5))
    pushed = Pushed(queues, 2, lease_seconds=10)
    first = pushed.take(2)[0]
    queues.extend(first.lease_id, 60)
    clock.advance(10_000)
    queues.sweep()
    assert values(pushed.take(1)) == [2]


def test_what_is_in_hand_counts_on_the_next_connection_too(client: Any, server: RunningServer) -> None:
    client.publish_many("mail", range(20))
    pushed = Pushed(client, 5)
    first = pushed.take(5)
    server.cut()
    assert pushed.rest() == []
    client.ack_many(leases(first[:3]))
    assert values(pushed.take(3)) == [5, 6, 7]
    assert client.counts("mail").leased == 5


def test_a_subscription_outlives_its_server(client: Any, server: RunningServer) -> None:
    client.publish_many("mail", [1, 2])
    pushed = Pushed(client)
    client.ack_many(leases(pushed.take(2)))
    server.stop()
    server.start()
    client.publish("mail", 3)
    assert values(pushed.take(1)) == [3]


def test_acks_without_waiting_are_all_on_disk_when_settled(queues: Any) -> None:
    queues.publish_many("mail", range(500))
    pushed = Pushed(queues, 50)
    count = 0
    while count < 490:
        batch = pushed.next_batch(PATIENCE)
        assert 0 < len(batch) <= 50
        count += len(batch)
        pushed.ack_nowait(batch)
    for delivery in pushed.take(500 - count):
        count += 1
        pushed.ack_nowait(delivery)
    pushed.ack_nowait([])
    pushed.settle()
    assert (count, queues.counts("mail").done) == (500, 500)


@pytest.mark.parametrize("how", ["lose_answer", "lose_request"])
def test_acks_that_were_lost_are_said_again_and_give_their_credit_back(
    line: BadLine, connecting: Connect, how: str
) -> None:
    queues = connecting(line.address)
    queues.publish_many("mail", range(10))
    pushed = Pushed(queues, 10)
    batch = pushed.take(10)
    getattr(line, how)(FrameKind.ACK)
    pushed.ack_nowait(batch)
    assert pushed.rest() == []
    queues.publish_many("mail", range(10, 20))
    assert values(pushed.take(10)) == list(range(10, 20))
    pushed.settle()
    assert (queues.counts("mail").done, line.losses) == (10, 1)


def test_a_refused_ack_is_raised_when_settled(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", [1, 2])
    pushed = Pushed(queues, lease_seconds=10)
    [first, second] = pushed.take(2)
    pushed.ack_nowait(first)
    pushed.settle()
    clock.advance(10_000)
    with pytest.raises(LeaseExpired):
        settled(pushed, second)
    pushed.settle()


def test_closing_gives_back_what_was_not_taken(queues: Any) -> None:
    queues.publish_many("mail", range(10))
    pushed = Pushed(queues, 8)
    kept = pushed.next(PATIENCE)
    pushed.close()
    assert pushed.rest() == []
    counts = queues.counts("mail")
    assert (counts.leased, counts.ready) == (1, 9)
    assert {delivery.attempt for delivery in queues.lease("mail", 9)} == {1}
    queues.ack(kept.lease_id)
    pushed.close()


def test_closing_a_client_closes_its_subscriptions(server: RunningServer, connecting: Connect) -> None:
    queues = connecting(server.unix)
    queues.publish_many("mail", range(10))
    Pushed(queues).next(PATIENCE)
    queues.close()
    assert connecting(server.unix).counts("mail").ready == 9


def test_deliveries_know_the_policy_they_are_under_also_after_it_changed(queues: Any) -> None:
    queues.publish("mail", 1)
    pushed = Pushed(queues)
    [first] = pushed.take(1)
    queues.set_policy("mail", {"visibilityTimeoutSec": 99})
    queues.publish_many("mail", [2])
    [second] = pushed.take(1)
    assert [one.policy["visibilityTimeoutSec"] for one in (first, second)] == [30, 99]


def test_a_refused_subscription_is_raised_where_messages_are_awaited(client: Any) -> None:
    *several, last = [Pushed(client) for _ in range(65)]
    for one in several:
        assert one.next(0.001) is None
    with pytest.raises(BadInput, match="64"):
        last.next(PATIENCE)


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("credit", {"credit": 0}),
        ("credit", {"credit": 10_001}),
        ("idle", {"idle": -1}),
        ("leaseSeconds", {"lease_seconds": 0}),
        ("consumerId", {"consumer": "a b"}),
    ],
)
def test_bad_input_is_named_at_once(queues: Any, field: str, named: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        queues.subscribe("mail", **named)
    assert caught.value.field == field


def test_a_server_that_pushes_nothing_is_asked_whether_it_is_there(
    line: BadLine, connecting: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.client.subscription.LISTEN_SECONDS", 0.01)
    pushed = Pushed(connecting(line.address))
    while FrameKind.PING not in line.requests:
        assert pushed.next(QUIET) is None


def test_a_long_wait_is_asked_for_in_parts(line: BadLine, connecting: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yirangmq.client.async_client.MAX_POLL_SECONDS", 0.01)
    client = connecting(line.address)
    assert client.lease("mail", wait=QUIET) == []
    while line.requests.count(FrameKind.LEASE) <= 2:
        assert client.lease("mail", wait=2 * QUIET) == []
