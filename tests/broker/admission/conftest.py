"""Queues with a processor on every store, in the test's hands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.admission.hooks import MODULE
from tests.support.stores import KINDS, Place
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.queues import Queues
from yirangmq.core.policy import Defaults
from yirangmq.testing import CountingIds, ManualClock


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(str(request.param), tmp_path)
    try:
        yield place
    finally:
        place.close()


@pytest.fixture
def queues(place: Place, clock: ManualClock) -> Iterator[Queues]:
    ids = CountingIds()
    with Queues(
        place.open(), clock, ids, "tester", context=TransactionContext(clock, ids, Defaults(hooks=(MODULE,)))
    ) as queues:
        yield queues
