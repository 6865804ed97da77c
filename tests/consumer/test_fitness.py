"""What reaches a handler is fit for it; what fails again and again stops coming."""

from typing import Any

import pytest

from tests.support.consumer import running
from tests.support.wait import until
from yirangmq.broker.queues import Queues
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.delivery import DONE, HandlerDelivery, of_error, timed_out
from yirangmq.consumer.settler import ConsumerSummary
from yirangmq.consumer.worker_pool import MAX_REMEMBERED, Poison
from yirangmq.core.message import RANK_LAST, Envelope, Reason
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock

NEEDS_NAME = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}


def needs_name(value: Any) -> None:
    if "name" not in value:
        raise KeyError("name")


@pytest.mark.parametrize("schema", [NEEDS_NAME, needs_name])
@pytest.mark.parametrize("payload", [{"title": "x"}, b"\xff\x00 not JSON"])
def test_json_schema_of_the_consumer_rejects_a_message_before_the_handler(
    queues: Queues, schema: Any, payload: object
) -> None:
    seen: list[Any] = []
    bad, good = (queues.publish("mail", value).id for value in (payload, {"name": "ann"}))
    consumer = Consumer(queues)
    consumer.handler("mail", schema=schema)(lambda delivery: seen.append(delivery.value()))
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1, failed=1)
    assert seen == [{"name": "ann"}]
    look = queues.show("mail", bad)
    assert (look.message.state, look.message.reason) == (State.DEAD, Reason.VALIDATION_ERROR)
    assert queues.show("mail", good).message.state is State.DONE


def test_json_schema_failure_names_the_field(queues: Queues) -> None:
    id = queues.publish("mail", {"name": 5}).id
    consumer = Consumer(queues)
    consumer.handler("mail", schema=NEEDS_NAME)(print)
    consumer.run(until_empty=True)
    failure = queues.show("mail", id).failure
    assert failure is not None
    assert failure.reason_message.startswith("payload.name: ")


def test_json_schema_of_the_policy_is_checked_on_messages_stored_before_it(queues: Queues) -> None:
    seen: list[Any] = []
    old = queues.publish("mail", NewMessage(payload={}, type="letter", version=2)).id
    other = queues.publish("mail", NewMessage(payload={}, type="parcel")).id
    queues.set_policy("mail", {"schemas": {"letter": {"*": NEEDS_NAME}}})
    consumer = Consumer(queues)
    consumer.handler("mail")(lambda delivery: seen.append(delivery.id))
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1)
    assert seen == [other]
    assert queues.show("mail", old).message.reason == Reason.VALIDATION_ERROR


@pytest.mark.parametrize(
    ("header", "payload"), [("{broken", b"1"), ("", b"{broken"), ("[1]", b"1"), ("", b'"\xff"'), ("", b"1e999")]
)
def test_envelope_that_cannot_be_read_goes_to_the_dead_letters_and_other_messages_are_handled(
    queues: Queues, clock: ManualClock, header: str, payload: bytes
) -> None:
    now = clock.now_ms()
    broken = Envelope("mail", "broken", RANK_LAST, now, now, 0, None, header, payload, True)
    queues.publish_envelopes("mail", [broken])
    queues.publish("mail", "good")
    seen: list[Any] = []
    consumer = Consumer(queues)
    consumer.handler("mail")(lambda delivery: seen.append(delivery.value()))
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1, failed=1)
    assert seen == ["good"]
    look = queues.show("mail", "broken")
    assert (look.message.state, look.message.reason) == (State.DEAD, Reason.VALIDATION_ERROR)
    assert look.failure is not None
    assert look.failure.reason_message.startswith("the envelope cannot be read: ")


# -- poison -----------------------------------------------------------------------------------------------------------


def fails(delivery: HandlerDelivery) -> None:
    raise ValueError(f"attempt {delivery.attempt}")


def test_poison_after_the_same_error_several_times_goes_to_the_dead_letters(queues: Queues, clock: ManualClock) -> None:
    id = queues.publish("mail", 1).id
    consumer = Consumer(queues, poison_after=3)
    consumer.handler("mail")(fails)
    states = []
    with running(consumer):
        for attempt in (1, 2, 3):
            until(lambda attempt=attempt: _failed(queues, id) == attempt)
            states.append(queues.show("mail", id).message.state)
            clock.advance(60_000)
    assert states == [State.DELAYED, State.DELAYED, State.DEAD]
    look = queues.show("mail", id)
    assert look.message.reason == Reason.POISON
    assert look.failure is not None
    assert look.failure.reason_message == "3 times ValueError, the last time: ValueError: attempt 3"
    assert look.failure.traceback.endswith("ValueError: attempt 3\n")


def _failed(queues: Queues, id: str) -> int:
    """The attempt that failed last."""
    failure = queues.show("mail", id).failure
    return 0 if failure is None else failure.attempt


def test_poison_limit_of_the_policy_works_without_a_limit_of_the_consumer(queues: Queues) -> None:
    queues.set_policy("mail", {"retry": {"poisonAfter": 1}})
    id = queues.publish("mail", 1).id
    consumer = Consumer(queues)
    consumer.handler("mail")(fails)
    consumer.run(until_empty=True)
    assert (queues.show("mail", id).message.state, queues.show("mail", id).message.reason) == (
        State.DEAD,
        Reason.POISON,
    )


def test_poison_counts_only_the_same_error_in_a_row() -> None:
    poison = Poison(3)
    value, key = of_error(ValueError()), of_error(KeyError())
    for outcome in (value, value, key, value, value, timed_out("slow"), value, value, DONE, value, value):
        assert poison.apply("mail", "m", outcome) == outcome
    assert poison.apply("mail", "m", value).reason is Reason.POISON
    assert poison.apply("mail", "m", value) == value, "it begins anew"


def test_poison_counts_each_message_of_each_queue_and_forgets_the_oldest() -> None:
    poison = Poison(2)
    fault = of_error(ValueError())
    assert poison.apply("mail", "m", fault) == fault
    assert poison.apply("news", "m", fault) == fault
    for number in range(MAX_REMEMBERED):
        poison.apply("mail", f"other-{number}", fault)
    assert poison.apply("mail", "m", fault) == fault


def test_poison_detection_is_off_with_a_limit_of_zero() -> None:
    fault = of_error(ValueError())
    assert {Poison(0).apply("mail", "m", fault) for _ in range(100)} == {fault}
