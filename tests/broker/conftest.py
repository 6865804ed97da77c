"""Queues on every store, and through the socket of a server, with time and chance in the test's hands."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.places import KINDS, Place
from tests.servers import RunningServer
from yirangmq.broker.queues import Queues
from yirangmq.client.open import connect
from yirangmq.testing import CountingIds, ManualClock, open_for_test

SOCKET = "socket"
"""The scenarios know nothing of it: the same verbs, on a store behind a server."""


@pytest.fixture(params=[*KINDS, SOCKET])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(door: str, tmp_path: Path) -> Iterator[Place]:
    """A home for a store; whatever a test did, a look over it finds nothing wrong."""
    place = Place("sqlite" if door == SOCKET else door, tmp_path)
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
def queues(door: str, place: Place, clock: ManualClock, ids: CountingIds, tmp_path: Path) -> Iterator[Queues]:
    if door != SOCKET:
        yield open_for_test(store=place.open(), clock=clock, ids=ids)
        return
    server = RunningServer(place.open(), tmp_path, clock, ids).start()
    try:
        with connect(server.unix, consumer="tester", ids=ids) as client:
            yield cast("Queues", client)
    finally:
        server.stop()
