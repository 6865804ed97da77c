"""Exponential backoff: growth, limit, jitter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.backoff import Backoff


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(first=1, limit=60)
    assert [backoff.delay(failures) for failures in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_backoff_with_factor_one_is_constant() -> None:
    assert {Backoff(first=0.2, limit=5, factor=1).delay(failures) for failures in range(1, 9)} == {0.2}


def test_backoff_after_very_many_failures_is_its_limit() -> None:
    assert Backoff(first=0.001, limit=300.0).delay(10**9) == 300.0


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 0.5), (0.25, 0.75), (0.5, 1.0), (1.0, 1.5)])
def test_backoff_jitter_spreads_a_delay_to_both_sides(chance: float, delay: float) -> None:
    assert Backoff(first=1.0, limit=2.0, jitter=0.5).delay(1, chance) == delay


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_backoff_is_never_negative_nor_over_its_limit_and_jitter(failures: int, jitter: float, chance: float) -> None:
    assert 0 <= Backoff(first=0.1, limit=7.0, jitter=jitter).delay(failures, chance) <= 7.0 * (1 + jitter)
