"""What a commit tells of itself: one event for each batch, after it is on disk, and nothing of what never got there."""

from collections.abc import Sequence

import pytest

from tests.support.queues import SECOND
from tests.support.session import Server
from tests.support.stores import KINDS, Place
from yirangmq.broker import operations
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import QuotaExceeded, StoreFull
from yirangmq.core.events import (
    Event,
    GroupCommitted,
    LeasesExpired,
    LeasesSettled,
    MessagesDied,
    MessagesDropped,
    MessagesLeased,
    MessagesParked,
    MessagesPublished,
    MessagesRedriven,
    MessagesRefused,
    QueueChanged,
    TraceStep,
)
from yirangmq.format.envelope import NewMessage
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, FailingStore, ManualClock, open_for_test


class Ear:
    """What was told since ``heard`` was last asked; commits apart."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.commits: list[GroupCommitted] = []

    def __call__(self, events: Sequence[Event]) -> None:
        self._events += [event for event in events if not isinstance(event, GroupCommitted)]
        self.commits += [event for event in events if isinstance(event, GroupCommitted)]

    def heard(self) -> list[Event]:
        events, self._events = self._events, []
        return events


@pytest.fixture(params=KINDS)
def door(request: pytest.FixtureRequest) -> str:
    """Embedded queues only: over a socket it is the server that tells (tests/admin/test_monitoring.py)."""
    return str(request.param)


@pytest.fixture
def ear(queues: Queues) -> Ear:
    ear = Ear()
    queues.add_listener(ear)
    return ear


def ids(queues: Queues, count: int = 1, queue: str = "mail") -> list[str]:
    return [delivery.lease_id for delivery in queues.lease(queue, count)]


# -- each verb --------------------------------------------------------------------------------------------------------


def test_event_of_a_publish_counts_only_new_messages(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [b"12345", b"123", NewMessage(payload=b"1", id="a")])
    queues.publish("mail", NewMessage(payload=b"1", id="a"))
    assert ear.heard() == [MessagesPublished("mail", 3, 9)]


def test_event_of_a_lease_reports_how_long_each_message_was_ready(queues: Queues, ear: Ear, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    queues.publish("mail", NewMessage(payload=2, delay=3))
    clock.advance(5 * SECOND)
    ids(queues, 2)
    assert ear.heard()[2:] == [MessagesLeased("mail", 2, [5_000, 2_000])]


def test_event_of_a_later_attempt_measures_the_wait_since_the_message_returned(
    queues: Queues, ear: Ear, clock: ManualClock
) -> None:
    queues.publish("mail", 1)
    queues.nack(ids(queues), delay=0)
    clock.advance(4 * SECOND)
    ear.heard()
    ids(queues)
    assert ear.heard() == [MessagesLeased("mail", 1, [4_000])]


def test_event_of_a_settlement_reports_how_long_each_message_was_leased(
    queues: Queues, ear: Ear, clock: ManualClock
) -> None:
    queues.publish_many("mail", [1, 2, 3, 4])
    one, two, three, four = ids(queues, 4)
    ear.heard()
    clock.advance(2 * SECOND)
    queues.ack([one, two])
    queues.release(three)
    queues.nack(four, "HANDLER_ERROR")
    assert ear.heard() == [
        LeasesSettled("mail", "ack", 2, [2_000, 2_000]),
        LeasesSettled("mail", "release", 1, [2_000]),
        LeasesSettled("mail", "nack", 1, [2_000], "HANDLER_ERROR"),
    ]


def test_event_of_an_ack_after_lease_extensions_measures_from_the_start_of_the_lease(
    queues: Queues, ear: Ear, clock: ManualClock
) -> None:
    queues.publish("mail", 1)
    lease = ids(queues)
    ear.heard()
    for _ in range(3):
        clock.advance(20 * SECOND)
        queues.extend(lease)
    clock.advance(5 * SECOND)
    queues.ack(lease)
    assert ear.heard() == [*[LeasesSettled("mail", "extend", 1)] * 3, LeasesSettled("mail", "ack", 1, [65_000])]


def test_event_of_a_call_on_two_queues_is_published_per_queue(queues: Queues, ear: Ear) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 1)
    leases = [*ids(queues), *ids(queues, queue="post")]
    ear.heard()
    queues.ack(leases)
    assert ear.heard() == [LeasesSettled("mail", "ack", 1, [0]), LeasesSettled("post", "ack", 1, [0])]


def test_event_of_an_ack_is_not_published_again_when_the_ack_is_repeated(queues: Queues, ear: Ear) -> None:
    queues.publish("mail", 1)
    lease = ids(queues)
    queues.ack(lease)
    ear.heard()
    queues.ack(lease)
    assert ear.heard() == []


def test_event_of_a_dead_letter_carries_its_reason(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [1, 2, 3])
    ear.heard()
    queues.nack(ids(queues, 2), "REJECTED")
    assert ear.heard()[1:] == [
        LeasesSettled("mail", "nack", 2, [0, 0], "REJECTED"),
        MessagesDied("mail", "REJECTED", 2),
    ]


def test_event_of_a_failed_message_is_a_drop_when_dead_letters_are_disabled(queues: Queues, ear: Ear) -> None:
    queues.set_policy("mail", {"dlq": {"enabled": False}})
    queues.publish("mail", 1)
    lease = ids(queues)
    ear.heard()
    queues.nack(lease, "REJECTED")
    assert ear.heard()[1:] == [MessagesDropped("mail", "given_up", 1)]


def test_events_of_a_message_that_violates_its_json_schema_are_published_and_died(queues: Queues, ear: Ear) -> None:
    queues.set_policy("mail", {"schemas": {"t": {"*": {"type": "object"}}}})
    ear.heard()
    queues.publish_many("mail", [NewMessage(payload=1, type="t"), NewMessage(payload={}, type="t")])
    assert ear.heard() == [MessagesPublished("mail", 2, 3), MessagesDied("mail", "VALIDATION_ERROR", 1)]


def test_events_of_expired_leases_end_with_a_dead_letter_at_the_retry_limit(
    queues: Queues, ear: Ear, clock: ManualClock
) -> None:
    queues.set_policy("mail", {"retry": {"limit": 1}})
    queues.publish("mail", 1)
    ids(queues)
    ear.heard()
    clock.advance(30 * SECOND)
    ids(queues)
    assert ear.heard() == [LeasesExpired("mail", 1), MessagesLeased("mail", 1, [0])]
    clock.advance(30 * SECOND)
    queues.sweep()
    assert ear.heard() == [LeasesExpired("mail", 1), MessagesDied("mail", "TIMEOUT", 1)]


def test_events_of_expired_messages_and_of_dead_letters_past_their_retention(
    queues: Queues, ear: Ear, clock: ManualClock
) -> None:
    queues.set_policy("mail", {"ttlSec": 10, "dlq": {"retentionDays": 1}})
    queues.set_policy("post", {"ttlSec": 10, "onExpire": "dead", "dlq": {"retentionDays": 1}})
    queues.publish("mail", 1)
    queues.publish("post", 1)
    ear.heard()
    clock.advance(10 * SECOND)
    queues.sweep()
    assert ear.heard() == [MessagesDied("post", "EXPIRED", 1), MessagesDropped("mail", "expired", 1)]
    clock.advance(86_400 * SECOND)
    queues.sweep()
    assert ear.heard() == [MessagesDropped("post", "retention", 1)]


def test_events_of_operator_actions_are_parked_redriven_and_dropped(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [1, 2, 3, 4])
    queues.nack(ids(queues, 4), "REJECTED")
    ear.heard()
    letters = DeadLetters(queues)
    letters.quarantine("mail", ids=["m-1"])
    letters.redrive("mail", ids=["m-2"])
    letters.purge("mail", ids=["m-3"])
    queues.drop("mail", ["m-4", "m-4000"])
    assert ear.heard() == [
        MessagesParked("mail", 1),
        MessagesRedriven("mail", 1),
        *[MessagesDropped("mail", "asked", 1)] * 2,
    ]


def test_events_of_policy_pause_resume_and_delete_are_published(queues: Queues, ear: Ear) -> None:
    queues.set_policy("mail", {})
    queues.pause("mail")
    queues.resume("mail")
    queues.delete_queue("mail")
    assert ear.heard() == [QueueChanged("mail", what) for what in ("policy", "pause", "resume", "delete")]


def test_events_of_a_quota_report_refused_messages_and_messages_dropped_to_make_space(queues: Queues, ear: Ear) -> None:
    queues.set_policy("mail", {"quota": {"maxMessages": 1}})
    queues.publish("mail", b"1")
    ear.heard()
    with pytest.raises(QuotaExceeded):
        queues.publish("mail", b"2")
    queues.set_policy("mail", {"quota": {"maxMessages": 1, "onFull": "dropOldest"}})
    queues.publish("mail", b"3")
    assert ear.heard() == [
        MessagesRefused("mail", "quota_exceeded", 1),
        QueueChanged("mail", "policy"),
        MessagesDropped("mail", "quota", 1),
        MessagesPublished("mail", 1, 1),
    ]


# -- traces -----------------------------------------------------------------------------------------------------------


def test_events_of_messages_with_a_trace_id_are_published_singly_when_tracing_is_on(
    queues: Queues, ear: Ear, clock: ManualClock
) -> None:
    queues.context.event_buffer.is_traced = True
    queues.publish_many("mail", [NewMessage(payload=1, trace_id="abc"), 2, NewMessage(payload=3, trace_id="def")])
    begun = clock.now_ms()
    first, second, third = ids(queues, 3)
    clock.advance(SECOND)
    queues.ack([first, second])
    queues.nack(third, "TIMEOUT", delay=0)
    [again] = ids(queues)
    clock.advance(30 * SECOND)
    queues.sweep()
    told = [event for event in ear.heard() if isinstance(event, TraceStep)]
    assert [
        (one.id, one.step, one.attempt, one.begun_at - begun, one.ended_at - begun, one.outcome) for one in told
    ] == [
        ("m-1", "publish", 0, 0, 0, "ok"),
        ("m-3", "publish", 0, 0, 0, "ok"),
        ("m-1", "process", 1, 0, 1_000, "ok"),
        ("m-3", "process", 1, 0, 1_000, "TIMEOUT"),
        ("m-3", "process", 2, 1_000, 31_000, "lapsed"),
    ]
    assert {one.header for one in told} == {'{"traceId":"abc"}', '{"traceId":"def"}'}
    assert again


# -- the commit -------------------------------------------------------------------------------------------------------


def test_event_listener_gets_no_events_from_before_it_was_added(queues: Queues) -> None:
    queues.publish("mail", 1)
    ear = Ear()
    queues.add_listener(ear)
    assert ear.heard() == []


def test_event_of_a_commit_reports_its_requests_messages_and_durations(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [1, 2])
    [commit] = ear.commits
    assert (commit.requests, commit.messages) == (1, 2)
    assert commit.work_seconds >= 0
    assert commit.sync_seconds >= 0


@pytest.mark.parametrize("at_commit", [True, False])
def test_event_buffer_publishes_nothing_after_a_failed_commit(place: Place, at_commit: bool) -> None:
    store = FailingStore(place.open())
    queues, ear = open_for_test(store=store), Ear()
    queues.add_listener(ear)
    store.fail_at(1, commit=at_commit)
    with pytest.raises(StoreFull):
        queues.publish("mail", 1)
    assert (ear.heard(), ear.commits) == ([], [])
    queues.publish("mail", b"2")
    assert ear.heard() == [MessagesPublished("mail", 1, 1)]


def test_event_listener_that_fails_harms_neither_the_publish_nor_other_listeners(
    queues: Queues, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(events: Sequence[Event]) -> None:
        raise RuntimeError("no ears")

    last = Ear()
    queues.add_listener(fail)
    queues.add_listener(last)
    assert queues.publish("mail", b"1").id == "m-1"
    assert last.heard() == [MessagesPublished("mail", 1, 1)]
    assert "event_listener_failed" in caplog.text


def test_event_listener_for_some_kinds_is_called_only_when_such_an_event_occurs(queues: Queues) -> None:
    commits, steps = Ear(), Ear()
    queues.context.event_buffer.add_listener(commits, [GroupCommitted])
    queues.context.event_buffer.add_listener(steps, [QueueChanged])
    queues.publish("mail", b"1")
    assert (commits.heard(), steps.heard()) == ([MessagesPublished("mail", 1, 1)], [])
    queues.pause("mail")
    assert steps.heard() == [QueueChanged("mail", "pause")]


# -- the desk ---------------------------------------------------------------------------------------------------------


def desk(store: FailingStore | None = None) -> tuple[Server, Ear]:
    server, ear = Server(store), Ear()
    server.broker_context.event_buffer.add_listener(ear)
    return server, ear


def publish(server: Server, queue: str, answers: list[object]) -> None:
    """Asked for now, done in the next turn; what is answered is noted in ``answers``."""
    envelopes = open_for_test(ids=CountingIds(queue))  # only to build an envelope
    made = envelopes._envelope(queue, b"1", f"{queue}-id", server.clock.now_ms())
    server.desk.submit(
        lambda transaction: operations.publish(server.broker_context, transaction, queue, [made]),
        lambda value, error: answers.append(error or queue),
    )


def test_events_of_a_group_commit_are_published_once_after_the_answers() -> None:
    server, ear = desk()
    answers: list[object] = []
    server.broker_context.event_buffer.add_listener(lambda events: answers.append("told"))
    for queue in ("a", "b", "c"):
        publish(server, queue, answers)
    server.turn()
    assert answers == ["a", "b", "c", "told"]
    assert ear.heard() == [MessagesPublished("a", 1, 1), MessagesPublished("b", 1, 1), MessagesPublished("c", 1, 1)]
    assert [(one.requests, one.messages) for one in ear.commits] == [(3, 3)]


def test_events_after_a_failed_group_commit_are_published_for_each_job_retried_alone() -> None:
    store = FailingStore(MemoryStore())
    server, ear = desk(store)
    answers: list[object] = []
    store.fail_at(1)
    store.fail_at(3)  # the second of those done alone
    for queue in ("a", "b", "c"):
        publish(server, queue, answers)
    server.turn()
    assert [type(answer) for answer in answers] == [str, StoreFull, str]
    assert ear.heard() == [MessagesPublished("a", 1, 1), MessagesPublished("c", 1, 1)]
    assert [one.requests for one in ear.commits] == [1, 1]


def test_events_of_messages_pushed_in_a_commit_are_published_with_it() -> None:
    server, ear = desk()
    client = server.client()
    waiting = client.wait_for_lease("mail")
    client.publish("mail", b"12")
    assert ear.heard() == [MessagesPublished("mail", 1, 2), MessagesLeased("mail", 1, [0])]
    assert len(ear.commits) == 1
    assert client.heard(waiting)
