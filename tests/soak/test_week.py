"""A week of a gateway in compressed time, with few messages; ``make soak-week`` has all three millions."""

from pathlib import Path

import pytest

from benchmarks.soak.week import DAYS, RUSH, share, soak
from tests.support.lossy_link import cable

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
MESSAGES = 4200


def test_week_soak_sends_four_tenths_of_a_weekday_between_ten_and_two() -> None:
    assert sum(share(0, hour) for hour in range(24)) == pytest.approx(1)
    assert sum(share(5, hour) for hour in range(24)) == pytest.approx(1)
    assert sum(share(4, hour) for hour in RUSH) == pytest.approx(0.4)
    assert sum(share(6, hour) for hour in RUSH) == pytest.approx(4 / 24)


def test_week_soak_loses_no_message_and_removes_its_first_day(tmp_path: Path) -> None:
    with cable() as wire:
        told = soak(tmp_path, MESSAGES, wire)
    assert (told.lost, told.changed, told.wrong) == (0, 0, 0)
    assert told.messages > MESSAGES * 0.9
    for days in told.days.values():
        assert len([day for day in days if day[0].isdigit()]) == DAYS + 1
