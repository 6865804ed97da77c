"""What is said to us is checked to the last field: an error with a stable code that names it, and nothing stored."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import take, taken
from tests.support.stores import Place
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Counts, Reason
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock, open_for_test

Call = Callable[[Queues], object]

CALLS: list[tuple[str, str, Call]] = [
    ("bad_input", "queue", lambda q: q.publish("a/b", 1)),
    ("bad_input", "queue", lambda q: q.publish("", 1)),
    ("bad_input", "queue", lambda q: q.publish(".hidden", 1)),
    ("bad_input", "queue", lambda q: q.publish("q" * 201, 1)),
    ("bad_input", "queue", lambda q: q.publish(7, 1)),  # type: ignore[arg-type]
    ("bad_input", "payload", lambda q: q.publish("mail", object())),
    ("bad_input", "payload", lambda q: q.publish("mail", {"a": float("nan")})),
    ("bad_input", "payload", lambda q: q.publish_many("mail", [1, object(), 2])),
    ("bad_input", "messages", lambda q: q.publish_many("mail", "abc")),
    ("bad_input", "messages", lambda q: q.publish_many("mail", {"a": 1})),
    ("too_large", "payload", lambda q: q.publish("mail", b"x" * (1_048_576 + 1))),
    ("too_large", "payload", lambda q: q.publish_many("mail", [1, b"x" * (1_048_576 + 1)])),
    ("too_large", "attributes", lambda q: q.publish("mail", NewMessage(payload=1, attributes={"a": "x" * 70_000}))),
    ("bad_input", "delay", lambda q: q.publish("mail", NewMessage(payload=1, delay=-1))),
    ("bad_input", "delay", lambda q: q.publish("mail", NewMessage(payload=1, delay=1e12))),
    ("bad_input", "ttl", lambda q: q.publish("mail", NewMessage(payload=1, ttl=0))),
    ("bad_input", "messageId", lambda q: q.publish("mail", NewMessage(payload=1, id="a b"))),
    ("bad_input", "attributes.priority", lambda q: q.publish("mail", NewMessage(payload=1, priority=-1))),
    ("bad_input", "type", lambda q: q.publish_many("mail", [1, NewMessage(payload=1, type="")])),
    ("bad_input", "document", lambda q: q.publish_text("mail", [b"{"])),
    ("bad_input", "document", lambda q: q.publish_text("mail", ["1"])),  # type: ignore[list-item]
    ("bad_input", "document", lambda q: q.publish_text("mail", [b"1", b"\xff"])),
    ("bad_input", "queue", lambda q: q.publish_text("mail", [b'{"messageId":"m","queue":"post","payload":1}'])),
    ("bad_input", "timestamp", lambda q: q.publish_text("mail", [b'{"messageId":"m","timestamp":"now","payload":1}'])),
    ("bad_input", "delay", lambda q: q.publish_text("mail", [b"1"], delay=-1)),
    ("bad_input", "queue", lambda q: q.lease("a/b")),
    ("bad_input", "limit", lambda q: q.lease("mail", 0)),
    ("bad_input", "limit", lambda q: q.lease("mail", 10_001)),
    ("bad_input", "limit", lambda q: q.lease("mail", True)),
    ("bad_input", "wait", lambda q: q.lease("mail", wait=-1)),
    ("bad_input", "leaseSeconds", lambda q: q.lease("mail", lease_seconds=0)),
    ("bad_input", "leaseSeconds", lambda q: q.lease("mail", lease_seconds=-1)),
    ("bad_input", "consumerId", lambda q: q.lease("mail", consumer="a b")),
    ("bad_input", "consumerId", lambda q: q.lease("mail", consumer="")),
    ("bad_input", "leaseId", lambda q: q.ack("nonsense")),
    ("bad_input", "leaseId", lambda q: q.ack([7])),  # type: ignore[list-item]
    ("bad_input", "leaseId", lambda q: q.nack("")),
    ("bad_input", "leases", lambda q: q.ack([f"{n}-1" for n in range(10_001)])),
    ("bad_input", "reasonCode", lambda q: q.nack("1-1", "BECAUSE")),
    ("bad_input", "delay", lambda q: q.nack("1-1", delay=-1)),
    ("bad_input", "text", lambda q: q.nack("1-1", text=7)),  # type: ignore[arg-type]
    ("bad_input", "seconds", lambda q: q.extend("1-1", 0)),
    ("bad_input", "queue", lambda q: q.peek("a/b")),
    ("bad_input", "state", lambda q: q.peek("mail", state="asleep")),
    ("bad_input", "limit", lambda q: q.peek("mail", 0)),
    ("bad_input", "state", lambda q: list(q.walk("mail", "asleep"))),
    ("bad_input", "messageId", lambda q: q.show("mail", "../etc")),
    ("not_found", "", lambda q: q.show("mail", "nobody")),
    ("bad_input", "queue", lambda q: q.counts("a/b")),
    ("bad_input", "queue", lambda q: q.drop("a/b", ["m"])),
    ("bad_input", "ids", lambda q: q.drop("mail", "m-1")),
    ("bad_input", "queue", lambda q: q.delete_queue("a/b")),
    ("bad_input", "queue", lambda q: q.policy("a/b")),
    ("bad_input", "queue", lambda q: q.set_policy("a/b", {})),
    ("bad_policy", "document", lambda q: q.set_policy("mail", [])),
    ("bad_policy", "retry.limit", lambda q: q.set_policy("mail", {"retry": {"limit": -1}})),
    ("bad_policy", "retry.backoff", lambda q: q.set_policy("mail", {"retry": {"backoff": "wild"}})),
    ("bad_policy", "retries", lambda q: q.set_policy("mail", {"retries": 3})),
    ("bad_policy", "schemas.t.1", lambda q: q.set_policy("mail", {"schemas": {"t": {"1": {"type": "objekt"}}}})),
    ("bad_policy", "schemas.t.1", lambda q: q.set_policy("mail", {"schemas": {"t": {"1": {"$ref": "#/nowhere"}}}})),
]


@pytest.mark.parametrize(("code", "field", "call"), CALLS)
def test_bad_input_is_rejected_with_its_code_and_field_and_changes_nothing(
    queues: Queues, code: str, field: str, call: Call
) -> None:
    queues.publish("mail", "there already")
    before = queues.counts("mail"), queues.policy("mail"), queues.queues()
    with pytest.raises(QueueError) as caught:
        call(queues)
    assert (caught.value.code, caught.value.field or "") == (code, field)
    assert (queues.counts("mail"), queues.policy("mail"), queues.queues()) == before
    assert [delivery.value() for delivery in queues.lease("mail", 9)] == ["there already"]


def test_publish_batch_larger_than_the_limit_of_a_commit_is_rejected(place: Place, clock: ManualClock) -> None:
    queues = open_for_test(store=place.open(), clock=clock)
    with pytest.raises(QueueError) as caught:
        queues.publish_many("mail", range(10_001))
    assert (caught.value.code, caught.value.field, queues.queues()) == ("bad_input", "messages", [])


def test_payload_may_be_as_large_as_the_policy_allows_and_no_larger(queues: Queues) -> None:
    queues.publish("mail", b"x" * 1_048_576)
    queues.set_policy("mail", {"maxBytes": 10})
    queues.publish("mail", b"x" * 10)
    with pytest.raises(QueueError) as caught:
        queues.publish("mail", b"x" * 11)
    assert caught.value.code == "too_large"
    assert queues.counts("mail").ready == 2


def test_policy_takes_effect_at_once_and_its_removal_restores_the_defaults(queues: Queues) -> None:
    assert queues.set_policy("mail", {"retry": {"limit": 0}})["retry"]["limit"] == 0
    queues.publish_many("mail", [1, 2])
    queues.nack(take(queues).lease_id)
    assert queues.counts("mail").dead == 1
    assert queues.set_policy("mail", None)["retry"]["limit"] == 5
    queues.nack(take(queues).lease_id)
    assert queues.counts("mail").delayed == 1


def test_policy_check_does_not_set_the_policy(queues: Queues) -> None:
    assert queues.check_policy("mail", {"ttlSec": 5})["ttlSec"] == 5
    assert queues.policy("mail")["ttlSec"] == 0


def test_policy_set_through_another_opening_of_the_store_takes_effect(
    place: Place, queues: Queues, clock: ManualClock
) -> None:
    queues.publish("mail", 1)
    open_for_test(store=place.open(), clock=clock).set_policy("mail", {"visibilityTimeoutSec": 1})
    assert take(queues).lease_until == clock.now_ms() / 1000 + 1


# -- schemas ----------------------------------------------------------------------------------------------------------

READING = {
    "type": "object",
    "required": ["temp"],
    "properties": {"temp": {"type": "number", "minimum": -40}, "tags": {"type": "array", "items": {"type": "string"}}},
}


@pytest.fixture
def readings(queues: Queues) -> Queues:
    queues.set_policy("mail", {"schemas": {"reading": {"1": READING, "*": {"type": "array"}}, "free": {"1": False}}})
    return queues


def reading(payload: object, version: int | None = 1, kind: str | None = "reading", **more: Any) -> NewMessage:
    return NewMessage(payload=payload, type=kind, version=version, **more)


@pytest.mark.parametrize(
    "message",
    [
        reading({"temp": 21.5, "tags": ["a"], "more": 1}),
        reading([], 2),
        reading([], None),
        reading("anything", 2, "free"),
        reading("anything", 1, "other"),
        reading("anything", None, None),
    ],
)
def test_json_schema_accepts_a_matching_message(readings: Queues, message: NewMessage) -> None:
    assert readings.publish("mail", message).refused == ""
    assert taken(readings) == ["m-1"]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (reading({}), 'payload: "temp" is a required property'),
        (reading({"temp": "warm"}), 'payload.temp: "warm" is not of type "number"'),
        (reading({"temp": -41}), "payload.temp: -41 is less than the minimum of -40"),
        (reading({"temp": 1, "tags": ["a", 7]}), 'payload.tags.1: 7 is not of type "string"'),
        (reading({}, 2), 'payload: {} is not of type "array"'),
        (reading(1, 1, "free"), "payload: False schema does not allow 1"),
        (reading(b"\x00"), "payload: is not JSON, and this type has a schema"),
        (reading(b'{"temp":1e400}', content_type="application/octet-stream"), "payload: is not JSON"),
    ],
)
def test_json_schema_violation_makes_a_dead_letter_whose_record_names_the_field(
    readings: Queues, message: NewMessage, complaint: str
) -> None:
    receipt = readings.publish("mail", message)
    assert receipt.refused.startswith(complaint)
    assert taken(readings) == []
    look = readings.show("mail", receipt.id)
    assert (look.message.state, look.message.reason, look.message.attempt) == (State.DEAD, Reason.VALIDATION_ERROR, 0)
    record = look.record()
    assert record is not None
    assert record["failure"]["reasonMessage"] == receipt.refused
    assert readings.counts("mail") == Counts(dead=1, published=1, failed=1)


def test_json_schema_makes_a_number_beyond_the_float_range_a_dead_letter(readings: Queues) -> None:
    [receipt] = readings.publish_text(
        "mail", [b'{"messageId":"m","type":"reading","version":1,"payload":{"temp":1e400}}']
    )
    assert receipt.refused.startswith("payload: ")
    assert readings.counts("mail") == Counts(dead=1, published=1, failed=1)


def test_json_schema_violation_does_not_hold_up_other_messages_of_the_batch(readings: Queues) -> None:
    receipts = readings.publish_many("mail", [reading({"temp": 1}), reading({}), reading({"temp": 2})])
    assert [bool(receipt.refused) for receipt in receipts] == [False, True, False]
    assert taken(readings) == ["m-1", "m-3"]


def test_json_schema_is_checked_at_publish_for_a_delayed_message(readings: Queues) -> None:
    assert readings.publish("mail", reading({}, delay=60)).refused
    assert readings.counts("mail") == Counts(dead=1, published=1, failed=1)


def test_json_schema_violation_of_a_duplicate_is_not_reported_again(readings: Queues) -> None:
    readings.publish("mail", reading({}, id="one"))
    again = readings.publish("mail", reading({}, id="one"))
    assert (again.duplicate, again.refused) == (True, "")
    assert readings.counts("mail").failed == 1


@pytest.mark.parametrize(("when_disabled", "state"), [("drop", State.DROPPED), ("park", State.PARKED)])
def test_json_schema_violation_drops_or_parks_the_message_when_dead_letters_are_disabled(
    queues: Queues, when_disabled: str, state: State
) -> None:
    queues.set_policy(
        "mail", {"schemas": {"t": {"*": False}}, "dlq": {"enabled": False, "whenDisabled": when_disabled}}
    )
    receipt = queues.publish("mail", NewMessage(payload=1, type="t"))
    assert receipt.refused
    assert queues.show("mail", receipt.id).message.state is state


def test_json_schema_change_takes_effect_at_once(readings: Queues) -> None:
    assert readings.publish("mail", reading({})).refused
    readings.set_policy("mail", {"schemas": {"reading": {"1": {"type": "object"}}}})
    assert not readings.publish("mail", reading({})).refused


def test_delay_of_none_is_no_delay(queues: Queues) -> None:
    """As ``ttl`` and ``priority`` of None are none."""
    queues.publish("mail", NewMessage(payload=1, id="m-1", delay=None))
    queues.publish_text("mail", [b'{"messageId": "m-2", "payload": 2}'], delay=None)
    assert taken(queues) == ["m-1", "m-2"]
