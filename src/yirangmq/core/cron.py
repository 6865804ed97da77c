"""Cron schedules: parsing a line, and computing its next firing time in a time zone.

Five fields: minute, hour, day of month, month, day of week; with lists, ranges, steps, and names of months and days.
If both days are restricted, either may match, as in every cron.

When clocks change: a time of day that is skipped fires later by the size of the jump (02:30 at 03:30). A time of day
that comes twice fires the first time only, unless the line names all 24 hours: then every hour fires. Pure."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from yirangmq.core.errors import BadInput

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MAX_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MAX_DAYS_AHEAD = 9 * 366
"""Days that the search looks ahead: February 29 may be eight years away, and no other date is further."""
DAY = timedelta(days=1)
SKIPPED_FOR = 86_400
"""Seconds after a clock change within which a skipped time may still have to fire."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int
    most: int
    words: tuple[str, ...] = ()


FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, MONTHS),
    _Field("day of week", 0, 7, WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """Parsed cron line. ``matches_either_day``: day of month or day of week must match, not both."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    matches_either_day: bool

    @property
    def is_hourly(self) -> bool:
        return len(self.hours) == 24

    def matches_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_weekday if self.matches_either_day else by_date and by_weekday


# -- parser -----------------------------------------------------------------------------------------------------------


def read_cron(text: object) -> Cron:
    """Parse a cron line. ``BadInput`` names the field that is wrong, or says that no such date exists."""
    parts = text.split() if isinstance(text, str) else []
    if not isinstance(text, str) or len(parts) != len(FIELDS):
        names = ", ".join(field.name for field in FIELDS)
        raise BadInput(f"must have five fields ({names}), such as '*/5 * * * *', not {text!r}")
    minutes, hours, days, months, weekdays = (
        _read_field(part, field) for part, field in zip(parts, FIELDS, strict=True)
    )
    matches_either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not matches_either_day and not any(min(days) <= MAX_DAYS_OF_MONTH[month - 1] for month in months):
        raise BadInput(f"{text!r} never occurs: no such month has that day")
    return Cron(
        text,
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        matches_either_day,
    )


def _read_field(text: str, field: _Field) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not 0 < _digits(step) <= field.most:
            raise BadInput(f"{field.name}: {part!r} has an invalid step")
        if span == "*":
            low, high = field.least, field.most
        else:
            first, dash, last = span.partition("-")
            if slash and not dash:
                raise BadInput(f"{field.name}: a step needs '*' or a range, not {part!r}")
            low = _number(first, field)
            high = _number(last, field) if dash else low
            if dash and not high and field.words is WEEKDAYS:
                high = 7  # Sunday is both 0 and 7
        if low > high:
            raise BadInput(f"{field.name}: {part!r} runs backwards")
        found.update(range(low, high + 1, int(step) if slash else 1))
    return found


def _number(text: str, field: _Field) -> int:
    if text.lower() in field.words:
        return field.words.index(text.lower()) + field.least
    number = _digits(text)
    if not field.least <= number <= field.most:
        raise BadInput(f"{field.name}: {text!r} is not from {field.least} to {field.most}")
    return number


def _digits(text: str) -> int:
    """Return the number; -1 if the text is not a number of at most three digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 3 else -1


# -- the next time ----------------------------------------------------------------------------------------------------


def next_fire(cron: Cron, after_ms: int, zone: tzinfo) -> int:
    """Return the first instant after ``after_ms`` at which the line fires, in milliseconds."""
    now = datetime.fromtimestamp(after_ms / 1000, zone)
    candidate = _next_local_time(cron, now.replace(tzinfo=None))
    instant = candidate.replace(tzinfo=zone)
    before = datetime.fromtimestamp(after_ms / 1000 - SKIPPED_FOR, zone)
    if before.utcoffset() == now.utcoffset() == instant.utcoffset() and _exists(instant):
        return _ms(instant)
    return _next_around_clock_change(cron, after_ms, now.date(), zone)


def fires(cron: Cron, since_ms: int, until_ms: int, zone: tzinfo) -> list[int]:
    """Return every firing time after ``since_ms``, up to and including ``until_ms``."""
    found: list[int] = []
    instant = next_fire(cron, since_ms, zone)
    while instant <= until_ms:
        found.append(instant)
        instant = next_fire(cron, instant, zone)
    return found


def _next_local_time(cron: Cron, now: datetime) -> datetime:
    """Return the next local minute that matches, ignoring clock changes."""
    day, hour, minute = now.date(), now.hour, now.minute + 1
    for _ in range(MAX_DAYS_AHEAD):
        if cron.matches_day(day):
            for at in cron.hours[bisect_left(cron.hours, hour) :]:
                place = bisect_left(cron.minutes, minute) if at == hour else 0
                if place < len(cron.minutes):
                    return datetime(day.year, day.month, day.day, at, cron.minutes[place])  # noqa: DTZ001
        day, hour, minute = day + DAY, 0, 0
    raise BadInput(f"{cron.text!r} never occurs")


def _next_around_clock_change(cron: Cron, after_ms: int, day: date, zone: tzinfo) -> int:
    """Return the next firing time if the clocks change before it: compute all instants of a day and order them."""
    day -= DAY
    for _ in range(MAX_DAYS_AHEAD):
        if cron.matches_day(day):
            later = [instant for instant in _instants(cron, day, zone) if instant > after_ms]
            if later:
                return min(later)
        day += DAY
    raise BadInput(f"{cron.text!r} never occurs")


def _instants(cron: Cron, day: date, zone: tzinfo) -> Iterator[int]:
    for hour in cron.hours:
        for minute in cron.minutes:
            first = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
            yield _ms(first)  # a skipped time is later by the size of the jump
            if cron.is_hourly and _exists(first):
                yield _ms(first.replace(fold=1))


def _exists(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) == local.replace(tzinfo=None)


def _ms(local: datetime) -> int:
    return round(local.timestamp() * 1000)
