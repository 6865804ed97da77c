"""Which days may go, what is cut at the start, and what is told of a change."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.journal import (
    Day,
    DeliveryResult,
    Position,
    Truncation,
    day_of,
    hour_of,
    is_day,
    outcome_of,
    plan_recovery,
    retention_verdicts,
)
from yirangmq.core.message import Message, MessageFailure, Reason
from yirangmq.core.ports import Change
from yirangmq.core.states import State

TODAY = date(2026, 11, 15)
HOUR_MS = 3_600_000


def name(back: int, today: date = TODAY) -> str:
    return (today - timedelta(days=back)).isoformat()


def week(length: int = 10) -> list[Day]:
    """A server that ran every day: the older the day, the lower its number."""
    return [Day(name(back), 100 - back) for back in range(length)]


def going(days: list[Day], today: str, keep: int = 7) -> list[str]:
    return [verdict.day for verdict in retention_verdicts(days, today, keep) if verdict.may_delete]


def test_files_by_date_retention_deletes_the_eighth_day_and_keeps_the_seventh() -> None:
    assert going(week(), name(0)) == [name(9), name(8)]
    assert going(week(9), name(0)) == [name(8)]
    assert going(week(8), name(0)) == []
    assert going(week(), name(0), keep=8) == [name(9)]


@pytest.mark.parametrize("ahead", [1, 2, 30, 365, 36_500])
def test_files_by_date_retention_counts_a_clock_jump_ahead_as_one_day(ahead: int) -> None:
    """The seven days before the jump stay, but for the oldest of them: the day it jumped to is counted as lived."""
    jumped = (TODAY + timedelta(days=ahead)).isoformat()
    gone = going([*week(8), Day(jumped, 101)], jumped)
    assert gone in ([], [name(7)])
    assert going([*week(8), Day(jumped, 101), Day(name(0), 102)], name(0)) == []


def test_files_by_date_retention_keeps_a_day_written_as_1970_by_its_real_age() -> None:
    lost = Day("1970-01-01", 101)
    assert going([*week(8), lost], name(0)) == []
    after = [Day(name(-n), 101 + n) for n in range(1, 9)]
    assert "1970-01-01" in going([*week(8), lost, *after], name(-8))


def test_files_by_date_retention_after_a_year_of_downtime_keeps_the_last_week() -> None:
    woken = name(-365)
    assert going([*week(8), Day(woken, 101)], woken) == [name(7)]


@given(
    st.lists(st.tuples(st.integers(-400, 400), st.integers(1, 10**6)), unique_by=lambda one: one[0]), st.integers(1, 30)
)
def test_files_by_date_retention_never_keeps_fewer_days_than_configured(made: list[tuple[int, int]], keep: int) -> None:
    days = [Day(name(back), last) for back, last in made]
    gone = going(days, name(0), keep)
    assert len(days) - len(gone) >= min(len(days), keep + 1)
    assert all(date.fromisoformat(day) < TODAY - timedelta(days=keep) for day in gone)


def test_files_by_date_day_is_a_utc_day_across_daylight_saving() -> None:
    """At the hour at which clocks are put forward or back in some zone, nothing happens here."""
    before = 1_774_745_999_000  # 2026-03-29T00:59:59Z, a second before Berlin skips an hour
    assert [day_of(before + n * HOUR_MS) for n in (0, 1, 22, 23)] == ["2026-03-29"] * 3 + ["2026-03-29"]
    assert day_of(before + 24 * HOUR_MS) == "2026-03-30"
    assert not is_day("2026-02-30")
    assert not is_day("2026-1-1")


@pytest.mark.parametrize(
    ("zone", "at", "before", "after"),
    [
        ("Asia/Hong_Kong", "2026-11-14T15:59:59Z", ("2026-11-14", 23, False), ("2026-11-15", 0, False)),
        ("America/New_York", "2026-11-15T04:59:59Z", ("2026-11-14", 23, False), ("2026-11-15", 0, False)),
        ("Asia/Kathmandu", "2026-11-14T18:14:59Z", ("2026-11-14", 23, False), ("2026-11-15", 0, False)),
        # Clocks are put forward: there is no hour 2; and back: hour 2 comes twice.
        ("Europe/Berlin", "2026-03-29T00:59:59Z", ("2026-03-29", 1, False), ("2026-03-29", 3, False)),
        ("Europe/Berlin", "2026-10-25T00:59:59Z", ("2026-10-25", 2, False), ("2026-10-25", 2, True)),
        # Clocks are put back at midnight: the day before comes again for an hour.
        ("Atlantic/Azores", "2026-10-25T00:59:59Z", ("2026-10-25", 0, False), ("2026-10-25", 0, True)),
        ("America/Havana", "2026-11-01T04:59:59Z", ("2026-11-01", 0, False), ("2026-11-01", 0, True)),
        # A day that a zone never had.
        ("Pacific/Apia", "2011-12-30T09:59:59Z", ("2011-12-29", 23, False), ("2011-12-31", 0, False)),
    ],
)
def test_files_by_date_day_is_a_day_of_the_zone_across_daylight_saving(
    zone: str, at: str, before: tuple[str, int, bool], after: tuple[str, int, bool]
) -> None:
    now = round(datetime.fromisoformat(at).timestamp() * 1000)
    assert (hour_of(now, ZoneInfo(zone)), hour_of(now + 1000, ZoneInfo(zone))) == (before, after)
    assert day_of(now + 1000, ZoneInfo(zone)) == after[0]


# -- the start ------------------------------------------------------------------------------------------------------

A, B = "2026-11-14/00000007.jsonl", "2026-11-15/00000008.jsonl"


def test_files_by_date_recovery_truncates_writes_without_a_commit() -> None:
    known = Position(A, 100, 5)
    assert plan_recovery([(A, 100)], known) == ((), (), 8)
    assert plan_recovery([(A, 120)], known) == ((Truncation(A, 100),), (), 8)
    assert plan_recovery([(A, 120), (B, 30)], known) == ((Truncation(A, 100), Truncation(B, 0)), (), 9)
    assert plan_recovery([(A, 100), (B, 0)], known) == ((), (), 9)


def test_files_by_date_recovery_reports_committed_bytes_that_are_missing() -> None:
    known = Position(B, 50, 5)
    assert plan_recovery([(A, 100), (B, 49)], known) == ((), (B,), 9)
    assert plan_recovery([(A, 100)], known) == ((), (B,), 9)
    assert plan_recovery([(A, 100), (B, 7)], None) == ((), (), 9)
    assert plan_recovery([], None) == ((), (), 1)


# -- outcomes -------------------------------------------------------------------------------------------------------


def card(state: State, **more: object) -> Message:
    made = Message(1, "q", "m-1", state, 0, 1, 2, 2, 0, 0, 77, "ann", "", 0, True)
    return made._replace(**more)  # type: ignore[arg-type]


FAILED = MessageFailure(Reason.HANDLER_ERROR, "no", 80, 2, "ann")
LATE = MessageFailure(Reason.TIMEOUT, "lapsed", 80, 2, "ann")


@pytest.mark.parametrize(
    ("before", "after", "failure", "told"),
    [
        (State.READY, State.LEASED, None, None),
        (State.LEASED, State.LEASED, None, None),
        (State.DELAYED, State.READY, None, None),
        (State.LEASED, State.READY, None, None),
        (State.DRAFT, State.DROPPED, None, None),
        (State.LEASED, State.DONE, None, (State.DONE, DeliveryResult.DELIVERED, "")),
        (State.LEASED, State.DELAYED, FAILED, (State.DELAYED, DeliveryResult.FAILED, "HANDLER_ERROR")),
        (State.LEASED, State.READY, LATE, (State.READY, DeliveryResult.TIMEOUT, "TIMEOUT")),
        (State.CLAIMED, State.DEAD, LATE, (State.DEAD, DeliveryResult.TIMEOUT, "TIMEOUT")),
        (State.READY, State.DROPPED, None, (State.DROPPED, None, "")),
        (State.LEASED, State.DROPPED, None, (State.DROPPED, None, "")),
        (State.DEAD, State.READY, None, (State.READY, None, "")),
    ],
)
def test_files_by_date_outcome_of_a_change_follows_from_its_states_and_failure(
    before: State, after: State, failure: MessageFailure | None, told: tuple[State, DeliveryResult | None, str] | None
) -> None:
    found = outcome_of(Change(card(before), card(after), failure))
    assert (None if found is None else (found.state, found.delivery, found.reason)) == told
