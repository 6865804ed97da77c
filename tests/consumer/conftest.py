"""Queues in memory, with the broker's time in the test's hands; the consumer's own pulse is real, and quick."""

from collections.abc import Iterator

import pytest

from yirangmq.broker.queues import Queues
from yirangmq.testing import ManualClock, open_for_test


@pytest.fixture
def queues(clock: ManualClock) -> Iterator[Queues]:
    with open_for_test(clock=clock) as queues:
        yield queues
