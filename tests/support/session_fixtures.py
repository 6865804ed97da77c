"""A server without sockets and a client of it, for the ``conftest.py`` of a folder whose tests have one."""

import pytest

from tests.support.session import Client, Server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()
