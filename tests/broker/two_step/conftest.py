"""Orders on every store, with time in the test's hands."""

import pytest

from tests.broker.two_step.counter import Counter
from tests.support.fixtures import place
from tests.support.stores import Place
from yirangmq.core.policy import Defaults
from yirangmq.testing import ManualClock

__all__ = ["counter", "defaults", "place"]


@pytest.fixture
def defaults() -> Defaults:
    return Defaults()


@pytest.fixture
def counter(place: Place, defaults: Defaults) -> Counter:
    return Counter(place.open(), ManualClock(), defaults)
