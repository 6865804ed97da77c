"""From a draft to its end: every verb in every state, by the message's id alone."""

from collections.abc import Callable

import pytest

from tests.broker.two_step.counter import Counter
from yirangmq.core.errors import NotFound, QueueError, QuotaExceeded, TooLarge, WrongState
from yirangmq.core.policy import Defaults
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage

Step = Callable[[Counter], str]


def drafted(counter: Counter) -> str:
    return counter.draft()


def waiting(counter: Counter) -> str:
    return counter.put(b"content")


def delayed(counter: Counter) -> str:
    id = counter.put(b"content")
    [delivery] = counter.queues.lease("mail")
    counter.queues.nack(delivery.lease_id, delay=60)
    return id


def ordered(counter: Counter) -> str:
    id = counter.put(b"content")
    assert counter.order() == id
    return id


def active(counter: Counter) -> str:
    counter.put(b"content")
    return counter.take()


def failed(counter: Counter) -> str:
    id = active(counter)
    counter.fail(id)
    return id


def completed(counter: Counter) -> str:
    id = active(counter)
    counter.complete(id)
    return id


def abandoned(counter: Counter) -> str:
    id = waiting(counter)
    counter.abandon(id)
    return id


def expired(counter: Counter) -> str:
    id = drafted(counter)
    counter.pass_time(60_000)
    return id


def unknown(counter: Counter) -> str:
    waiting(counter)
    return "nobody"


def renewed(counter: Counter) -> str:
    id = failed(counter)
    counter.renew(id)
    return id


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (drafted, waiting, delayed, ordered, active, failed, completed, abandoned, expired, unknown, renewed)
}
VERBS = ("set", "get", "complete", "fail", "renew", "abandon")
MATRIX = """
            set    get    complete  fail   renew  abandon
drafted     ok     wrong  wrong     wrong  wrong  ok
waiting     ok     ok     wrong     wrong  wrong  ok
delayed     ok     ok     wrong     wrong  wrong  ok
ordered     wrong  ok     wrong     wrong  wrong  ok
active      wrong  ok     ok        ok     wrong  ok
failed      wrong  ok     wrong     ok     ok     ok
completed   gone   gone   ok        gone   gone   gone
abandoned   gone   gone   gone      gone   gone   ok
expired     gone   gone   gone      gone   gone   gone
unknown     gone   gone   gone      gone   gone   gone
renewed     ok     ok     wrong     wrong  ok     ok
"""
ROWS = [line.split() for line in MATRIX.strip().splitlines()[1:]]
CASES = [(step, verb, said) for step, *row in ROWS for verb, said in zip(VERBS, row, strict=True)]
ERRORS: dict[str, type[QueueError]] = {"gone": NotFound, "wrong": WrongState}


@pytest.mark.parametrize(("step", "verb", "said"), CASES)
def test_two_step_operation_in_each_state_succeeds_or_is_refused_without_a_change(
    counter: Counter, step: str, verb: str, said: str
) -> None:
    id = STEPS[step](counter)
    act = getattr(counter, verb)
    if said == "ok":
        act(id)
        return
    before = counter.stats()
    with pytest.raises(ERRORS[said]):
        act(id)
    assert counter.stats() == before


AFTER: dict[tuple[str, str], dict[str, int]] = {
    ("drafted", "abandon"): {},
    ("waiting", "set"): {"ready": 1},
    ("waiting", "get"): {"ready": 1},
    ("ordered", "get"): {"leased": 1},
    ("ordered", "abandon"): {},
    ("active", "get"): {"leased": 1},
    ("active", "complete"): {"acked": 1},
    ("active", "fail"): {"dead": 1},
    ("failed", "get"): {"dead": 1},
    ("failed", "fail"): {"dead": 1},
    ("failed", "renew"): {"ready": 1},
    ("failed", "abandon"): {},
    ("completed", "complete"): {"acked": 1},
    ("renewed", "renew"): {"ready": 1},
}


@pytest.mark.parametrize(("step", "verb"), AFTER)
def test_two_step_operation_and_its_repetition_lead_to_the_same_state(counter: Counter, step: str, verb: str) -> None:
    id = STEPS[step](counter)
    for _ in range(2):
        getattr(counter, verb)(id)
        assert counter.stats() == AFTER[step, verb]


def test_two_step_get_of_an_impossible_id_is_not_found(counter: Counter) -> None:
    for id in ("", ".", "..", "a" * 255, "x/y", "-" * 101):
        with pytest.raises(NotFound):
            counter.get(id)


def test_two_step_set_replaces_the_content_and_keeps_the_position(counter: Counter) -> None:
    first, second = counter.put(b"1"), counter.put(b"2")
    counter.set(first, b"one", "text/plain")
    assert counter.ordered() == [first, second]
    assert counter.get(first) == b"one"


def test_two_step_position_comes_from_setting_the_content_not_from_the_draft(counter: Counter) -> None:
    early = counter.draft()
    first = counter.put(b"1")
    counter.set(early, b"2")
    assert counter.ordered() == [first, early]


def test_priority_with_the_smallest_number_is_delivered_first_and_no_priority_last(counter: Counter) -> None:
    last, second, first, third = (counter.put(b"", priority) for priority in (None, 1, 0, 1000))
    assert counter.ordered() == [first, second, third, last]


def test_two_step_get_repeated_does_not_extend_the_lease(counter: Counter) -> None:
    id = active(counter)
    counter.pass_time(299_999)
    assert counter.get(id) == b"content"
    counter.pass_time(1)
    assert counter.stats() == {"ready": 1}


@pytest.mark.parametrize(("step", "milliseconds"), [("ordered", 60_000), ("active", 300_000)])
def test_two_step_timeout_returns_a_message_behind_waiting_messages(
    counter: Counter, step: str, milliseconds: int
) -> None:
    id = STEPS[step](counter)
    other, urgent = counter.put(b"other"), counter.put(b"urgent", priority=1)
    counter.pass_time(milliseconds - 1)
    assert counter.stats()["ready"] == 2
    counter.pass_time(1)
    assert counter.ordered() == [urgent, other, id]


@pytest.mark.parametrize("step", ["drafted", "ordered", "active"])
def test_two_step_timeout_refuses_complete_and_fail_before_the_sweeper_runs(counter: Counter, step: str) -> None:
    """Also before anybody has swept."""
    id = STEPS[step](counter)
    counter.pass_time(300_000)
    for verb in (counter.complete, counter.fail):
        with pytest.raises(NotFound if step == "drafted" else WrongState):
            verb(id)


def test_two_step_claim_may_time_out_any_number_of_times(counter: Counter) -> None:
    id = counter.put(b"content")
    for _ in range(20):
        assert counter.order() == id
        counter.pass_time(60_000)
    assert counter.stats() == {"ready": 1}


def test_two_step_queue_with_a_policy_keeps_its_retry_limit(counter: Counter) -> None:
    counter.queues.set_policy("mail", {"retry": {"limit": 1}})
    id = counter.put(b"content")
    for _ in range(2):
        assert counter.order() == id
        counter.pass_time(60_000)
    assert counter.stats() == {"dead": 1}
    look = counter.queues.show("mail", id)
    assert look.failure is not None
    assert (look.message.reason, look.failure.attempt) == ("TIMEOUT", 2)


def test_two_step_queue_created_by_another_protocol_keeps_its_defaults(counter: Counter) -> None:
    counter.queues.publish("mail", b"1")
    counter.put(b"2")
    assert counter.queues.policy("mail")["retry"]["limit"] == 5


def test_two_step_and_ordinary_operations_can_be_mixed_for_a_message(counter: Counter) -> None:
    id = counter.put(b"by hand")
    [delivery] = counter.queues.lease("mail")
    assert delivery.id == id
    counter.complete(id)  # no token: the state decides
    published = counter.queues.publish("mail", b"by publish").id
    assert counter.take() == published
    look = counter.queues.show("mail", published)
    assert (look.message.state, look.message.attempt) == (State.LEASED, 1)
    assert counter.stats() == {"leased": 1, "acked": 1}


def test_two_step_order_never_returns_a_message_targeted_at_a_consumer(counter: Counter) -> None:
    counter.queues.publish("mail", NewMessage(payload=b"", target="worker"))
    assert counter.order() is None
    free = counter.put(b"")
    assert counter.order() == free
    assert counter.order() is None


def test_two_step_unclaim_undoes_a_claim_without_an_attempt_and_ignores_a_newer_claim(counter: Counter) -> None:
    first, second = counter.put(b"1"), counter.put(b"2")
    claimed = counter.claim()
    assert claimed is not None
    counter.run(lambda work: counter.orders.unclaim(work, claimed))
    assert counter.ordered() == [first, second]
    assert counter.queues.show("mail", first).message.attempt == 1
    counter.run(lambda work: counter.orders.unclaim(work, claimed))  # it is somebody else's now
    assert counter.stats() == {"claimed": 2}


def test_two_step_order_returns_nothing_while_the_queue_is_paused(counter: Counter) -> None:
    counter.put(b"")
    counter.queues.pause("mail")
    assert counter.order() is None
    counter.queues.resume("mail")
    assert counter.order() is not None


def test_two_step_order_makes_a_message_that_violates_its_json_schema_a_dead_letter(counter: Counter) -> None:
    counter.queues.publish("mail", NewMessage(payload={"n": "x"}, type="number"))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    counter.queues.set_policy("mail", {"schemas": {"number": {"*": schema}}})
    assert counter.order() is None
    assert counter.stats() == {"dead": 1}


def test_quota_does_not_count_drafts_and_counts_messages_with_content(counter: Counter) -> None:
    counter.queues.set_policy("mail", {"quota": {"maxMessages": 1, "maxBytes": 10}})
    first, second = counter.draft(), counter.draft()
    counter.set(first, b"12345")
    with pytest.raises(QuotaExceeded, match="messages"):
        counter.set(second, b"1")
    counter.set(first, b"1234567890")
    with pytest.raises(QuotaExceeded, match="bytes"):
        counter.set(first, b"12345678901")
    assert counter.get(first) == b"1234567890"
    assert counter.stats() == {"draft": 1, "ready": 1}


def test_quota_with_drop_oldest_makes_space_when_a_draft_gets_its_content(counter: Counter) -> None:
    counter.queues.set_policy("mail", {"quota": {"maxMessages": 1, "onFull": "dropOldest"}})
    counter.put(b"1")
    second = counter.put(b"2")
    assert counter.ordered() == [second]


@pytest.mark.parametrize("defaults", [Defaults(set_body=10)])
def test_payload_size_limit_of_set_is_that_of_the_server_unless_the_queue_sets_its_own(counter: Counter) -> None:
    id = counter.draft()
    with pytest.raises(TooLarge):
        counter.set(id, b"12345678901")
    counter.set(id, b"1234567890")
    counter.queues.set_policy("mail", {"maxBytes": 11})  # the queue's own word
    counter.set(id, b"12345678901")


def test_time_to_live_counts_from_setting_the_content(counter: Counter) -> None:
    counter.queues.set_policy("mail", {"ttlSec": 10})
    id = counter.draft()
    counter.pass_time(9_000)
    counter.set(id, b"")
    counter.pass_time(9_999)
    assert counter.stats() == {"ready": 1}
    counter.pass_time(1)
    assert counter.order() is None


EVERY_BYTE = bytes(range(256))


@pytest.mark.parametrize(
    ("type", "body"),
    [
        ("", EVERY_BYTE),
        ("application/json", EVERY_BYTE),
        ("application/json", b' {"a":1} '),
        ("application/json", b'{"a":1}'),
        ("application/json", b"{} {}"),
        ("text/html; charset=x", b""),
    ],
)
def test_two_step_get_returns_the_bytes_unchanged(counter: Counter, type: str, body: bytes) -> None:
    id = counter.draft()
    counter.set(id, b"before", "text/plain")
    counter.set(id, body, type)
    assert counter.get(id) == body
