"""Orders on every store, with time in the test's hands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orders.desk import Counter
from tests.support.stores import KINDS, Place
from yirangmq.core.inherited import Defaults
from yirangmq.testing import ManualClock


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A home for a store; whatever a test did, a look over it finds nothing wrong."""
    place = Place(str(request.param), tmp_path)
    try:
        yield place
        assert list(place.reopen().check(repair=False)) == []
    finally:
        place.close()


@pytest.fixture
def defaults() -> Defaults:
    return Defaults()


@pytest.fixture
def counter(place: Place, defaults: Defaults) -> Counter:
    return Counter(place.open(), ManualClock(), defaults)
