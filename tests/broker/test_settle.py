"""Messages that share their fate are leased and acknowledged as one, and nobody can tell; where they differ, each is
looked at by itself."""

from pathlib import Path

import pytest

from yirangmq import BadInput, LeaseLost, NewMessage
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import Leases
from yirangmq.core.events import Event, LeasesSettled, MessagesLeased
from yirangmq.core.message import lease_span
from yirangmq.testing import ManualClock, open_for_test


@pytest.fixture(params=["memory:", "sqlite:"])
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Queues:
    place = "" if request.param == "memory:" else str(tmp_path / "queue.db")
    return open_for_test(request.param + place, clock=ManualClock())


def _leases(queues: Queues, count: int) -> list[str]:
    return [delivery.lease_id for delivery in queues.lease("mail", count)]


@pytest.mark.parametrize(
    ("leases", "span"),
    [
        ([], None),
        (["7-1"], (7, 7, 1)),
        (["7-1", "8-1", "9-1"], (7, 9, 1)),
        (["7-1", "8-2", "9-1"], None),
        (["9-1", "8-1", "7-1"], None),
        (["7-1", "7-1"], None),
        (["07-1"], None),
        (["7-1", "x", "9-1"], None),
        (["x", "8-1"], None),
    ],
)
def test_lease_span_is_found_for_consecutive_lease_ids(leases: list[str], span: tuple[int, int, int] | None) -> None:
    assert lease_span(leases) == span


def test_lease_keys_are_read_alike_with_and_without_a_span_and_invalid_ids_are_rejected() -> None:
    assert Leases(["7-1", "8-1"]).keys == [(7, 1), (8, 1)]
    assert Leases(["8-1", "07-1"]).keys == [(8, 1), (7, 1)]
    with pytest.raises(BadInput, match="twice"):
        Leases(["7-1", "7-1"])
    with pytest.raises(BadInput, match="not a lease id"):
        Leases(["7-1", "x", "9-1"])


def test_ack_of_leases_of_another_consumer_is_refused_for_each_lease(queues: Queues) -> None:
    queues.publish_many("mail", range(6))
    held = _leases(queues, 4)
    queues.ack(held[1])
    errors = queues.ack_many(held, consumer="somebody else")
    assert [error.code if error else "" for error in errors] == [
        "lease_mismatch",
        "",
        "lease_mismatch",
        "lease_mismatch",
    ]
    assert queues.counts("mail").leased == 3
    queues.ack(held)  # the second one again, as if nothing had been said
    assert (queues.counts("mail").leased, queues.counts("mail").acked) == (0, 4)


def test_ack_of_a_run_of_expired_leases_acks_none_of_them(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_for_test(f"sqlite:{tmp_path / 'queue.db'}", clock=clock) as queues:
        queues.publish_many("mail", range(3))
        held = _leases(queues, 3)
        clock.advance(30_000)
        with pytest.raises(LeaseLost):
            queues.ack(held)
        assert queues.counts("mail").acked == 0


def test_event_of_a_run_of_messages_reports_each_message(queues: Queues) -> None:
    heard: list[Event] = []
    queues.add_listener(heard.extend)
    queues.publish_many("mail", range(3))
    queues.ack(_leases(queues, 3))
    assert [event for event in heard if isinstance(event, MessagesLeased | LeasesSettled)] == [
        MessagesLeased("mail", 3, [0, 0, 0]),
        LeasesSettled("mail", "ack", 3, [0, 0, 0]),
    ]


def test_lease_extension_does_not_change_the_start_of_the_measured_work_time(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_for_test(f"sqlite:{tmp_path / 'queue.db'}", clock=clock) as queues:
        heard: list[Event] = []
        queues.add_listener(heard.extend)
        queues.publish_many("mail", range(2))
        held = _leases(queues, 2)
        clock.advance(1_000)
        queues.extend(held[1], 60)
        clock.advance(500)
        queues.ack(held[0])
        queues.ack(held[1])
        assert [event.worked_ms for event in heard if isinstance(event, LeasesSettled)] == [(), [1500], [1500]]


def test_lease_of_a_run_interrupted_by_a_message_with_time_to_live_keeps_the_order(queues: Queues) -> None:
    queues.publish_many("mail", [1, 2])
    queues.publish("mail", NewMessage(payload=3, ttl=1_000))
    queues.publish_many("mail", [4, 5])
    assert [delivery.value() for delivery in queues.lease("mail", 4)] == [1, 2, 3, 4]
    assert [delivery.value() for delivery in queues.lease("mail", 9)] == [5]
