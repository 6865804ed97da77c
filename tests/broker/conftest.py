"""Queues on every store, with time and chance in the test's hands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import KINDS, Place
from yirangmq.broker.queues import Queues
from yirangmq.testing import CountingIds, ManualClock, open_for_test


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A home for a store; whatever a test did, a look over it finds nothing wrong."""
    place = Place(request.param, tmp_path)
    try:
        yield place
        assert list(place.reopen().check(repair=False)) == []
    finally:
        place.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def queues(place: Place, clock: ManualClock, ids: CountingIds) -> Queues:
    return open_for_test(store=place.open(), clock=clock, ids=ids)
