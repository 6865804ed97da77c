"""One suite for every store: a new store is a parameter here, not a new test file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import EtcdCluster
from tests.support.store_contract import recount
from tests.support.stores import ALL_KINDS, Place
from yirangmq.core.ports import Store


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One member for all tests; each has a store of its own in it."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd") / "one") as cluster:
        yield cluster.endpoints[0]


@pytest.fixture(params=[*ALL_KINDS, pytest.param("etcd", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A home for a store, and after each test the promise that holds after everything: counters equal a recount."""
    place = Place(request.param, tmp_path, request.getfixturevalue("etcd") if request.param == "etcd" else "")
    try:
        yield place
        store = place.reopen()
        assert list(store.check(repair=False)) == []
        with store.transaction(write=False) as transaction:
            for queue in transaction.queues():
                assert transaction.counts(queue) == recount(transaction, queue)
    finally:
        place.close()


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()
