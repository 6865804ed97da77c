"""Policies: the defaults exactly, every number checked, every mistake named; and the waits they lead to."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden_files import golden
from yirangmq.core.backoff import RandomFraction, backoff_ms
from yirangmq.core.errors import BadPolicy
from yirangmq.core.policy import RetryPolicy, read_policy, show_policy

QUEUE = "telemetry"


def test_policy_defaults_equal_the_golden_document_in_content_and_order() -> None:
    assert show_policy(read_policy({}, QUEUE)) == json.loads(golden("policy-default.json"))
    assert list(show_policy(read_policy({}, QUEUE))) == list(json.loads(golden("policy-default.json")))


def test_policy_published_example_equals_the_defaults() -> None:
    assert read_policy(json.loads(golden("policy-example.json")), QUEUE) == read_policy({}, QUEUE)


@pytest.mark.parametrize("document", [{"paused": False}, {"retry": {}, "dlq": {}, "archive": {}, "quota": {}}])
def test_policy_defaults_are_the_same_for_an_empty_document_and_for_missing_members(document: dict[str, Any]) -> None:
    assert read_policy(document, QUEUE) == read_policy({}, QUEUE)


def test_policy_of_an_empty_document_is_built_of_shared_parts_in_five_calls() -> None:
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        policy = read_policy({}, QUEUE)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 5, calls
    assert policy.retry is read_policy({}, "other").retry
    assert policy.archive is read_policy({}, "other").archive


def test_policy_times_are_milliseconds_inside() -> None:
    policy = read_policy({"visibilityTimeoutSec": 0.25, "retry": {"initialDelaySec": 1.5}, "ttlSec": 2}, QUEUE)
    assert (policy.visibility_ms, policy.retry.initial_ms, policy.ttl_ms) == (250, 1_500, 2_000)
    assert policy.dlq.retention_ms == 14 * 86_400_000


def test_dead_letter_queue_is_named_after_its_queue_unless_the_policy_names_it() -> None:
    assert read_policy({}, "mail").dlq.queue == "mail-dlq"
    assert read_policy({"dlq": {"queue": "graveyard"}}, "mail").dlq.queue == "graveyard"


FULL: dict[str, Any] = {
    "visibilityTimeoutSec": 0.001,
    "retry": {
        "limit": 0,
        "backoff": "linear",
        "initialDelaySec": 0,
        "maxDelaySec": 0.5,
        "jitter": 0.25,
        "poisonAfter": 3,
    },
    "dlq": {"enabled": False, "queue": "other", "retentionDays": 0.5, "whenDisabled": "park", "tracebackChars": 0},
    "archive": {"enabled": False, "retentionDays": 1, "maxMessages": 0},
    "dedupWindowSec": 0,
    "ttlSec": 1.5,
    "onExpire": "dead",
    "requeue": "front",
    "maxBytes": 1,
    "tombstoneSec": 0,
    "schemas": {"sensor.reading": {"1": {"type": "object"}, "*": True}},
    "paused": True,
    "webhook": {"url": "https://x/", "secret": "s", "timeoutSec": 0.5, "concurrency": 1, "headers": {"A": "b"}},
    "dispatch": {"strategy": "ordered", "weights": {"a": 2}, "key": "account", "graceSec": 0.5, "outcomes": "told"},
    "quota": {"maxMessages": 10, "maxBytes": 4096, "onFull": "dropOldest"},
    "schedules": [
        {"name": "nightly", "cron": "30 2 * * mon-fri", "timezone": "Europe/Berlin", "message": {"payload": 1}},
        {"name": "often", "cron": "*/5 * * * *", "timezone": "UTC", "message": "hello"},
    ],
    "processor": {
        "integrity": "sha256",
        "checks": [{"check": "json", "root": "object"}],
        "hooks": [{"hook": "bank:check", "produces": None, "original": "keep", "timeoutSec": 0.5}],
        "workers": 2,
    },
    "unique": True,
    "concurrency": 0,
    "draftSec": 0.001,
    "claimSec": 2.5,
    "activeSec": 300,
}


def test_retry_limit_null_means_no_limit_of_attempts() -> None:
    assert read_policy({"retry": {"limit": None}}, QUEUE).retry.limit is None
    assert show_policy(read_policy({"retry": {"limit": None}}, QUEUE))["retry"]["limit"] is None


@pytest.mark.parametrize("member", ["unique", "processor", "concurrency", "draftSec", "claimSec", "activeSec"])
def test_policy_member_null_equals_an_omitted_member(member: str) -> None:
    assert read_policy({member: None}, QUEUE) == read_policy({}, QUEUE)


def test_policy_members_can_all_be_set_and_are_shown_as_set() -> None:
    assert show_policy(read_policy(FULL, QUEUE)) == FULL


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "visibilityTimeoutSec": st.floats(0.001, 1e6).map(lambda number: round(number, 3)),
            "ttlSec": st.integers(0, 10**6),
            "retry": st.fixed_dictionaries({}, optional={"limit": st.integers(0, 99), "jitter": st.floats(0, 1)}),
            "archive": st.fixed_dictionaries({}, optional={"retentionDays": st.integers(0, 3660)}),
            "requeue": st.sampled_from(["back", "front"]),
        },
    )
)
def test_policy_shown_is_read_back_unchanged(document: Mapping[str, Any]) -> None:
    policy = read_policy(document, QUEUE)
    assert read_policy(show_policy(policy), QUEUE) == policy


def tick(**changes: Any) -> dict[str, Any]:
    return {"name": "tick", "cron": "* * * * *", "message": 1} | changes


BAD: list[tuple[object, str]] = [
    ([], "document"),
    (None, "document"),
    ("fast", "document"),
    ({"visibilityTimeoutSec": 0}, "visibilityTimeoutSec"),
    ({"visibilityTimeoutSec": -1}, "visibilityTimeoutSec"),
    ({"visibilityTimeoutSec": "30"}, "visibilityTimeoutSec"),
    ({"visibilityTimeoutSec": True}, "visibilityTimeoutSec"),
    ({"visibilityTimeoutSec": None}, "visibilityTimeoutSec"),
    ({"visibilityTimeoutSec": 1e12}, "visibilityTimeoutSec"),
    ({"visibilityTimeoutSec": float("nan")}, "visibilityTimeoutSec"),
    ({"visibilityTimeoutSec": float("inf")}, "visibilityTimeoutSec"),
    ({"visibilitytimeoutSec": 30}, "visibilitytimeoutSec"),
    ({"retry": 5}, "retry"),
    ({"retry": None}, "retry"),
    ({"unique": 1}, "unique"),
    ({"concurrency": -1}, "concurrency"),
    ({"concurrency": 1.5}, "concurrency"),
    ({"draftSec": 0}, "draftSec"),
    ({"claimSec": "60"}, "claimSec"),
    ({"activeSec": -1}, "activeSec"),
    ({"retry": {"limit": -1}}, "retry.limit"),
    ({"retry": {"limit": 1.0}}, "retry.limit"),
    ({"retry": {"limit": True}}, "retry.limit"),
    ({"retry": {"backoff": "random"}}, "retry.backoff"),
    ({"retry": {"backoff": None}}, "retry.backoff"),
    ({"retry": {"backoff": ["fixed"]}}, "retry.backoff"),
    ({"retry": {"initialDelaySec": -0.5}}, "retry.initialDelaySec"),
    ({"retry": {"maxDelaySec": -1}}, "retry.maxDelaySec"),
    ({"retry": {"initialDelaySec": 10, "maxDelaySec": 9}}, "retry.maxDelaySec"),
    ({"retry": {"initialDelaySec": 61}}, "retry.maxDelaySec"),
    ({"retry": {"jitter": 1.5}}, "retry.jitter"),
    ({"retry": {"jitter": -0.1}}, "retry.jitter"),
    ({"retry": {"poisonAfter": -1}}, "retry.poisonAfter"),
    ({"retry": {"limits": 3}}, "retry.limits"),
    ({"dlq": {"enabled": "yes"}}, "dlq.enabled"),
    ({"dlq": {"enabled": 1}}, "dlq.enabled"),
    ({"dlq": {"queue": "a/b"}}, "dlq.queue"),
    ({"dlq": {"queue": 7}}, "dlq.queue"),
    ({"dlq": {"queue": ""}}, "dlq.queue"),
    ({"dlq": {"queue": QUEUE}}, "dlq.queue"),
    ({"dlq": {"retentionDays": -1}}, "dlq.retentionDays"),
    ({"dlq": {"whenDisabled": "keep"}}, "dlq.whenDisabled"),
    ({"dlq": {"tracebackChars": 16_001}}, "dlq.tracebackChars"),
    ({"dlq": {"tracebackChars": -1}}, "dlq.tracebackChars"),
    ({"dlq": {"name": "x"}}, "dlq.name"),
    ({"archive": {"enabled": None}}, "archive.enabled"),
    ({"archive": {"retentionDays": "7"}}, "archive.retentionDays"),
    ({"archive": {"maxMessages": -1}}, "archive.maxMessages"),
    ({"archive": {"size": 1}}, "archive.size"),
    ({"dedupWindowSec": -1}, "dedupWindowSec"),
    ({"ttlSec": -1}, "ttlSec"),
    ({"onExpire": "die"}, "onExpire"),
    ({"requeue": "middle"}, "requeue"),
    ({"maxBytes": 0}, "maxBytes"),
    ({"maxBytes": 65 * 1024 * 1024}, "maxBytes"),
    ({"maxBytes": 1.5}, "maxBytes"),
    ({"tombstoneSec": -1}, "tombstoneSec"),
    ({"schemas": []}, "schemas"),
    ({"schemas": {"t": []}}, "schemas.t"),
    ({"schemas": {"t": {"1": 7}}}, "schemas.t.1"),
    ({7: 1}, "7"),
    ({"paused": "yes"}, "paused"),
    ({"paused": 1}, "paused"),
    ({"quota": 5}, "quota"),
    ({"quota": {"maxMessages": -1}}, "quota.maxMessages"),
    ({"quota": {"maxMessages": 1.5}}, "quota.maxMessages"),
    ({"quota": {"maxBytes": "1k"}}, "quota.maxBytes"),
    ({"quota": {"onFull": "drop"}}, "quota.onFull"),
    ({"quota": {"messages": 5}}, "quota.messages"),
    ({"schedules": {}}, "schedules"),
    ({"schedules": [tick(name=f"s{n}") for n in range(101)]}, "schedules"),
    ({"schedules": [7]}, "schedules[0]"),
    ({"schedules": [{}]}, "schedules[0].name"),
    ({"schedules": [tick(), tick(name="a/b")]}, "schedules[1].name"),
    ({"schedules": [tick(name="n" * 81)]}, "schedules[0].name"),
    ({"schedules": [tick(), tick()]}, "schedules[1].name"),
    ({"schedules": [tick(cron="* * * *")]}, "schedules[0].cron"),
    ({"schedules": [tick(cron=None)]}, "schedules[0].cron"),
    ({"schedules": [tick(timezone=1)]}, "schedules[0].timezone"),
    ({"schedules": [tick(message=None)]}, "schedules[0].message"),
    ({"schedules": [tick(every=5)]}, "schedules[0].every"),
]


@pytest.mark.parametrize(("document", "field"), BAD, ids=[repr(document) for document, _ in BAD])
def test_policy_that_is_invalid_is_refused_with_its_field(document: object, field: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        read_policy(document, QUEUE)
    assert caught.value.field == field
    assert caught.value.code == "bad_policy"
    assert str(caught.value).startswith(f"{field}: ")


def test_policy_misspelt_member_is_refused_with_a_suggestion() -> None:
    with pytest.raises(BadPolicy, match="did you mean 'visibilityTimeoutSec'"):
        read_policy({"visibilityTimeoutsSec": 1}, QUEUE)


# -- waits ------------------------------------------------------------------------------------------------------------


def waits(retry: RetryPolicy, chance: float = 0.5) -> list[int]:
    return [backoff_ms(retry, attempt, RandomFraction(chance)) for attempt in range(1, 9)]


def test_backoff_by_default_doubles_from_one_second_to_sixty() -> None:
    assert waits(RetryPolicy()) == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_backoff_linear_grows_by_the_initial_delay_up_to_its_maximum() -> None:
    assert waits(RetryPolicy(backoff="linear", initial_ms=1_500, max_ms=9_000)) == [
        *(1_500, 3_000, 4_500, 6_000, 7_500, 9_000),
        *(9_000, 9_000),
    ]


def test_backoff_fixed_stays_constant() -> None:
    assert waits(RetryPolicy(backoff="fixed", initial_ms=700)) == [700] * 8


def test_backoff_jitter_is_off_by_default() -> None:
    assert waits(RetryPolicy(), chance=0.0) == waits(RetryPolicy(), chance=1.0)


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 800), (0.25, 900), (0.5, 1_000), (0.75, 1_100), (1.0, 1_200)])
def test_backoff_jitter_of_a_policy_spreads_a_delay_to_both_sides(chance: float, wait: int) -> None:
    assert backoff_ms(RetryPolicy(jitter=0.2), 1, RandomFraction(chance)) == wait


@given(
    st.sampled_from(["exponential", "linear", "fixed"]),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_backoff_of_a_policy_is_never_negative_nor_over_its_maximum_and_jitter(
    backoff: str, initial: int, attempt: int, jitter: float, chance: float
) -> None:
    retry = RetryPolicy(backoff=backoff, initial_ms=initial, max_ms=2 * 10**6, jitter=jitter)
    assert 0 <= backoff_ms(retry, attempt, RandomFraction(chance)) <= retry.max_ms * (1 + jitter) + 1
