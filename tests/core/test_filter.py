"""The filter language, on values in a dictionary."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.errors import BadFilter
from yirangmq.core.filter import FIELDS, FilterNode, MatchAll, fields_of, instant, matches, names_state
from yirangmq.core.filter import parse as parse_at
from yirangmq.core.states import State

NOON = instant("2026-01-13T12:00:00Z")
LETTER: dict[str, Any] = {
    "reasonCode": "TIMEOUT",
    "reasonMessage": "the lease of attempt 3 lapsed",
    "failedAt": NOON,
    "attempt": 3,
    "consumerId": "consumer-01",
    "messageId": "1234",
    "sourceQueue": "telemetry",
    "type": "sensor.reading",
    "version": 1,
    "priority": 0,
    "publishedAt": NOON,
    "state": "dead",
    "attributes": {"deviceId": "device-001", "site": {"floor": 2}, "a.b": "dotted", "urgent": True},
    "payload": {
        "temp": 36.5,
        "count": "10",
        "when": "2026-01-13T21:00:00+09:00",
        "tags": ["red", 7],
        "rows": [{"id": 1}, {"id": 2}],
        "nothing": None,
    },
}


def parse(text: str) -> FilterNode:
    """Parse it two hours after the letter failed."""
    assert NOON is not None
    return parse_at(text, NOON + 2 * 3_600_000)


def lookup(field: str) -> object:
    assert field in FIELDS
    return LETTER.get(field)


def found(text: str, by: Callable[[str], object] = lookup) -> bool:
    return matches(parse(text), by)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "reasonCode=TIMEOUT",
        "reasonCode=timeout",
        "reasonCode~TIME",
        "reasonCode=TIMEOUT and attempt>=3 and failedAt<2026-01-14",
        "reasonCode = TIMEOUT AND NOT attempt < 3",
        "reasonCode=POISON or attempt=3",
        "not reasonCode=POISON",
        "not (reasonCode=POISON or reasonCode=EXPIRED)",
        "reasonCode=POISON and attempt=3 or state=dead",
        "reasonCode!=POISON",
        'reasonMessage~"ATTEMPT 3"',
        "reasonMessage~'lapsed'",
        "failedAt>=2026-01-13",
        "failedAt=2026-01-13T12:00",
        "failedAt=2026-01-13T21:00:00+09:00",
        "failedAt>2026-01-13T11:59:59.999Z",
        "messageId=1234",
        'messageId="1234"',
        "version=1",
        "version=1.0",
        "priority=0",
        "traceId=null",
        "consumerId!=null",
        "traceId!=t-1",
        "attributes.deviceId=device-001",
        "attributes.site.floor<=2",
        'attributes."a.b"=dotted',
        "attributes.urgent=true",
        "attributes.missing=null",
        "payload.temp>36",
        "payload.temp<3.7e1",
        "payload.count>9",
        "payload.count=10",
        'payload.count="10"',
        "payload.when=2026-01-13T12:00:00Z",
        "payload.when<2026-01-14",
        "payload.tags~red",
        "payload.tags~7",
        "payload.tags.0=red",
        "payload.rows.1.id=2",
        "payload.nothing=null",
        "payload.rows.9.id=null",
        "type=sensor.reading",
        "type>sensor",
    ],
)
def test_filter_matches_and_its_negation_does_not(text: str) -> None:
    assert found(text)
    assert not found(f"not ({text.strip() or 'attempt=3'})")


@pytest.mark.parametrize(
    "text",
    [
        "reasonCode=POISON",
        "attempt>3",
        "attempt!=3",
        "failedAt<2026-01-13",
        "traceId=t-1",
        "traceId~t",
        "traceId<z",
        "attributes.urgent=false",
        'attributes.urgent="true"',
        "attributes.missing>0",
        'payload.temp="36.5"',
        "payload.temp=warm",
        "payload.temp>warm",
        "payload.temp~3",
        "payload.count>99",
        "payload.rows=1",
        "payload.rows.x=1",
        "payload.temp.deeper=1",
        "payload.tags~blue",
        "reasonMessage=lapsed",
    ],
)
def test_filter_that_asks_for_other_values_does_not_match(text: str) -> None:
    assert not found(text)


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("reasonCod=TIMEOUT", 0, "did you mean 'reasonCode'?"),
        ("weather=fine", 0, "known: reasonCode"),
        ("attempt=3 and atempt>1", 14, "did you mean 'attempt'?"),
        ("reasonCode=TIMEOT", 11, "did you mean TIMEOUT?"),
        ("state=ded", 6, "did you mean dead?"),
        ("reasonCode=SUNSHINE", 11, "known: VALIDATION_ERROR"),
        ("reasonCode>TIMEOUT", 10, "no order"),
        ("attempt>=three", 9, "is a number"),
        ("attempt~3", 7, "~ searches text"),
        ("failedAt<yesterday", 9, "2026-01-14"),
        ("failedAt<2026-13-45", 9, "2026-01-14"),
        ("attempt<null", 7, "null can only be compared with = and !="),
        ("payload=3", 0, "payload.NAME"),
        ("attempt.x=3", 0, "has no parts"),
        ("payload..x=3", 0, "is not a field"),
        ("(attempt=3", 0, "never closed"),
        ("attempt=3)", 9, "no '('"),
        ("(attempt=3 type=x)", 11, "expected 'and', 'or' or ')'"),
        ("attempt=3 attempt=4", 10, "expected 'and', 'or' or the end"),
        ("attempt 3", 8, "after attempt"),
        ("attempt=", 8, "expected a value after ="),
        ("attempt=(3)", 8, "expected a value after ="),
        ("=3", 0, "expected a field"),
        ("attempt=3 and", 13, "expected a field"),
        ("not", 3, "expected a field"),
        ("()", 1, "expected a field"),
        ("type='x", 5, "this quote is never closed"),
        ("attempt!3", 7, "does not belong here"),
        ("not " * 60 + "attempt=3", 200, "levels deep"),
    ],
)
def test_filter_with_a_mistake_is_refused_with_a_caret_at_its_position(text: str, at: int, says: str) -> None:
    with pytest.raises(BadFilter) as refused:
        parse(text)
    assert (refused.value.code, refused.value.field) == ("bad_filter", "filter")
    complaint, shown, caret = str(refused.value).split("\n")
    assert says in complaint
    pointed = caret.index("^") - 2
    assert shown[2:][pointed : pointed + 5] == text[at : at + 5]


def test_filter_beyond_the_length_limit_is_refused() -> None:
    with pytest.raises(BadFilter, match="at most"):
        parse("attempt=3 or " * 2000 + "attempt=3")


def test_filter_that_is_empty_matches_everything_and_needs_no_fields() -> None:
    assert parse("") == MatchAll()
    assert fields_of(parse("")) == frozenset()


def test_filter_lists_the_fields_it_needs() -> None:
    node = parse("reasonCode=TIMEOUT and (payload.a.b=1 or not attributes.x=2)")
    assert fields_of(node) == {"reasonCode", "payload", "attributes"}


def test_filter_does_not_look_up_values_it_does_not_need() -> None:
    def careful(field: str) -> object:
        assert field != "payload"
        return LETTER.get(field)

    assert not found("reasonCode=POISON and payload.x=1", careful)
    assert found("reasonCode=TIMEOUT or payload.x=1", careful)


def test_filter_means_parked_messages_only_where_it_names_that_state() -> None:
    assert names_state(parse("attempt=1 and (state=PARKED or type=x)"), State.PARKED)
    assert not names_state(parse("state!=dead and attempt=1"), State.PARKED)
    assert not names_state(parse("type=parked"), State.PARKED)


@given(st.text(alphabet="reasonCd=<>!~()\"'\\. and1", max_size=40))
def test_filter_from_any_text_is_accepted_or_refused_with_a_clear_error(text: str) -> None:
    answer = ""
    try:
        matches(parse(text), lookup)
    except BadFilter as error:
        answer = str(error)
    assert not answer or answer.startswith("filter: ")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_filter_compares_any_payload_with_any_value(value: object) -> None:
    def by(field: str) -> object:
        return {"x": value} if field == "payload" else None

    for sign in ("=", "!=", "<", "<=", ">", ">=", "~"):
        for word in ("3", "2026-01-14", "true", "'a'", "b"):
            assert matches(parse(f"payload.x{sign}{word}"), by) in (True, False)


@given(st.text(min_size=1))
def test_filter_quoted_text_matches_literally(text: str) -> None:
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def by(field: str) -> object:
        return text

    assert matches(parse(f"type={quoted}"), by)
    assert matches(parse(f"reasonMessage~{quoted}"), by)


@pytest.mark.parametrize(
    "text",
    [
        "failedAt>3h ago",
        "failedAt<1h ago",
        "failedAt=2h ago",
        "failedAt>=120m AGO",
        "failedAt<=7200s ago",
        "failedAt>2.5h ago and attempt=3",
        "not (failedAt>119m ago)",
        "failedAt>1d ago or state=ready",
        "failedAt>1w ago",
        "publishedAt>3H ago",
        "payload.when=2h ago",
        "payload.when>3h ago and payload.when<1h ago",
    ],
)
def test_filter_relative_time_counts_back_from_the_instant_it_is_given(text: str) -> None:
    assert found(text)
    assert not found(f"not ({text})")


@pytest.mark.parametrize(
    ("text", "at", "problem"),
    [
        ("failedAt>1h", 9, "did you mean '1h ago'?"),
        ("failedAt>1h and attempt=3", 9, "did you mean '1h ago'?"),
        ("attempt>1h ago", 11, "attempt is no time"),
        ("reasonMessage~1h ago", 17, "reasonMessage is no time"),
        ("failedAt>ago", 9, "failedAt is a time"),
        ("failedAt>1x ago", 9, "failedAt is a time"),
        ("failedAt>'1h' ago", 9, "failedAt is a time"),
        ("failedAt>999999999w ago", 9, "is before the year 1"),
        ("failedAt>1h ago ago", 16, "expected 'and', 'or' or the end"),
    ],
)
def test_filter_relative_time_that_is_wrong_is_pointed_at(text: str, at: int, problem: str) -> None:
    with pytest.raises(BadFilter, match=re.escape(problem)) as caught:
        parse(text)
    assert str(caught.value).splitlines()[-1] == f"  {' ' * at}^"
