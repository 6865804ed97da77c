"""Clusters shared by the tests of one module: each test has a queue, or keys, of its own."""

import uuid
from collections.abc import Iterator

import pytest

from tests.support.etcd import EtcdCluster


@pytest.fixture
def etcds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members, of this test alone: it may kill them."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd") / "three", 3) as cluster:
        yield cluster


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:10]}"
