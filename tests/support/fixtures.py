"""Fixtures of several folders; the ``conftest.py`` of each takes those it has a use for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Client, Server
from tests.support.stores import KINDS, Place, checked_place


@pytest.fixture
def server() -> Server:
    """Without sockets: its sessions are fed with bytes."""
    return Server()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """For a store of every kind, checked after the test."""
    with checked_place(str(request.param), tmp_path) as place:
        yield place
