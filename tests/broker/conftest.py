"""Queues on every store, and through the doors of a server, with time and chance in the test's hands."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.support.http_queues import WebQueues
from tests.support.http_server import HttpServer
from tests.support.server import RunningServer
from tests.support.stores import KINDS, Place, checked_place
from yirangmq.broker.queues import Queues
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.core.ports import Store
from yirangmq.testing import CountingIds, ManualClock, open_for_test

SOCKET, HTTP = DOORS = ("socket", "http")
"""The scenarios know nothing of them: the same verbs, on a store behind a server."""


@pytest.fixture(params=[*KINDS, *DOORS])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(door: str, tmp_path: Path) -> Iterator[Place]:
    with checked_place("served" if door in DOORS else door, tmp_path) as place:
        yield place


@pytest.fixture
def ids() -> CountingIds:
    return CountingIds()


@pytest.fixture
def queues(door: str, place: Place, clock: ManualClock, ids: CountingIds, tmp_path: Path) -> Iterator[Queues]:
    if door not in DOORS:
        yield open_for_test(store=place.open(), clock=clock, ids=ids)
        return
    make = through_socket if door == SOCKET else through_http
    with make(place.open(), tmp_path, clock, ids) as client:
        yield cast("Queues", client)


@contextmanager
def through_socket(store: Store, folder: Path, clock: ManualClock, ids: CountingIds) -> Iterator[Client]:
    server = RunningServer(store, folder, clock, ids).start()
    try:
        with connect(server.unix, consumer="tester", ids=ids) as client:
            yield client
    finally:
        server.stop()


@contextmanager
def through_http(store: Store, folder: Path, clock: ManualClock, ids: CountingIds) -> Iterator[WebQueues]:
    server = HttpServer(store, clock, ids).start()
    try:
        with WebQueues(server.port) as client:
            yield client
    finally:
        server.stop()
