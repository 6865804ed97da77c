"""The rules, as sentences about one message: a card in, a card out, the time handed in."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core import transitions
from yirangmq.core.errors import LeaseExpired, LeaseMismatch, NotFound, QueueError, WrongState
from yirangmq.core.message import MAX_FAILURE_TEXT, RANK_LAST, Envelope, Message, Reason, with_traceback
from yirangmq.core.policy import DAY_MS, QueuePolicy, RandomFraction, read_policy
from yirangmq.core.states import TRANSITIONS, State, Verb
from yirangmq.core.transitions import Cause, TransitionResult

NOW = 1_000_000
FRESH_PLACE = 77
DEFAULT = read_policy({}, "mail")


def policy(**members: Any) -> QueuePolicy:
    return read_policy(members, "mail")


def card(state: State = State.LEASED, **changes: Any) -> Message:
    plain = Message(7, "mail", "m", state, 3, 7, 1, 1, NOW + 5, 0, NOW - 9, "consumer-01", "", 0, True)
    return plain._replace(**changes)


def sent(**changes: Any) -> Envelope:
    return Envelope("mail", "m", RANK_LAST, NOW, NOW, 0, None, "", b"", False)._replace(**changes)


def nacked(
    message: Message,
    rules: QueuePolicy = DEFAULT,
    cause: Cause = Cause(Reason.HANDLER_ERROR),  # noqa: B008
) -> TransitionResult:
    return transitions.nack(message, rules, NOW, cause, FRESH_PLACE, RandomFraction())


# -- entering ---------------------------------------------------------------------------------------------------------


def test_publish_makes_a_message_ready_at_the_place_of_its_number() -> None:
    assert transitions.fresh(sent(rank=4), 7, NOW) == Message(
        7, "mail", "m", State.READY, 4, 7, 0, 0, 0, 0, NOW, "", "", 0, True
    )


@pytest.mark.parametrize(
    ("available", "expires", "state", "due"),
    [
        (NOW + 1, 0, State.DELAYED, NOW + 1),
        (NOW + 9, NOW + 5, State.DELAYED, NOW + 5),
        (NOW + 5, NOW + 9, State.DELAYED, NOW + 5),
        (NOW, NOW + 9, State.READY, NOW + 9),
        (NOW, 0, State.READY, 0),
    ],
)
def test_publish_with_delay_or_ttl_sets_state_and_due_time(
    available: int, expires: int, state: State, due: int
) -> None:
    made = transitions.fresh(sent(available_at=available, expires_at=expires), 7, NOW)
    assert (made.state, made.due_at, made.expires_at) == (state, due, expires)


@pytest.mark.parametrize("delay", [0, 5])
def test_admission_refusal_makes_a_message_dead_before_its_first_lease(delay: int) -> None:
    made = transitions.fresh(sent(available_at=NOW + delay), 7, NOW)
    refused, failure = transitions.refuse(made, DEFAULT, NOW, "payload.temp: is missing")
    assert (refused.state, refused.reason, refused.attempt) == (State.DEAD, Reason.VALIDATION_ERROR, 0)
    assert refused.due_at == NOW + 14 * DAY_MS
    assert failure == (Reason.VALIDATION_ERROR, "payload.temp: is missing", NOW, 0, "")


@pytest.mark.parametrize(("when_disabled", "state"), [("drop", State.DROPPED), ("park", State.PARKED)])
@pytest.mark.parametrize("delay", [0, 5])
def test_admission_refusal_without_dead_letters_drops_or_parks_the_message(
    when_disabled: str, state: State, delay: int
) -> None:
    rules = policy(dlq={"enabled": False, "whenDisabled": when_disabled})
    made = transitions.fresh(sent(available_at=NOW + delay), 7, NOW)
    assert transitions.refuse(made, rules, NOW, "why").message.state is state


# -- holding ----------------------------------------------------------------------------------------------------------


def test_lease_counts_one_more_attempt_and_a_new_fencing_token() -> None:
    ready = card(State.READY, attempt=2, leases=5, consumer="", due_at=0)
    leased = transitions.lease(ready, NOW, NOW + 30, "consumer-02")
    assert leased == ready._replace(
        state=State.LEASED, attempt=3, leases=6, due_at=NOW + 30, changed_at=NOW, consumer="consumer-02"
    )


def test_lease_that_is_live_is_held() -> None:
    leased = card()
    for consumer in (None, "consumer-01"):
        assert transitions.check_lease(leased, 1, consumer, NOW, "7-1") is leased


@pytest.mark.parametrize(
    ("message", "leases", "consumer", "error"),
    [
        (None, 1, None, NotFound),
        (card(), 0, None, LeaseExpired),
        (card(), 2, None, LeaseExpired),
        (card(), 1, "consumer-02", LeaseMismatch),
        (card(due_at=NOW), 1, None, LeaseExpired),
        (card(due_at=NOW - 1), 1, "consumer-01", LeaseExpired),
        *[(card(state), 1, None, LeaseExpired) for state in State if state is not State.LEASED],
    ],
)
def test_lease_that_is_unknown_expired_or_of_another_consumer_is_refused(
    message: Message | None, leases: int, consumer: str | None, error: type[QueueError]
) -> None:
    with pytest.raises(error):
        transitions.check_lease(message, leases, consumer, NOW, "7-1")


def test_lease_extension_moves_the_end_and_changes_nothing_else() -> None:
    assert transitions.extend(card(), NOW, NOW + 99) == card(due_at=NOW + 99, changed_at=NOW)


# -- success ----------------------------------------------------------------------------------------------------------


def test_ack_keeps_the_message_as_long_as_the_history_policy_says() -> None:
    done = transitions.ack(card(), DEFAULT, NOW)
    assert done == card(State.DONE, due_at=NOW + 7 * DAY_MS, changed_at=NOW)


def test_ack_without_history_keeps_only_the_id() -> None:
    done = transitions.ack(card(), policy(archive={"enabled": False}, tombstoneSec=5), NOW)
    assert done == card(State.DONE, due_at=NOW + 5_000, changed_at=NOW, body=False)


def test_ack_with_history_shorter_than_the_memory_for_ids_keeps_the_id_long_enough() -> None:
    done = transitions.ack(card(), policy(archive={"retentionDays": 0}, tombstoneSec=5), NOW)
    assert done.due_at == NOW + 5_000


def test_ack_is_remembered_by_its_fencing_token() -> None:
    done = transitions.ack(card(), DEFAULT, NOW)
    assert transitions.acked_before(done, 1)
    assert not transitions.acked_before(done, 2)
    assert not transitions.acked_before(card(), 1)
    assert not transitions.acked_before(None, 1)


# -- failure ----------------------------------------------------------------------------------------------------------


def test_nack_delays_the_message_and_keeps_the_reason() -> None:
    after, failure = nacked(card(), cause=Cause(Reason.TIMEOUT, "too slow"))
    assert after == card(State.DELAYED, due_at=NOW + 1_000, changed_at=NOW, reason="TIMEOUT", repeats=1)
    assert failure == ("TIMEOUT", "too slow", NOW, 1, "consumer-01")


@pytest.mark.parametrize(("attempt", "wait"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16)])
def test_backoff_of_a_nack_grows_with_the_attempt(attempt: int, wait: int) -> None:
    assert nacked(card(attempt=attempt)).message.due_at == NOW + wait * 1_000


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_retry_limit_makes_the_attempt_after_it_the_last(limit: int) -> None:
    rules = policy(retry={"limit": limit})
    if limit:
        assert nacked(card(attempt=limit), rules).message.state is State.DELAYED
    dead, failure = nacked(card(attempt=limit + 1), rules)
    assert (dead.state, dead.reason, dead.due_at) == (State.DEAD, Reason.HANDLER_ERROR, NOW + 14 * DAY_MS)
    assert failure is not None


@pytest.mark.parametrize("reason", list(Reason))
def test_nack_with_a_final_reason_makes_the_message_dead_at_once(reason: Reason) -> None:
    final = reason in (Reason.VALIDATION_ERROR, Reason.REJECTED, Reason.CORRUPT, Reason.POISON)
    after = nacked(card(), cause=Cause(reason)).message
    assert (after.state, after.reason) == (State.DEAD if final else State.DELAYED, reason)


def test_nack_for_the_same_reason_repeatedly_makes_the_message_poison() -> None:
    rules = policy(retry={"poisonAfter": 3})
    again = card(reason="HANDLER_ERROR", repeats=1, attempt=2)
    assert nacked(again, rules).message.state is State.DELAYED
    dead, failure = nacked(again._replace(repeats=2), rules)
    assert (dead.state, dead.reason, dead.repeats) == (State.DEAD, Reason.POISON, 3)
    assert failure is not None
    assert failure.reason_code == Reason.HANDLER_ERROR
    other = nacked(again._replace(repeats=2), rules, Cause(Reason.TIMEOUT)).message
    assert (other.state, other.repeats) == (State.DELAYED, 1)


def test_nack_delay_can_be_given_by_the_consumer() -> None:
    assert nacked(card(), cause=Cause(Reason.HANDLER_ERROR, "", 7_000)).message.due_at == NOW + 7_000


@pytest.mark.parametrize(("requeue", "place"), [("back", FRESH_PLACE), ("front", 7)])
def test_nack_with_delay_zero_makes_the_message_ready_at_once(requeue: str, place: int) -> None:
    after = nacked(card(), policy(requeue=requeue), Cause(Reason.HANDLER_ERROR, "", 0)).message
    assert (after.state, after.place, after.due_at, after.rank) == (State.READY, place, 0, 3)


def test_nack_delay_never_outlasts_the_time_to_live() -> None:
    assert nacked(card(expires_at=NOW + 300)).message.due_at == NOW + 300


@pytest.mark.parametrize(("on_expire", "state"), [("drop", State.DROPPED), ("dead", State.DEAD)])
def test_nack_after_the_time_to_live_drops_or_buries_the_message(on_expire: str, state: State) -> None:
    assert nacked(card(expires_at=NOW), policy(onExpire=on_expire)).message.state is state


@pytest.mark.parametrize(
    ("rules", "state", "due"),
    [
        ({"dlq": {"enabled": False}}, State.DROPPED, NOW + 600_000),
        ({"dlq": {"enabled": False, "whenDisabled": "park"}}, State.PARKED, 0),
    ],
)
def test_dead_letters_off_lets_the_last_failure_drop_or_park_the_message(
    rules: dict[str, Any], state: State, due: int
) -> None:
    for outcome in (
        nacked(card(attempt=6), policy(**rules)),
        transitions.expire(card(attempt=6), policy(**rules), NOW, 9),
    ):
        assert outcome is not None
        assert (outcome.message.state, outcome.message.due_at) == (state, due)
        assert outcome.message.body is (state is State.PARKED)


def test_nack_text_beyond_its_limit_is_cut() -> None:
    _, failure = nacked(card(), cause=Cause(Reason.HANDLER_ERROR, "x" * (MAX_FAILURE_TEXT + 1)))
    assert failure is not None
    assert failure.reason_message == "x" * MAX_FAILURE_TEXT


def test_nack_traceback_is_cut_at_a_line_and_does_not_count_as_text() -> None:
    long = with_traceback("x" * (MAX_FAILURE_TEXT + 1), "first\nsecond\nlast\n")
    _, failure = nacked(card(), policy(dlq={"tracebackChars": 8}), cause=Cause(Reason.HANDLER_ERROR, long))
    assert failure is not None
    assert (failure.reason_message, failure.traceback) == ("x" * MAX_FAILURE_TEXT, "  …\nlast\n")


@pytest.mark.parametrize(
    "rules",
    [{}, {"retry": {"limit": 0}}, {"retry": {"limit": 0}, "dlq": {"enabled": False}}, {"requeue": "front"}],
    ids=repr,
)
def test_nack_is_remembered_by_its_fencing_token_in_every_resulting_state(rules: dict[str, Any]) -> None:
    for delay in (None, 0, 5):
        after = nacked(card(), policy(**rules), Cause(Reason.HANDLER_ERROR, "", delay)).message
        assert transitions.nacked_before(after, 1)
        assert not transitions.nacked_before(after, 2)
    assert not transitions.nacked_before(None, 1)
    assert not transitions.nacked_before(card(), 1)


@pytest.mark.parametrize("rules", [{}, {"retry": {"limit": 0}}, {"retry": {"limit": 0}, "dlq": {"enabled": False}}])
def test_lease_expiry_is_not_remembered_as_a_nack(rules: dict[str, Any]) -> None:
    outcome = transitions.expire(card(), policy(**rules), NOW, FRESH_PLACE)
    assert outcome is not None
    assert not transitions.nacked_before(outcome.message, 1)


def test_drop_by_another_client_is_not_remembered_as_a_nack() -> None:
    assert not transitions.nacked_before(transitions.drop(card(), DEFAULT, NOW), 1)


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.LEASED, State.CLAIMED])
def test_lease_expiry_makes_the_message_ready_with_reason_timeout(state: State) -> None:
    outcome = transitions.expire(card(state), DEFAULT, NOW, FRESH_PLACE)
    assert outcome is not None
    assert outcome.message == card(
        State.READY, place=FRESH_PLACE, due_at=0, changed_at=NOW, consumer="", reason="TIMEOUT", repeats=1
    )
    what = {State.LEASED: "lease", State.CLAIMED: "claim"}[state]
    assert outcome.failure == ("TIMEOUT", f"the {what} of attempt 1 expired", NOW, 1, "consumer-01")


def test_lease_expiry_of_the_last_attempt_makes_the_message_dead() -> None:
    outcome = transitions.expire(card(attempt=6), DEFAULT, NOW, FRESH_PLACE)
    assert outcome is not None
    assert (outcome.message.state, outcome.message.reason) == (State.DEAD, Reason.TIMEOUT)


def test_lease_expiry_repeatedly_makes_the_message_poison() -> None:
    lapsed = card(reason="TIMEOUT", repeats=2)
    outcome = transitions.expire(lapsed, policy(retry={"poisonAfter": 3}), NOW, FRESH_PLACE)
    assert outcome is not None
    assert (outcome.message.state, outcome.message.reason) == (State.DEAD, Reason.POISON)


@pytest.mark.parametrize(("on_expire", "state"), [("drop", State.DROPPED), ("dead", State.DEAD)])
@pytest.mark.parametrize("before", [State.READY, State.DELAYED, State.LEASED])
def test_ttl_expiry_drops_or_buries_the_message_as_the_policy_says(before: State, on_expire: str, state: State) -> None:
    outcome = transitions.expire(card(before, expires_at=NOW), policy(onExpire=on_expire), NOW, FRESH_PLACE)
    assert outcome is not None
    assert outcome.message.state is state
    assert outcome.failure is not None
    assert outcome.failure.reason_code == (Reason.TIMEOUT if before is State.LEASED else Reason.EXPIRED)
    if state is State.DEAD:
        assert outcome.message.reason == Reason.EXPIRED


@pytest.mark.parametrize(
    ("requeue", "attempt", "place"),
    [("back", 0, FRESH_PLACE), ("back", 1, FRESH_PLACE), ("front", 0, FRESH_PLACE), ("front", 1, 7)],
)
def test_delay_expiry_makes_the_message_ready_at_the_place_of_the_requeue_policy(
    requeue: str, attempt: int, place: int
) -> None:
    delayed = card(State.DELAYED, attempt=attempt, expires_at=NOW + 9)
    outcome = transitions.expire(delayed, policy(requeue=requeue), NOW, FRESH_PLACE)
    assert outcome is not None
    assert outcome.message == delayed._replace(state=State.READY, place=place, due_at=NOW + 9, changed_at=NOW)
    assert outcome.failure is None


@pytest.mark.parametrize("state", [State.DEAD, State.DRAFT])
def test_retention_expiry_drops_dead_letters_and_unfinished_drafts(state: State) -> None:
    outcome = transitions.expire(card(state), DEFAULT, NOW, FRESH_PLACE)
    assert outcome is not None
    reason = Reason.EXPIRED if state is State.DRAFT else card(state).reason
    assert outcome.message == card(
        State.DROPPED, due_at=NOW + 600_000, changed_at=NOW, consumer="", body=False, reason=reason
    )


@pytest.mark.parametrize("state", [State.DONE, State.DROPPED])
def test_retention_expiry_forgets_done_and_dropped_messages(state: State) -> None:
    assert transitions.expire(card(state), DEFAULT, NOW, FRESH_PLACE) is None


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.DEAD, State.PARKED])
def test_redrive_starts_anew_but_keeps_priority_and_fencing_token(state: State) -> None:
    dead = card(state, attempt=6, leases=6, reason="TIMEOUT", repeats=4, expires_at=NOW - 1)
    assert transitions.redrive(dead, NOW, FRESH_PLACE) == dead._replace(
        state=State.READY,
        place=FRESH_PLACE,
        attempt=0,
        due_at=0,
        expires_at=0,
        changed_at=NOW,
        consumer="",
        reason="",
        repeats=0,
    )


def test_quarantine_parks_a_message_without_a_time_limit() -> None:
    assert transitions.park(card(State.DEAD), NOW) == card(State.PARKED, due_at=0, changed_at=NOW)


VERBS: dict[Verb, Callable[[Message], Message]] = {
    Verb.LEASE: lambda message: transitions.lease(message, NOW, NOW + 5, "c"),
    Verb.ACK: lambda message: transitions.ack(message, DEFAULT, NOW),
    Verb.EXTEND: lambda message: transitions.extend(message, NOW, NOW + 5),
    Verb.RETRY: lambda message: nacked(message).message,
    Verb.RELEASE: lambda message: nacked(message, cause=Cause(Reason.HANDLER_ERROR, "", 0)).message,
    Verb.BURY: lambda message: nacked(message, cause=Cause(Reason.REJECTED)).message,
    Verb.REDRIVE: lambda message: transitions.redrive(message, NOW, FRESH_PLACE),
    Verb.PARK: lambda message: transitions.park(message, NOW),
    Verb.DROP: lambda message: transitions.drop(message, DEFAULT, NOW),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", State)
def test_transitions_follow_the_state_table_for_every_state_and_verb(state: State, verb: Verb) -> None:
    target = TRANSITIONS.get((state, verb))
    if target is None:
        with pytest.raises(WrongState):
            VERBS[verb](card(state))
    else:
        assert VERBS[verb](card(state)).state is target


rules = st.fixed_dictionaries(
    {
        "retry": st.fixed_dictionaries({"limit": st.integers(0, 2), "poisonAfter": st.integers(0, 2)}),
        "dlq": st.fixed_dictionaries({"enabled": st.booleans(), "whenDisabled": st.sampled_from(["drop", "park"])}),
        "onExpire": st.sampled_from(["drop", "dead"]),
        "requeue": st.sampled_from(["back", "front"]),
    }
)
causes = st.builds(Cause, st.sampled_from(list(Reason)), st.just(""), st.sampled_from([None, 0, 1, 10**6]))


@given(rules, causes, st.integers(1, 4), st.sampled_from([0, NOW - 1, NOW, NOW + 1]), st.booleans())
def test_transitions_of_a_failed_message_never_leave_it_leased(
    document: dict[str, Any], cause: Cause, attempt: int, expires: int, lapsed: bool
) -> None:
    leased = card(attempt=attempt, leases=attempt, expires_at=expires)
    outcome = (
        transitions.expire(leased, policy(**document), NOW, 9) if lapsed else nacked(leased, policy(**document), cause)
    )
    assert outcome is not None
    after = outcome.message
    assert after.state in {target for (state, _), target in TRANSITIONS.items() if state is State.LEASED}
    assert after.state not in (State.LEASED, State.DONE)
    assert (after.leases, after.attempt, after.rank, after.seq) == (leased.leases, attempt, leased.rank, leased.seq)
    assert after.attempt <= document["retry"]["limit"] or after.state not in (State.READY, State.DELAYED)
    assert outcome.failure is not None
