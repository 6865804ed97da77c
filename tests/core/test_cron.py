"""Cron lines: what is one, when it fires next, and what happens where clocks change."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from yirangmq.core.cron import Cron, fires, next_fire, read_cron
from yirangmq.core.errors import BadInput

BERLIN = ZoneInfo("Europe/Berlin")  # +1, in summer +2; changes at 01:00 UTC
HOWE = ZoneInfo("Australia/Lord_Howe")  # changes by half an hour
APIA = ZoneInfo("Pacific/Apia")  # had no 30 December 2011


def ms(text: str, zone: tzinfo = UTC) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def shown(instant: int, zone: tzinfo = UTC) -> str:
    return datetime.fromtimestamp(instant / 1000, zone).isoformat(timespec="minutes")


def days(line: str, since: str, until: str, zone: tzinfo = UTC) -> list[str]:
    return [shown(one, zone) for one in fires(read_cron(line), ms(since, zone), ms(until, zone), zone)]


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * *", "five fields"),
        (None, "five fields"),
        (5, "five fields"),
        ("@daily", "five fields"),
        ("60 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("a * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("1, * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("*/60 * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("5/15 * * * *", "minute"),
        ("1" * 5000 + " * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * 32 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * mon *", "month"),
        ("* * * * 8", "day of week"),
        ("* * * * jan", "day of week"),
        ("* * * * fri-mon", "day of week"),
        ("0 0 30 2 *", "never occurs"),
        ("0 0 31 2,4,6 *", "never occurs"),
    ],
)
def test_cron_line_that_is_invalid_is_refused_with_its_field(line: object, field: str) -> None:
    with pytest.raises(BadInput, match=field):
        read_cron(line)


def test_cron_line_accepts_lists_ranges_steps_and_names() -> None:
    cron = read_cron("0,30-32,*/20 9-17/4 1,15 JAN,mar-May sun,5-7")
    assert cron.minutes == (0, 20, 30, 31, 32, 40)
    assert cron.hours == (9, 13, 17)
    assert cron.days == {1, 15}
    assert cron.months == {1, 3, 4, 5}
    assert cron.weekdays == {0, 5, 6}
    assert read_cron("* * * * sat-sun").weekdays == {6, 0}


# -- ordinary days ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        ("* * * * *", "2026-01-13T09:21:00", "2026-01-13T09:22+00:00"),
        ("* * * * *", "2026-01-13T09:21:59.999", "2026-01-13T09:22+00:00"),
        ("*/5 * * * *", "2026-01-13T09:21:00", "2026-01-13T09:25+00:00"),
        ("*/5 * * * *", "2026-01-13T23:55:00", "2026-01-14T00:00+00:00"),
        ("30 2 * * *", "2026-01-13T02:30:00", "2026-01-14T02:30+00:00"),
        ("30 2 * * *", "2026-01-13T02:29:59", "2026-01-13T02:30+00:00"),
        ("0 0 1 1 *", "2026-01-13T00:00:00", "2027-01-01T00:00+00:00"),
        ("0 12 29 2 *", "2026-03-01T00:00:00", "2028-02-29T12:00+00:00"),
        ("0 12 29 2 *", "2096-03-01T00:00:00", "2104-02-29T12:00+00:00"),
        ("0 9 * * mon-fri", "2026-01-16T09:00:00", "2026-01-19T09:00+00:00"),
        ("0 0 31 * *", "2026-01-31T00:00:00", "2026-03-31T00:00+00:00"),
        ("0 0 13 * fri", "2026-01-13T00:00:00", "2026-01-16T00:00+00:00"),  # either day
        ("0 0 */2 * fri", "2026-01-13T00:00:00", "2026-01-23T00:00+00:00"),  # a star is no restriction: both
        ("0 0 30 2 fri", "2026-01-13T00:00:00", "2026-02-06T00:00+00:00"),
    ],
)
def test_cron_next_fire_time_is_the_first_match_after_the_given_time(line: str, after: str, expected: str) -> None:
    assert shown(next_fire(read_cron(line), ms(after), UTC)) == expected


def test_cron_hours_are_those_of_the_time_zone() -> None:
    assert shown(next_fire(read_cron("30 2 * * *"), ms("2026-01-13T00:00"), BERLIN)) == "2026-01-13T01:30+00:00"
    assert shown(next_fire(read_cron("30 2 * * *"), ms("2026-07-13T00:00"), BERLIN)) == "2026-07-13T00:30+00:00"


# -- where clocks change ----------------------------------------------------------------------------------------------


def test_cron_time_skipped_by_daylight_saving_fires_later_by_the_clock_jump() -> None:
    assert days("30 2 * * *", "2026-03-28T12:00", "2026-03-30T12:00", BERLIN) == [
        "2026-03-29T03:30+02:00",
        "2026-03-30T02:30+02:00",
    ]
    assert days("15 2 * * *", "2026-10-03T12:00", "2026-10-04T12:00", HOWE) == ["2026-10-04T02:45+11:00"]


def test_cron_time_skipped_onto_another_fire_time_fires_once() -> None:
    assert days("30 2,3 * * *", "2026-03-29T00:00", "2026-03-29T12:00", BERLIN) == ["2026-03-29T03:30+02:00"]
    assert days("*/30 * * * *", "2026-03-29T01:00", "2026-03-29T04:00", BERLIN) == [
        *("2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00"),
        *("2026-03-29T03:30+02:00", "2026-03-29T04:00+02:00"),
    ]


def test_cron_time_that_occurs_twice_fires_the_first_time() -> None:
    assert days("30 2 * * *", "2026-10-24T12:00", "2026-10-26T12:00", BERLIN) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]


def test_cron_line_for_every_hour_fires_in_the_repeated_hour_too() -> None:
    assert days("*/30 * * * *", "2026-10-25T01:45", "2026-10-25T03:00", BERLIN) == [
        *("2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00"),
        *("2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00", "2026-10-25T03:00+01:00"),
    ]


def test_cron_day_skipped_by_a_zone_change_omits_no_other_day() -> None:
    assert days("0 12 * * *", "2011-12-29T00:00", "2012-01-01T00:00", APIA) == [
        *("2011-12-29T12:00-10:00", "2011-12-31T12:00+14:00"),
    ]


# -- against a slow and simple reading --------------------------------------------------------------------------------


def slowly(cron: Cron, after: int, zone: tzinfo) -> int:
    """Minute by minute. In a change of clocks it counts what the page says."""
    moment = datetime.fromtimestamp(after / 1000, UTC).replace(second=0, microsecond=0)
    while True:
        moment += timedelta(minutes=1)
        local = moment.astimezone(zone)
        if not any(cron.matches_day((local + timedelta(hours=hours)).date()) for hours in (-4, 0, 2)):
            moment += timedelta(minutes=59)
            continue
        if _matches(cron, local) and (local.fold == 0 or cron.is_hourly):
            return round(moment.timestamp() * 1000)
        jumped = local.replace(tzinfo=None) - (moment - timedelta(hours=3)).astimezone(zone).replace(tzinfo=None)
        gap = jumped - timedelta(hours=3)
        if gap > timedelta(0):  # the clocks jumped not long ago: was this the time of one that was skipped?
            wished = (local.replace(tzinfo=None) - gap).replace(tzinfo=zone)
            if wished.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wished.replace(tzinfo=None) and _matches(
                cron, wished
            ):
                return round(moment.timestamp() * 1000)


def _matches(cron: Cron, local: datetime) -> bool:
    return cron.matches_day(local.date()) and local.hour in cron.hours and local.minute in cron.minutes


LINES = st.builds(
    lambda minute, hour, day, weekday: f"{minute} {hour} {day} * {weekday}",
    st.sampled_from(["*", "0", "15", "30", "*/20", "5,35", "10-50/20"]),
    st.sampled_from(["*", "0", "1", "2", "3", "1-3", "2,23", "*/6"]),
    st.sampled_from(["*", "*/2", "25-29"]),
    st.sampled_from(["*", "sun", "sat,sun", "*/3"]),
)
AROUND = st.sampled_from(["2026-03-28T18:00", "2026-10-24T18:00", "2026-04-04T10:00", "2026-10-03T10:00"])


@settings(deadline=None, max_examples=150)
@given(LINES, AROUND, st.integers(0, 2 * 1440), st.sampled_from([UTC, BERLIN, HOWE]))
@example("30 2 * * *", "2026-03-28T18:00", 400, BERLIN)
@example("* 2 * * *", "2026-03-28T18:00", 420, BERLIN)
def test_cron_next_fire_time_equals_a_search_minute_by_minute(
    line: str, around: str, minutes: int, zone: tzinfo
) -> None:
    cron = read_cron(line)
    after = ms(around) + minutes * 60_000 + 1_234
    assert shown(next_fire(cron, after, zone)) == shown(slowly(cron, after, zone))
