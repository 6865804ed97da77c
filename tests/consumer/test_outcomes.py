"""What a handler returns or raises decides what becomes of its message."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.consumer import Blocking, Watched, running
from tests.support.wait import PATIENCE, until
from yirangmq.broker.queues import Queues
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.delivery import HandlerDelivery, Reject, Retry
from yirangmq.consumer.lease_table import Results
from yirangmq.consumer.settler import ConsumerSummary
from yirangmq.core.errors import BadInput
from yirangmq.core.message import MAX_FAILURE_TEXT, Reason
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView, failure_document
from yirangmq.testing import ManualClock


def handled(
    queues: Queues, function: Callable[[HandlerDelivery], Any], **options: Any
) -> tuple[MessageView, ConsumerSummary]:
    """One message through one handler: where it stands then, and what the consumer counted."""
    id = queues.publish("mail", {"to": "ann"}).id
    consumer = Consumer(queues, **options)
    consumer.handler("mail")(function)
    summary = consumer.run(until_empty=True)
    return queues.show("mail", id), summary


def raising(error: BaseException) -> Callable[[HandlerDelivery], None]:
    def handle(delivery: HandlerDelivery) -> None:
        raise error

    return handle


def returning(value: object) -> Callable[[HandlerDelivery], object]:
    return lambda delivery: value


@pytest.mark.parametrize("value", [None, False, "done", {"a": 1}])
def test_ack_follows_any_plain_return_value_of_the_handler(queues: Queues, value: object) -> None:
    look, summary = handled(queues, returning(value))
    assert look.message.state is State.DONE
    assert summary == ConsumerSummary(done=1)


def test_delivery_shows_the_handler_the_message_as_it_was_published(queues: Queues) -> None:
    seen: list[HandlerDelivery] = []
    queues.publish_text("mail", [b'{"messageId":"x-1","type":"letter","traceId":"t","payload":{"to": "bo"}}'])
    consumer = Consumer(queues)
    consumer.handler("mail")(seen.append)
    consumer.run(until_empty=True)
    [delivery] = seen
    assert (delivery.id, delivery.queue, delivery.attempt, delivery.lost) == ("x-1", "mail", 1, False)
    assert (delivery.payload, delivery.value()) == (b'{"to": "bo"}', {"to": "bo"})
    assert (delivery.header["type"], delivery.header["traceId"]) == ("letter", "t")
    assert delivery.policy["visibilityTimeoutSec"] == 30
    assert delivery.envelope_json().endswith(b'"payload":{"to": "bo"}}')
    assert delivery.lease_id == "1-1"


@pytest.mark.parametrize("says", [raising, returning])
def test_retry_with_a_delay_makes_the_message_due_after_it_with_its_reason(
    queues: Queues, clock: ManualClock, says: Callable[[Any], Callable[[HandlerDelivery], Any]]
) -> None:
    look, summary = handled(queues, says(Retry(after=90, reason="the door is shut")))
    assert (look.message.state, look.message.due_at) == (State.DELAYED, clock.now_ms() + 90_000)
    assert look.failure is not None
    assert (look.failure.reason_code, look.failure.reason_message) == (Reason.HANDLER_ERROR, "the door is shut")
    assert summary == ConsumerSummary(retried=1)


def test_retry_without_a_delay_waits_for_the_backoff_of_the_policy(queues: Queues, clock: ManualClock) -> None:
    look, _ = handled(queues, raising(Retry()))
    assert (look.message.state, look.message.due_at) == (State.DELAYED, clock.now_ms() + 1_000)


def test_retry_past_the_attempt_limit_goes_to_the_dead_letters(queues: Queues) -> None:
    queues.set_policy("mail", {"retry": {"limit": 0}})
    look, _ = handled(queues, raising(Retry(after=1)))
    assert look.message.state is State.DEAD


@pytest.mark.parametrize("after", [-1, "soon", float("nan")])
def test_retry_with_an_invalid_delay_is_refused(after: Any) -> None:
    with pytest.raises(BadInput):
        Retry(after=after)


@pytest.mark.parametrize("says", [raising, returning])
def test_reject_goes_to_the_dead_letters_at_once(
    queues: Queues, says: Callable[[Any], Callable[[HandlerDelivery], Any]]
) -> None:
    look, summary = handled(queues, says(Reject("no such account")))
    assert (look.message.state, look.message.reason) == (State.DEAD, Reason.REJECTED)
    assert look.failure is not None
    assert look.failure.reason_message == "no such account"
    assert summary == ConsumerSummary(rejected=1)


def test_nack_of_a_handler_error_keeps_its_text_and_the_consumer_name(queues: Queues, clock: ManualClock) -> None:
    look, summary = handled(queues, raising(ValueError("no route to host")), name="worker-7")
    assert (look.message.state, look.message.due_at) == (State.DELAYED, clock.now_ms() + 1_000)
    assert look.failure is not None
    assert (look.failure.reason_code, look.failure.reason_message) == (
        Reason.HANDLER_ERROR,
        "ValueError: no route to host",
    )
    assert look.failure.consumer == "worker-7"
    assert summary == ConsumerSummary(failed=1)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Unprintable(), ValueError("x" * 9_999)])
def test_worker_pool_thread_survives_any_error_of_a_handler(queues: Queues, error: BaseException) -> None:
    done: list[str] = []

    def handle(delivery: HandlerDelivery) -> None:
        if delivery.value() == "bad":
            raise error
        done.append(delivery.value())

    bad = queues.publish("mail", "bad").id
    queues.publish("mail", "good")
    consumer = Consumer(queues)
    consumer.handler("mail")(handle)
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1, failed=1)
    assert done == ["good"]
    failure = queues.show("mail", bad).failure
    assert failure is not None
    assert failure.reason_message.startswith(type(error).__name__)
    assert len(failure.reason_message) <= MAX_FAILURE_TEXT


def look_up(delivery: HandlerDelivery) -> None:
    """Fails in a function of its own, after another error."""
    try:
        delivery.header["no such member"]
    except KeyError as error:
        raise LookupError("no such account") from error


def test_traceback_of_a_handler_is_kept_with_its_dead_letter_without_the_frames_of_the_consumer(
    queues: Queues,
) -> None:
    queues.set_policy("mail", {"retry": {"limit": 0}})
    look, _ = handled(queues, lambda delivery: look_up(delivery))
    assert look.message.state is State.DEAD
    assert look.failure is not None
    assert look.failure.reason_message == "LookupError: no such account"
    traceback = look.failure.traceback
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "KeyError: 'no such member'" in traceback
    assert "in look_up\n" in traceback
    assert "worker_pool" not in traceback
    assert traceback.endswith("\nLookupError: no such account\n")
    assert failure_document(look.failure)["traceback"] == traceback
    assert failure_document(look.failure)["reasonMessage"] == "LookupError: no such account"


@pytest.mark.parametrize("most", [0, 5, 200])
def test_traceback_is_bounded_by_the_policy_and_keeps_its_last_lines(queues: Queues, most: int) -> None:
    queues.set_policy("mail", {"dlq": {"tracebackChars": most}})
    look, _ = handled(queues, lambda delivery: look_up(delivery))
    assert look.failure is not None
    assert look.failure.reason_message == "LookupError: no such account"
    traceback = look.failure.traceback
    if most < 200:
        assert traceback == ""
        assert "traceback" not in failure_document(look.failure)
    else:
        assert traceback.startswith("  …\n")
        assert traceback.endswith("\nLookupError: no such account\n")
        assert len(traceback) <= most + len("  …\n")


def test_traceback_of_an_endless_recursion_is_bounded(queues: Queues) -> None:
    def down(delivery: HandlerDelivery) -> None:
        down(delivery)

    look, _ = handled(queues, down)
    assert look.failure is not None
    assert "RecursionError" in look.failure.traceback
    assert len(look.failure.traceback) <= 4000 + len("  …\n")


async def _later(delivery: HandlerDelivery) -> None:
    """Never runs."""


def test_coroutine_handler_is_refused_and_a_returned_awaitable_is_a_failure(queues: Queues) -> None:
    with pytest.raises(BadInput, match="coroutine"):
        Consumer(queues).handler("mail")(_later)

    class Promise:
        def __await__(self) -> Any:
            raise AssertionError("nobody awaits it")

    look, summary = handled(queues, returning(Promise()))
    assert look.message.state is State.DELAYED
    assert summary == ConsumerSummary(failed=1)


TOO_LONG = 2.0
"""Seconds: the quick ones among them end within it on any machine."""


def test_handler_timeout_nacks_the_message_and_ignores_the_late_result(queues: Queues) -> None:
    first, second = (stored.id for stored in queues.publish_many("mail", ["slow", "quick"]))
    slow, done = Blocking(), threading.Event()

    def handle(delivery: HandlerDelivery) -> None:
        done.set() if delivery.value() == "quick" else slow(delivery)

    consumer = Consumer(queues, timeout=TOO_LONG)
    consumer.handler("mail")(handle)
    with running(consumer) as run:
        until(lambda: queues.show("mail", first).message.state is State.DELAYED, what="the slow one given back")
        failure = queues.show("mail", first).failure
        assert failure is not None
        assert failure.reason_code == Reason.TIMEOUT
        until(lambda: any(one["inWork"] == 0 for one in queues.consumer_list()), what="nothing in work")
        assert not done.is_set(), "a thread that does not end keeps its place"
        slow.go.set()
        assert done.wait(PATIENCE)
        until(lambda: queues.show("mail", second).message.state is State.DONE)
    assert queues.show("mail", first).message.state is State.DELAYED
    assert run.summary == ConsumerSummary(done=1, failed=1)


def test_prefetched_messages_are_released_when_every_thread_is_stuck(queues: Queues) -> None:
    slow = Blocking()
    queues.publish_many("mail", [1, 2, 3, 4])
    consumer = Consumer(queues, concurrency=2, timeout=TOO_LONG)
    consumer.handler("mail", prefetch=2)(slow)
    with running(consumer):
        slow.wait_begun(2)
        until(lambda: queues.counts("mail").ready == 2, what="the others back in line")
        until(lambda: any(one["stuck"] == 2 for one in queues.consumer_list()))
        assert queues.counts("mail").leased == 0
        slow.go.set()
        until(lambda: queues.counts("mail").done == 2, what="those not begun, once there is room")


def test_internal_error_ends_the_run_instead_of_a_thread(queues: Queues) -> None:
    """A broker that answers for fewer leases than it was asked about."""

    class Forgetful(Watched):
        def ack_many(self, leases: Sequence[str]) -> Results:
            return []

    queues.publish("mail", 1)
    consumer = Consumer(Forgetful(queues), drain_seconds=0.05)
    consumer.handler("mail")(lambda delivery: None)
    with pytest.raises(ValueError, match="zip"):
        consumer.run()


def test_handler_is_required_for_a_run_and_a_second_for_the_same_queue_is_refused(queues: Queues) -> None:
    consumer = Consumer(queues)
    with pytest.raises(BadInput, match="no queue"):
        consumer.run()
    consumer.handler("mail")(print)
    with pytest.raises(BadInput, match="already"):
        consumer.handler("mail")(print)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": 0}, "timeout"),
        ({"prefetch": -1}, "prefetch"),
        ({"schema": {"type": 5}}, "schema"),
    ],
)
def test_handler_options_that_are_invalid_are_refused_by_name(
    queues: Queues, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        Consumer(queues).handler("mail", **options)(print)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lease_seconds": 0}, "leaseSeconds"),
        ({"drain_seconds": -1}, "drainSeconds"),
        ({"poison_after": -1}, "poisonAfter"),
        ({"name": "a b"}, "name"),
    ],
)
def test_consumer_options_that_are_invalid_are_refused_by_name(
    queues: Queues, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        Consumer(queues, **options)
    assert caught.value.field == field
