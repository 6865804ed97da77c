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


def test_subscription_pushes_messages_as_they_are_published(queues: Any) -> None:
    queues.publish_many("mail", range(5))
    pushed = Pushed(queues)
    assert values(pushed.take(5)) == [0, 1, 2, 3, 4]
    queues.publish("mail", 5)
    assert values(pushed.take(1)) == [5]


def test_subscription_ends_after_its_idle_time(queues: Any) -> None:
    assert Pushed(queues, idle=QUIET).next() is None


def test_credit_window_limits_the_unsettled_messages_of_a_subscription(queues: Any) -> None:
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


def test_credit_window_regains_the_credit_of_an_expired_lease(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", range(5))
    pushed = Pushed(queues, 2, lease_seconds=10)
    assert values(pushed.take(2)) == [0, 1]
    clock.advance(10_000)
    queues.sweep()
    assert values(pushed.take(2)) == [2, 3]


def test_credit_window_keeps_the_credit_of_an_extended_lease_in_use(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", range(5))
    pushed = Pushed(queues, 2, lease_seconds=10)
    first = pushed.take(2)[0]
    queues.extend(first.lease_id, 60)
    clock.advance(10_000)
    queues.sweep()
    assert values(pushed.take(1)) == [2]


def test_credit_window_counts_unsettled_messages_on_the_next_connection_too(client: Any, server: RunningServer) -> None:
    client.publish_many("mail", range(20))
    pushed = Pushed(client, 5)
    first = pushed.take(5)
    server.cut()
    assert pushed.rest() == []
    client.ack_many(leases(first[:3]))
    assert values(pushed.take(3)) == [5, 6, 7]
    assert client.counts("mail").leased == 5


def test_subscription_continues_after_a_server_restart(client: Any, server: RunningServer) -> None:
    client.publish_many("mail", [1, 2])
    pushed = Pushed(client)
    client.ack_many(leases(pushed.take(2)))
    server.stop()
    server.start()
    client.publish("mail", 3)
    assert values(pushed.take(1)) == [3]


def test_ack_nowait_is_durable_for_all_messages_after_settle(queues: Any) -> None:
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
def test_ack_nowait_that_was_lost_is_repeated_and_returns_its_credit(
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


def test_ack_nowait_of_an_expired_lease_raises_at_settle(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", [1, 2])
    pushed = Pushed(queues, lease_seconds=10)
    [first, second] = pushed.take(2)
    pushed.ack_nowait(first)
    pushed.settle()
    clock.advance(10_000)
    with pytest.raises(LeaseExpired):
        settled(pushed, second)
    pushed.settle()


def test_subscription_close_releases_messages_not_taken(queues: Any) -> None:
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


def test_client_close_closes_its_subscriptions(server: RunningServer, connecting: Connect) -> None:
    queues = connecting(server.unix)
    queues.publish_many("mail", range(10))
    Pushed(queues).next(PATIENCE)
    queues.close()
    assert connecting(server.unix).counts("mail").ready == 9


def test_delivery_carries_the_policy_in_force_also_after_a_change(queues: Any) -> None:
    queues.publish("mail", 1)
    pushed = Pushed(queues)
    [first] = pushed.take(1)
    queues.set_policy("mail", {"visibilityTimeoutSec": 99})
    queues.publish_many("mail", [2])
    [second] = pushed.take(1)
    assert [one.policy["visibilityTimeoutSec"] for one in (first, second)] == [30, 99]


def test_subscription_that_the_server_refuses_raises_at_the_next_message(client: Any) -> None:
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
def test_subscription_options_that_are_invalid_are_refused_by_name_at_once(
    queues: Any, field: str, named: dict[str, Any]
) -> None:
    with pytest.raises(BadInput) as caught:
        queues.subscribe("mail", **named)
    assert caught.value.field == field


def test_keep_alive_ping_is_sent_while_a_server_pushes_nothing(
    line: BadLine, connecting: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.client.subscription.LISTEN_SECONDS", 0.01)
    pushed = Pushed(connecting(line.address))
    while FrameKind.PING not in line.requests:
        assert pushed.next(QUIET) is None


def test_lease_request_with_a_long_wait_is_sent_in_parts(
    line: BadLine, connecting: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.client.async_client.MAX_POLL_SECONDS", 0.01)
    client = connecting(line.address)
    assert client.lease("mail", wait=QUIET) == []
    while line.requests.count(FrameKind.LEASE) <= 2:
        assert client.lease("mail", wait=2 * QUIET) == []
