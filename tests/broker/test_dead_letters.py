"""The operator's verbs on dead letters, on every store."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import KINDS, Place
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.message_moves import MAX_PER_COMMIT
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadFilter, BadInput, NotFound, WrongState
from yirangmq.core.policy import DAY_MS
from yirangmq.core.ports import MoveResult, Store, Transaction
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import FailingStore, ManualClock, open_for_test


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = Place(request.param, tmp_path)
    try:
        yield place.open()
    finally:
        place.close()


@pytest.fixture
def queues(store: Store, clock: ManualClock) -> Queues:
    return open_for_test(store=store, clock=clock)


@pytest.fixture
def letters(queues: Queues) -> DeadLetters:
    return DeadLetters(queues)


def kill(queues: Queues, queue: str, *ids: str, reason: str = "REJECTED", text: str = "no", **more: Any) -> None:
    """Publish them, take them and give them up for this reason, in this order."""
    if reason not in ("REJECTED", "VALIDATION_ERROR", "CORRUPT"):
        queues.set_policy(queue, {"retry": {"limit": 0}})
    queues.publish_many(queue, [NewMessage(payload={"n": n}, id=id, **more) for n, id in enumerate(ids)])
    for delivery in queues.lease(queue, max(1, len(ids))):
        queues.nack(delivery.lease_id, reason, text)


def found(letters: DeadLetters, queue: str = "jobs", filter: str = "", state: str = "dead") -> list[str]:
    return [look.message.id for look in letters.list(queue, filter, state=state)]


def line_up(queues: Queues, queue: str = "jobs") -> list[tuple[str, int]]:
    return [(delivery.id, delivery.attempt) for delivery in queues.lease(queue, 5000)]


# -- names ----------------------------------------------------------------------------------------------------------


def test_dead_letters_are_found_by_queue_name_and_by_dead_letter_queue_name(
    queues: Queues, letters: DeadLetters
) -> None:
    kill(queues, "telemetry", "a")
    assert letters.sources("telemetry") == ["telemetry"] == letters.sources("telemetry-dlq")
    assert found(letters, "telemetry") == ["a"] == found(letters, "telemetry-dlq")


def test_dead_letters_of_several_queues_may_share_a_dead_letter_queue_name(
    queues: Queues, letters: DeadLetters
) -> None:
    for queue in ("east", "west"):
        queues.set_policy(queue, {"dlq": {"queue": "graveyard"}})
        kill(queues, queue, f"{queue}-1")
    assert letters.sources("graveyard") == ["east", "west"]
    assert found(letters, "graveyard") == ["east-1", "west-1"]
    assert letters.redrive("graveyard", all=True).count == 2
    assert (line_up(queues, "east"), line_up(queues, "west")) == ([("east-1", 1)], [("west-1", 1)])


def test_dead_letters_of_an_unknown_name_are_empty(letters: DeadLetters) -> None:
    assert letters.sources("nowhere") == []
    assert found(letters, "nowhere") == []
    assert letters.redrive("nowhere", all=True) == MoveResult(0, [])


def test_dead_letter_queue_name_of_an_existing_queue_is_not_a_mere_view(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", "a")
    assert letters.sources("jobs-dlq") == ["jobs"]
    queues.set_policy("jobs-dlq", {})
    queues.publish("jobs-dlq", 1)
    assert letters.sources("jobs-dlq") == ["jobs", "jobs-dlq"]


# -- looking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ("", ["a", "b", "c"]),
        ("reasonCode=TIMEOUT", ["b"]),
        ("reasonMessage~disk", ["c"]),
        ("consumerId=tester and not messageId=c", ["a", "b"]),
        ("sourceQueue=jobs and attempt=1", ["a", "b", "c"]),
        ("attempt>1", []),
        ("priority=0", ["c"]),
        ("priority=null", ["a", "b"]),
        ("type=order and version=2", ["b"]),
        ("traceId=t-1", ["b"]),
        ("attributes.site=north", ["c"]),
        ("payload.n=0 and state=dead", ["a", "b", "c"]),
        ("failedAt>2026-01-14", ["b", "c"]),
        ("failedAt>1h ago", ["b", "c"]),
        ("failedAt<=1d ago", ["a"]),
        ("publishedAt<2026-01-14", ["a"]),
    ],
)
def test_dead_letter_filter_selects_the_matching_dead_letters(
    queues: Queues, letters: DeadLetters, clock: ManualClock, filter: str, ids: list[str]
) -> None:
    kill(queues, "jobs", "a")
    clock.advance(DAY_MS)
    kill(queues, "jobs", "b", reason="TIMEOUT", type="order", version=2, trace_id="t-1")
    kill(queues, "jobs", "c", reason="CORRUPT", text="the disk is gone", attributes={"site": "north"}, priority=0)
    assert found(letters, filter=filter) == ids


def test_dead_letter_filter_finds_no_payload_fields_in_a_bytes_payload(queues: Queues, letters: DeadLetters) -> None:
    queues.publish("jobs", b"\xff\xfe")
    queues.nack(queues.lease("jobs")[0].lease_id, "REJECTED")
    assert found(letters, filter="payload.x=null") == ["m-1"]
    assert found(letters, filter="payload.x=1") == []


def test_dead_letter_find_stops_at_its_limit(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", *"abc")
    assert [look.message.id for look in letters.list("jobs", limit=2)] == ["a", "b"]
    assert list(letters.list("jobs", limit=0)) == []


def test_dead_letter_show_returns_its_record_with_failure_and_routing(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", "a", text="unknown account")
    record = letters.show("jobs-dlq", "a").record()
    assert record is not None
    assert record["originalMessage"]["payload"] == {"n": 0}
    assert record["failure"]["reasonMessage"] == "unknown account"
    assert record["routing"] == {"sourceQueue": "jobs", "dlqQueue": "jobs-dlq"}


def test_dead_letter_show_of_a_live_or_unknown_message_is_rejected(queues: Queues, letters: DeadLetters) -> None:
    queues.publish("jobs", NewMessage(payload=1, id="alive"))
    with pytest.raises(WrongState, match="is ready"):
        letters.show("jobs", "alive")
    with pytest.raises(NotFound):
        letters.show("jobs", "never-seen")


def test_dead_letter_stats_count_by_reason_and_day(queues: Queues, letters: DeadLetters, clock: ManualClock) -> None:
    kill(queues, "jobs", "a", "b")
    kill(queues, "jobs", "c", reason="TIMEOUT")
    clock.advance(DAY_MS)
    kill(queues, "jobs", "d", "e", reason="TIMEOUT")
    letters.quarantine("jobs", ids=["a"])
    assert letters.stats("jobs-dlq") == {
        "queue": "jobs-dlq",
        "sources": ["jobs"],
        "total": 4,
        "parked": 1,
        "byQueue": [{"queue": "jobs", "total": 4, "parked": 1}],
        "byReason": {"TIMEOUT": 3, "REJECTED": 1},
        "byDay": [
            {"day": "2026-01-13", "total": 2, "byReason": {"REJECTED": 1, "TIMEOUT": 1}},
            {"day": "2026-01-14", "total": 2, "byReason": {"TIMEOUT": 2}},
        ],
        "oldest": "2026-01-13T09:21:00.000+00:00",
        "newest": "2026-01-14T09:21:00.000+00:00",
    }


def test_dead_letter_stats_of_a_queue_without_dead_letters_are_zero(queues: Queues, letters: DeadLetters) -> None:
    queues.publish("jobs", 1)
    stats = letters.stats("jobs")
    assert (stats["total"], stats["byReason"], stats["byDay"], stats["oldest"]) == (0, {}, [], None)


# -- requeue --------------------------------------------------------------------------------------------------------


def test_redrive_moves_matching_dead_letters_and_resets_their_attempts(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", "a", "b")
    kill(queues, "jobs", "c", "d", reason="TIMEOUT")
    assert letters.redrive("jobs-dlq", "reasonCode=TIMEOUT") == MoveResult(2, ["c", "d"])
    assert line_up(queues) == [("c", 1), ("d", 1)]
    assert found(letters) == ["a", "b"]


def test_redrive_keeps_the_order_of_first_arrival(queues: Queues, letters: DeadLetters, clock: ManualClock) -> None:
    queues.publish_many("jobs", [NewMessage(payload=1, id=id) for id in "abcd"])
    for delivery in reversed(queues.lease("jobs", 4)):
        clock.advance(1000)
        queues.nack(delivery.lease_id, "REJECTED")
    queues.publish("jobs", NewMessage(payload=1, id="newcomer"))
    assert found(letters) == ["d", "c", "b", "a"]
    assert (
        letters.redrive("jobs", all=True, dry_run=True)
        == letters.redrive("jobs", all=True)
        == MoveResult(4, ["a", "b", "c", "d"])
    )
    assert [id for id, _ in line_up(queues)] == ["newcomer", "a", "b", "c", "d"]


def test_redrive_keeps_priorities(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", "late")
    kill(queues, "jobs", "first", priority=0)
    letters.redrive("jobs", all=True)
    assert [id for id, _ in line_up(queues)] == ["first", "late"]


def test_redrive_gives_a_message_all_its_attempts_again(
    queues: Queues, letters: DeadLetters, clock: ManualClock
) -> None:
    queues.set_policy("jobs", {"retry": {"limit": 1, "initialDelaySec": 1}})
    queues.publish("jobs", NewMessage(payload=1, id="a"))
    for _ in range(2):
        queues.nack(queues.lease("jobs")[0].lease_id)
        clock.advance(1000)
    assert found(letters) == ["a"]
    letters.redrive("jobs", all=True)
    queues.nack(queues.lease("jobs")[0].lease_id)
    assert found(letters) == []
    clock.advance(1000)
    assert line_up(queues) == [("a", 2)]


def test_redrive_of_many_messages_commits_in_pages_and_reports_progress(store: Store, clock: ManualClock) -> None:
    failing = FailingStore(store)
    queues = open_for_test(store=failing, clock=clock)
    ids = [f"n-{number}" for number in range(2 * MAX_PER_COMMIT + 1)]
    kill(queues, "jobs", *ids)
    before = failing.commits
    told: list[tuple[int, int]] = []
    moved = DeadLetters(queues, lambda done, total: told.append((done, total))).redrive("jobs", all=True)
    assert (moved.count, moved.ids) == (len(ids), ids[:10])
    assert told == [(500, 1001), (1000, 1001), (1001, 1001)]
    assert failing.commits - before == 3
    assert [id for id, _ in line_up(queues)] == ids


# -- quarantine and purge -------------------------------------------------------------------------------------------


def test_quarantine_parks_messages_that_redrive_and_purge_skip_unless_named(
    queues: Queues, letters: DeadLetters
) -> None:
    kill(queues, "jobs", *"abcd")
    assert letters.quarantine("jobs", ids=["b", "c"]) == MoveResult(2, ["b", "c"])
    assert found(letters) == ["a", "d"]
    assert found(letters, state="parked") == ["b", "c"]
    assert found(letters, state="all") == ["a", "d", "b", "c"]
    assert letters.redrive("jobs", all=True).count == 2
    assert letters.purge("jobs", all=True).count == 0
    assert letters.redrive("jobs", "state=parked and messageId=b").ids == ["b"]
    assert letters.redrive("jobs", ids=["c"]).ids == ["c"]
    assert sorted(id for id, _ in line_up(queues)) == ["a", "b", "c", "d"]


def test_dead_letter_redrive_and_purge_select_by_state_and_reject_a_live_state(
    queues: Queues, letters: DeadLetters
) -> None:
    kill(queues, "jobs", "a", "b")
    letters.quarantine("jobs", "messageId=a")
    assert letters.purge("jobs", all=True, state="parked").ids == ["a"]
    assert letters.redrive("jobs", all=True, state="all").ids == ["b"]
    with pytest.raises(BadInput, match="state"):
        letters.redrive("jobs", all=True, state="ready")


def test_quarantine_keeps_parked_messages_beyond_the_retention(
    queues: Queues, letters: DeadLetters, clock: ManualClock
) -> None:
    kill(queues, "jobs", "a", "b")
    letters.quarantine("jobs", ids=["a"])
    clock.advance(15 * DAY_MS)
    queues.sweep()
    assert found(letters, state="all") == ["a"]


def test_dead_letter_purge_removes_messages_and_counts_them_as_dropped(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", "a", "b")
    assert letters.purge("jobs", "messageId=a") == MoveResult(1, ["a"])
    assert found(letters, state="all") == ["b"]
    assert queues.counts("jobs").dropped == 1
    assert queues.show("jobs", "a").envelope is None


@pytest.mark.parametrize("verb", ["redrive", "quarantine", "purge"])
def test_dry_run_of_a_dead_letter_operation_counts_exactly_and_changes_nothing(
    queues: Queues, letters: DeadLetters, verb: str
) -> None:
    kill(queues, "jobs", *"abc")
    kill(queues, "jobs", "d", reason="TIMEOUT")
    letters.quarantine("jobs", ids=["c"])
    before = queues.counts("jobs")
    move: Callable[..., MoveResult] = getattr(letters, verb)
    for how in ({"all": True}, {"filter": "reasonCode=TIMEOUT"}, {"filter": "type=x"}, {"ids": ["a", "d"]}):
        tried = move("jobs", dry_run=True, **how)
        assert queues.counts("jobs") == before
        assert found(letters, state="all") == ["a", "b", "d", "c"]
        if how == {"ids": ["a", "d"]}:
            assert move("jobs", **how) == tried == MoveResult(2, ["a", "d"])


@pytest.mark.parametrize("verb", ["redrive", "quarantine", "purge"])
def test_dead_letter_operation_repeated_by_id_succeeds_and_moves_nothing(
    queues: Queues, letters: DeadLetters, verb: str
) -> None:
    kill(queues, "jobs", "a")
    move: Callable[..., MoveResult] = getattr(letters, verb)
    assert move("jobs", ids=["a"]) == MoveResult(1, ["a"])
    assert move("jobs", ids=["a"]) == MoveResult(0, [])


@pytest.mark.parametrize("verb", ["redrive", "quarantine", "purge"])
def test_dead_letter_operation_with_a_wrong_id_moves_nothing(queues: Queues, letters: DeadLetters, verb: str) -> None:
    kill(queues, "jobs", "a")
    queues.publish("jobs", NewMessage(payload=1, id="alive"))
    queues.lease("jobs")
    move: Callable[..., MoveResult] = getattr(letters, verb)
    with pytest.raises(NotFound) as missing:
        move("jobs", ids=["a", "never-seen"])
    with pytest.raises(WrongState, match="is leased"):
        move("jobs", ids=["a", "alive"])
    with pytest.raises(BadInput):
        move("jobs", ids=["a", "../b"])
    with pytest.raises(BadInput):
        move("jobs", ids=[])
    assert missing.value.field == "id"
    assert found(letters) == ["a"]


def test_redrive_of_an_id_given_twice_moves_its_message_once(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", "a")
    assert letters.redrive("jobs", ids=["a", "a"]) == MoveResult(1, ["a"])


def test_dead_letter_purge_with_an_invalid_filter_or_name_moves_nothing(queues: Queues, letters: DeadLetters) -> None:
    kill(queues, "jobs", "a")
    with pytest.raises(BadFilter):
        letters.purge("jobs", "reasonCode=WHATEVER")
    with pytest.raises(BadInput):
        letters.purge("../jobs", all=True)
    assert found(letters) == ["a"]


@pytest.mark.parametrize("verb", ["redrive", "quarantine", "purge"])
@pytest.mark.parametrize("filter", ["", "  "])
def test_dead_letter_operation_without_a_selection_is_refused_and_moves_nothing(
    queues: Queues, letters: DeadLetters, verb: str, filter: str
) -> None:
    """A forgotten filter, or an empty one, does not select everything."""
    kill(queues, "jobs", "a")
    move: Callable[..., MoveResult] = getattr(letters, verb)
    for dry_run in (True, False):
        with pytest.raises(BadInput, match="select messages by") as caught:
            move("jobs", filter, dry_run=dry_run)
        assert caught.value.field == "filter"
    with pytest.raises(BadInput, match="give only one") as caught:
        move("jobs", "reasonCode=REJECTED", all=True)
    assert caught.value.field == "all"
    assert found(letters) == ["a"]


@pytest.mark.parametrize("verb", ["redrive", "quarantine", "purge", "list"])
def test_dead_letter_operation_with_a_filter_that_is_no_string_is_refused_by_name(
    letters: DeadLetters, verb: str
) -> None:
    with pytest.raises(BadInput, match="must be a string, not NoneType") as caught:
        list(getattr(letters, verb)("jobs", None))
    assert caught.value.field == "filter"


def test_dead_letter_stats_of_all_queues_count_each_queue_that_has_some(queues: Queues, letters: DeadLetters) -> None:
    for number in range(600):
        queues.set_policy(f"idle-{number:04}", {})
    kill(queues, "east", "a", "b")
    kill(queues, "west", "c", reason="TIMEOUT")
    letters.quarantine("east", ids=["a"])
    found = letters.stats()
    assert found["queue"] is None
    assert found["sources"] == ["east", "west"]
    assert (found["total"], found["parked"], found["byReason"]) == (2, 1, {"REJECTED": 1, "TIMEOUT": 1})
    assert found["byQueue"] == [
        {"queue": "east", "total": 1, "parked": 1},
        {"queue": "west", "total": 1, "parked": 0},
    ]


# -- what happens meanwhile -----------------------------------------------------------------------------------------


class Meddling:
    """A store in which something happens just before the next transaction for writing, or when envelopes are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before_write: Callable[[], object] | None = None
        self.envelopes_read = 0

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        meddle, self.before_write = (self.before_write, None) if write else (None, self.before_write)
        if meddle is not None:
            meddle()
        return self._watched(write)

    @contextmanager
    def _watched(self, write: bool) -> Iterator[Transaction]:
        with self._store.transaction(write=write) as transaction:
            original = transaction.envelopes

            def counted(messages: Any) -> Any:
                self.envelopes_read += len(messages)
                return original(messages)

            transaction.envelopes = counted  # type: ignore[method-assign]
            try:
                yield transaction
            finally:  # the next transaction may use the parts of this one
                transaction.envelopes = original  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_redrive_leaves_alone_a_message_that_another_process_moved_meanwhile(store: Store, clock: ManualClock) -> None:
    meddling = Meddling(store)
    queues, other = open_for_test(store=meddling, clock=clock), open_for_test(store=store, clock=clock)
    kill(queues, "jobs", *"abc")
    meddling.before_write = lambda: other.drop("jobs", ["b"])
    assert DeadLetters(queues).redrive("jobs", all=True) == MoveResult(2, ["a", "c"])
    assert queues.show("jobs", "b").message.state == "dropped"


def test_dead_letter_purge_leaves_alone_a_message_that_died_again_for_another_reason(
    store: Store, clock: ManualClock
) -> None:
    meddling = Meddling(store)
    queues, other = open_for_test(store=meddling, clock=clock), open_for_test(store=store, clock=clock)
    kill(queues, "jobs", "a", reason="TIMEOUT")

    def revive_and_reject() -> None:
        DeadLetters(other).redrive("jobs", all=True)
        other.nack(other.lease("jobs")[0].lease_id, "REJECTED")

    meddling.before_write = revive_and_reject
    assert DeadLetters(queues).purge("jobs", "reasonCode=TIMEOUT").count == 0
    assert found(DeadLetters(queues)) == ["a"]


def test_dead_letter_filter_reads_payloads_only_when_it_compares_them(store: Store, clock: ManualClock) -> None:
    meddling = Meddling(store)
    queues = open_for_test(store=meddling, clock=clock)
    kill(queues, "jobs", *"abc")
    letters, before = DeadLetters(queues), meddling.envelopes_read
    letters.stats("jobs")
    letters.redrive("jobs", "reasonCode=REJECTED and attempt=1 and failedAt<2027-01-01", dry_run=True)
    letters.redrive("jobs", "consumerId=tester", dry_run=True)
    assert meddling.envelopes_read == before
    letters.redrive("jobs", "payload.n=1", dry_run=True)
    assert meddling.envelopes_read == before + 3
