"""How each change ends a delivery."""

import pytest

from yirangmq.core import events, transitions
from yirangmq.core.backoff import RandomFraction
from yirangmq.core.events import DeliveryStatus
from yirangmq.core.message import Envelope, Message, MessageFailure, Reason
from yirangmq.core.policy import read_policy
from yirangmq.core.transitions import Cause

POLICY = read_policy({"retry": {"limit": 1}}, "mail")
SENT = Envelope("mail", "m-1", 5, 0, 0, 0, None, "", b"x", False)
HELD = transitions.lease(transitions.fresh(SENT, 1, 0), 100, 1_100, "worker")
LAST = transitions.lease(transitions.expire(HELD, POLICY, 1_100, 2).message, 1_200, 2_200, "worker")  # type: ignore[union-attr]


def nacked(reason: Reason) -> tuple[Message, MessageFailure | None]:
    return transitions.nack(HELD, POLICY, 300, Cause(reason, "it broke"), 2, RandomFraction())


@pytest.mark.parametrize(
    ("after", "status", "reason", "became", "final"),
    [
        ((transitions.ack(HELD, POLICY, 300), None), DeliveryStatus.DELIVERED, "", "done", True),
        (nacked(Reason.HANDLER_ERROR), DeliveryStatus.FAILED, "HANDLER_ERROR", "delayed", False),
        (nacked(Reason.REJECTED), DeliveryStatus.FAILED, "REJECTED", "dead", True),
        (nacked(Reason.TIMEOUT), DeliveryStatus.FAILED, "TIMEOUT", "delayed", False),
        (transitions.expire(HELD, POLICY, 1_100, 2), DeliveryStatus.TIMEOUT, "TIMEOUT", "ready", False),
        (transitions.expire(LAST, POLICY, 2_200, 2), DeliveryStatus.TIMEOUT, "TIMEOUT", "dead", True),
        ((transitions.release(HELD, POLICY, 300, 2), None), DeliveryStatus.FAILED, "released", "ready", False),
        ((transitions.drop(HELD, POLICY, 300), None), DeliveryStatus.FAILED, "dropped", "dropped", True),
    ],
)
def test_delivery_end_has_the_status_and_reason_of_its_outcome(
    after: tuple[Message, MessageFailure | None], status: DeliveryStatus, reason: str, became: str, final: bool
) -> None:
    record = events.delivery_started(HELD)
    assert (record.status, record.begun_at, record.ended_at, record.consumer) == (
        DeliveryStatus.DELIVERING,
        100,
        0,
        "worker",
    )
    assert not record.is_final
    assert events.ends_delivery(HELD, after[0])
    ended = events.ended(record, *after, 300)
    assert (ended.status, ended.reason, ended.became, ended.ended_at) == (status, reason, became, 300)
    assert ended.is_final is final


def test_lease_extension_does_not_end_the_delivery() -> None:
    assert not events.ends_delivery(HELD, transitions.extend(HELD, 200, 2_000))
