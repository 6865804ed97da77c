"""Orders on every store, with time in the test's hands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.two_step.counter import Counter
from tests.support.stores import KINDS, Place, checked_place
from yirangmq.core.policy import Defaults
from yirangmq.testing import ManualClock


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with checked_place(str(request.param), tmp_path) as place:
        yield place


@pytest.fixture
def defaults() -> Defaults:
    return Defaults()


@pytest.fixture
def counter(place: Place, defaults: Defaults) -> Counter:
    return Counter(place.open(), ManualClock(), defaults)
