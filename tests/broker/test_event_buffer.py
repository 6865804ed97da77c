"""What a commit tells of itself: one event for each batch, after it is on disk, and nothing of what never got there."""

from collections.abc import Sequence

import pytest

from tests.support.queues import SECOND
from tests.support.session import Server
from tests.support.stores import KINDS, Place
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


def test_publishing_tells_what_is_new(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [b"12345", b"123", NewMessage(payload=b"1", id="a")])
    queues.publish("mail", NewMessage(payload=b"1", id="a"))
    assert ear.heard() == [MessagesPublished("mail", 3, 9)]


def test_leasing_tells_how_long_each_could_have_been_taken(queues: Queues, ear: Ear, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    queues.publish("mail", NewMessage(payload=2, delay=3))
    clock.advance(5 * SECOND)
    ids(queues, 2)
    assert ear.heard()[2:] == [MessagesLeased("mail", 2, [5_000, 2_000])]


def test_an_attempt_after_the_first_waits_since_it_came_back(queues: Queues, ear: Ear, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    queues.nack(ids(queues), delay=0)
    clock.advance(4 * SECOND)
    ear.heard()
    ids(queues)
    assert ear.heard() == [MessagesLeased("mail", 1, [4_000])]


def test_settling_tells_how_long_each_was_held(queues: Queues, ear: Ear, clock: ManualClock) -> None:
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


def test_a_lease_that_was_extended_is_held_since_its_beginning(queues: Queues, ear: Ear, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    lease = ids(queues)
    ear.heard()
    for _ in range(3):
        clock.advance(20 * SECOND)
        queues.extend(lease)
    clock.advance(5 * SECOND)
    queues.ack(lease)
    assert ear.heard() == [*[LeasesSettled("mail", "extend", 1)] * 3, LeasesSettled("mail", "ack", 1, [65_000])]


def test_one_call_on_two_queues_is_told_for_each(queues: Queues, ear: Ear) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 1)
    leases = [*ids(queues), *ids(queues, queue="post")]
    ear.heard()
    queues.ack(leases)
    assert ear.heard() == [LeasesSettled("mail", "ack", 1, [0]), LeasesSettled("post", "ack", 1, [0])]


def test_repeating_an_ack_tells_nothing(queues: Queues, ear: Ear) -> None:
    queues.publish("mail", 1)
    lease = ids(queues)
    queues.ack(lease)
    ear.heard()
    queues.ack(lease)
    assert ear.heard() == []


def test_a_message_dies_for_a_reason(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [1, 2, 3])
    ear.heard()
    queues.nack(ids(queues, 2), "REJECTED")
    assert ear.heard()[1:] == [
        LeasesSettled("mail", "nack", 2, [0, 0], "REJECTED"),
        MessagesDied("mail", "REJECTED", 2),
    ]


def test_without_dead_letters_it_is_dropped(queues: Queues, ear: Ear) -> None:
    queues.set_policy("mail", {"dlq": {"enabled": False}})
    queues.publish("mail", 1)
    lease = ids(queues)
    ear.heard()
    queues.nack(lease, "REJECTED")
    assert ear.heard()[1:] == [MessagesDropped("mail", "given_up", 1)]


def test_what_does_not_fit_its_schema_is_published_and_dies(queues: Queues, ear: Ear) -> None:
    queues.set_policy("mail", {"schemas": {"t": {"*": {"type": "object"}}}})
    ear.heard()
    queues.publish_many("mail", [NewMessage(payload=1, type="t"), NewMessage(payload={}, type="t")])
    assert ear.heard() == [MessagesPublished("mail", 2, 3), MessagesDied("mail", "VALIDATION_ERROR", 1)]


def test_leases_lapse_and_the_last_one_kills(queues: Queues, ear: Ear, clock: ManualClock) -> None:
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


def test_messages_expire_and_dead_letters_age(queues: Queues, ear: Ear, clock: ManualClock) -> None:
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


def test_operators_move_dead_letters_and_drop(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [1, 2, 3, 4])
    queues.nack(ids(queues, 4), "REJECTED")
    ear.heard()
    letters = DeadLetters(queues)
    letters.quarantine("mail", ids=["m-1"])
    letters.requeue("mail", ids=["m-2"])
    letters.purge("mail", ids=["m-3"])
    queues.drop("mail", ["m-4", "m-4000"])
    assert ear.heard() == [
        MessagesParked("mail", 1),
        MessagesRedriven("mail", 1),
        *[MessagesDropped("mail", "asked", 1)] * 2,
    ]


def test_steering_is_told(queues: Queues, ear: Ear) -> None:
    queues.set_policy("mail", {})
    queues.pause("mail")
    queues.resume("mail")
    queues.delete_queue("mail")
    assert ear.heard() == [QueueChanged("mail", what) for what in ("policy", "pause", "resume", "delete")]


def test_a_refusal_by_quota_is_told_and_so_is_what_made_room(queues: Queues, ear: Ear) -> None:
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


def test_messages_that_carry_a_trace_are_told_one_by_one_where_somebody_collects_them(
    queues: Queues, ear: Ear, clock: ManualClock
) -> None:
    queues.event_buffer.is_traced = True
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


def test_nobody_listens_nobody_is_told(queues: Queues) -> None:
    queues.publish("mail", 1)
    ear = Ear()
    queues.add_listener(ear)
    assert ear.heard() == []


def test_the_commit_itself_is_told_last(queues: Queues, ear: Ear) -> None:
    queues.publish_many("mail", [1, 2])
    [commit] = ear.commits
    assert (commit.requests, commit.messages) == (1, 2)
    assert commit.work_seconds >= 0
    assert commit.sync_seconds >= 0


@pytest.mark.parametrize("at_commit", [True, False])
def test_a_commit_that_fails_tells_nothing(place: Place, at_commit: bool) -> None:
    store = FailingStore(place.open())
    queues, ear = open_for_test(store=store), Ear()
    queues.add_listener(ear)
    store.fail_at(1, commit=at_commit)
    with pytest.raises(StoreFull):
        queues.publish("mail", 1)
    assert (ear.heard(), ear.commits) == ([], [])
    queues.publish("mail", b"2")
    assert ear.heard() == [MessagesPublished("mail", 1, 1)]


def test_a_listener_that_fails_harms_nobody(queues: Queues, ear: Ear, caplog: pytest.LogCaptureFixture) -> None:
    def fail(events: Sequence[Event]) -> None:
        raise RuntimeError("no ears")

    last = Ear()
    queues.add_listener(fail)
    queues.add_listener(last)
    assert queues.publish("mail", b"1").id == "m-1"
    assert last.heard() == [MessagesPublished("mail", 1, 1)]
    assert "event_listener_failed" in caplog.text


def test_who_wants_some_kinds_of_events_is_called_only_where_there_is_one(queues: Queues) -> None:
    commits, steps = Ear(), Ear()
    queues.event_buffer.add_listener(commits, [GroupCommitted])
    queues.event_buffer.add_listener(steps, [QueueChanged])
    queues.publish("mail", b"1")
    assert (commits.heard(), steps.heard()) == ([MessagesPublished("mail", 1, 1)], [])
    queues.pause("mail")
    assert steps.heard() == [QueueChanged("mail", "pause")]


# -- the desk ---------------------------------------------------------------------------------------------------------


def desk(store: FailingStore | None = None) -> tuple[Server, Ear]:
    server, ear = Server(store), Ear()
    server.verbs.event_buffer.add_listener(ear)
    return server, ear


def publish(server: Server, queue: str, answers: list[object]) -> None:
    """Asked for now, done in the next turn; what is answered is noted in ``answers``."""
    envelopes = open_for_test(ids=CountingIds(queue))  # only to build an envelope
    made = envelopes._envelope(queue, b"1", f"{queue}-id", server.clock.now_ms())
    server.desk.submit(
        lambda transaction: server.verbs.publish(transaction, queue, [made]),
        lambda value, error: answers.append(error or queue),
    )


def test_one_turn_is_one_commit_told_after_the_answers() -> None:
    server, ear = desk()
    answers: list[object] = []
    server.verbs.event_buffer.add_listener(lambda events: answers.append("told"))
    for queue in ("a", "b", "c"):
        publish(server, queue, answers)
    server.turn()
    assert answers == ["a", "b", "c", "told"]
    assert ear.heard() == [MessagesPublished("a", 1, 1), MessagesPublished("b", 1, 1), MessagesPublished("c", 1, 1)]
    assert [(one.requests, one.messages) for one in ear.commits] == [(3, 3)]


def test_after_a_failed_commit_each_is_told_of_alone() -> None:
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


def test_what_was_pushed_in_the_commit_is_told_with_it() -> None:
    server, ear = desk()
    client = server.client()
    waiting = client.wait_for_lease("mail")
    client.publish("mail", b"12")
    assert ear.heard() == [MessagesPublished("mail", 1, 2), MessagesLeased("mail", 1, [0])]
    assert len(ear.commits) == 1
    assert client.heard(waiting)
